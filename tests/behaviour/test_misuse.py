"""Every misuse raises the package's own error, says what to do, and leaves ``.grad`` of every leaf as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from support.custom import mystery

import ops_registry
import tracer


def filled_leaf(*values: float) -> torch.Tensor:
    x = tracer.tensor(values, dtype=torch.float64, requires_grad=True)
    x.grad = torch.full_like(x.detach(), 7.0)
    return x


def second_time(x: torch.Tensor) -> None:
    y = (x * x).sum()
    y.backward()
    x.grad.fill_(7.0)
    y.backward()


def overwritten(x: torch.Tensor) -> None:
    # pytorch/pytorch#9391
    y = x.sigmoid()
    y[0] = 0
    y.sum().backward()


def wrong_rule(x: torch.Tensor, rule: Callable[..., object]) -> None:
    with ops_registry.use({torch.tanh: rule}):
        y = x.tanh()
    (y + x).sum().backward()


def failing_late(x: torch.Tensor) -> None:
    """The leaf is reached by one path before the other path fails."""
    (mystery(x).sum() + (x * 3).sum()).backward()


MISUSES: list[tuple[str, Callable[[torch.Tensor], object], type[Exception], str]] = [
    ("twice", second_time, tracer.FreedGraphError, r"mul .*released.*retain_graph=True"),
    (
        "no gradient for a vector",
        lambda x: (x * 2).backward(),
        tracer.GradientArgumentError,
        r"shape \(2,\).*gradient=",
    ),
    (
        "gradient of the wrong shape",
        lambda x: (x * 2).backward(torch.ones(3, dtype=torch.float64)),
        tracer.GradientArgumentError,
        r"shape \(3,\).*\(2,\)",
    ),
    (
        "complex gradient for a real output",
        lambda x: (x * 2).backward(torch.ones(2, dtype=torch.complex128)),
        tracer.GradientArgumentError,
        r"torch\.float64.*torch\.complex128",
    ),
    (
        "complex scalar without a gradient",
        lambda x: (x.sum() * (1 + 1j)).backward(),
        tracer.GradientArgumentError,
        r"real scalar.*torch\.complex128",
    ),
    (
        "too many gradients",
        lambda x: tracer.backward([x.sum()], [torch.ones(()).double(), torch.ones(()).double()]),
        tracer.GradientArgumentError,
        "1 tensors and 2 gradients",
    ),
    ("gradient that is no tensor", lambda x: (x * 2).sum().backward("1"), tracer.GradientArgumentError, "numbers.*str"),  # type: ignore[arg-type]
    ("no history", lambda x: x.detach().sum().backward(), tracer.NoHistoryError, "does not require grad"),
    (
        "input without grad",
        lambda x: torch.autograd.grad(x.sum(), x.detach()),
        tracer.NoHistoryError,
        "input 0.*requires_grad_",
    ),
    ("empty inputs", lambda x: x.sum().backward(inputs=[]), tracer.GradientArgumentError, "cannot be empty"),
    (
        "batched gradients",
        lambda x: torch.autograd.grad(x * 2, x, torch.tensor(1.0).double(), is_grads_batched=True),
        tracer.GradientArgumentError,
        "is_grads_batched",
    ),
    (
        "overwritten result",
        overwritten,
        tracer.OverwrittenError,
        r"sigmoid .*'result'.*shape \(2,\), at version 0.*overwritten in place by __setitem__.*at version [12]",
    ),
    (
        "missing rule",
        lambda x: mystery(x).sum().backward(),
        tracer.MissingRuleError,
        r"glassgrad_tests\.mystery\(float64\[2\]",
    ),
    ("missing rule after a leaf was reached", failing_late, tracer.MissingRuleError, "ops_registry.backward"),
    ("write into a leaf", lambda x: x.add_(1), tracer.InPlaceError, r"add_ .*leaf of shape \(2,\).*no_grad"),
    ("write into a view of a leaf", lambda x: x[:1].add_(1), tracer.InPlaceError, r"view.*leaf of shape \(2,\)"),
    ("out=", lambda x: torch.mul(x, x, out=torch.empty(2).double()), tracer.OutArgumentError, r"mul\(\).*out="),
    (
        "rule with a wrong shape",
        lambda x: wrong_rule(x, lambda grad: grad.sum(0)),
        ops_registry.RuleResultError,
        r"shape \(\).*shape \(2,\)",
    ),
    (
        "rule with an integer gradient",
        lambda x: wrong_rule(x, lambda grad: grad.long()),
        ops_registry.RuleResultError,
        "int64",
    ),
    ("rule that returns no tensor", lambda x: wrong_rule(x, lambda grad: 1.0), ops_registry.RuleResultError, "float"),
    ("hook with a wrong shape", lambda x: hooked(x), ops_registry.RuleResultError, r"hook on mul.*shape \(\).*\(2,\)"),
    ("backward of a removed node", lambda x: removed(x), tracer.FreedGraphError, "mul"),
]


def hooked(x: torch.Tensor) -> None:
    y = x * 2
    y.register_hook(lambda g: g.sum())
    y.sum().backward()


def removed(x: torch.Tensor) -> None:
    with tracer.Graph() as graph:
        y = x * x
    graph.remove(y)
    y.sum().backward()


@pytest.mark.parametrize(("act", "error", "says"), [m[1:] for m in MISUSES], ids=[m[0] for m in MISUSES])
def test_misuse_raises_and_leaves_grad_alone(
    act: Callable[[torch.Tensor], object], error: type[Exception], says: str
) -> None:
    x = filled_leaf(1.0, 2.0)
    with pytest.raises(error, match=f"(?s){says}") as raised:
        act(x)
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, ops_registry.GlassgradError)
    assert not isinstance(raised.value, TypeError)
    assert x.grad.tolist() == [7.0, 7.0]


def test_a_missing_rule_names_the_users_line_when_sites_are_noted() -> None:
    x = filled_leaf(1.0, 2.0)
    with tracer.Graph(sites=True):
        y = mystery(x, 3.0)  # the line
    with pytest.raises(tracer.MissingRuleError, match=r"test_misuse\.py:\d+"):
        y.sum().backward()


def test_an_error_inside_a_rule_says_which_op_it_was() -> None:
    def broken(grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("no idea")

    x = filled_leaf(1.0, 2.0)
    with ops_registry.use({torch.tanh: broken}):
        y = x.tanh()
    with pytest.raises(ValueError, match="no idea") as raised:
        y.sum().backward()
    notes = getattr(raised.value, "__notes__", [])
    assert len(notes) == (sys.version_info >= (3, 11)), "Python 3.10 has no notes"
    assert all("raised by the backward rule of tanh" in note for note in notes)


def test_a_failed_backward_of_a_shared_graph_fills_no_leaf() -> None:
    x, w = filled_leaf(1.0, 2.0), filled_leaf(3.0, 4.0)
    y = x * w
    y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ((w * 2).sum() + y.sum()).backward()
    assert x.grad.tolist() == [7.0, 7.0] and w.grad.tolist() == [7.0, 7.0]


def test_a_recorded_write_into_a_list_of_tensors_raises_and_writes_nothing() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    target = x * 1
    with pytest.raises(tracer.UnsupportedError, match="writes into a list"):
        torch._amp_foreach_non_finite_check_and_unscale_([target], torch.zeros(1), torch.full((1,), 0.5))
    assert target.tolist() == [1.0]
