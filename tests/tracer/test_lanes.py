"""The fast lanes are copies of the general ones: every rule case through both, by ``.backward()`` and by ``torch.autograd.grad``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.checking import Case, as_outputs, cotangents
from support.rule_cases import FILES, cases_of

import tracer
import tracer.tracked_tensor
from ops_registry.registry import TABLE
from tracer.backprop.sweep import Sweep
from tracer.checks.leaves import SEED, can_have_gradient, leaves_of, restart_random, tracked_leaf
from tracer.graph import backward_order
from tracer.node import Node, flat

T = torch.Tensor


@contextmanager
def general_lanes() -> Iterator[None]:
    """Every call and every node takes the general lane."""
    fast = [spelling for spelling in TABLE.values() if spelling.fast]
    for spelling in fast:
        spelling.fast = False
    Sweep.fast = False
    try:
        yield
    finally:
        Sweep.fast = True
        for spelling in fast:
            spelling.fast = True


@contextmanager
def fast_lanes() -> Iterator[None]:
    """As it always is."""
    yield


LANES = {"fast": fast_lanes, "general": general_lanes}


def call(case: Case, data: list[T], wanted: tuple[int, ...]) -> tuple[list[T], list[Any]]:
    """The results of a case that require grad, and the leaves that do."""
    leaves = leaves_of(data, wanted, tracked_leaf)
    restart_random(SEED)
    outputs = as_outputs(case.function(*leaves))
    return [o for o in outputs if o.requires_grad], [leaves[i] for i in wanted]


def history(outputs: list[T]) -> list[Any]:
    """All that was recorded of a call: for each node what it is, its parents by place, and what it saved, with versions."""
    order = backward_order([o._node for o in outputs])  # type: ignore[attr-defined]
    place = {node: i for i, node in enumerate(order)}

    def row(node: Node) -> Any:
        parents = [place[p] for p in flat(node.parents)]
        versions = [version for _, version in node.saved_versions]
        return (
            type(node),
            node.op,
            node.saved_names,
            parents,
            node.shape,
            node.dtype,
            node.saved,
            versions,
            node.packed,
        )

    return [row(node) for node in order]


def by_backward(outputs: list[T], leaves: list[Any], seeds: list[T], create_graph: bool) -> list[T | None]:
    """The gradients of the leaves as ``backward`` leaves them in ``.grad``."""
    torch.autograd.backward(outputs, seeds, create_graph=create_graph)
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def by_grad(outputs: list[T], leaves: list[Any], seeds: list[T], create_graph: bool) -> list[T | None]:
    """The gradients of the leaves as ``grad`` returns them."""
    return list(torch.autograd.grad(outputs, leaves, seeds, create_graph=create_graph, allow_unused=True))


WAYS: dict[str, Callable[..., list[T | None]]] = {"backward": by_backward, "grad": by_grad}


def gradients(case: Case, data: list[T], wanted: tuple[int, ...], way: str, order: int) -> list[T | None]:
    """The gradients of a case to that order."""
    differentiate = WAYS[way]
    outputs, leaves = call(case, data, wanted)
    found = differentiate(outputs, leaves, cotangents(outputs), order == 2)
    if order == 2:
        again = [g for g in found if g is not None and g.requires_grad]
        return differentiate(again, leaves, cotangents(again, 2), False) if again else []
    return found


def same(left: Any, right: Any) -> bool:
    """Whether two nests hold the same, tensors to the bit."""
    if isinstance(left, T):
        alike = isinstance(right, T) and left.shape == right.shape and left.dtype == right.dtype
        return alike and left.layout == right.layout and equal(left, right)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left is right or left == right)


def equal(left: T, right: T) -> bool:
    left, right = (tracer.tracked_tensor.plain_alias(t).to_dense() for t in (left, right))
    return torch.allclose(left, right, rtol=0, atol=0, equal_nan=True) if can_have_gradient(left) else left.equal(right)


def subsets(case: Case, data: list[T]) -> list[tuple[int, ...]]:
    """The sets of inputs that want a gradient: all, and each alone."""
    if case.needs is not None:
        return list(case.needs)
    able = tuple(i for i, d in enumerate(data) if can_have_gradient(d))
    return [able, *((i,) for i in able if len(able) > 1)]


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that a kernel leaves as it found it (what CTC saves of the padding, the noise of an evaluated rrelu) holds nan."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.usefixtures("filled_memory")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_lanes_record_and_differentiate_alike(file: str, device: torch.device) -> None:
    for case in cases_of(file):
        data = [make(device) for make in case.inputs]
        for wanted in subsets(case, data):
            recorded = {}
            for lane, in_lane in LANES.items():
                with in_lane():
                    recorded[lane] = history(call(case, data, wanted)[0])
            assert same(recorded["fast"], recorded["general"]), f"{case}, inputs {wanted}: the lanes record differently"
            for order in (1, 2) if case.second else (1,):
                found = {}
                for (lane, in_lane), way in itertools.product(LANES.items(), WAYS):
                    with in_lane():
                        found[lane, way] = gradients(case, data, wanted, way, order)
                where = f"{case}, inputs {wanted}, order {order}"
                for way in WAYS:
                    assert same(found["fast", way], found["general", way]), f"{where}: the lanes differ, by {way}"
                # A dense tensor's .grad is never in compressed rows: what grad() returns may be.
                dense = {way: [None if g is None else g.to_dense() for g in found["general", way]] for way in WAYS}
                assert same(dense["backward"], dense["grad"]), f"{where}: backward() and grad() differ"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.usefixtures("filled_memory")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_lanes_find_the_gradient_of_one_input_among_several(file: str, device: torch.device) -> None:
    for case in cases_of(file):
        data = [make(device) for make in case.inputs]
        wanted = subsets(case, data)[0]
        for asked in range(len(wanted) if len(wanted) > 1 else 0):
            found = {}
            for lane, in_lane in LANES.items():
                with in_lane():
                    outputs, leaves = call(case, data, wanted)
                    found[lane] = by_grad(outputs, [leaves[asked]], cotangents(outputs), False)
            assert same(found["fast"], found["general"]), f"{case}, input {wanted[asked]}: the lanes differ"


def test_the_general_lanes_are_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    visit = Sweep._visit_node
    monkeypatch.setattr(Sweep, "_visit_node", lambda self, node: (taken.append(node.op), visit(self, node))[1])

    def run() -> list[str]:
        taken.clear()
        (tracer.tensor([1.0, 2.0], requires_grad=True) * 2).sum().backward()
        return list(taken)

    def aimed(create_graph: bool) -> list[str]:
        taken.clear()
        x = tracer.tensor([1.0, 2.0], requires_grad=True)
        torch.autograd.grad((x * x).sum(), x, create_graph=create_graph)
        return list(taken)

    def several() -> list[str]:
        taken.clear()
        first, _ = tracer.tensor([1.0, 2.0], requires_grad=True)[None].chunk(2, 1)
        first.sum().backward()
        return list(taken)

    assert run() == []
    assert aimed(False) == aimed(True) == ["leaf"]
    assert several() == []  # neither the call nor one of its results
    with general_lanes():
        assert run() == aimed(False) == aimed(True) == ["sum", "mul", "leaf"]
