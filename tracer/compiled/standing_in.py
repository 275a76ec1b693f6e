"""Other values stand in for tensors for a time, wherever anybody holds these: in modules, lists, closures, optimisers.

The tensor objects stay what they are, with their hooks and their identity; only what they hold is exchanged. So nobody has to be found who
holds one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase, storage_key, swap_values
from tracer.errors import UnsupportedError
from tracer.node import Extras, Leaf, Node
from tracer.tracked_tensor import Tensor, become_tracked, mark_as_parameter

_GRAD: Any = torch.Tensor.grad
_REQUIRES_GRAD: Any = TensorBase.requires_grad


class LengthFirst(tuple[int, ...]):
    """A shape that asks for the number of dimensions before it asks for sizes: each answer about a symbolic size is a condition."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and len(self) == len(other) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


class Original:
    """What a tensor was, and how it is to be again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.kind = type(tensor)
        self.attributes = dict(tensor.__dict__)
        #: Of a leaf of torch's own autograd: its hooks, which hang on what is exchanged.
        self.native = self.kind is not Tensor and bool(_REQUIRES_GRAD.__get__(tensor))
        self.hooks = tensor._backward_hooks if self.native else None
        self.accumulate_hooks = tensor._post_accumulate_grad_hooks if self.native else None
        self.node: Node | None = None
        self.required_grad = False
        self.place: tuple[Any, ...] = ()
        self.kind_of_node: tuple[Any, Any] = (None, None)
        #: The tables of its hooks as a tracked leaf, and what they held.
        self.tables: list[tuple[Any, dict[int, Any]]] = []
        self.extras: Extras | None = None

    def make_leaf(self) -> None:
        """Called when the other values are there: a leaf of either kind is a tracked leaf then, of their shape."""
        tensor = self.tensor
        self.place = _place(tensor)
        if self.native:
            leaf = become_tracked(tensor, Leaf(tensor, tensor.shape, tensor.dtype))
            if issubclass(self.kind, torch.nn.Parameter):
                mark_as_parameter(leaf)
            if self.hooks or self.accumulate_hooks:
                extras = tensor._node.extra()  # type: ignore[attr-defined]
                extras.hooks = extras.hooks if self.hooks is None else self.hooks
                extras.accumulate_hooks = self.accumulate_hooks
        self.node = tensor._node if type(tensor) is Tensor else None
        self.required_grad = self.node is not None
        if self.node is not None:
            self.kind_of_node = self.node.shape, self.node.dtype
            self.node.shape = LengthFirst(tensor.shape)  # type: ignore[assignment]
            self.extras = self.node.extras
            self.tables = [(table, dict(table)) for table in _tables_of_hooks(self.node)]

    def restore(self) -> None:
        """Called when its own values are there again."""
        if self.node is not None:
            self.node.shape, self.node.dtype = self.kind_of_node
            self.node.extras = self.extras
            for table, held in self.tables:
                table.clear()
                table.update(held)
        self.tensor.__class__ = self.kind
        self.tensor.__dict__.clear()
        self.tensor.__dict__.update(self.attributes)

    @property
    def is_another(self) -> bool:
        """Whether the step has put it into other memory, or given it another shape."""
        return _place(self.tensor) != self.place

    @property
    def has_new_history(self) -> bool:
        """Whether the step has left it with a history that it did not have."""
        node = self.tensor._node if type(self.tensor) is Tensor else None
        return node is not self.node and not (node is None or isinstance(node, Leaf))

    @property
    def has_other_hooks(self) -> bool:
        """Whether the step has left it with other hooks than it had."""
        if self.node is None:
            return False
        hooks = [hook for table in _tables_of_hooks(self.node) for hook in table.values()]
        return hooks != [hook for _, held in self.tables for hook in held.values()]

    @property
    def requires_grad(self) -> bool:
        """Whether the step has left it requiring grad."""
        if type(self.tensor) is Tensor:
            return self.tensor._node is not None
        return bool(_REQUIRES_GRAD.__get__(self.tensor))

    @property
    def grad(self) -> torch.Tensor | None:
        """Its ``.grad`` of the time being."""
        grad: torch.Tensor | None = _GRAD.__get__(self.tensor)
        return grad


@contextmanager
def standing_in(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Iterator[list[Original]]:
    """Inside the block each of ``tensors`` holds the values of one of ``others``, and that one holds its values.

    Leaves that require grad are tracked leaves meanwhile, with the hooks they have and without ``.grad``.
    """
    originals: list[Original] = []
    try:
        with DisableTorchFunctionSubclass():
            for tensor, other in zip(tensors, others, strict=True):
                original = Original(tensor)
                _swap(tensor, other)
                originals.append(original)
                original.make_leaf()
        yield originals
    finally:
        with DisableTorchFunctionSubclass():
            for original, other in zip(originals, others, strict=False):
                swap_values(original.tensor, other)
                original.restore()


def _tables_of_hooks(node: Node) -> list[Any]:
    extras = node.extras
    return [] if extras is None else [table for table in (extras.hooks, extras.accumulate_hooks) if table is not None]


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return storage_key(tensor), tensor.shape, tensor.stride(), tensor.dtype


def _swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    try:
        swap_values(tensor, other)
    except RuntimeError as error:
        raise UnsupportedError(
            f"a tensor of shape {tuple(tensor.shape)} takes part in a step that is to be captured, and C++ code holds a weak reference to "
            f"it, so that nothing can stand in for it. Give the step a copy of it (x.detach().clone())."
        ) from error
