"""What the calls of a graph keep for backward, tensor by tensor: under which name, for which rule, in which memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from ops_registry.rule import CallPlan
from ops_registry.sites import named_modules, short_line
from ops_registry.torch_private import DisableTorchFunctionSubclass, storage_key
from tracer.node import CallNode, Leaf, Node, flat, parts_of, tensors_in

#: The name of what a call keeps that no rule names: that of a custom Function.
UNNAMED = "saved tensors"
#: The name of what a graph with ``values`` keeps beside what the rules ask for.
VALUE = "arguments and results, for the graph's values"


@dataclass(frozen=True, slots=True)
class Memory:
    """One piece of memory that a call keeps."""

    name: str
    storage: int
    bytes: int
    #: As in ``CallPlan.sources``.
    source: int | None = None


def kept_of(node: Node) -> list[Memory]:
    """The memory that ``node`` keeps, in the order in which ``Graph.kept_bytes`` counts it."""
    names = _names(node)
    unnamed = [(UNNAMED, None)] * len(node.saved_versions)
    kept = list(zip(names if len(names) == len(unnamed) else unnamed, node.saved_versions, strict=True))
    if node.values is not None:
        kept += [((VALUE, None), version) for version in node.values.versions]
    return [
        Memory(name, storage_key(part), part.untyped_storage().nbytes(), source)
        for (name, source), (tensor, _) in kept
        for part in parts_of(tensor)
    ]


def _names(node: Node) -> list[tuple[str, int | None]]:
    """The rule's name for each tensor that is saved, and which parent it is."""
    if not isinstance(node, CallNode) or node.saved is None:
        return []
    values = zip(node.saved_names, node.saved, node.plan.sources, strict=True)
    return [(name, source) for name, value, source in values for _ in tensors_in(value)]


class RulePlaces:
    """Where the formula is written that asks for what a call keeps."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str] = {}

    def of(self, node: Node, name: str) -> str:
        """``file.py:12``; empty where no formula asks for it by that name."""
        if not isinstance(node, CallNode):
            return ""
        key = id(node.plan), name
        if key not in self._known:
            self._known[key] = _asked_at(node.plan, name)
        return self._known[key]


def _asked_at(plan: CallPlan, name: str) -> str:
    return next((short_line(f.location) for f in plan.formulas() if name in f.parameters), "")


def there_anyway(nodes: Iterable[Node]) -> set[int]:
    """The memory of leaves among the inputs of ``nodes``, and of the parameters and buffers of all modules that have names."""
    leaves = {p for node in nodes for p in flat(node.parents) if isinstance(p, Leaf)}
    with DisableTorchFunctionSubclass():
        return {storage_key(part) for tensor in _held(leaves) for part in _parts(tensor)}


def _held(leaves: Iterable[Leaf]) -> Iterator[torch.Tensor]:
    for leaf in leaves:
        if (variable := leaf.variable) is not None:
            yield variable
    for _, module in named_modules():
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a parameter is stored in; nothing where torch shows no memory of it."""
    if is_lazy(tensor):
        return []
    try:
        return [part for part in parts_of(tensor) if part.untyped_storage().nbytes()]
    except RuntimeError:  # a wrapper without memory of its own
        return []
