"""``tracer.checkpoint`` and torch's own, in both forms: the same gradients as without, and what was promised to be dropped is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from support.functions import Square

import nn
import tracer
from ops_registry import use

Checkpoint = Callable[..., Any]


def reentrant(function: Any, *args: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True)


FORMS = {"non-reentrant": tracer.checkpoint, "reentrant": reentrant}


def plainly(function: Any, *args: Any) -> Any:
    return function(*args)


def network_with_dropout() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(
        torch.nn.Sequential(
            torch.nn.Linear(3, 4),
            torch.nn.BatchNorm1d(4),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.5),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(4, 2),
        )
    )


def gradients_through(run: Checkpoint, second: bool = False) -> list[Any]:
    model = network_with_dropout()
    torch.manual_seed(1)
    x = tracer.tensor(torch.randn(5, 3), requires_grad=True)
    torch.manual_seed(2)
    loss = run(model, x * 2).square().sum()
    if second:
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = g.square().sum()
    loss.backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("run", [tracer.checkpoint, reentrant])
def test_gradients_are_those_of_the_plain_call(run: Checkpoint) -> None:
    """With batch norm, dropout (the same mask the second time) and a layer that works in place."""
    assert_same(gradients_through(run), gradients_through(plainly))


def test_torchs_own_call_is_honoured() -> None:
    def torchs(function: Any, *args: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)

    assert_same(gradients_through(torchs), gradients_through(plainly))


def test_second_derivatives_go_through_it() -> None:
    assert_same(gradients_through(tracer.checkpoint, second=True), gradients_through(plainly, second=True))


def test_it_nests() -> None:
    def nested(model: Any, x: Any) -> Any:
        def inner(y: Any) -> Any:
            return tracer.checkpoint(model[3:], tracer.checkpoint(model[1:3], y))

        return tracer.checkpoint(lambda y: inner(model[0](y)), x)

    assert_same(gradients_through(nested), gradients_through(plainly))


def test_a_sequence_of_modules_in_segments() -> None:
    def sequential(model: Any, x: Any) -> Any:
        return tracer.checkpoint_sequential(model, 3, x)

    assert_same(gradients_through(sequential), gradients_through(plainly))


def count(calls: list[int]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        calls.append(1)
        y = x.exp().sin()
        calls.append(2)
        y = y.tanh()
        calls.append(3)
        return y * 2

    return function


def test_a_stretch_runs_again_once_and_stops_when_all_is_there() -> None:
    calls: list[int] = []
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    out = tracer.checkpoint(count(calls), x)
    assert calls == [1, 2, 3]
    out.sum().backward()
    assert calls == [1, 2, 3, 1, 2]  # tanh was the last to keep something


def test_nothing_inside_is_saved() -> None:
    x = tracer.tensor(torch.rand(1000), requires_grad=True)
    with tracer.Graph() as graph:
        out = tracer.checkpoint(lambda y: y.exp().sin().tanh().exp(), x)
    assert graph.kept_bytes() <= 4000  # its input
    out.sum().backward()


@pytest.mark.parametrize("preserve", [True, False])
def test_the_random_state_is_left_alone_where_asked(preserve: bool) -> None:
    masks: list[torch.Tensor] = []

    def function(y: Any) -> Any:
        masks.append(torch.rand(50) < 0.5)
        return (y * masks[-1]).square()

    x = tracer.tensor(torch.rand(50) + 1, requires_grad=True)
    tracer.checkpoint(function, x, preserve_rng_state=preserve).sum().backward()
    assert len(masks) == 2 and torch.equal(*masks) == preserve
    torch.testing.assert_close(x.grad, 2 * x.detach() * masks[1])


def test_an_error_in_the_second_run_reaches_the_caller_and_leaves_grad_alone() -> None:
    runs: list[int] = []

    def function(x: Any) -> Any:
        runs.append(1)
        if len(runs) == 2:
            raise ValueError("second run")
        return x.exp().sin()

    x = tracer.tensor([1.0], requires_grad=True)
    out = tracer.checkpoint(function, x * 1)
    with pytest.raises(ValueError, match="second run"):
        out.sum().backward()
    assert x.grad is None
    y = tracer.tensor([1.0], requires_grad=True)
    y.exp().sum().backward()  # and the engine is as it was
    assert y.grad is not None


def test_an_error_in_the_first_run_leaves_recording_as_it_was() -> None:
    def function(x: Any) -> Any:
        raise ValueError("first run")

    x = tracer.tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="first run"):
        tracer.checkpoint(function, x)
    with tracer.Graph() as graph:
        y = x.exp()
    assert graph.kept_bytes() == 4
    del y


def test_a_function_that_does_another_thing_the_second_time_is_found_out() -> None:
    runs: list[int] = []

    def function(x: Any) -> Any:
        runs.append(1)
        return x.exp().sin() if len(runs) == 1 else x.exp()

    x = tracer.tensor([1.0], requires_grad=True)
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        tracer.checkpoint(function, x).sum().backward()


def test_a_backward_pass_inside_the_stretch() -> None:
    def function(x: Any) -> Any:
        (g,) = torch.autograd.grad(tracer.checkpoint(lambda y: y.exp().sin(), x).sum(), x, create_graph=True)
        return (x * g).sin()

    values = []
    for run in (tracer.checkpoint, plainly):
        x = tracer.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
        run(function, x).sum().backward()
        values.append(x.grad)
    torch.testing.assert_close(*values)


def test_several_arguments_keywords_and_results() -> None:
    def function(x: Any, factor: float, *, y: Any) -> Any:
        return (x * y).exp() * factor, x.sin()

    values = []
    for run in (tracer.checkpoint, lambda f, *a, **k: f(*a, **k)):
        x, y = (tracer.tensor([v], dtype=torch.float64, requires_grad=True) for v in (0.3, 0.7))
        first, second = run(function, x, 3.0, y=y)
        (first * 2 + second).sum().backward()
        values.append((x.grad, y.grad))
    torch.testing.assert_close(*values)


def test_a_custom_function_inside_saves_nothing_until_it_is_run_again() -> None:
    x = tracer.tensor([3.0], requires_grad=True)
    tracer.checkpoint(lambda y: Square.apply(y.exp()).sin(), x).sum().backward()
    e = torch.tensor([3.0]).exp()
    torch.testing.assert_close(x.grad, (e * e).cos() * 2 * e * e)


def test_together_with_vmap_it_is_refused() -> None:
    x = tracer.tensor([[0.3, 0.4], [0.1, 0.2]], requires_grad=True)
    with pytest.raises(tracer.UnsupportedError, match=r"checkpoint together with torch\.vmap"):
        torch.vmap(lambda a: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False))(x)
    y = torch.utils.checkpoint.checkpoint(torch.vmap(torch.sin), x, use_reentrant=False)
    with pytest.raises(tracer.UnsupportedError, match=r"checkpoint together with torch\.vmap"):
        y.sum().backward()
    assert x.grad is None


def test_one_sweep_carries_many_cotangents_through_it() -> None:
    x = tracer.tensor([0.3, 0.4], requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda a: a.sin() * a.sum(), x, use_reentrant=False)
    (rows,) = torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    value = x.detach().as_subclass(torch.Tensor)
    expected = torch.diag(value.cos() * value.sum()) + value.sin()[:, None]
    torch.testing.assert_close(rows.as_subclass(torch.Tensor), expected)


def test_inside_a_derivative_it_works_to_second_order() -> None:
    x = tracer.tensor([0.3, 0.4], requires_grad=True)

    def stretch(a: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda b: b.sin().sum(), a, use_reentrant=False)

    torch.func.grad(stretch)(x).sum().backward()
    torch.testing.assert_close(x.grad.as_subclass(torch.Tensor), -x.detach().as_subclass(torch.Tensor).sin())


# ---------------------------------------------------------------------- what use_reentrant=True does not go with
ASKED_FOR_SOME: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda loss, x: torch.autograd.grad(loss, x),
    "backward with inputs": lambda loss, x: loss.backward(inputs=[x]),
    "jacobian": lambda loss, x: torch.autograd.functional.jacobian(lambda a: reentrant(torch.sin, a), x),
    "a transform": lambda loss, x: torch.func.grad(lambda a: reentrant(torch.sin, a).sum())(x),
    "tracer.steps": lambda loss, x: list(tracer.steps(loss)),
    "tracer.contributions": lambda loss, x: tracer.contributions(x, loss),
}


@pytest.mark.parametrize("ask", ASKED_FOR_SOME.values(), ids=ASKED_FOR_SOME)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_reentrant_form_refuses_passes_that_fill_no_leaves_as_torch_does(
    ask: Callable[[Any, Any], Any], depth: int
) -> None:
    weight = tracer.tensor([1.0, 2.0], requires_grad=True)
    x = tracer.tensor([0.3, 0.4], requires_grad=True)

    def stretch(a: Any) -> Any:
        return (a * weight).sin()

    loss = (reentrant(stretch, x) if depth == 1 else reentrant(lambda a: reentrant(stretch, a), x)).sum()
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        ask(loss + 0 * x.sum(), x)
    assert x.grad is None and weight.grad is None
    loss.backward()
    assert x.grad is not None and weight.grad is not None


def test_reports_that_look_at_a_reentrant_stretch_leave_grad_alone() -> None:
    weight = tracer.tensor([1.0, 2.0], requires_grad=True)
    x = tracer.tensor([0.3, 0.4], requires_grad=True)
    with tracer.Graph(sites=True, finite=True) as graph:
        loss = reentrant(lambda a: (a * weight).sin(), x).sum()
    assert tracer.why(weight, loss, graph).cause == "ok"
    assert tracer.find_nan(graph, loss).verdict.startswith("all finite")
    assert tracer.timings(loss).rows
    assert x.grad is None and weight.grad is None


# ---------------------------------------------------------------------- under replaced rules
def by_the_input(grad, input):
    """Saves a tensor of the same shape and dtype as tanh's own rule does, but another one."""
    return grad * input


@pytest.mark.parametrize("checkpoint", FORMS.values(), ids=FORMS)
def test_a_stretch_runs_again_under_the_rules_under_which_it_ran_first(checkpoint: Checkpoint) -> None:
    x = tracer.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    with use({torch.tanh: by_the_input}, expect=None):
        y = checkpoint(lambda x: (x * 2).tanh().sin(), x)
    y.sum().backward()
    values = x.detach() * 2
    torch.testing.assert_close(x.grad, values.tanh().cos() * values * 2)


@pytest.mark.parametrize("checkpoint", FORMS.values(), ids=FORMS)
def test_rules_around_the_backward_pass_do_not_reach_a_stretch(checkpoint: Checkpoint) -> None:
    x = tracer.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    y = checkpoint(lambda x: (x * 2).tanh().sin(), x)
    with use({torch.tanh: by_the_input}, expect=None):
        y.sum().backward()
    values = x.detach() * 2
    torch.testing.assert_close(x.grad, values.tanh().cos() * (1 - values.tanh() ** 2) * 2)


class Stages(torch.nn.Module):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.first, self.second = (Stage(checkpoint) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Stage(torch.nn.Module):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.checkpoint(lambda x: (x * 2).tanh().sin(), x)


@pytest.mark.parametrize("where", ["first", lambda site: site.module == "first"], ids=["path", "predicate"])
@pytest.mark.parametrize("checkpoint", FORMS.values(), ids=FORMS)
def test_a_stretch_runs_again_in_the_module_in_which_it_ran_first(checkpoint: Checkpoint, where: Any) -> None:
    gradients = []
    for form in (checkpoint, plainly):
        x = tracer.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
        with use({torch.tanh: by_the_input}, where=where, expect=None):
            y = nn.track(Stages(form))(x)
        y.sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_a_reentrant_stretch_of_tracked_parameters_takes_a_native_leaf() -> None:
    """torch records the call, whose result tracked calls go on from."""
    found = []
    for tracked in (False, True):
        torch.manual_seed(0)
        first, last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        if tracked:
            nn.track(first), nn.track(last)
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        last(reentrant(lambda x, f=first: f(x).tanh(), x)).pow(2).sum().backward()
        assert x.grad is not None
        found.append([x.grad, *(p.grad for p in (*first.parameters(), *last.parameters()))])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
