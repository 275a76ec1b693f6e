"""``tracer.why``: the verdict on a tensor and on each parameter of a model. The kinds of faults: ``test_planted_faults.py``."""

from __future__ import annotations

import gc
import inspect
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf32
from torch.utils.checkpoint import checkpoint

import nn
import tracer
from tracer.reports import rounding
from tracer.reports.report import place

T = torch.Tensor


def noted(program: Callable[[], Any], **notes: bool) -> tuple[Any, tracer.Graph]:
    with tracer.Graph(sites=True, **notes) as graph:
        return program(), graph


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.spare = (torch.nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: T) -> T:
        return self.head(torch.relu(self.encoder(x)))


# ---------------------------------------------------------------------- a tensor
def test_ok_has_the_norm_and_the_way_to_the_loss() -> None:
    x = leaf32(3.0, 4.0)
    loss, graph = noted(lambda: (x * x).exp().log().sum())
    answer = tracer.why(x, loss, graph)
    assert str(answer) == "ok: its gradient has norm 10, by mul -> exp -> log -> sum"
    assert answer.cause == "ok" and answer.rows[0].norm == pytest.approx(10.0)


def test_a_result_is_asked_about_as_a_leaf_is() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        h = x * 2
        first, second = (h * 3).chunk(2)
        loss = (first * 0).sum() + second.sum()
    assert tracer.why(h, loss, graph).verdict == "ok: its gradient has norm 3, by mul -> chunk -> sum -> add"
    assert tracer.why(first, loss, graph).cause == "zero"
    assert tracer.why(second, loss, graph).rows[0].norm == 1.0
    assert tracer.why(loss, loss, graph).verdict == "ok: its gradient has norm 1, as it is the loss itself"


SCORES = torch.tensor([1.0, 5.0, 2.0])


@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("softmax", lambda x: ((SCORES + x.sum()).softmax(0) * SCORES).sum()),
        ("layer_norm", lambda x: (F.layer_norm(SCORES * x.sum(), (3,), eps=0.0) * SCORES).sum()),
        (
            "batch_norm",
            lambda x: (
                (F.batch_norm(torch.eye(3) @ torch.eye(3) + x, None, None, training=True) * SCORES).mean(0)[:2].sum()
            ),
        ),
        ("div", lambda x: (SCORES * x.sum() / (SCORES * x.sum()).norm() * SCORES).sum()),
        ("softmax", lambda x: (((SCORES + x.sum()) / 2).softmax(0) * SCORES).sum()),  # a quotient by a constant is none
        ("add", lambda x: (F.layer_norm(F.gelu((h := torch.eye(3) + x) - h.mean(0)), (3,)) * SCORES).sum()),
        (
            "layer_norm",
            lambda x: sum((F.layer_norm(SCORES * part, (3,), eps=0.0) * SCORES).sum() for part in (x * 2).chunk(3)),
        ),
    ],
)
def test_what_rounding_has_left_of_a_gradient_is_told_as_zero_with_the_call_that_undoes_it(
    op: str, program: Callable[[T], T]
) -> None:
    x = leaf32(0.3, 0.71, 0.97)
    loss, graph = noted(lambda: program(x))
    assert bool(torch.autograd.grad(loss, x, retain_graph=True)[0].any()), "else it is told as any other zero"
    answer = tracer.why(x, loss, graph)
    assert answer.cause == "zero" and answer.rows[0].op == op and "is rounding" in answer.verdict
    assert f" at test_why.py:{inspect.getsourcelines(program)[1]}" in answer.verdict or op == "batch_norm"


def test_rounding_is_found_under_autocast_and_in_a_few_rows_of_a_large_table() -> None:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh()))
    with torch.autocast("cpu", torch.bfloat16):
        loss, graph = noted(lambda: net(torch.eye(3)).square().mean())
    assert ("0.bias", "zero", "batch_norm") in [
        (row.parameter, row.cause, row.op) for row in tracer.why(net, loss, graph)
    ]
    table = nn.track(torch.nn.Embedding(5000, 8))
    loss, graph = noted(lambda: F.layer_norm(table(torch.tensor([7, 77])), (8,)).sum())
    assert tracer.why(table.weight, loss, graph).rows[0].op == "layer_norm"


def test_nothing_is_swept_again_where_gradients_only_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.track(torch.nn.Sequential(*[m for _ in range(12) for m in (torch.nn.Linear(3, 3), torch.nn.Sigmoid())]))
    loss, graph = noted(lambda: net(torch.eye(3)).mean())
    monkeypatch.setattr(rounding, "_samples_at", None)
    rows = tracer.why(net, loss, graph).rows
    assert {row.cause for row in rows} == {"ok"} and min(row.norm or 0.0 for row in rows) < 1e-6


@pytest.mark.parametrize("scale", [1e-9, 1e-30])
def test_a_gradient_that_is_only_small_is_ok(scale: float) -> None:
    x = leaf32(0.3, 0.71, 0.97)
    loss, graph = noted(lambda: (x.sin() * scale).sum() + leaf32(1.0).sum())
    assert tracer.why(x, loss, graph).cause == "ok"


def test_the_elements_of_a_loss_are_summed() -> None:
    x = leaf32(3.0, 4.0)
    loss, graph = noted(lambda: x * 2)
    assert tracer.why(x, loss, graph).rows[0].norm == pytest.approx(8**0.5)


def test_a_complex_and_a_sparse_gradient_are_judged_too() -> None:
    z = tracer.tensor(torch.tensor([3 + 4j]), requires_grad=True)
    loss, graph = noted(lambda: z.abs().sum())
    assert tracer.why(z, loss, graph).cause == "ok"
    table = nn.track(torch.nn.Embedding(5, 2, sparse=True))
    loss, graph = noted(lambda: (table(torch.tensor([1, 1])) * 0).sum())
    assert tracer.why(table.weight, loss, graph).cause == "zero"


def test_real_cuts_rank_before_those_of_a_log() -> None:
    x = leaf32(1.0, 2.0)

    def program() -> T:
        h = x * 2
        real = h.exp().detach()
        h.exp().mean().item()
        bool((h > 0).all())
        h.argmax()
        return real.sum() + leaf32(1.0).sum()

    loss, graph = noted(program)
    answer = tracer.why(x, loss, graph)
    assert [cause.op for cause in answer.rows] == ["detach", "argmax", "gt", "item"]
    assert "What it may be as well:" in str(answer)


def test_a_forgotten_term_ranks_before_the_number_that_was_logged() -> None:
    x, w = leaf32(1.0, 2.0), leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        print(x.exp().mean().item())
        forgotten = (x * 2).tanh()
        loss = w.sum()
    assert [cause.cause for cause in tracer.why(x, loss, graph).rows] == ["not in loss", "cut"]
    assert forgotten.requires_grad


@pytest.mark.parametrize("make", [float, lambda loss: loss.detach(), lambda loss: torch.tensor(loss.item())])
def test_a_loss_that_has_lost_its_history_is_told_by_its_cut(make: Callable[[T], Any]) -> None:
    x = leaf32(1.0, 2.0)
    loss, graph = noted(lambda: make((x * 2).sum()))
    assert tracer.why(x, loss, graph).cause == "cut"


def test_a_loss_of_data_alone_says_so_beside_what_became_of_the_tensor() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        h = x.exp()
        loss = torch.ones(2).sum()
    causes = tracer.why(x, loss, graph).rows
    assert [cause.cause for cause in causes] == ["not in loss", "cut"] and "does not require grad" in causes[1].reason
    assert h.requires_grad


def test_the_first_call_whose_result_is_not_finite_is_found_from_all_results_where_the_graph_notes_them() -> None:
    def program() -> T:
        h = torch.arange(2.0) / 0 + x  # FIRST
        return ((h + 1) * 2 * x).sum()

    x = leaf32(1.0, 2.0)
    loss, graph = noted(program, finite=True)
    lines, first = inspect.getsourcelines(program)
    line = first + next(i for i, text in enumerate(lines) if "FIRST" in text)
    assert f"born in add at test_why.py:{line}: the data has a nan" in str(tracer.why(x, loss, graph))


WEIGHTS = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("log", lambda x: (((x - 5).log() * 2).softmax(0) * WEIGHTS).sum()),
        ("log", lambda x: torch.where(x < 1.5, (x - 5).log(), x).log_softmax(0)[0]),
        ("log", lambda x: torch.cat([x, (x - 5).log()]).exp().sum()),
        ("div", lambda x: (((x - 1) / (x - 1) + x).softmax(0) * WEIGHTS).sum()),
        ("pow", lambda x: ((x - 3) ** 0.5 + 1).sqrt().sum()),
        ("matmul", lambda x: (((h := (x * 300).half())[:, None] @ h[None]).softmax(-1) @ WEIGHTS.half()).sum()),
        ("masked_fill", lambda x: x.masked_fill(x > 1.5, torch.nan).exp().sum()),
    ],
)
def test_the_call_that_made_it_is_found_from_what_calls_have_kept(op: str, program: Callable[[T], T]) -> None:
    x = leaf32(1.0, 2.0)
    for notes in ({}, {"finite": True}):
        loss, graph = noted(lambda: program(x), **notes)
        row = next(row for row in tracer.why(x, loss, graph).rows if row.cause in ("nan", "inf"))
        assert row.op == op and "unless" not in row.reason


def test_a_call_that_may_have_been_given_what_is_not_finite_is_told_with_that() -> None:
    x = leaf32(1.0, 2.0)
    loss, graph = noted(lambda: torch.fft.fft(x - 5).real.sqrt().sum())
    row = tracer.why(x, loss, graph).rows[0]
    assert row.op == "sqrt" and "unless what it was given, which was not kept, was so before" in row.reason


def test_an_error_of_backward_is_raised_where_the_tensor_is_part_of_that_and_told_for_a_model() -> None:
    class Failing(tracer.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: T) -> Any:
            return grad, grad

    layer, other = nn.track(torch.nn.Linear(2, 2)), leaf32(1.0)
    loss, graph = noted(lambda: Failing.apply(layer(torch.ones(2))).sum())
    with pytest.raises(tracer.FunctionError):
        tracer.why(layer.weight, loss, graph)
    assert tracer.why(other, loss, graph).cause == "unused"
    answer = tracer.why(layer, loss, graph)
    assert [row.cause for row in answer] == ["unknown"] * 2 and "FunctionError" in str(answer)


def test_a_graph_that_was_released_is_refused_with_the_remedy_and_its_cuts_are_told_all_the_same() -> None:
    x, cut = leaf32(1.0, 2.0), leaf32(1.0, 2.0)
    loss, graph = noted(lambda: (x * x + (cut * 2).detach()).sum())
    loss.backward()
    with pytest.raises(tracer.FreedGraphError, match=r"Ask before backward\(\), or pass retain_graph=True"):
        tracer.why(x, loss, graph)
    assert tracer.why(cut, loss, graph).cause == "cut"


def test_a_graph_with_values_can_be_asked_after_backward_as_far_as_these_tell_all() -> None:
    layers = nn.track(torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]))
    mask = torch.tensor([0.0, 1.0]).repeat_interleave(3)
    loss, graph = noted(lambda: (torch.cat([layer(torch.ones(3)) for layer in layers]) * mask).sum(), values=True)
    loss.backward()
    assert [(row.parameter, row.op) for row in tracer.why(layers, loss, graph)][:2] == [
        ("0.weight", "mul"),
        ("0.bias", "mul"),
    ]
    norm = nn.track(torch.nn.BatchNorm1d(3))
    loss, graph = noted(lambda: norm(torch.eye(3)).sum(), values=True)  # its rule asks for a by-product of its forward
    loss.backward()
    assert {row.causes[0].fix for row in tracer.why(norm, loss, graph)} == {
        "Ask before backward(), or pass retain_graph=True to it"
    }


def test_a_result_without_history_is_told_by_the_cut_that_it_came_out_of() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        kept = x.exp().detach()
        loss = (kept * x).sum()
        x.sum().detach()
    assert tracer.why(kept, loss, graph).verdict.startswith("cut: by detach at test_why.py:")
    assert tracer.why(torch.ones(2), loss, graph).cause == "frozen"


def test_a_view_that_is_made_for_the_question_is_told_so() -> None:
    layer = nn.track(torch.nn.Linear(2, 2))
    loss, graph = noted(lambda: layer(torch.ones(2)).sum())
    assert "made after the loss" in tracer.why(layer.weight[0], loss, graph).verdict
    assert "made after the loss" in tracer.why(layer.weight.T, loss, graph).verdict


def test_a_result_that_a_reentrant_checkpoint_cuts_is_told_what_shows_more() -> None:
    x = leaf32(1.0, 2.0)
    loss, graph = noted(lambda: checkpoint(lambda t: t.detach() * leaf32(1.0), x * 2, use_reentrant=True).sum())
    assert "cut: by CheckpointFunction" in str(answer := tracer.why(x, loss, graph)) and "use_reentrant=False" in str(
        answer
    )


def test_wrong_questions_are_refused() -> None:
    x = leaf32(1.0)
    loss, graph = noted(lambda: x * 2)
    with pytest.raises(tracer.ReportError, match="list"):
        tracer.why([x], loss, graph)  # type: ignore[call-overload]
    with pytest.raises(tracer.ReportError, match="Mind the order"):
        tracer.why(loss, x, graph)
    with pytest.raises(tracer.ReportError, match="for the loss"):
        tracer.why(x, "loss", graph)  # type: ignore[call-overload]
    with pytest.raises(tracer.NotNotedError, match=r"tracer\.Graph\(sites=True\)"):
        tracer.why(x, loss, tracer.Graph())


# ---------------------------------------------------------------------- what is left as it was
def test_grad_and_graph_and_notes_are_as_they_were() -> None:
    net = nn.track(Net())
    seen: list[str] = []
    with tracer.Graph(sites=True) as graph:
        loss = net(torch.ones(2, 3)).sum()
        net.head.weight.register_post_accumulate_grad_hook(lambda _: seen.append("filled"))  # type: ignore[no-untyped-call]
        calls, cuts = graph.calls(), graph.cuts()
        answer = tracer.why(net, loss, graph)
        assert [c.serial for c in graph.calls()] == [c.serial for c in calls] and graph.cuts() == cuts
    assert all(p.grad is None for p in net.parameters()) and not seen
    loss.backward()
    assert net.head.weight.grad is not None and seen == ["filled"] and answer


def test_a_gradient_that_is_there_already_stays_the_same_object() -> None:
    x = leaf32(1.0, 2.0)
    x.grad = kept = torch.ones(2)
    loss, graph = noted(lambda: checkpoint(lambda t: t.exp(), x * 2, use_reentrant=True).sum())
    tracer.why(x, loss, graph)
    assert x.grad is kept and torch.equal(kept, torch.ones(2))


@pytest.mark.parametrize("reentrant", [True, False])
def test_parameters_inside_a_checkpoint_are_found_and_their_grad_left_alone(reentrant: bool) -> None:
    layer, x = nn.track(torch.nn.Linear(2, 2)), leaf32(1.0, 2.0)
    loss, graph = noted(lambda: checkpoint(layer, x, use_reentrant=reentrant).sum())
    answer = tracer.why(layer, loss, graph)
    assert [row.cause for row in answer] == ["ok", "ok"] and answer.rows[0].norm == pytest.approx(10**0.5)
    assert layer.weight.grad is None and tracer.why(x, loss, graph).cause == "ok"
    loss.backward()
    assert layer.weight.grad is not None


def test_nothing_is_kept_alive_by_the_answer() -> None:
    def ask() -> tuple[Any, Any, Any]:
        x = leaf32(1.0, 2.0)
        loss, graph = noted(lambda: (x * 2).detach().sum() + x.exp().sum() * 0)
        return tracer.why(x, loss, graph), weakref.ref(x), weakref.ref(loss)

    answer, *gone = ask()
    gc.collect()
    assert [reference() for reference in gone] == [None, None] and answer.cause == "zero"


# ---------------------------------------------------------------------- a model
def test_a_model_has_one_row_a_parameter_grouped_with_the_most_surprising_first() -> None:
    net = nn.track(Net())
    net.head.bias.requires_grad_(False)
    with torch.no_grad():
        net.encoder.bias.fill_(-100)
    loss, graph = noted(lambda: net(torch.ones(2, 3)).sum())
    answer = tracer.why(net, loss, graph)
    told = [(row.parameter, row.cause) for row in answer]
    assert told == [
        ("encoder.weight", "zero"),
        ("encoder.bias", "zero"),
        ("head.weight", "zero"),
        ("spare.weight", "unused"),
        ("spare.bias", "unused"),
        ("head.bias", "frozen"),
    ]
    assert str(answer).startswith("zero: made by relu at test_why.py:")
    assert json.loads(json.dumps(answer.to_dict()))["rows"][0]["site"]["op"] == "relu"


def test_one_cause_in_many_places_is_told_once() -> None:
    layers = nn.track(torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(6)]))

    def program() -> T:
        with torch.no_grad():
            h = layers[:5](torch.ones(2))  # type: ignore[index]
        return layers[5](h).sum()

    loss, graph = noted(program)
    answer = tracer.why(layers, loss, graph)
    line = place(answer.rows[0].site)
    assert (
        answer.verdict
        == f"cut: by no_grad (linear) at {line} and 4 more places (5 of 6 parameters); ok (1 of 6 parameters)"
    )
    assert len(answer.advice) == 1 and "and 2 more places: gradients were off" in answer.advice[0]
    assert [row.parameter for row in answer] == [f"{i}.weight" for i in range(6)]


def test_a_parameter_that_another_loss_has_trained_is_told_so() -> None:
    net = nn.track(Net())
    with tracer.Graph(sites=True) as graph:
        net.spare(torch.ones(3)).sum().backward()
        loss = net(torch.ones(2, 3)).sum()
    advice = tracer.why(net, loss, graph).advice[-1]
    assert "Another backward pass has filled .grad of spare.weight, spare.bias" in advice


def test_what_is_made_of_grad_and_of_a_state_dict_is_told_to_have_no_history() -> None:
    layer, other = nn.track(torch.nn.Linear(2, 2)), leaf32(1.0)

    def program() -> T:
        layer(torch.ones(2)).square().sum().backward()
        assert layer.weight.grad is not None
        return ((layer.weight.grad * 0.1).sum() + layer.state_dict()["weight"].sum()) * other

    loss, graph = noted(program)
    for report in (tracer.why(layer.weight, loss, graph), tracer.why(layer, loss, graph)):
        assert "What is computed of .grad has no history" in report.advice[-1]
    layer.zero_grad()
    loss, graph = noted(lambda: layer.state_dict()["weight"].sum() * other)
    answer = tracer.why(layer.weight, loss, graph)
    assert answer.cause == "unused" and "What state_dict() gives has its values alone" in answer.advice[0]


def test_a_loss_that_is_nan_is_told_beside_gradients_that_are_fine() -> None:
    net = nn.track(Net())

    def program() -> T:
        return (net(torch.ones(2, 3)) - 100).log().sum()

    loss, graph = noted(program)
    answer = tracer.why(net, loss, graph)
    line = inspect.getsourcelines(program)[1] + 1
    assert "ok" in {row.cause for row in answer}
    assert answer.verdict.startswith(f"the loss is nan: born in log at test_why.py:{line}; ")
    assert "born in forward" in answer.advice[0] and "Clamp before the log" in answer.advice[0]


def test_a_tied_parameter_stands_once_with_all_its_names() -> None:
    net = Net()
    net.head.weight = net.encoder.weight
    nn.track(net)
    loss, graph = noted(lambda: net(torch.ones(2, 3)).sum())
    names = [row.parameter for row in tracer.why(net, loss, graph)]
    assert "encoder.weight = head.weight" in names and len(names) == 5


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (lambda net, x: net(torch.ones(3)).sum(), "the loss has its whole history in torch's own autograd"),
        (lambda net, x: (net(torch.ones(3)) * x).sum(), "its gradient goes on there"),
        (lambda net, x: (net(torch.ones(3)).detach() * x).sum(), "no recorded call took it"),
    ],
    ids=["all of it", "behind a bridge", "cut by torch"],
)
def test_a_model_that_was_never_tracked_is_told_so(program: Callable[..., T], word: str) -> None:
    net = torch.nn.Linear(3, 3)
    loss, graph = noted(lambda: program(net, leaf32(1.0, 2.0, 3.0)))
    answer = tracer.why(net, loss, graph)
    assert {row.cause for row in answer} == {"untracked"} and word in str(answer) and "nn.track(model)" in str(answer)


def test_a_native_parameter_that_met_a_tracked_tensor_is_judged_as_any_other() -> None:
    net = torch.nn.Linear(3, 3)
    loss, graph = noted(lambda: net(leaf32(1.0, 2.0, 3.0)).sum())
    assert [row.cause for row in tracer.why(net, loss, graph)] == ["ok", "ok"]


def test_a_lazy_parameter_has_no_shape_yet() -> None:
    net = nn.track(torch.nn.LazyLinear(3))
    loss, graph = noted(lambda: leaf32(1.0).sum())
    assert "has no shape yet" in str(tracer.why(net, loss, graph))


def test_a_training_step_under_no_grad_is_told_for_all_parameters_at_once() -> None:
    net = nn.track(Net())
    with torch.no_grad():
        loss, graph = noted(lambda: net(torch.ones(2, 3)).sum())
    answer = tracer.why(net, loss, graph)
    assert {row.cause for row in answer} == {"cut", "unused"} and answer.rows[0].op == "no_grad (linear)"


# ---------------------------------------------------------------------- what it costs
def test_a_long_chain_does_not_recurse_and_many_parameters_share_one_pass() -> None:
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(200)])
    nn.track(weights)

    def program() -> T:
        h, lost = leaf32(1.0), torch.zeros(1)
        for weight in weights:
            lost = lost + weight
            for _ in range(25):
                h, lost = h + 1, lost * 1
        lost.detach()
        return h.sum()

    loss, graph = noted(program)
    assert len(graph.calls()) > 10_000
    visits: list[int] = []
    loss.register_hook(lambda grad: visits.append(1))  # type: ignore[no-untyped-call]
    answer = tracer.why(weights, loss, graph)
    assert {row.cause for row in answer} == {"cut"} and len(answer) == 200 and visits == [1]
