"""``ctx``: what the ``forward`` of a custom Function hands on to its ``backward``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from ops_registry.torch_private import DisableTorchFunctionSubclass, saved_tensors_hooks
from tracer.errors import FreedGraphError, FunctionError, OverwrittenError
from tracer.node import Node
from tracer.recording.grad_fn import as_grad_fn
from tracer.recording.levels import levels, physical, translated
from tracer.recording.saved import inference_error
from tracer.recording.saved_hooks import Packed
from tracer.tracked_tensor import Tensor, plain_alias, tracked_alias


class Owner(Protocol):
    """The node of a call that saves tensors in this way: a custom Function's."""

    saved: tuple[Any, ...] | None

    @property
    def title(self) -> str:
        """How errors name the call."""

    def name(self) -> str:
        """As torch's ``grad_fn.name()``."""

    def of_result(self, index: int, result: torch.Tensor) -> Node:
        """The node of one of the results."""

    def refuse(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """An alias of an unrecorded value, which raises when a gradient comes to it."""


class SavedTensor:
    """A tensor that a Function saved, with its way back into the graph.

    ``position`` is its place among the results for an output, None for others. An input that is still alive comes back as the very
    object, as in torch: it is known by a weak reference, so that no cycle arises. An output comes back as an alias with its history. What
    is neither, and depends on an input, is ``unrecorded``: to a recorded backward it comes back as an alias that no gradient passes.
    """

    __slots__ = ("alias", "name", "node", "original", "packed", "position", "unrecorded", "version")

    def __init__(
        self, tensor: torch.Tensor, name: str, *, node: Node | None, position: int | None, unrecorded: bool, keep: bool
    ) -> None:
        self.name = name
        self.node = node
        self.position = position
        self.unrecorded = unrecorded
        with DisableTorchFunctionSubclass():
            seen = physical(tensor)
            try:
                self.version = seen._version
            except RuntimeError:
                raise inference_error(f"a Function or checkpoint ({name})", seen) from None
            self.alias: Any = plain_alias(tensor)
        # What is neither input nor output belongs to nobody else: it is held itself.
        self.original: Any = tensor if keep else None if position is not None else weakref.ref(tensor)
        hooks = saved_tensors_hooks(False)
        self.packed = None if hooks is None else Packed(self.alias, hooks)
        if hooks is not None:
            self.alias = self.original = None

    def get(self, owner: Any) -> torch.Tensor:
        """The tensor, for the ``backward`` of ``owner``.

        Raises ``OverwrittenError`` where it has been written in place since.
        """
        plain = self.alias if self.packed is None else self.packed.unpack()
        if self.packed is None:
            version = physical(plain)._version
            if version != self.version:
                raise OverwrittenError(
                    f"{owner.title} saved {self.name}, a {plain.dtype} tensor of shape {tuple(plain.shape)}, at version {self.version}; "
                    f"it was since overwritten in place and is at version {version}. Write out of place, or save a clone."
                )
            original = self.original() if isinstance(self.original, weakref.ref) else self.original
            unchanged = self.node is None or type(original) is not Tensor or original._node is self.node
            again = translated(owner, plain) if levels.open else plain
            if (
                original is not None
                and unchanged
                and again is plain
                and not (self.unrecorded and torch.is_grad_enabled())
            ):
                return original
            plain = again
        if self.unrecorded and torch.is_grad_enabled():
            return owner.refuse(plain, self.name)
        node = self.node
        if self.position is not None:
            node = owner.of_result(self.position, plain)
        return plain if node is None else tracked_alias(plain, node)


class FunctionContext(FunctionCtx):
    """The ``ctx`` of one call of a custom Function on tracked tensors; attributes that the user sets live in it.

    ``save_for_backward``, ``mark_dirty``, ``mark_non_differentiable`` and ``set_materialize_grads`` are torch's own.
    """

    materialize_grads = True

    def __init__(self, needs_input_grad: tuple[bool, ...], is_tensor: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._is_tensor = is_tensor
        self._owner: Callable[[], Owner | None] = lambda: None
        #: Attributes that hold an output (which would be a cycle) or an unrecorded value, moved out of the instance's dictionary.
        self._moved: dict[str, SavedTensor] = {}

    def _node(self) -> Owner:
        node = self._owner()
        if node is None:
            raise FunctionError("ctx was asked for what exists only once forward has returned")
        return node

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """What ``save_for_backward`` was given. Raises ``FreedGraphError`` once a backward pass has released it."""
        node = self._node()
        if node.saved is None:
            raise FreedGraphError(
                f"{node.title} was asked for its saved tensors a second time: the first backward pass has released them. Pass "
                f"retain_graph=True to the first."
            )
        return tuple([None if entry is None else entry.get(node) for entry in node.saved])

    def __getattr__(self, name: str) -> Any:
        moved = self.__dict__.get("_moved", {}).get(name)
        if moved is None:
            raise AttributeError(f"ctx has no attribute '{name}'")
        return moved.get(self._node())

    def name(self) -> str:
        """As torch's ``ctx.name()``."""
        return self._node().name()

    @property
    def next_functions(self) -> Any:
        """As torch's ``ctx.next_functions``."""
        return as_grad_fn(self._node()).next_functions  # type: ignore[arg-type, attr-defined]
