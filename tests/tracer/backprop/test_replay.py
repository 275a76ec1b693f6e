"""``tracer.replay``: the same recorded forward pass under other rules."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf32

import nn
import ops_registry
import tracer

T = torch.Tensor


def guided(grad: T, result: T) -> T:
    return grad.clamp(min=0) * (result > 0)


class Net(torch.nn.Module):
    """Two stages with a relu each."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        act = torch.nn.ReLU(inplace)
        self.first = torch.nn.Sequential(torch.nn.Linear(6, 8), act)
        self.second = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(inplace))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: T) -> T:
        return self.head(self.second(self.first(x)))


def recorded(net: Any, **notes: bool) -> tuple[tracer.Tensor, T]:
    torch.manual_seed(1)
    x = tracer.tensor(torch.randn(4, 6), requires_grad=True)
    with tracer.Graph(**notes):
        y = net(x)[:, 1].sum()
    return x, y


def under(net: Any, rules: Any, **where: Any) -> T:
    """The gradient of a forward pass that was run under the rules."""
    with ops_registry.use(rules, **where):
        x, y = recorded(net)
    return torch.autograd.grad(y, x)[0]


@pytest.mark.parametrize("inplace", [False, True])
def test_it_gives_what_the_forward_pass_under_the_rules_would_have_given(inplace: bool) -> None:
    net = nn.track(Net(inplace))
    x, y = recorded(net, values=True)
    for rules in ({torch.relu: guided}, {(torch.relu, torch.sigmoid): lambda grad: grad.clamp(min=0)}):
        (replayed,) = tracer.replay(y, [x], rules)
        assert torch.equal(replayed, under(net, rules))
    (vanilla,) = tracer.replay(y, x)
    assert torch.equal(vanilla, torch.autograd.grad(y, x)[0])


def test_no_grad_is_touched_and_the_graph_stays() -> None:
    net = nn.track(Net())
    x, y = recorded(net, values=True)
    y.retain_grad()  # type: ignore[no-untyped-call]
    tracer.replay(y, x, {torch.relu: guided})
    assert x.grad is None and y.grad is None and all(p.grad is None for p in net.parameters())
    before = torch.autograd.grad(y, x, retain_graph=True)[0]
    tracer.replay(y, x, {torch.relu: lambda grad: grad * 0})
    assert torch.equal(torch.autograd.grad(y, x, retain_graph=True)[0], before)


def test_with_values_it_goes_on_after_a_backward_pass_that_released_the_graph() -> None:
    net = nn.track(Net())
    x, y = recorded(net, values=True)
    y.backward()
    assert torch.equal(tracer.replay(y, x)[0], x.grad)  # type: ignore[arg-type]
    assert torch.equal(tracer.replay(y, x, {torch.relu: guided})[0], under(net, {torch.relu: guided}))


def test_an_error_in_a_rule_leaves_the_graph_as_it_was() -> None:
    def broken(grad: T) -> T:
        raise ValueError("no idea")

    x, y = recorded(nn.track(Net()), values=True)
    before = tracer.replay(y, x)[0]
    with pytest.raises(ValueError, match="no idea"):
        tracer.replay(y, x, {torch.relu: broken})
    assert torch.equal(tracer.replay(y, x)[0], before)


def test_another_thread_sees_nothing_of_it() -> None:
    x, y = recorded(nn.track(Net()), values=True)
    before = torch.autograd.grad(y, x, retain_graph=True)[0]
    seen: list[T] = []

    def meddling(grad: T) -> T:
        thread = threading.Thread(target=lambda: seen.append(torch.autograd.grad(y, x, retain_graph=True)[0]))
        thread.start()
        thread.join()
        return grad * 0

    (zero,) = tracer.replay(y, x, {torch.relu: meddling})
    assert not zero.any() and all(torch.equal(s, before) for s in seen) and len(seen) == 2


def test_default_is_the_rule_of_the_recorded_call_and_needs_no_values() -> None:
    net = nn.track(Net())
    x, y = recorded(net)
    doubled = {torch.relu: lambda grad, default: 2 * default(grad)}
    (replayed,) = tracer.replay(y, x, doubled)
    assert torch.allclose(replayed, 4 * torch.autograd.grad(y, x)[0])


def test_a_wrapped_joint_rule() -> None:
    net = nn.track(Net())
    rules = {F.linear: lambda grad, needs, default: default(grad.clamp(-0.1, 0.1))}
    x, y = recorded(net, values=True)
    weight = net.first[0].weight
    found = tracer.replay(y, [x, weight], rules)
    with ops_registry.use(rules):
        x2, y2 = recorded(net)
    for replayed, expected in zip(found, torch.autograd.grad(y2, [x2, weight]), strict=True):
        assert torch.equal(replayed, expected)


def test_a_rule_for_one_input() -> None:
    x, w = leaf32(1.0, 2.0), leaf32(3.0, 4.0)
    with tracer.Graph(values=True):
        y = (x * w).sum()
    gx, gw = tracer.replay(y, [x, w], {torch.mul: {"other": lambda grad, input: 10 * grad * input}})
    assert gx.tolist() == [3.0, 4.0] and gw.tolist() == [10.0, 20.0]


def test_where_says_for_which_calls() -> None:
    net = nn.track(Net())
    x, y = recorded(net, values=True, sites=True)
    rules = {torch.relu: guided}
    for where in ("second", "sec*", lambda site: site.module.startswith("second")):
        assert torch.equal(tracer.replay(y, x, rules, where)[0], under(net, rules, where=where))


def test_a_predicate_sees_the_arguments_where_they_are_kept() -> None:
    x, y = recorded(nn.track(Net()), values=True, sites=True)
    shapes: list[Any] = []
    with pytest.raises(ops_registry.UnmatchedScopeError):
        tracer.replay(y, x, {torch.relu: guided}, lambda site: bool(shapes.append(site.args[0].shape)))
    assert shapes == [(4, 8), (4, 8)]


def test_where_needs_sites() -> None:
    x, y = recorded(nn.track(Net()), values=True)
    with pytest.raises(tracer.NotNotedError, match="sites=True"):
        tracer.replay(y, x, {torch.relu: guided}, "second")


def test_a_scope_that_no_call_was_in_names_those_that_were_made() -> None:
    net = nn.track(Net())
    x, y = recorded(net, values=True, sites=True)
    with pytest.raises(ops_registry.UnmatchedScopeError, match=r"replay\(where='secnd'\).*Did you mean 'second'"):
        tracer.replay(y, x, {torch.relu: guided}, "secnd")


def test_site_in_a_rule_is_that_of_the_call() -> None:
    x, y = recorded(nn.track(Net()), sites=True)
    modules: list[str] = []
    tracer.replay(y, x, {torch.relu: lambda grad, default, site: (modules.append(site.module), default(grad))[1]})
    assert modules == ["second.1", "first.1"]


def test_a_rule_that_was_never_applied_is_an_error_that_names_what_ran() -> None:
    x, y = recorded(nn.track(Net()), values=True)
    with pytest.raises(ops_registry.UnusedRuleError, match=r"gelu.*relu x2"):
        tracer.replay(y, x, {F.gelu: lambda grad: grad})


def test_a_call_that_does_not_lead_to_the_inputs_does_not_count() -> None:
    x, w = leaf32(1.0), leaf32(2.0)
    with tracer.Graph(values=True):
        y = (x.exp() + w.tanh()).sum()
    with pytest.raises(ops_registry.UnusedRuleError, match="tanh"):
        tracer.replay(y, x, {torch.tanh: lambda grad: grad})


def test_what_was_not_saved_is_named_with_the_option_that_saves_it() -> None:
    x = leaf32(1.0)
    y = torch.relu(x)
    with pytest.raises(tracer.NotNotedError, match=r"'input'.*tracer\.Graph\(values=True\)"):
        tracer.replay(y, x, {torch.relu: lambda grad, input: grad * input})


def test_a_value_that_was_written_over_is_refused() -> None:
    x, w = leaf32(1.0, 2.0), torch.ones(2)
    with tracer.Graph(values=True):
        y = (x + w).sum()
    w.zero_()
    with pytest.raises(tracer.OverwrittenError, match="'other'"):
        tracer.replay(y, x, {torch.add: {"input": lambda grad, other: grad * other}})


def test_a_function_made_of_others_is_refused_with_its_parts() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(values=True):
        y = F.normalize(x, dim=0).sum()
    with pytest.raises(ops_registry.RuleError, match=r"normalize, which is made of other ops.*linalg_vector_norm"):
        tracer.replay(y, x, {F.normalize: lambda grad: grad})


def test_a_call_inside_vmap_is_refused() -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(values=True):
        y = torch.vmap(torch.tanh)(x).sum()
    with pytest.raises(tracer.UnsupportedError, match=r"tanh.*torch\.vmap"):
        tracer.replay(y, x, {torch.tanh: lambda grad: grad})


def test_weights_and_results_of_calls_as_inputs() -> None:
    x = leaf32(-1.0, 2.0)
    with tracer.Graph(values=True):
        h = x * 3
        y = torch.relu(h)
    gh, gx = tracer.replay(y, [h, x], {torch.relu: lambda grad: grad}, grad_outputs=torch.tensor([1.0, 10.0]))
    assert gh.tolist() == [1.0, 10.0] and gx.tolist() == [3.0, 30.0]


def test_a_checkpointed_stretch_and_several_results() -> None:
    x = leaf32(1.0, -2.0, 3.0, -4.0)
    with tracer.Graph(values=True):
        a, b = tracer.checkpoint(lambda t: torch.relu(t) * t, x).split(2)
        y = (a * b).sum()
    rules = {torch.relu: lambda grad, default: default(grad) * 5}
    (replayed,) = tracer.replay(y, x, rules)
    with ops_registry.use(rules):
        a, b = (torch.relu(x) * x).split(2)
        y2 = (a * b).sum()
    assert torch.equal(replayed, torch.autograd.grad(y2, x)[0])


def test_through_torchs_own_autograd_as_often_as_wanted() -> None:
    native = torch.tensor([2.0], requires_grad=True)
    x = leaf32(3.0)
    with tracer.Graph(values=True):
        y = torch.relu(native.exp() * x).sum()
    for factor, rules in ((1, None), (2, {torch.relu: lambda grad: 2 * grad})):
        gn, gx = tracer.replay(y, [native, x], rules)
        assert torch.allclose(gn, factor * 3 * native.exp()) and torch.allclose(gx, factor * native.exp())


def test_an_input_that_is_not_used_is_an_error() -> None:
    x, w = leaf32(1.0), leaf32(2.0)
    with pytest.raises(tracer.UnusedInputError, match="input 1"):
        tracer.replay(x.exp(), [x, w])


def test_it_needs_an_input_and_an_output_with_history() -> None:
    x = leaf32(1.0)
    with pytest.raises(tracer.GradientArgumentError):
        tracer.replay(x.exp(), [])
    with pytest.raises(tracer.NoHistoryError):
        tracer.replay(torch.ones(1), x)
