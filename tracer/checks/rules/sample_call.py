"""One call under check: a sample in one spelling and one dtype, and the memory that it keeps for backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.rule import Rule
from ops_registry.torch_private import storage_key, tree_flatten, tree_leaves, tree_map, tree_unflatten
from tracer.checks.leaves import (
    SEED,
    can_have_gradient,
    leaves_of,
    native_leaf,
    requiring_grad,
    restart_random,
    tracked_leaf,
)
from tracer.checks.rules.samples import Sample, arranged
from tracer.graph import Graph


class SampleCall:
    """A sample in one dtype and one spelling: leaves to differentiate with respect to, and the call itself."""

    def __init__(
        self,
        rule: Rule,
        spelling: Spelling,
        sample: Sample,
        dtype: torch.dtype = torch.float64,
        definition: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.spelling, self.sample, self.dtype = spelling, sample, dtype
        #: What the rule is to be the gradient of, of arguments by name, where that is not the op.
        self.definition = definition
        values = sample.values
        self.leaves, self.spec = tree_flatten(values)
        self.names = [name for name, value in values.items() for _ in tree_leaves(value)]
        covered = {n for _, n in rule.inputs}
        open_to_all = rule.decomposition is not None or rule.no_gradient
        self.able = [
            i for i, v in enumerate(self.leaves) if can_have_gradient(v) and (open_to_all or self.names[i] in covered)
        ]

    def __call__(self, leaves: list[Any]) -> Any:
        args, kwargs = arranged(self.spelling, tree_unflatten(leaves, self.spec))
        if self.spelling.inplace and args:
            args = (tree_map(torch.clone, args[0]), *args[1:])
        return self.spelling.func(*args, **kwargs)

    def truth(self, leaves: list[Any]) -> Any:
        """What torch's own autograd is asked about: the call, or the definition in its place."""
        return self(leaves) if self.definition is None else self.definition(tree_unflatten(leaves, self.spec))

    def run_plain(self) -> Any:
        """The result on plain tensors. Raises what torch raises."""
        restart_random(SEED)
        return self(leaves_of(self.leaves, (), native_leaf))

    @property
    def runs(self) -> bool:
        """Whether torch takes the call."""
        try:
            self.run_plain()
        except Exception:
            return False
        return True

    def subsets(self) -> list[tuple[int, ...]]:
        """The sets of inputs to ask gradients of: all, then each smaller one where there are few, else each alone."""
        if len(self.able) <= 3:
            smaller = [s for n in range(len(self.able) - 1, 0, -1) for s in itertools.combinations(self.able, n)]
        else:
            smaller = [(i,) for i in self.able[:6]]
        return [tuple(self.able), *smaller]


def torch_bytes(call: SampleCall, wanted: Sequence[int]) -> int | None:
    """Bytes of the distinct storages that torch's autograd keeps for the call; None where it refuses."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    try:
        leaves = leaves_of(call.leaves, wanted, native_leaf)
        restart_random(SEED)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = call.truth(leaves)
        return sum(kept.values()) if requiring_grad(result) else None
    except Exception:
        return None


def our_bytes(call: SampleCall, wanted: Sequence[int]) -> int | None:
    """Bytes of the distinct storages that recorded nodes keep for the call."""
    leaves = leaves_of(call.leaves, wanted, tracked_leaf)
    restart_random(SEED)
    try:
        with Graph() as graph:
            result = call(leaves)
        total = graph.kept_bytes()
        del result
        return total
    except Exception:
        return None


def cast(values: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The values with every floating or complex tensor in another dtype; complex ones get an imaginary part."""

    def one(value: Any) -> Any:
        if not can_have_gradient(value) or value.layout != torch.strided:
            return value
        if dtype.is_complex and not value.is_complex():
            turned = value.flip(list(range(value.dim()))) if value.dim() else value
            return torch.complex(value.to(dtype.to_real()), (0.3 + 0.5 * turned).to(dtype.to_real()))
        if value.is_complex() and not dtype.is_complex:
            return value
        return value.to(dtype)

    return {name: tree_map(one, value) for name, value in values.items()}


def name_of(spelling: Spelling) -> str:
    """How a spelling is written."""
    func: Any = spelling.func
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{func}"
    return str(torch.overrides.resolve_name(func) or getattr(func, "__qualname__", func))
