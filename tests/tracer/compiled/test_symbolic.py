"""Graphs of symbolic sizes: which sizes are symbols, when a graph serves a call, and when another one is captured."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nine graphs of a step are told of by a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was captured 9 times")
        yield


def weights() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(torch.nn.Linear(4, 3))


def assert_follows(
    loss: Callable[..., torch.Tensor], sizes: Any, dynamic: bool = True, make: Any = lambda n: (torch.randn(n, 4),)
) -> Any:
    """One call for each of ``sizes``, compiled and eager, from the same weights. Returns the compiled step."""
    model, twin = weights(), weights()

    def step_of(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            value = loss(model, x, *rest)
            value.backward()
            return value

        return step

    compiled, eager = tracer.compile(step_of(model), backend="replay", dynamic=dynamic), step_of(twin)
    for size in sizes:
        args = make(size)
        torch.testing.assert_close(compiled(*args).detach(), eager(*args).detach(), equal_nan=True)
        torch.testing.assert_close(model.weight.grad, twin.weight.grad, equal_nan=True)
    return compiled


def rows_of(compiled: Any) -> list[Any]:
    return compiled.explain().rows


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": lambda m, x: m(x).mean(),
    "numbers made of sizes": lambda m, x: m(x).sum() / x.shape[0] + m(x).square().sum() * (1 / x.numel()) * x.shape[0] ** -0.5,
    "variance": lambda m, x: m(x).var() + m(x).std(0).sum() + m(x).var(0, unbiased=False).sum(),
    "cross entropy over the batch": lambda m, x: F.cross_entropy(m(x) @ x[:, :3].t(), torch.arange(x.shape[0])),
    "ignored targets": lambda m, x: F.cross_entropy(m(x), (x[:, 0] > 0).long(), ignore_index=0, reduction="sum"),
    "losses": lambda m, x: F.mse_loss(m(x), x[:, :3]) + F.kl_div(m(x).log_softmax(1), x[:, :3].softmax(1), reduction="batchmean"),
    "cat and stack": lambda m, x: torch.cat([m(x), m(x).flip(0)]).square().mean() + torch.stack([m(x)] * 3).square().mean(),
    "expand and sum": lambda m, x: (m(x[:1]).expand(x.shape[0], 3) * x[:, :3]).mean() + (m(x).mean(0) * x[:, :3]).sum(),
    "reshape": lambda m, x: m(x).reshape(-1).square().mean() + m(x).t().flatten().cumsum(0).mean(),
    "slices": lambda m, x: m(x)[1 : x.shape[0] - 1].square().mean() + m(x)[: x.shape[0] // 2].sum() + m(x).narrow(0, 1, 2).sum(),
    "indices": lambda m, x: m(x)[torch.arange(x.shape[0]).flip(0), x[:, :3].argmax(1)].mean() + m(x).topk(2, 0)[0].sum(),
    "sequences": lambda m, x: m(x.view(1, -1, 4).transpose(0, 1)).softmax(0).square().sum(),
    "writes": lambda m, x: x.new_zeros(x.shape[0] + 1, 3).index_copy_(0, torch.arange(x.shape[0]), m(x)).square().mean(),
    "matrices": lambda m, x: torch.linalg.cholesky(m(x) @ m(x).t() + torch.eye(x.shape[0])).sum() + torch.cdist(m(x), x[:, :3]).mean(),
    "shrinking": lambda m, x: (F.softshrink(m(x)) * F.hardshrink(m(x))).sum(),
    "interpolation": lambda m, x: F.interpolate(m(x)[None, None], scale_factor=2, mode="bilinear").square().mean()
    + F.interpolate(m(x).t()[None], size=7, mode="linear").sum(),
    "dropout of an argument": lambda m, x: m(F.dropout(x, 0.0)).sum() + m(F.dropout(x, 1.0)).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_no_size_of_the_first_call_stays(name: str) -> None:
    compiled = assert_follows(LOSSES[name], (5, 7, 10, 14))
    assert [row["calls"] for row in rows_of(compiled)] == [4]


def test_the_ninth_graph_for_sizes_alone_is_symbolic_where_sizes_varied() -> None:
    compiled = assert_follows(lambda m, x: m(x).square().mean(), range(5, 25), dynamic=False)
    rows = rows_of(compiled)
    assert [row["symbolic"] for row in rows] == [False] * 8 + [True]
    assert rows[8]["calls"] == 12
    assert "x.shape[1] == 4" in rows[8]["conditions"]
    assert "symbolic sizes, where x.shape[1] == 4" in str(compiled.explain())


def test_graphs_for_other_reasons_do_not_count_as_sizes() -> None:
    def loss(m: torch.nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * m(x).mean()

    compiled = assert_follows(loss, range(10), dynamic=False, make=lambda n: (torch.randn(5, 4), float(n)))
    assert [row["symbolic"] for row in rows_of(compiled)] == [False] * 10


def test_sizes_that_are_forgotten_are_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.compiled.step.REMEMBERED", 4)
    compiled = assert_follows(lambda m, x: m(x).mean(), [*range(5, 15), *range(5, 15)])
    assert [row["calls"] for row in rows_of(compiled)] == [20]
    assert len(compiled._graphs) <= 6


def test_no_and_one_row_have_graphs_of_their_own() -> None:
    compiled = assert_follows(lambda m, x: m(x).mean(), (5, 1, 0, 7, 1, 0, 2))
    assert [row["calls"] for row in rows_of(compiled)] == [3, 2, 2]


def test_a_condition_that_divides_by_a_size_is_not_met_by_none() -> None:
    compiled = assert_follows(
        lambda m, x: x.reshape(x.shape[1], x.shape[0]).square().sum() + m(x).sum(), (6, 7, 0, 1, 9)
    )
    assert [row["calls"] for row in rows_of(compiled)] == [3, 1, 1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_torch_cannot_trace_without_elements_is_refused(dynamic: bool) -> None:
    """What torch takes for a kernel while it traces divides by the number of elements."""
    compiled = tracer.compile(lambda x: F.mse_loss(x, x.detach() + 1).backward(), backend="replay", dynamic=dynamic)
    with pytest.raises(tracer.CaptureError, match=r"mse_loss_backward raises in a step .*: float division by zero"):
        compiled(tracer.tensor(torch.randn(0, 4), requires_grad=True))


def test_numbers_among_the_arguments_are_keys_by_value() -> None:
    def loss(m: torch.nn.Module, x: torch.Tensor, power: int) -> torch.Tensor:
        return m(x).pow(power).mean()

    calls = [(5, 2), (7, 2), (7, 3), (9, 3)]
    compiled = assert_follows(loss, calls, make=lambda call: (torch.randn(call[0], 4), call[1]))
    assert [row["calls"] for row in rows_of(compiled)] == [2, 2]


def test_a_branch_on_a_size_has_a_graph_for_each_way() -> None:
    compiled = assert_follows(lambda m, x: m(x).sum() if x.shape[0] > 6 else m(x).square().sum(), (5, 9, 6, 12))
    rows = rows_of(compiled)
    assert [row["calls"] for row in rows] == [2, 2]
    assert any("not so: 2 <= x.shape[0] and x.shape[0] <= 6" in text for text in rows[1]["differed"])


@pytest.mark.parametrize("number", [math.sqrt, float, lambda n: len(range(n)), lambda n: int(n) + 0.5])
def test_a_size_that_python_makes_a_number_of_is_one_for_its_graph(number: Callable[[Any], float]) -> None:
    compiled = assert_follows(lambda m, x: m(x).sum() / number(x.shape[0]), (5, 7, 5))
    assert [row["calls"] for row in rows_of(compiled)] == [2, 1]


def test_loops_over_a_length_have_a_graph_for_each_length() -> None:
    def loss(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return sum(m(x[:, t]).tanh().mean() * t for t in range(x.shape[1]))  # type: ignore[return-value]

    compiled = assert_follows(loss, [(5, 3), (7, 3), (7, 6), (9, 6)], make=lambda size: (torch.randn(*size, 4),))
    assert [row["calls"] for row in rows_of(compiled)] == [2, 2]


def test_sizes_that_are_returned_are_those_of_the_call() -> None:
    compiled = tracer.compile(
        lambda x: (x.shape, x.shape[0] / 2, [x.numel()], x.shape[0] > 6), backend="replay", dynamic=True
    )
    assert compiled(torch.ones(5, 4)) == (torch.Size((5, 4)), 2.5, [20], False)
    assert compiled(torch.ones(6, 4)) == (torch.Size((6, 4)), 3.0, [24], False)
    assert compiled(torch.ones(9, 4)) == (torch.Size((9, 4)), 4.5, [36], True)


def test_layouts_are_told_apart() -> None:
    def make(size: tuple[int, bool]) -> tuple[torch.Tensor]:
        return (torch.randn(4, size[0]).t() if size[1] else torch.randn(size[0], 4),)

    compiled = assert_follows(
        lambda m, x: m(x).square().mean(), [(5, False), (7, True), (9, True), (11, False)], make=make
    )
    assert [row["calls"] for row in rows_of(compiled)] == [2, 2]


@pytest.mark.parametrize("dynamic", [False, True])
def test_where_an_argument_begins_in_its_memory_is_seen(dynamic: bool) -> None:
    memory = torch.arange(40.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        window = x.as_strided((2, 2), (1, 2), 2)
        (window * torch.arange(4.0).view(2, 2)).sum().backward()
        return window.detach().clone()

    compiled = tracer.compile(step, backend="replay", dynamic=dynamic)
    for begin in (0, 2, 1, 0):
        ours, theirs = (memory.clone()[begin : begin + 8].requires_grad_() for _ in range(2))
        ours, theirs = tracer.track(ours.detach(), True), tracer.track(theirs.detach(), True)
        if dynamic and begin:
            with pytest.raises(tracer.CaptureError, match="where in its memory an argument begins"):
                compiled(ours)
            continue
        assert torch.equal(compiled(ours), step(theirs))
        assert torch.equal(ours.grad, theirs.grad)


def unhashable(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m(x).sum() / {x.shape[0]: 2.0}[x.shape[0]]


def test_what_symbolic_sizes_cannot_do_is_refused_by_name_when_they_were_asked_for() -> None:
    with pytest.raises(tracer.CaptureError, match=r"with symbolic ones it cannot: unhashable .* Leave dynamic=False"):
        assert_follows(unhashable, (5,))


def test_it_stays_with_fixed_sizes_when_they_were_not() -> None:
    compiled = assert_follows(unhashable, range(5, 16), dynamic=False)
    rows = rows_of(compiled)
    assert not any(row["symbolic"] for row in rows)
    assert "unhashable" in rows[8]["fixed_since"]
    assert "fixed sizes, since with symbolic ones: unhashable" in str(compiled.explain())


def test_ops_that_know_no_symbolic_sizes_get_numbers() -> None:
    def loss(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.multi_margin_loss(m(x), (x[:, 0] > 0).long())

    compiled = assert_follows(loss, (5, 7, 5))
    assert [row["calls"] for row in rows_of(compiled)] == [2, 1]


def test_random_numbers_are_those_of_the_eager_step() -> None:
    compiled = tracer.compile(
        lambda x: F.dropout(x.t(), 0.4) + torch.rand(x.shape[1], 1), backend="replay", dynamic=True
    )
    for size in (5, 7, 10):
        x = torch.randn(size, 4)
        torch.manual_seed(size)
        got, state = compiled(x), torch.get_rng_state()
        torch.manual_seed(size)
        assert torch.equal(got, F.dropout(x.t(), 0.4) + torch.rand(4, 1))
        assert torch.equal(state, torch.get_rng_state())
    assert len(rows_of(compiled)) == 1


def test_check_compares_each_size_with_the_eager_step() -> None:
    def wrong_at_seven(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda *given: [result * (1 + (given[-1].shape[0] == 7)) for result in graph(*given)]

    model = weights()
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend=wrong_at_seven, dynamic=True, check=True)
    compiled(torch.randn(5, 4))
    compiled(torch.randn(6, 4))
    with pytest.raises(tracer.CompiledStepError, match=r"\.grad of model\.weight"):
        compiled(torch.randn(7, 4))


def test_an_exported_graph_runs_at_every_size() -> None:
    model = weights()
    graph = tracer.export_graph(
        lambda x: torch.autograd.grad(model(x).mean(), model.weight), torch.randn(5, 4), dynamic=True
    )
    x = torch.randn(9, 4)
    inputs = {"model_weight": model.weight.detach(), "model_bias": model.bias.detach(), "x": x}
    (got,) = graph(*(inputs[node.name] for node in graph.graph.nodes if node.op == "placeholder"))
    torch.testing.assert_close(got, x.sum(0).expand(3, 4) / 27)
    assert "x.shape[1] == 4" in graph.meta["conditions"]


@pytest.mark.slow
def test_inductor_divides_by_sizes() -> None:
    torch.manual_seed(0)
    model = nn.track(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.AdaptiveAvgPool2d(1)))
    twin = copy.deepcopy(model)
    compiled = tracer.compile(lambda x: model(x).square().mean().backward(), backend="inductor", dynamic=True)
    for rows, height in ((5, 7), (6, 9), (9, 12)):
        x = torch.randn(rows, 1, height, 8)
        compiled(x)
        twin(x).square().mean().backward()
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad)
    assert len(rows_of(compiled)) == 1
