"""``tracer.repeats``: what is computed more than once, and what computing it once would save."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.functions import Double

import nn
import tracer
from tracer.errors import GradientArgumentError

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape), requires_grad=True)


def repeated(program: Program, *, values: bool = True) -> list[tuple[list[str], int]]:
    """Ops of each repeated expression, and how often it is computed."""
    with tracer.Graph(values=values, sites=True) as graph:
        result = program(leaf(4, 4), leaf(4, 4))
    rows = tracer.repeats(graph).rows
    assert result.requires_grad
    return [(row.ops, row.times) for row in rows]


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + 1).sin() * x


def test_a_block_that_is_computed_twice_is_one_row() -> None:
    ops = ["matmul", "add", "tanh", "sin", "mul"]
    assert repeated(lambda x, w: block(x, w).exp() * block(x, w).cos()) == [(ops, 2)]


def test_expressions_that_come_unequally_often_are_rows_of_their_own() -> None:
    found = repeated(lambda x, w: x.exp().sin() + x.exp().sin() + x.exp().cos())
    assert sorted(found) == [(["exp"], 3), (["sin"], 2)]


def in_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.stack([F.linear(x, w.t()).sum() * i for i in range(5)]).sum()


def test_what_a_loop_computes_anew_each_time_is_found() -> None:
    assert repeated(in_loop) == [(["t", "linear", "sum"], 5)]


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first = x.sin()
    with torch.no_grad():
        x += 1
    return first + x.sin()


def constant_written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(4, 4)
    first = x + scale
    scale.zero_()
    return first + (x + scale)


def result_written_unrecorded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 1
    first = y + 1
    with torch.no_grad():
        y.mul_(2)
    return first + (y + 1)


def written_before_in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, z = x * 1, x * 1
    with torch.no_grad():
        z.mul_(2)
    return (y.tanh_() + z.tanh_()).exp()


NOT_REPEATED: dict[str, Program] = {
    "other constants": lambda x, w: x.softmax(0) + x.softmax(1) + x * 2.0 + x * 3.0,
    "zeros of other signs": lambda x, w: x / 0.0 + x / -0.0,
    "other inputs": lambda x, w: x.sin() + w.sin(),
    "other parts": lambda x, w: x[0] + x[1],
    "another order": lambda x, w: (x @ w) + (w @ x),
    "a leaf that was written to": written,
    "a result that was written to unrecorded": result_written_unrecorded,
    "other constant tensors": lambda x, w: x * torch.ones(4, 4) + x * torch.eye(4),
    "constants of other signs": lambda x, w: x * torch.zeros(4, 4) + x * -torch.zeros(4, 4),
    "constants of other dtypes": lambda x, w: x * torch.ones(4, 4) + x * torch.ones(4, 4, dtype=torch.float64),
    "constants that end differently": lambda x, w: (
        x.view(1, 16).expand(8, 16) * torch.ones(8, 16)
        + x.view(1, 16).expand(8, 16) * torch.ones(8, 16).index_fill(0, torch.tensor([7]), 2)
    ),
    "a constant that was written to": constant_written,
    "dropout": lambda x, w: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True),
    "attention with dropout": lambda x, w: (
        F.scaled_dot_product_attention(x[None], w[None], x[None], dropout_p=0.5)
        + F.scaled_dot_product_attention(x[None], w[None], x[None], dropout_p=0.5)
    ),
}
#: Such calls may be repeated inside one, on the way to what is not.
_VIEWS = [(["__getitem__"], 2), (["__getitem__"], 4), (["view", "expand"], 2)]


@pytest.mark.parametrize("program", NOT_REPEATED.values(), ids=NOT_REPEATED)
@pytest.mark.parametrize("values", [True, False], ids=["values", "saved"])
def test_what_is_not_the_same_does_not_count(program: Program, values: bool) -> None:
    assert [row for row in repeated(program, values=values) if row not in _VIEWS] == []


def test_a_call_in_place_is_not_the_same_after_an_unrecorded_write() -> None:
    assert repeated(written_before_in_place) == [(["mul"], 2)]


REPEATED: dict[str, Program] = {
    "attention without dropout": lambda x, w: (
        F.scaled_dot_product_attention(x, w, x) + F.scaled_dot_product_attention(x, w, x)
    ),
    "in place": lambda x, w: (x * 1).tanh_() * (x * 1).tanh_(),
    "one of several results": lambda x, w: x.chunk(2)[0].sin() + x.chunk(2)[0].sin(),
    "a list of tensors": lambda x, w: torch.cat([x, w]) + torch.cat([x, w]),
    "a constant made anew": lambda x, w: x * torch.ones(4, 4) + x * torch.ones(4, 4),
    "positions made anew": lambda x, w: x[torch.arange(3)] + x[torch.arange(3)],
    "a constant in the same memory": lambda x, w: x * w.detach() + x * w.detach(),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w) + torch.einsum("ij,jk->ik", x, w),
    "a slice": lambda x, w: x[1:3].sin() + x[1:3].sin(),
}


@pytest.mark.parametrize("program", REPEATED.values(), ids=REPEATED)
def test_what_is_the_same_is_found(program: Program) -> None:
    found = repeated(program)
    assert len(found) == 1 and found[0][1] == 2


def test_without_values_calls_whose_rule_saves_all_are_found_and_the_others_counted() -> None:
    x = leaf(3)
    with tracer.Graph() as graph:
        y = x.sin() + x.sin() + x.exp() + x.exp()
    report = tracer.repeats(graph)
    assert [(row.ops, row.times) for row in report] == [(["sin"], 2)]
    assert "5 calls" in report.advice[-1] and "tracer.Graph(values=True)" in report.advice[-1]
    del y


PAIRS: dict[str, tuple[Program, Program]] = {
    "a block": (
        lambda x, w: block(x, w).exp() * block(x, w).cos(),
        lambda x, w: (lambda y: y.exp() * y.cos())(block(x, w)),
    ),
    "results that others keep": (
        lambda x, w: (x * 1).sin() + (x * 1).cos(),
        lambda x, w: (lambda y: y.sin() + y.cos())(x * 1),
    ),
    "a view": (
        lambda x, w: (x * 1).t().sin() + (x * 1).t().cos(),
        lambda x, w: (lambda y: y.sin() + y.cos())((x * 1).t()),
    ),
    "only the second is kept": (
        lambda x, w: (x * 1) + (x * 1).sin(),
        lambda x, w: (lambda y: y + y.sin())(x * 1),
    ),
    "three times": (
        lambda x, w: x.tanh() * x.tanh() * x.tanh(),
        lambda x, w: (lambda y: y * y * y)(x.tanh()),
    ),
    "a by-product": (
        lambda x, w: F.layer_norm(x, (4,), w[0]) + F.layer_norm(x, (4,), w[0]),
        lambda x, w: (lambda y: y + y)(F.layer_norm(x, (4,), w[0])),
    ),
}


@pytest.mark.parametrize("twice, once", PAIRS.values(), ids=PAIRS)
def test_the_bytes_are_those_that_computing_it_once_saves(twice: Program, once: Program) -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    with tracer.Graph(values=True) as graph:
        alive = twice(x, w)
    told = sum(row.bytes for row in tracer.repeats(graph))
    with tracer.Graph() as plain:
        kept = twice(x, w)
    with tracer.Graph() as shared:
        kept_once = once(x, w)
    assert told == plain.kept_bytes() - shared.kept_bytes()
    del alive, kept, kept_once


def test_timings_by_op_say_what_time_it_would_save() -> None:
    x = leaf(4, 4)

    def step() -> torch.Tensor:
        return (x.exp() + x.exp() + x.exp()).sum()

    with tracer.Graph(values=True) as graph:
        loss = step()
    timed = tracer.timings(step)
    (row,) = tracer.repeats(graph, timed)
    exp = next(r for r in timed if r.what == "exp")
    assert row.saves_ms == pytest.approx(exp.total_ms * 2 / 3) and f"{row.saves_ms:.3f} ms" in str(
        tracer.repeats(graph, timed)
    )
    with pytest.raises(GradientArgumentError, match="by='op'"):
        tracer.repeats(graph, tracer.timings(step, by="rule"))
    del loss


def test_custom_functions_are_never_taken_for_the_same() -> None:
    x = leaf(3)
    with tracer.Graph(values=True) as graph:
        y = Double.apply(x) + Double.apply(x)
    report = tracer.repeats(graph)
    assert not report.rows and "2 calls of custom Functions" in str(report)
    del y


def test_places_are_told_and_json_written() -> None:
    x = leaf(3)
    with tracer.Graph(values=True, sites=True) as graph:
        a = x.exp()
        b = x.exp()
    here = test_places_are_told_and_json_written.__code__.co_firstlineno
    told = json.loads(json.dumps(tracer.repeats(graph).to_dict()))
    assert [site["line"].rpartition(":")[2] for site in told["rows"][0]["sites"]] == [str(here + 3), str(here + 4)]
    del a, b


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_with_running_statistics_is_not_repeated(training: bool) -> None:
    # torch does not count what training writes into them.
    norm = nn.track(torch.nn.BatchNorm1d(4)).train(training)
    x = leaf(4, 4)
    with tracer.Graph(values=True) as graph:
        y = norm(x) + norm(x)
    report = tracer.repeats(graph)
    assert not report.rows and "2 calls with running statistics" in str(report)
    del y


def test_a_hundred_thousand_calls_are_answered_without_recursion() -> None:
    x = leaf(1)
    with tracer.Graph(values=True) as graph:
        y = z = x
        for _ in range(25_000):
            y, z = y * 1.5, z * 1.5
        loss = y + z
    (row,) = tracer.repeats(graph)
    assert (row.calls, row.times) == (25_000, 2)
    del loss
