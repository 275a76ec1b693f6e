"""``python -m tracer.checks.kept_bytes``: how many bytes the record of a call keeps for backward, beside torch's own autograd.

Every sample of every operator of torch's database is run, as a function and in place, for each set of inputs that want a gradient.
``--ops REGEX`` takes only operators whose name it finds a match in, ``--samples N`` at most N samples an operator. The exit status is 1
when more is kept than torch keeps and ``kept_bytes_exceptions.json`` does not say why, or when one of its entries is no longer true.

Both sides are counted by one rule. A tensor that is saved counts with its whole storage, and each storage counts once, whoever else uses
it: so what belongs to an argument or to the result anyway counts on both sides alike. Beside this total, the bytes that belong to
neither are compared: the memory that is there for backward alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import Way, operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples, seed_call
from tracer.checks.leaves import can_have_gradient, leaves_of, native_leaf, tensors_of, tracked_leaf
from tracer.node import Bridge, Node, flat, parts_of
from tracer.recording.missing_rule import MissingRule
from tracer.tracked_tensor import Tensor

EXCEPTIONS = Path(__file__).with_name("kept_bytes_exceptions.json")

#: The spellings compared.
SPELLINGS = ("function", "in-place")

#: More subsets than these are not tried of a call with many differentiable inputs.
MOST_SUBSETS = 12

Storages = dict[int, torch.UntypedStorage]


def storages(tensors: Sequence[torch.Tensor]) -> Storages:
    """The storages of tensors of any layout, by identity."""
    found: Storages = {}
    for tensor in tensors:
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            found[storage._cdata] = storage
    return found


@dataclass(frozen=True)
class Kept:
    """Bytes that a call's record holds."""

    total: int
    #: Those that belong neither to an argument nor to a result.
    extra: int

    @classmethod
    def of(cls, held: Storages, own: Sequence[torch.Tensor]) -> Kept:
        """Count ``held``; ``own`` are the arguments and results."""
        owned = storages(own)
        return cls(
            sum(s.nbytes() for s in held.values()), sum(s.nbytes() for key, s in held.items() if key not in owned)
        )


class UncomparableError(Exception):
    """No gradient flows through the call, or this package has no rule for it."""


def kept_by_torch(call: Callable[[list[Any]], Any], leaves: list[Any]) -> Kept:
    """What torch keeps after ``call``, counted by its hook for saved tensors. Raises ``UncomparableError``, and what torch raises."""
    alive: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor)
        alive.add(saved)
        return saved

    seed_call()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: None):  # type: ignore[arg-type, return-value]
        result = call(leaves)
    if not any(t.requires_grad for t in tensors_of(result)):
        raise UncomparableError
    held: Storages = {}
    for saved in alive:
        held.update(saved.storages)
    return Kept.of(held, tensors_of(leaves, result))


class _Saved:
    """What torch saved of one tensor, for as long as torch holds it. Not the tensor, whose history would hold it in turn."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storages = storages([tensor])


def kept_here(call: Callable[[list[Any]], Any], leaves: list[Any]) -> Kept:
    """What the nodes keep that ``call`` leaves behind on tracked leaves. Raises ``UncomparableError``."""
    seed_call()
    result = call(leaves)
    held: Storages = {}
    for node in nodes_behind(result):
        if isinstance(node, MissingRule | Bridge):
            raise UncomparableError
        held.update(storages([tensor for tensor, _ in node.saved_versions]))
    return Kept.of(held, tensors_of(leaves, result))


def nodes_behind(result: Any) -> list[Node]:
    """All nodes that the tensors of a result lead to."""
    todo = [t._node for t in tensors_of(result) if isinstance(t, Tensor) and t._node is not None]
    seen: dict[Node, None] = {}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen[node] = None
            todo += flat(node.parents)
    return list(seen)


def subsets(items: Sequence[int]) -> list[tuple[int, ...]]:
    """Each subset that is not empty; of many items the single ones, all, and all but one."""
    if len(items) <= 3:
        return [s for n in range(1, len(items) + 1) for s in itertools.combinations(items, n)]
    few = [*((i,) for i in items), tuple(items), *(tuple(i for i in items if i != left_out) for left_out in items)]
    return list(dict.fromkeys(few))[:MOST_SUBSETS]


# ---------------------------------------------------------------------------------------------- operators
@dataclass(frozen=True)
class Comparison:
    """One call with one set of inputs that want a gradient."""

    op: str
    spelling: str
    #: Positions of those inputs among the call's flattened arguments.
    subset: tuple[int, ...]
    #: Whether some other input could have wanted one.
    part: bool
    here: Kept
    torch: Kept
    call: str

    @property
    def verdict(self) -> str:
        """``more``, ``equal`` or ``less``."""
        if self.here.total > self.torch.total or self.here.extra > self.torch.extra:
            return "more"
        return "equal" if self.here == self.torch else "less"

    def __str__(self) -> str:
        return (
            f"{self.op} ({self.spelling}), gradients of {list(self.subset)} of ({self.call}): {self.here.total} bytes, "
            f"{self.here.extra} of them for this alone; torch: {self.torch.total} and {self.torch.extra}"
        )


def compare_operator(name: str, op: Any, count: int | None, spelling: str) -> Iterator[Comparison]:
    """Every sample (or the first ``count``) of an operator, for each set of inputs that want a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in ways(op):
            if way.name == spelling:
                for sample in first_samples(op, count):
                    yield from _compare_sample(name, way, sample)


def _compare_sample(name: str, way: Way, sample: OpSample) -> Iterator[Comparison]:
    able = [i for i, v in enumerate(sample.leaves) if can_have_gradient(v)]

    def call(leaves: list[Any]) -> Any:
        return way(*tree_unflatten(leaves, sample.spec))

    if way.in_place and not torch_differentiates(call, leaves_of(sample.leaves, able, native_leaf)):
        return
    for subset in subsets(able):
        try:
            theirs = kept_by_torch(call, leaves_of(sample.leaves, subset, native_leaf))
            ours = kept_here(call, leaves_of(sample.leaves, subset, tracked_leaf))
        except Exception:
            continue  # whether values and gradients are right, and who refuses what, is for the conformance command
        yield Comparison(name, way.name, subset, len(subset) < len(able), ours, theirs, sample.text)


def torch_differentiates(call: Callable[[list[Any]], Any], leaves: list[Any]) -> bool:
    """Whether torch has a gradient for a call: of some in-place spellings it says only in backward that it has none."""
    try:
        for result in tensors_of(call(leaves)):
            if result.requires_grad:
                result.sum().backward(retain_graph=True)
    except Exception:
        return False
    return True


# ---------------------------------------------------------------------------------------------- exceptions
@dataclass(frozen=True)
class Reason:
    """Why an operator may keep more than torch."""

    op: str
    #: ``"any"``, or ``"part"``: only where a gradient of some inputs is wanted and not of all.
    subset: str
    reason: str
    spelling: str = "function"

    def covers(self, comparison: Comparison) -> bool:
        """Whether it is about that call."""
        return (
            (self.op, self.spelling) == (comparison.op, comparison.spelling)
            and (comparison.part or self.subset == "any")
        )  # fmt: skip


def read_exceptions() -> list[Reason]:
    """The list of exceptions."""
    return [Reason(**entry) for entry in json.loads(EXCEPTIONS.read_text())]


def unexplained(comparisons: Sequence[Comparison], reasons: Sequence[Reason]) -> list[str]:
    """The calls that keep more than torch does without a reason."""
    return [str(c) for c in comparisons if c.verdict == "more" and not any(r.covers(c) for r in reasons)]


@dataclass
class Tally:
    """What came of all comparisons in one spelling."""

    counts: Counter[str] = field(default_factory=Counter)
    by_op: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    used: set[Reason] = field(default_factory=set)
    bad: list[str] = field(default_factory=list)

    def add(self, name: str, found: Sequence[Comparison], reasons: Sequence[Reason]) -> None:
        """Count the comparisons of one operator."""
        self.bad += unexplained(found, reasons)
        self.used |= {r for r in reasons for c in found if c.verdict == "more" and r.covers(c)}
        for c in found:
            self.counts[c.verdict] += 1
            self.by_op[name].add(c.verdict)

    def __str__(self) -> str:
        worst = Counter("more" if "more" in v else "less" if "less" in v else "equal" for v in self.by_op.values())
        return (
            f"{len(self.by_op)} operators, {self.counts.total()} calls: {dict(self.counts)}; operators: {dict(worst)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare everything; what it returns is the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tracer.checks.kept_bytes", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--ops", metavar="REGEX", default="", help="only operators whose name it finds a match in")
    parser.add_argument("--samples", type=int, metavar="N", help="at most N samples an operator")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    reasons, tallies = read_exceptions(), []
    for spelling in SPELLINGS:
        tally = Tally()
        for name, op in operators(options.ops).items():
            tally.add(name, list(compare_operator(name, op, options.samples, spelling)), reasons)
        print(f"{spelling}: {tally}")
        tallies.append(tally)
    bad = [line for tally in tallies for line in tally.bad]
    if not options.ops and not options.samples:
        bad += [f"no longer true: {r}" for r in reasons if not any(r in tally.used for tally in tallies)]
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
