"""``Tensor.grad_fn``: a node as torch's users, functions and drawing tools know one.

A node becomes one of a class of its own op, with torch's name (``MulBackward0``), when it is first asked for. Until then it has nothing of
this, so that recording pays nothing for it; from then on a sweep visits it in the general lane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import FreedGraphError, SavedTensorHookError
from tracer.node import Bridge, CallNode, Leaf, Node, Output
from tracer.recording.saved import attached, saved_values
from tracer.recording.saved_hooks import Packed, pack
from tracer.tracked_tensor import Tensor

#: Sequence numbers tell the order of calls; torch gives leaves the highest.
_OF_LEAVES = 2**64 - 1

#: Our names of saved values that torch has others for.
_TORCH_NAMES = {"input": "self"}


class InputMetadata(NamedTuple):
    """What the gradient of one result has to be like; None where nobody knows any more."""

    shape: torch.Size | None
    dtype: torch.dtype | None
    device: torch.device | None
    is_nested_tensor: bool = False
    is_cpp_nested_tensor: bool = False


class GradFn(Node):
    """What ``grad_fn`` has beyond a ``Node``, under torch's names."""

    __slots__ = ()

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes that backward goes to next, each with the number of the result it stands for; ``(None, 0)`` where it goes nowhere."""
        edges: list[tuple[Any, int]] = []
        for place in self.gradient_places:
            if place is None:
                edges.append((None, 0))
                continue
            position, within = place
            edges.append(edge_of(self.parents[position] if within is None else self.parents[position][within]))
        return tuple(edges)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary for the user's own notes."""
        extras = self.extra()
        if extras.metadata is None:
            extras.metadata = {}
        return extras.metadata

    def _sequence_nr(self) -> int:
        return _OF_LEAVES if isinstance(self, Leaf) else self.serial

    @property
    def _input_metadata(self) -> tuple[InputMetadata, ...]:
        device = device_of(self)
        count = 1 if self.outputs is None else len(self.outputs)
        results = [self.at(index) for index in range(count)]
        return tuple(
            [
                InputMetadata(None, None, device) if r is None else InputMetadata(r.shape, r.dtype, device)
                for r in results
            ]
        )


class SavedTensor:
    """One saved value of a node: ``grad_fn._raw_saved_self``."""

    __slots__ = ("_node", "_position")

    def __init__(self, node: CallNode, position: int) -> None:
        self._node = node
        self._position = position

    @property
    def data(self) -> Any:
        """The tensor, or what a pack hook has made of it."""
        kept = self._kept()
        return kept.value if isinstance(kept, Packed) else self.unpack()

    @property
    def unpack_hook(self) -> Callable[[Any], torch.Tensor] | None:
        """The hook that makes the tensor of it again, where one is set."""
        kept = self._kept()
        return kept.unpack_hook if isinstance(kept, Packed) else None

    def unpack(self) -> Any:
        """The tensor, with its history."""
        return _saved_value(self._node, self._position)

    def register_hooks(
        self, pack_hook: Callable[[torch.Tensor], Any], unpack_hook: Callable[[Any], torch.Tensor]
    ) -> None:
        """Keep what ``pack_hook`` makes of the tensor in its place, and let backward have what ``unpack_hook`` makes of that.

        Raises ``SavedTensorHookError`` where hooks are set already, ``FreedGraphError`` once a backward pass has released the tensor.
        """
        node, kept, hooks = self._node, self._kept(), (pack_hook, unpack_hook)
        if isinstance(kept, Packed):
            raise SavedTensorHookError(
                f"{node.op} has a saved tensor whose hooks are set already, by register_hooks() or by saved_tensors_hooks(): there is one "
                f"pair of hooks at a time."
            )
        packed = pack(kept, hooks)
        assert node.saved is not None
        node.saved = (*node.saved[: self._position], packed, *node.saved[self._position + 1 :])
        node.saved_versions = tuple([(t, version) for t, version in node.saved_versions if t is not kept])
        node.extra().packed = True

    def _kept(self) -> Any:
        if self._node.saved is None:
            raise FreedGraphError(
                f"the saved tensors of {self._node.op} were asked for after a backward pass has released them. Pass "
                f"retain_graph=True to it."
            )
        return self._node.saved[self._position]


def grad_fn(tensor: Tensor) -> Node | None:
    """The node of the call that made ``tensor``; None for a leaf: ``Tensor.grad_fn``."""
    node = tensor._node
    return None if node is None or isinstance(node, Leaf) else edge_of(node)[0]


def edge_of(node: Node) -> tuple[Node, int]:
    """A node as torch names it: the node of the call, and the number of the result that it stands for."""
    if isinstance(node, Output) and node.parents:
        # One of several results: the node is that of the call. What kind of result it was is noted, for when the tensor is gone.
        call: Node = node.parents[0]
        extras = call.extra()
        if extras.output_kinds is None:
            extras.output_kinds = {}
        assert node.shape is not None and node.dtype is not None
        extras.output_kinds[node.index] = node.shape, node.dtype
        return as_grad_fn(call), node.index
    return as_grad_fn(node), 0


def device_of(node: Node) -> torch.device | None:
    """Where the gradients of a node live, as far as what it and its first inputs keep can tell."""
    while node.parents and not node.saved_versions:
        first = next(parent for parent in node.parents if parent is not None)
        node = next(p for p in first if p is not None) if type(first) is tuple else first
    if node.saved_versions:
        return node.saved_versions[0][0].device
    if isinstance(node, Bridge):
        return node.native.device
    tensor = node.variable if isinstance(node, Leaf) else None
    return None if tensor is None else tensor.device


def as_grad_fn(node: Node) -> Node:
    """The very node, with all that ``grad_fn`` has."""
    if not isinstance(node, GradFn):
        saved = node.saved_names if isinstance(node, CallNode) else ()
        tensors = node.plan.tensor_positions if isinstance(node, CallNode) else ()
        name = node.name().rpartition("::")[2]
        node.__class__ = _class_of(type(node), name, saved, tensors)  # type: ignore[arg-type]
    return node


@cache
def _class_of(base: type[Node], name: str, saved: tuple[str, ...], tensors: tuple[int, ...]) -> type[Node]:
    """The class of the nodes of one op that save the same. What is saved is found by ``dir()``, as drawing tools do."""
    attributes: dict[str, Any] = {"__slots__": (), "__module__": base.__module__, "__doc__": base.__doc__}
    for position, ours in enumerate(saved):
        theirs = _TORCH_NAMES.get(ours, ours)
        attributes[f"_saved_{theirs}"] = property(partial(_saved_value, position=position))
        if position in tensors:
            attributes[f"_raw_saved_{theirs}"] = property(partial(SavedTensor, position=position))
    return type(name, (GradFn, base), attributes)


def _saved_value(node: CallNode, position: int) -> Any:
    value, source = saved_values(node)[position], node.plan.sources[position]
    if source is None:
        return value
    leaf = node.parents[source] if source >= 0 else None
    if isinstance(leaf, Leaf) and isinstance(value, torch.Tensor):
        tensor = leaf.variable
        with DisableTorchFunctionSubclass():
            if tensor is not None and tensor.layout is torch.strided and tensor.data_ptr() == value.data_ptr():
                return tensor  # as in torch a leaf comes back itself
    return attached(node, value, source)
