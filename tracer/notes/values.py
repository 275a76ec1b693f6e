"""The arguments and the result of each call that a graph with ``values`` has recorded, whatever its rule needs of them.

They hang on the call's node and go with it. They are plain aliases with torch's version counters, apart from what the node saved for
backward: one that is overwritten spoils no backward pass, and is refused when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ops_registry.rule import Rule
from ops_registry.torch_private import TensorBase
from tracer.errors import OverwrittenError
from tracer.node import tensors_in

#: ``detach`` of torch's own.
_alias = TensorBase.detach

#: The version of a tensor whose writes torch does not count.
_NOT_COUNTED = -1


class Values(Mapping[str, Any]):
    """What one call was given, by the names of its rule's arguments, and what it returned, as ``"result"``.

    Asking for one that has been written to in place since raises ``OverwrittenError``.
    """

    __slots__ = ("bound", "result", "rule", "versions")

    def __init__(self, rule: Rule, bound: tuple[Any, ...]) -> None:
        self.rule = rule
        self.versions: list[tuple[torch.Tensor, int]] = []
        #: The arguments in the order of the rule's signature.
        self.bound = tuple(self._kept(bound))
        self.result: Any = None

    def keep_result(self, result: Any) -> None:
        """What the call returned."""
        (self.result,) = self._kept((result,))

    def _kept(self, values: Iterable[Any]) -> list[Any]:
        kept: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                alias = _alias(value)
                try:
                    version = value._version
                except RuntimeError:  # made in inference mode
                    version = _NOT_COUNTED
                self.versions.append((alias, version))
                kept.append(alias)
            elif type(value) is list:
                kept.append(self._kept(value))
            elif isinstance(value, tuple) and type(value) is not torch.Size:  # of a call with several named results too
                kept.append(tuple(self._kept(value)))
            else:
                kept.append(value)
        return kept

    def __getitem__(self, name: str) -> Any:
        names = self.rule.signature.names
        if name == "result":
            value = self.result
        elif name in names:
            value = self.bound[names.index(name)]
        else:
            raise KeyError(name)
        for tensor in tensors_in(value):
            self._check(tensor, name)
        return value

    def _check(self, tensor: torch.Tensor, name: str) -> None:
        version = next((v for kept, v in self.versions if kept is tensor), _NOT_COUNTED)
        what = f"{self.rule.name} was recorded with '{name}', a {tensor.dtype} tensor of shape {tuple(tensor.shape)},"
        if version == _NOT_COUNTED:
            raise OverwrittenError(
                f"{what} made in inference mode: torch counts no writes to it, and nobody knows whether it is what it was. Make it under "
                f"torch.no_grad() instead."
            )
        if tensor._version != version:
            raise OverwrittenError(
                f"{what} at version {version}; it was since overwritten in place and is at version {tensor._version}. Write out of place, "
                f"or into a clone."
            )

    def __iter__(self) -> Iterator[str]:
        return iter((*self.rule.signature.names, "result"))

    def __len__(self) -> int:
        return len(self.bound) + 1

    def __repr__(self) -> str:
        return f"<the values of {self.rule.name}: {', '.join(self)}>"
