"""Reading and writing by random index expressions: value and gradient are torch's, or both raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from support.checking import plain

import tracer

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


def in_range(n: int) -> st.SearchStrategy[int]:
    """Mostly valid positions along a dimension of length ``n``."""
    return st.integers(-n, max(n - 1, 0))


@st.composite
def slices(draw: st.DrawFn, n: int) -> slice:
    bound = st.none() | st.integers(-n - 1, n + 1)
    return slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3)))


@st.composite
def integer_tensors(draw: st.DrawFn, n: int, common: tuple[int, ...]) -> torch.Tensor:
    """Positions along a dimension, of a shape that broadcasts to ``common``."""
    kept = common[draw(st.integers(0, len(common))) :]
    shape = tuple(1 if draw(st.booleans()) else c for c in kept)
    count = int(np.prod(shape))
    if n == 0 and count:
        shape, count = (0,), 0
    positions = draw(st.lists(in_range(n), min_size=count, max_size=count))
    return torch.tensor(positions, dtype=draw(st.sampled_from([torch.int64, torch.int32]))).view(shape)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool).view(shape)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """An index expression for a tensor of ``shape``; now and then one that does not fit."""
    common = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    kinds = ["int", "slice", "None", "Ellipsis", "bool", "mask", "tensor", "list", "tuple", "numpy", "0-d"]
    items: list[Any] = []
    axis = 0
    while len(items) < 6 and draw(st.integers(0, 4)):
        kind = draw(st.sampled_from(kinds))
        if kind == "None":
            items.append(None)
        elif kind == "bool":
            items.append(draw(st.booleans()) if draw(st.booleans()) else torch.tensor(draw(st.booleans())))
        elif kind == "Ellipsis":
            if Ellipsis not in [i for i in items if not isinstance(i, torch.Tensor | np.ndarray)]:
                items.append(Ellipsis)
                axis += draw(st.integers(0, len(shape) - axis)) if axis <= len(shape) else 0
        elif kind == "mask":
            rank = draw(st.integers(1, 2))
            if axis + rank <= len(shape):
                items.append(draw(masks(shape[axis : axis + rank])))
                axis += rank
        elif axis < len(shape) or not draw(st.integers(0, 9)):
            n = shape[axis] if axis < len(shape) else 1
            axis += 1
            if kind == "int":
                items.append(draw(in_range(n)))
            elif kind == "slice":
                items.append(draw(slices(n)))
            elif kind == "0-d":
                items.append(torch.tensor(draw(in_range(n))))
            elif kind == "tensor":
                items.append(draw(integer_tensors(n, common)))
            else:
                values = draw(st.lists(in_range(n), min_size=1, max_size=3))
                made = {"list": list, "tuple": tuple, "numpy": np.array}[kind](values)
                items.append(np.int64(values[0]) if kind == "numpy" and len(values) == 1 else made)
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)


def start(shape: tuple[int, ...], seed: float = 0.0) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + int(np.prod(shape)), dtype=torch.float64).view(shape).cos() + seed


def outcome(function: Any, *args: Any) -> tuple[Any, ...] | None:
    """What a function returns, None where it raises."""
    try:
        return function(*args)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None


def agree(ours: tuple[Any, ...] | None, theirs: tuple[Any, ...] | None) -> bool:
    """Both raise, or both give the same; False where they raise."""
    assert (ours is None) == (theirs is None), f"ours: {ours}, torch: {theirs}"
    if ours is None or theirs is None:
        event("both raise")
        return False
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            exact = (
                b.dtype is torch.float64
            )  # torch rounds to a value's own float32 before it sums over broadcast axes, not after
            torch.testing.assert_close(a, b, rtol=1e-12 if exact else 1e-5, atol=1e-12 if exact else 1e-5)
        else:
            assert a is b
    return True


def make_leaf(values: torch.Tensor, wanted: bool, tracked: bool) -> torch.Tensor:
    return tracer.track(values.clone(), wanted) if tracked else values.clone().requires_grad_(wanted)


def read(shape: tuple[int, ...], index: Any, tracked: bool) -> tuple[Any, ...]:
    """Value, first and second derivative of a read."""
    x = make_leaf(start(shape), True, tracked)
    y = x[index]
    (first,) = torch.autograd.grad(y, x, y * start(tuple(y.shape)), create_graph=True)
    (second,) = torch.autograd.grad(first, x, start(shape, 0.5))
    return plain(y), plain(first), plain(second)


def write(shape: tuple[int, ...], index: Any, value: Any, wanted: tuple[bool, bool], tracked: bool) -> tuple[Any, ...]:
    """Value and gradients of a write into a tensor that is not a leaf, or into a buffer."""
    x = make_leaf(start(shape), wanted[0], tracked)
    v = make_leaf(value, wanted[1], tracked) if isinstance(value, torch.Tensor) else value
    y = x * 2 if wanted[0] else torch.zeros(shape, dtype=torch.float64)
    y[index] = v
    inputs = [t for t, w in zip((x, v), wanted, strict=True) if w]
    grads = torch.autograd.grad(y, inputs, start(shape, 0.25), allow_unused=True)
    return plain(y), *[
        torch.zeros_like(plain(t)) if g is None else plain(g) for g, t in zip(grads, inputs, strict=True)
    ]


def try_many(attempt: Callable[[st.DataObject], bool]) -> None:
    """300 examples, of which at least a third give a value: where all raised, nothing would have been compared."""
    compared = []

    @settings(max_examples=300)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        compared.append(attempt(data))

    run()
    assert sum(compared) > 100


def test_reading_equals_torch_or_both_raise() -> None:
    def attempt(data: st.DataObject) -> bool:
        shape = data.draw(shapes)
        index = data.draw(indices(shape))
        return agree(outcome(read, shape, index, True), outcome(read, shape, index, False))

    try_many(attempt)


@st.composite
def values_for(draw: st.DrawFn, place: tuple[int, ...]) -> Any:
    """A number, or a tensor that broadcasts to ``place``, with leading ones or of another dtype; a few do not fit."""
    if not draw(st.integers(0, 5)):
        return 3.5
    shape = tuple(1 if not draw(st.integers(0, 3)) else n for n in place[draw(st.integers(0, len(place))) :])
    shape = (1,) * draw(st.sampled_from([0, 0, 0, 1, 2])) + shape
    if not draw(st.integers(0, 19)):
        shape = (5, *shape)
    return start(shape, 0.75).to(draw(st.sampled_from([torch.float64, torch.float64, torch.float32])))


def test_writing_equals_torch_or_both_raise() -> None:
    def attempt(data: st.DataObject) -> bool:
        shape = data.draw(shapes)
        index = data.draw(indices(shape))
        assume(index is not False)  # torch then looks at nothing: test_indexing.py has a test of it
        place = outcome(lambda: tuple(torch.zeros(shape)[index].shape))
        value = data.draw(values_for(() if place is None else place))
        options = [(True, False), (True, True), (False, True)] if isinstance(value, torch.Tensor) else [(True, False)]
        wanted = data.draw(st.sampled_from(options))
        return agree(
            outcome(write, shape, index, value, wanted, True), outcome(write, shape, index, value, wanted, False)
        )

    try_many(attempt)


@pytest.mark.parametrize(
    "index", [[0, 1], [[0, 1], [1, 2]], [slice(0, 1), None], [torch.tensor(1), 0], [0, [1, 2]], []], ids=str
)
def test_lists_are_read_as_torch_reads_them(index: Any) -> None:
    agree(outcome(read, (3, 4, 2), index, True), outcome(read, (3, 4, 2), index, False))
