"""``tracer.find_nan``: where nan and inf are born, in forward and in backward, and where they come to."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer
from tracer.reports.not_finite import NotFinite
from tracer.reports.report import Report

NAN, INF = float("nan"), float("inf")


def leaf(*values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return tracer.tensor(list(values), dtype=dtype, requires_grad=True)


def line_of(function: Callable[..., Any], mark: str) -> str:
    lines, start = inspect.getsourcelines(function)
    return f"test_not_finite.py:{start + next(i for i, text in enumerate(lines) if mark in text)}"


def asked(program: Callable[[Any], Any], x: Any, *, loss: bool = True, **options: bool) -> Report[NotFinite]:
    with tracer.Graph(sites=True, finite=True, **options) as graph:
        y = program(x)
    return tracer.find_nan(graph, y if loss else None)


def first_place(report: object) -> str:
    return re.findall(r"[\w.]+\.py:\d+", str(report))[0]


# ---------------------------------------------------------------------- born in forward
def masked_rows(x: torch.Tensor) -> torch.Tensor:
    scores = x.masked_fill(torch.tensor([[True, True], [False, True]]), -INF)
    return scores.softmax(-1).sum()  # ROOT


def late_root(x: torch.Tensor) -> torch.Tensor:
    y = torch.sqrt(x - 2)  # ROOT
    y = torch.sqrt(y)
    return y.sum()


def overflowing_softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x * 100).exp()  # ROOT
    return (e / e.sum()).sum()


FORWARD: list[tuple[str, str, str, Callable[[Any], Any], torch.Tensor, str]] = [
    ("sqrt", "sqrt", "nan", late_root, leaf(1.0), "eps inside the root"),
    ("softmax", "softmax", "nan", masked_rows, leaf([1.0, 2.0], [3.0, 4.0]), "unmasked"),
    ("exp", "exp", "inf", overflowing_softmax, leaf(1.0, 2.0), "largest exponent"),
    ("log of 0", "log", "inf", lambda x: x.log().sum(), leaf(0.0, 1.0), "Clamp before the log"),
    ("division", "div", "inf", lambda x: (torch.ones(2) / x).sum(), leaf(0.0, 1.0), "denominator"),
    ("acos", "acos", "nan", lambda x: (x * 2).acos().sum(), leaf(1.0), "inside of its range"),
    ("half", "mul", "inf", lambda x: (x * x).sum(), leaf(300.0, dtype=torch.float16), "float16"),
    ("std", "std", "nan", lambda x: x.std(), leaf(1.0), "one element"),
    ("mean of none", "mean", "nan", lambda x: x[1:].mean(), leaf(1.0), "no element"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize(("name", "op", "what", "program", "x", "repair"), FORWARD, ids=[f[0] for f in FORWARD])
def test_the_first_call_is_named_with_its_repair(
    name: str, op: str, what: str, program: Callable[[Any], Any], x: torch.Tensor, repair: str, values: bool
) -> None:
    report = asked(program, x, values=values)
    row = report.rows[0]
    assert (row.born, row.op.partition(".")[0], row.what) == ("forward", op, what)
    assert "comes to the loss" in row.effect and repair in str(report)
    assert sum(r.born != "backward" for r in report) == 1, str(report)


@pytest.mark.parametrize("program", [late_root, masked_rows, overflowing_softmax])
def test_the_roots_line_comes_first_of_all(program: Callable[[Any], Any]) -> None:
    x = leaf(1.0) if program is late_root else leaf([1.0, 2.0], [3.0, 4.0])
    assert first_place(asked(program, x)) == line_of(program, "# ROOT")


def test_the_elements_are_named_where_values_are_kept() -> None:
    row = asked(late_root, leaf(3.0, 1.0), values=True).rows[0]
    assert row.values == "result[1] = nan, input[1] = -1"


def test_without_values_it_is_told_between_what_the_inputs_lay() -> None:
    row = asked(lambda x: (x - 2).log1p().sum(), leaf(-1.0, 7.0)).rows[0]
    assert "between -3 and 5" in row.values


def test_what_turns_inf_into_nan_is_told_with_the_inf() -> None:
    (row,) = asked(overflowing_softmax, leaf(1.0, 2.0), loss=False)
    assert "nan from div" in row.effect


def test_each_root_is_a_row() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return (x - 2).log().sum() + (x - 3).sqrt().sum() + x.sum()

    assert {row.op for row in asked(two, leaf(1.0), loss=False)} == {"log", "sqrt"}


def test_calls_of_one_place_are_one_row() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.log() for _ in range(5)]).sum()

    (row,) = asked(program, leaf(-1.0))
    assert (row.op, row.calls) == ("log", 5)


def test_a_nan_that_is_masked_is_harmless_and_ranked_behind() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        fine = torch.where(x > 5, x.detach().log() * x, x)  # 0 * x in backward: no harm
        return fine.sum() + (x - 5).sqrt().sum()

    report = asked(program, leaf(-1.0), loss=False)
    assert [row.op for row in report] == ["sqrt", "mul"]
    assert "harmless: where" in report.rows[1].effect


def test_a_nan_that_is_dropped_is_harmless() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        program.kept = (x * -1).log()  # type: ignore[attr-defined]
        return (x * 2).sum()

    report = asked(program, leaf(1.0))
    assert "harmless: nothing that leads to the loss takes it" in report.rows[0].effect
    assert report.verdict.startswith("nothing that is not finite comes to the loss")


def test_infinities_of_a_mask_are_harmless_where_softmax_takes_them() -> None:
    report = asked(lambda x: x.masked_fill(torch.eye(2).bool(), -INF).softmax(-1)[0, 1], leaf([1.0, 2.0], [3.0, 4.0]))
    (row,) = report
    assert row.born == "constant" and row.effect.startswith("harmless: softmax")


def test_all_finite_is_an_answer() -> None:
    report = asked(lambda x: x.exp().sum(), leaf(1.0))
    assert report.rows == [] and report.verdict == "all finite: all 2 calls, and so are all gradients"


# ---------------------------------------------------------------------- there from the start
def test_data_with_a_nan_is_called_so() -> None:
    report = asked(lambda x: (x * torch.tensor([1.0, NAN])).sum(), leaf(1.0, 2.0))
    assert report.rows[0].born == "data" and report.verdict.startswith("the data has a nan")
    assert "other[1] = nan" in report.verdict


def test_data_that_a_rule_did_not_save_is_found_too() -> None:
    assert asked(lambda x: (x + torch.tensor([1.0, NAN])).sum(), leaf(1.0, 2.0)).rows[0].born == "data"


def test_data_in_a_list_is_found() -> None:
    row = asked(lambda x: torch.cat([x, torch.tensor([NAN])]).sum(), leaf(1.0), values=True).rows[0]
    assert row.born == "data" and row.values == "its argument tensors holds nan"


def test_a_nan_of_infinities_that_the_program_puts_in_is_the_root() -> None:
    (row,) = asked(lambda x: (x * INF - x * INF).sum(), leaf(1.0), loss=False)
    assert (row.op, row.what) == ("sub", "nan") and "of the infinities of mul" in row.values


def test_a_leaf_with_a_nan_is_called_so() -> None:
    report = asked(lambda x: x.sqrt().sum(), leaf(1.0, NAN))
    assert report.rows[0].born == "leaf" and "the leaf float32[2] has a nan" in report.verdict


@pytest.mark.parametrize("op", ["linear", "layer_norm"])
def test_a_parameter_with_a_nan_is_called_by_its_name(op: str) -> None:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)))
    with torch.no_grad():
        net[0 if op == "linear" else 1].weight[0].fill_(NAN)
    report = asked(lambda x: net(x).sum(), torch.ones(1, 2))
    name = "0.weight" if op == "linear" else "1.weight"
    assert report.verdict.startswith(f"parameter {name} has a nan: {op}"), str(report)


# ---------------------------------------------------------------------- born in backward
class Bad(tracer.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad / (x - 1)


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g / 0)
    return y.sum()


def hooked_node(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.grad_fn.register_hook(lambda into, came: (into[0] * NAN, *into[1:]))  # type: ignore[union-attr]
    return y.sum()


BACKWARD: list[tuple[str, str, Callable[[Any], Any], torch.Tensor, str]] = [
    ("sqrt", "sqrt", lambda x: (x * 2).sqrt().sum(), leaf(0.0, 1.0), "eps inside the root"),
    ("norm by hand", "sqrt", lambda x: (x * x).sum().sqrt(), leaf(0.0, 0.0), "eps inside the root"),
    ("pow", "pow", lambda x: (x**0.5).sum(), leaf(0.0, 1.0), "base away from 0"),
    ("tiny denominator", "reciprocal", lambda x: 1e-30 * x.reciprocal().sum(), leaf(1e-25, 1.0), "denominator"),
    ("Function", "Bad", lambda x: Bad.apply(x).sum(), leaf(1.0), "'backward'"),
    ("hook", "a hook on mul", hooked, leaf(1.0), "A hook on mul"),
    ("hook on a node", "a hook on mul", hooked_node, leaf(1.0), "A hook on mul"),
    ("half", "mul", lambda x: (x * 256).float().sum() * 1024, leaf(1.0, dtype=torch.float16), "GradScaler"),
    ("vmap", "sqrt", lambda x: torch.vmap(lambda r: (r * 2).sqrt().sum())(x).sum(), leaf([0.0, 1.0]), "eps inside"),
    (
        "checkpoint",
        "sqrt",
        lambda x: tracer.checkpoint(lambda r: (r * 2).sqrt().sum(), x),
        leaf(0.0, 1.0),
        "eps inside",
    ),
    ("where", "sqrt", lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), leaf(0.0, 1.0), "the double where"),
]


@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize(("name", "op", "program", "x", "repair"), BACKWARD, ids=[b[0] for b in BACKWARD])
def test_the_first_step_of_backward_is_named_with_its_repair(
    name: str, op: str, program: Callable[[Any], Any], x: torch.Tensor, repair: str, values: bool
) -> None:
    report = asked(program, x, values=values)
    row = report.rows[0]
    assert (row.born, row.op) == ("backward", op), str(report)
    assert "comes to the gradient of the leaf" in row.effect and repair in str(report)
    assert first_place(report) == "test_not_finite.py:" + first_place(report).rpartition(":")[2]
    assert len(report) == 1 and x.grad is None


ASKED_TWICE = [(name, program, x) for name, _, _, program, x, _ in FORWARD]
ASKED_TWICE += [(name, program, x) for name, _, program, x, _ in BACKWARD]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "program", "x"), ASKED_TWICE, ids=[a[0] for a in ASKED_TWICE])
def test_why_names_the_same_call_and_line_and_repair(name: str, program: Callable[[Any], Any], x: torch.Tensor) -> None:
    with tracer.Graph(sites=True, finite=True) as graph:
        loss = program(x)
    place, answer = tracer.find_nan(graph, loss).rows[0], tracer.why(x, loss, graph)
    (cause,) = [row for row in answer if row.cause in ("nan", "inf")]
    (grad,) = torch.autograd.grad(loss, x)
    assert (answer.cause in ("nan", "inf")) == (not bool(grad.isfinite().all())), "the gradient comes before the loss"
    assert where(cause) == where(place) and f"{cause.fix}." == place.repair
    with tracer.Graph(sites=True) as graph:
        loss = program(x)
    cause = tracer.why(x, loss, graph).rows[0]
    if cause.cause in ("nan", "inf"):
        assert where(cause) == where(place), "where only saved values are known"


def where(row: Any) -> tuple[str, str | None]:
    return row.op, row.site.line


def test_a_hook_on_one_of_several_results_is_named_beside_one_that_cleans() -> None:
    x = leaf(0.0, 1.0, 2.0, 3.0)
    with tracer.Graph(sites=True, finite=True) as graph:
        left, right = (x * 2).split(2)
        left.register_hook(lambda grad: torch.ones_like(grad))
        right.register_hook(lambda grad: grad * NAN)
        loss = left.sqrt().sum() + right.sum()
    rows = tracer.find_nan(graph, loss).rows
    assert (rows[1].op, rows[1].effect) == ("sqrt", "harmless: it comes to no leaf")
    assert rows[0].op == tracer.why(x, loss, graph).rows[0].op == "a hook on split"


def test_a_branch_that_where_drops_is_the_cause_of_a_nan_in_backward() -> None:
    def program(a: torch.Tensor) -> torch.Tensor:
        big = torch.exp(a)  # ROOT
        return torch.where(a <= 0, big, 1 + a).sum()

    report = asked(program, leaf(100.0, 200.0))
    (row,) = report
    assert (row.born, row.op, row.what) == ("forward", "exp", "inf") and "its gradient becomes nan in exp" in row.effect
    assert first_place(report) == line_of(program, "# ROOT") and "the double where" in str(report)


def test_finite_gradients_that_add_up_to_inf_are_told_as_a_sum() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        return (y * 2e38).sum() + (y * 2e38).sum()

    (row,) = asked(program, leaf(1e-3))
    assert (row.op, row.what) == ("mul", "inf") and "added up" in row.values


def test_a_gradient_that_stops_before_any_leaf_is_harmless() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g.nan_to_num(0.0, 0.0, 0.0))
        return y.sqrt().sum()

    (row,) = asked(program, leaf(0.0))
    assert row.op == "sqrt" and row.effect == "harmless: it comes to no leaf"


def test_one_that_turns_into_nan_and_then_stops_is_harmless_too() -> None:
    report = asked(lambda x: (-x).relu().pow(3).mean().pow(1 / 3), leaf(1.0, 2.0))  # inf, 0 * inf, and what relu drops
    assert [(row.op, row.what, row.harmless) for row in report] == [("pow", "inf", True)]
    assert report.verdict.startswith("nothing that is not finite comes to the loss or to a gradient")


def test_the_text_of_a_single_place_has_no_table_that_says_it_again() -> None:
    one = asked(lambda x: x.sqrt().sum(), leaf(0.0, 1.0))
    assert len(str(one).splitlines()) == 2 and one.rows[0].values in str(one) and one.rows[0].repair in str(one)
    looped = asked(lambda x: torch.stack([x.log() for _ in range(5)]).sum(), leaf(-1.0))
    assert "calls" in str(looped).splitlines()[1]


def test_values_around_a_step_of_backward_are_told() -> None:
    (row,) = asked(lambda x: (x * 2).sqrt().sum(), leaf(1.0, 0.0), values=True)
    assert row.values == "gradient of input[1] = inf for an incoming one of 1, input[1] = 0, result[1] = 0"


def test_a_loss_of_several_elements_is_looked_at_too() -> None:
    assert asked(lambda x: x.sqrt(), leaf(0.0, 1.0)).rows[0].op == "sqrt"


def test_it_says_that_the_backward_pass_has_run_already() -> None:
    x = leaf(4.0)
    with tracer.Graph(finite=True) as graph:
        y = x.sqrt().exp().sum()
    y.backward()
    assert "has run already" in str(tracer.find_nan(graph, y))


# ---------------------------------------------------------------------- inside of others
def test_forward_inside_vmap_names_the_call_inside() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: (row * 2).log().sum())(x).sum()

    (row,) = asked(program, leaf([1.0, -1.0]), loss=False)
    assert (row.op, row.what) == ("log", "nan") and "between -2 and 2" in row.values


def test_forward_inside_a_checkpoint_names_the_call_inside() -> None:
    (row,) = asked(lambda x: tracer.checkpoint(lambda r: (r * 2).log(), x).sum(), leaf(-1.0), loss=False)
    assert row.op == "log"


def test_a_function_that_makes_it_in_forward_is_named() -> None:
    class Log(tracer.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.log()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    report = asked(lambda x: Log.apply(x).sum(), leaf(-1.0))
    assert report.rows[0].op == "Log" and "computes in its forward" in str(report)


# ---------------------------------------------------------------------- loops
def trained(steps: int, born_at: int, graph: tracer.Graph) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.track(torch.nn.Linear(2, 1))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    loss = None
    with graph:
        for step in range(steps):
            optimiser.zero_grad()
            y = net(torch.ones(1, 2))
            loss = (y * (0.0 if step == born_at else 1.0)).square().sum().sqrt()
            loss.backward()
            optimiser.step()
    assert loss is not None
    trained.net = net  # type: ignore[attr-defined]
    return loss


def test_a_parameter_that_a_step_made_nan_is_found_with_the_call_that_still_found_it_fine() -> None:
    graph = tracer.Graph(sites=True, finite=True)
    trained(8, 5, graph)
    report = tracer.find_nan(graph)
    assert report.verdict.startswith("parameter weight has a nan: linear"), str(report)
    assert "written after linear" in report.verdict and "find_nan(graph, loss)" in str(report)


@pytest.mark.slow
def test_a_birth_whose_notes_are_gone_is_told_so() -> None:
    graph = tracer.Graph(sites=True, finite=True)
    trained(10_000, 5, graph)
    report = tracer.find_nan(graph)
    assert report.rows[0].born == "parameter" and "have been dropped" in str(report)


def test_a_chain_whose_beginning_is_gone_is_told_so() -> None:
    x = leaf(-1.0)
    with tracer.Graph(finite=True) as graph:
        h = x.log().detach()
        for _ in range(9000):
            y = leaf(1.0) * 1
        del y, h
        held = x.log()
        for _ in range(9000):
            held = (held + 1).detach().requires_grad_()
    assert "have been dropped" in str(tracer.find_nan(graph))


@pytest.mark.slow
def test_a_graph_of_100_000_calls_is_answered_without_recursion() -> None:
    x = leaf(0.0)
    with tracer.Graph(finite=True) as graph:
        h = x.sqrt()
        for _ in range(100_000):
            h = h + 1
    report = tracer.find_nan(graph, h)
    assert report.rows[0].op == "sqrt" and report.rows[0].born == "backward"


# ---------------------------------------------------------------------- the report, and what is refused
def test_the_report_can_be_dumped() -> None:
    plain = json.loads(json.dumps(asked(late_root, leaf(1.0)).to_dict()))
    assert plain["columns"] == ["born", "op", "what", "site", "effect", "values", "calls"]


def test_a_graph_that_does_not_note_finiteness_is_refused() -> None:
    with tracer.Graph(sites=True) as graph:
        y = leaf(1.0) * 2
    with pytest.raises(tracer.NotNotedError, match="finite=True"):
        tracer.find_nan(graph, y)


def test_a_loss_without_history_is_refused() -> None:
    with tracer.Graph(finite=True) as graph:
        pass
    with pytest.raises(tracer.NoHistoryError):
        tracer.find_nan(graph, torch.ones(1))


def test_sparse_and_complex_values_are_looked_at() -> None:
    assert asked(lambda x: (x.to_sparse() * NAN).to_dense().sum(), leaf(1.0, 2.0), loss=False).rows[0].op == "mul"
    z = tracer.tensor([complex(0, 0)], requires_grad=True)
    assert asked(lambda z: z.log().abs().sum(), z, loss=False).rows[0].op == "log"


@pytest.mark.parametrize("fused", [False, True], ids=["written out", "fused"])
def test_attention_over_a_row_that_is_masked_throughout_is_told(fused: bool) -> None:
    q = leaf([[[1.0, 2.0], [3.0, 4.0]]])
    mask = torch.tensor([[True, True], [False, True]])

    def program(q: torch.Tensor) -> torch.Tensor:
        if fused:
            return F.softmax(q @ q.mT + torch.zeros(2, 2).masked_fill(mask, -INF), -1).sum()
        return (q @ q.mT).masked_fill(mask, -INF).log_softmax(-1).exp().sum()

    assert "softmax" in asked(program, q, loss=False).rows[0].op
