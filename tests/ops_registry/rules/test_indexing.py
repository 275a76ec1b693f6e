"""Rules of ``ops_registry/rules/indexing.py``; random index expressions are in ``test_indexing_properties.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.checking import Case, case, rand, run_case
from support.index_calls import on, squared
from support.leaves import leaf
from support.results import gradient

import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.indexing import cleared, placed

COMPLEX = torch.complex128
aten = torch.ops.aten


def at(*index: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Squares, so that second derivatives are not zero."""
    return lambda x: x[index] ** 2


def long(*values: Any, device: Any = None) -> torch.Tensor:
    return torch.tensor(values, device=device)


READS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("int", lambda x: x[1] ** 2),
    ("negative", lambda x: x[-1, :, -2] ** 2),
    ("numpy-int", lambda x: x[np.int64(1)] ** 2),
    ("slice-step", at(slice(None, None, 2), slice(1, None), slice(-3, -1))),
    ("none-ellipsis", at(None, ..., 0, None)),
    ("empty-tuple", at()),
    ("empty-slice", at(slice(2, 1))),
    ("bool-scalars", at(True, 0)),
    ("false", lambda x: x[False] ** 2),
    ("mask", lambda x: x[x.detach() > 0] ** 2),
    ("mask-of-rows", lambda x: x[torch.tensor([True, False, True], device=x.device)] ** 2),
    ("mask-in-the-middle", lambda x: x[0, torch.ones(2, 4, dtype=torch.bool, device=x.device).triu()] ** 2),
    ("zero-dim-mask", lambda x: x[torch.tensor(True, device=x.device), 1] ** 2),
    ("repeated", lambda x: x[long(1, 1, -1, 0, 1, device=x.device)] ** 2),
    ("zero-dim-index", lambda x: x[torch.tensor(-1, device=x.device)] ** 2),
    ("broadcast-pair", lambda x: x[long([0], [2], device=x.device), :, long(1, 1, 3, device=x.device)] ** 2),
    ("adjacent-pair", lambda x: x[:, long(0, 1, device=x.device), long(3, 3, device=x.device)] ** 2),
    ("split-by-int", lambda x: x[long(0, 1, 1, device=x.device), 0, long(3, 3, 3, device=x.device)] ** 2),
    ("mixed", lambda x: x[1:, None, long(1, 1, device=x.device), ..., ::3] ** 2),
    (
        "mask-and-index",
        lambda x: x[torch.tensor([True, False, True], device=x.device), long(1, 1, device=x.device)] ** 2,
    ),
    (
        "mask-repeated",
        lambda x: x[torch.tensor([True, False, True], device=x.device), long([1], [1], device=x.device)] ** 2,
    ),
    ("list", lambda x: x[[0, 2, 2]] ** 2),
    ("list-and-tuple", lambda x: x[(0, 1), [1, 1]] ** 2),
    ("numpy-array", lambda x: x[:, np.array([1, 1, 0])] ** 2),
    ("no-index", lambda x: x[torch.zeros(0, dtype=torch.int64, device=x.device)] ** 2),
]

CASES = [
    *[case("__getitem__", read, rand(3, 2, 4), label=name) for name, read in READS],
    case("__getitem__", at(0, ..., slice(1, 3)), rand(2, 3, 2, 2, 4), label="rank-5"),
    case("__getitem__", lambda x: x[long(1, 1, device=x.device), 1:] ** 2, rand(3, 2, dtype=COMPLEX), label="complex"),
    case("__getitem__", lambda x: x.t()[1] ** 2, rand(2, 3), label="transposed"),
    case("__getitem__", lambda x: x.expand(5, 2, 3)[1:3, 0] ** 2, rand(2, 3), label="expanded"),
    case("__getitem__", lambda x: x[..., None] ** 2, rand(), label="0-d"),
    case("__getitem__", lambda x: x[:, 1:] ** 2, rand(0, 3), label="empty"),
    case("placed", lambda g: placed(g, (4, 2), (slice(None), 1)) ** 2, rand(4)),
    case("placed", lambda g: placed(g, (4,), torch.tensor([1, 1, 3], device=g.device)) ** 2, rand(3), label="repeated"),
    case("cleared", lambda g: cleared(g, (slice(1, 3), 0)) ** 2, rand(4, 2)),
    case("select", lambda x: x.select(1, -1) ** 2, rand(3, 4)),
    case("select", lambda x: torch.select(x, dim=-1, index=2) ** 2, rand(2, 2, 1, 2, 3), label="keywords-rank-5"),
    case("select", lambda x: torch.ops.aten.select.int(x, 0, 1) ** 2, rand(3, 4, dtype=COMPLEX), label="aten-complex"),
    case("narrow", lambda x: x.narrow(-1, 1, 2) ** 2, rand(3, 4)),
    case("narrow", lambda x: torch.narrow(x, dim=0, start=-2, length=2) ** 2, rand(3, 4), label="negative-start"),
    case("narrow", lambda x: x.narrow(0, torch.tensor(1, device=x.device), 2) ** 2, rand(3, 4), label="tensor-start"),
    case("narrow", lambda x: x.narrow(0, 3, 0) ** 2, rand(3, 4), label="of-nothing"),
    case("narrow_copy", lambda x: x.narrow_copy(1, -3, 2) ** 2, rand(3, 4)),
    case("select", lambda x: torch.select_copy(x, 1, -1) ** 2, rand(3, 4), label="copy"),
    case("slice", lambda x: torch.slice_copy(x, 1, 1, 4, 2) ** 2, rand(3, 4), label="copy"),
    case("slice", lambda x: torch.ops.aten.slice(x, 1, -3, 100, 2) ** 2, rand(3, 4)),
    case("slice", lambda x: torch.ops.aten.slice.Tensor(x) ** 2, rand(3, 4), label="defaults"),
    case("select_scatter", lambda x, s: x.select_scatter(s, 1, -1) ** 2, rand(3, 4), rand(3)),
    case(
        "select_scatter",
        lambda x, s: torch.select_scatter(x, s, dim=0, index=0) ** 2,
        rand(3, 1, 2, 2, 1),
        rand(1, 2, 2, 1),
        label="rank-5",
    ),
    case("slice_scatter", lambda x, s: x.slice_scatter(s, 1, 0, 3, 2) ** 2, rand(3, 4), rand(3, 2)),
    case("slice_scatter", lambda x, s: x.slice_scatter(s, start=-1) ** 2, rand(3, 4), rand(1, 4), label="to-the-end"),
    case("diagonal_scatter", lambda x, s: x.diagonal_scatter(s, 1) ** 2, rand(3, 4), rand(3)),
    case(
        "diagonal_scatter",
        lambda x, s: x.diagonal_scatter(s, -1, 2, 0) ** 2,
        rand(3, 4, 3, dtype=COMPLEX),
        rand(4, 2, dtype=COMPLEX),
        label="complex",
    ),
    *[
        # torch's own gradient towards the input is wrong.
        case("as_strided_scatter", function, *inputs, torch_agrees=False, label=label)
        for label, function, *inputs in [
            ("inside", lambda x, s: torch.as_strided_scatter(x, s, (2, 2), (3, 1), 1) ** 2, rand(3, 3), rand(2, 2)),
            ("no-offset", lambda x, s: x.as_strided_scatter(s, (2,), (2,)) ** 2, rand(2, 3), rand(2)),
            (
                "transposed",
                lambda x, s: torch.as_strided_scatter(x.t(), s, (2, 2), (3, 1), 1) ** 2,
                rand(3, 3),
                rand(2, 2),
            ),
            (
                "beside-the-view",
                lambda x, s: torch.as_strided_scatter(x[:, 1:], s, (4,), (1,)) ** 2,
                rand(3, 3),
                rand(4),
            ),
            ("0-d", lambda x, s: x.as_strided_scatter(s, (), (), 4) ** 2, rand(2, 3), rand()),
            (
                "complex",
                lambda x, s: x.as_strided_scatter(s, (2,), (1,)) ** 2,
                rand(3, dtype=COMPLEX),
                rand(2, dtype=COMPLEX),
            ),
        ]
    ],
    *[
        case(
            "index_reduce",
            squared(name, 1, [2, 0, 0], ..., mode, include_self=own),
            rand(2, 3, 2, low=0.5),
            rand(2, 3, 2, low=0.5, seed=1),
            needs=((0,), (1,)) if not own else None,
            label=f"{name}-{mode}-{own}",
        )
        for name in ("index_reduce", "index_reduce_")
        for mode in ("mean", "prod", "amax", "amin")
        for own in (True, False)
    ],
    case("index_reduce", squared("index_reduce", 0, [0], ..., "prod"), rand(low=0.5), rand(low=0.5), label="0-d"),
    case("index_select", squared("index_select", 1, [2, 0, 0]), rand(2, 3)),
    case(
        "index_select",
        lambda x: torch.index_select(x, dim=-1, index=on(x.device, 1)) ** 2,
        rand(2, 1, 1, 2, 3, dtype=COMPLEX),
        label="rank-5-complex",
    ),
    case("index_select", squared("index_select", 0, [0]), rand(), label="0-d"),
    case(
        "index_select",
        lambda x: x.index_select(0, torch.zeros(0, dtype=torch.int64, device=x.device)) ** 2,
        rand(2, 3),
        label="nothing",
    ),
    case("index_add", squared("index_add", 1, [2, 0, 0], ...), rand(2, 3), rand(2, 3)),
    case("index_add", squared("index_add_", 0, [1, 1], ..., alpha=-2), rand(2, 3), rand(2, 3), label="in-place-alpha"),
    # torch leaves out the conjugate of alpha.
    case(
        "index_add",
        squared("index_add", 0, [1, 1], ..., alpha=1 + 2j),
        rand(2, dtype=COMPLEX),
        rand(2, dtype=COMPLEX),
        torch_agrees=False,
        label="complex-alpha",
    ),
    case("index_add", squared("index_add", 0, [0], ...), rand(), rand(seed=1), label="0-d"),
    case("index_copy", squared("index_copy", 1, [2, 0], ...), rand(2, 3), rand(2, 2)),
    case("index_copy", squared("index_copy_", 0, [1], ...), rand(2, 3), rand(1, 3), label="in-place"),
    case("index_copy", squared("index_copy", 0, [1], ...), rand(2), rand(), label="0-d-source"),
    case("index_fill", squared("index_fill", 1, [2, 0], 3.0), rand(2, 3)),
    case("index_fill", squared("index_fill", 1, [2, 0], ...), rand(2, 3), rand(), label="tensor"),
    case("index_fill", squared("index_fill_", 1, [2, 0], ...), rand(2, 3), rand(), label="in-place"),
    case(
        "index_fill",
        squared("index_fill", 1, [2, 2, 0, -1], ...),
        rand(2, 3),
        rand(),
        torch_agrees=False,
        label="one-place-thrice",
    ),
    case("index_fill", squared("index_fill", 0, [0], ...), rand(), rand(), label="0-d"),
    case("index", lambda x: aten.index(x, [None, on(x.device, [0, 0, 2])]) ** 2, rand(2, 3)),
    case(
        "index",
        lambda x: aten.index.Tensor(x, [on(x.device, 1), None, on(x.device, [0, 0])]) ** 2,
        rand(2, 3, 4),
        label="0-d-index-apart",
    ),
    case(
        "index",
        lambda x: torch._unsafe_index(x, (on(x.device, [1, -1]),)) ** 2,
        rand(2, 3, dtype=COMPLEX),
        label="unsafe-complex",
    ),
    case("index_put", lambda x, v: x.index_put((on(x.device, [1, 0]),), v) ** 2, rand(2, 3), rand(3)),
    case(
        "index_put",
        lambda x, v: torch.index_put(x, (on(x.device, [1, 1]), on(x.device, [-1, -1])), v, accumulate=True) ** 2,
        rand(2, 3),
        rand(2),
        label="accumulate",
    ),
    case(
        "index_put",
        lambda x, v: (x * x).index_put_((on(x.device, [True, False]),), v) ** 2,
        rand(2, 3),
        rand(),
        label="in-place-mask",
    ),
    case(
        "index_put",
        lambda x, v: torch.index_put_(x * x, (on(x.device, [0, 0]),), v, True) ** 2,
        rand(2),
        rand(2),
        label="in-place-accumulate",
    ),
    case(
        "index_put",
        lambda x, v: aten.index_put(x, [None, on(x.device, [2, 0])], v * v) ** 2,
        rand(2, 3),
        rand(2, 1),
        label="none",
    ),
    case(
        "index_put",
        lambda x, v: aten.index_put_.default(x * x, [None, on(x.device, [2, 2])], v * v, True) ** 2,
        rand(2, 3),
        rand(2, 2),
        label="none-in-place",
    ),
    case(
        "_unsafe_masked_index",
        lambda x: torch._unsafe_masked_index(x, on(x.device, [True, False, True]), [on(x.device, [1, 1, 0])], 2.0) ** 2,
        rand(2),
    ),
    case(
        "_unsafe_masked_index_put_accumulate",
        lambda x, v: (
            torch._unsafe_masked_index_put_accumulate(
                x, on(x.device, [True, False, True]), [on(x.device, [1, 1, 1])], v
            )
            ** 2
        ),
        rand(2),
        rand(3),
    ),
]


def written(index: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A write of the square of ``v`` into a tensor that is not a leaf, squared."""

    def function(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = x * x
        place = (
            tuple(i.to(x.device) if isinstance(i, torch.Tensor) else i for i in index)
            if type(index) is tuple
            else index
        )
        y[place] = v * v
        return y * y

    return function


CASES += [
    case("__setitem__", written(1), rand(3, 4), rand(4), label="int"),
    case("__setitem__", written((slice(None, None, 2), -1)), rand(3, 4), rand(2), label="basic"),
    case("__setitem__", written(...), rand(3, 4), rand(4), label="broadcast"),
    case("__setitem__", written((0, slice(1, 3))), rand(3, 4), rand(), label="0-d-value"),
    case("__setitem__", written((1, None)), rand(3, 4), rand(1, 1, 1, 4), label="leading-ones"),
    case("__setitem__", written((torch.tensor([True, False, True]),)), rand(3, 4), rand(2, 4), label="mask"),
    case(
        "__setitem__", written((torch.tensor([2, 0]), slice(1, None), None)), rand(3, 4), rand(2, 1, 1), label="mixed"
    ),
    case("__setitem__", written((torch.tensor([2, 0]), torch.tensor([-1, 1]))), rand(3, 4), rand(2), label="pair"),
    case("__setitem__", written(()), rand(), rand(), label="0-d"),
    case("__setitem__", written(slice(0, 0)), rand(3, 4), rand(0, 4), label="nothing"),
    case("__setitem__", written(1), rand(3, 4, dtype=COMPLEX), rand(4), label="real-into-complex"),
    case(
        "__setitem__",
        written(1),
        rand(3, 4),
        rand(4, dtype=torch.float32),
        differences=False,
        rtol=1e-6,
        label="other-dtype",
    ),
    case("__setitem__", written((0, 1, ..., 1)), rand(1, 2, 2, 1, 2), rand(2, 1), label="rank-5"),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_an_element_read_three_times_gets_three_gradients() -> None:
    # pytorch/pytorch#1528, HIPS/autograd#136
    x = leaf(1, 2, 3)
    assert gradient(x[torch.tensor([1, 1, -2])] * torch.tensor([1.0, 10.0, 100.0]), x) == [0, 111, 0]


def test_counter_advanced_after_a_read_does_not_move_the_gradient() -> None:
    x, i = leaf(1, 2, 3), torch.tensor(0)
    y = x[i]
    i += 2
    assert gradient(y, x) == [1, 0, 0]


def test_counter_in_a_slice_advanced_after_a_read_does_not_move_the_gradient() -> None:
    x, i = leaf(1, 2, 3), torch.tensor(0)
    y = x[i : i + 1]
    i += 2
    assert gradient(y, x) == [1, 0, 0]


def test_list_changed_after_a_read_does_not_move_the_gradient() -> None:
    x, index = leaf(1, 2, 3), [0, 1]
    y = x[index]
    index[0] = 2
    assert gradient(y, x) == [1, 1, 0]


def test_numpy_array_changed_after_a_read_does_not_move_the_gradient() -> None:
    x, index = leaf(1, 2, 3), np.array([0, 1])
    y = x[index]
    index[0] = 2
    assert gradient(y, x) == [1, 1, 0]


def test_counter_advanced_after_a_write_does_not_move_the_gradient() -> None:
    x, v, i = leaf(1, 2, 3), leaf(5), torch.tensor(0)
    y = x * 2
    y[i] = v[0]
    i += 2
    y[i : i + 1] = v
    i -= 1
    assert gradient(y, x) == [0, 2, 0]
    assert gradient(y * torch.tensor([1.0, 10.0, 100.0]), v) == [101]


def test_index_tensor_overwritten_after_a_read_is_an_error() -> None:
    x, index = leaf(1, 2, 3), torch.tensor([0, 1])
    y = x[index]
    index[0] = 2
    with pytest.raises(tracer.OverwrittenError, match="saved 'idx_frozen'"):
        y.sum().backward()


def test_number_written_stops_the_gradient_there() -> None:
    x = leaf(1, 2, 3)
    y = x * 2
    y[1:] = 7
    assert gradient(y, x) == [2, 0, 0]


def test_value_written_into_a_plain_buffer_gets_its_gradient() -> None:
    buffer, v = torch.zeros(3, 2, dtype=torch.float64), leaf(1, 2)
    for i in range(3):
        buffer[i] = v * i
    assert buffer.requires_grad
    assert gradient(buffer, v) == [3, 3]


def test_value_written_into_a_tracked_tensor_that_wants_no_gradient_gets_its_own() -> None:
    buffer, v = tracer.tensor([0.0, 0.0, 0.0]), leaf(1, 2)
    buffer[1:] = v
    assert buffer.requires_grad
    assert gradient(buffer, v) == [1, 1]


def test_write_at_false_writes_nothing_and_takes_a_value_of_any_shape() -> None:
    x, v = leaf(1, 2, 3), leaf(1, 2, 3, 4, 5)
    y = x * 2
    y[False] = v
    assert gradient(y, x) == [2, 2, 2]
    (found,) = torch.autograd.grad(y.sum(), v, materialize_grads=True)
    assert found.tolist() == [0, 0, 0, 0, 0]


def test_value_overwritten_by_a_second_write_gets_nothing() -> None:
    v, w = leaf(1, 2), leaf(3)
    buffer = torch.zeros(3, dtype=torch.float64)
    buffer[:2] = v
    buffer[0] = w[0]
    assert gradient(buffer, v) == [0, 1]
    assert gradient(buffer, w) == [1]


def test_write_of_a_complex_value_into_part_of_a_complex_tensor_keeps_its_imaginary_part() -> None:
    x = tracer.tensor([1j, 2j], requires_grad=True)
    v = tracer.tensor(3 + 1j, requires_grad=True)
    y = x * 1
    y[0] = v
    (found,) = torch.autograd.grad(y.imag.sum(), v)
    assert found.item() == 1j


def test_as_strided_scatter_into_overlapping_places_raises() -> None:
    with pytest.raises(UnsupportedCallError, match="share memory"):
        torch.as_strided_scatter(leaf(1, 2, 3), torch.ones(2, 2, dtype=torch.float64), (2, 2), (1, 1), 0)


def test_as_strided_scatter_gives_its_input_nothing_where_the_source_was_written() -> None:
    x, s = leaf(1, 2, 3, 4), leaf(5, 6)
    y = torch.as_strided_scatter(x, s, (2,), (2,), 0) * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    assert gradient(y, x) == [0, 10, 0, 1000]
    assert gradient(y, s) == [1, 100]


def test_read_keeps_no_value_alive() -> None:
    x = leaf(1, 2, 3)
    y = x[1:]
    assert y.grad_fn is not None
    assert not [k for k in y.grad_fn.saved or () if isinstance(k, torch.Tensor)]


WRITES = {
    "index_add_": lambda b, v: b.index_add_(0, torch.tensor([1, 1]), v),
    "index_copy_": lambda b, v: b.index_copy_(0, torch.tensor([2, 1]), v),
    "index_put_": lambda b, v: b.index_put_((torch.tensor([0, 1]),), v),
    "index_fill_": lambda b, v: b.index_fill_(0, torch.tensor([0]), v.sum()),
}


@pytest.mark.parametrize("name", WRITES)
def test_tensor_written_in_place_into_a_plain_buffer_gets_its_gradient(name: str) -> None:
    buffer, v = torch.zeros(3, dtype=torch.float64), leaf(1, 2)
    assert WRITES[name](buffer, v) is buffer
    assert gradient(buffer, v) == [1, 1]


@pytest.mark.parametrize("name", WRITES)
def test_tensor_written_in_place_into_a_tracked_tensor_that_wants_no_gradient_gets_its_own(name: str) -> None:
    buffer, v = tracer.tensor([0.0, 0.0, 0.0], dtype=torch.float64), leaf(1, 2)
    WRITES[name](buffer, v)
    assert gradient(buffer, v) == [1, 1]


def test_index_fill_counts_a_place_named_three_times_once() -> None:
    # pytorch/pytorch#57006
    v = tracer.tensor(2.0, requires_grad=True)
    assert gradient(torch.zeros(2, 3).index_fill(1, torch.tensor([2, 2, -1, 0]), v), v) == 4


def test_index_fill_stops_the_gradient_of_what_it_replaces() -> None:
    # pytorch/pytorch#57006
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x.index_fill(0, torch.tensor([1, 1]), tracer.tensor(5.0, requires_grad=True))
    assert gradient(y, x) == [[1, 1], [0, 0]]


def test_a_complex_alpha_of_index_add_is_conjugated_on_the_way_back() -> None:
    x = torch.zeros(2, dtype=COMPLEX)
    s = tracer.tensor([1j, 2.0], dtype=COMPLEX, requires_grad=True)
    y = x.index_add(0, torch.tensor([1, 1]), s, alpha=3 + 2j)
    assert gradient(y.real, s) == [3 - 2j, 3 - 2j]
