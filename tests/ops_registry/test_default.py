"""``default`` in a replaced rule: what the rule stands in the place of, for the same inputs, projected onto them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf

import tracer
from ops_registry import RuleResultError, UnusedRuleError, use


def unchanged(grad, default):
    return default(grad)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def tracked(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tracer.track(t.clone(), True) for t in tensors]


MATRIX, OTHER, ROW = drawn(3, 4), drawn(3, 4) + 1, drawn(4)
COMPLEX = torch.complex(MATRIX, OTHER)
INDEX = torch.tensor([[0, 1], [1, 2], [2, 3]])


def written(x, y):
    x = x * 1
    x[0] = y
    return x


#: The op that is given a rule, a call of it, and the call's tensors.
CALLS: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
    "convolution": (F.conv2d, F.conv2d, (drawn(1, 2, 4, 4), drawn(3, 2, 3, 3), drawn(3))),
    "convolution without a batch": (F.conv1d, F.conv1d, (drawn(2, 5), drawn(3, 2, 2), drawn(3))),
    "layer_norm": (F.layer_norm, lambda x, w, b: F.layer_norm(x, (4,), w, b), (MATRIX, ROW, ROW + 1)),
    "batch_norm": (F.batch_norm, lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (MATRIX, ROW, ROW + 1)),
    "atan2, broadcast": (torch.atan2, torch.atan2, (MATRIX, ROW)),
    "linear": (F.linear, F.linear, (MATRIX, drawn(2, 4), drawn(2))),
    "addmm, broadcast": (torch.addmm, lambda c, a, b: torch.addmm(c, a, b, beta=2), (drawn(2), MATRIX, drawn(4, 2))),
    "mul, broadcast": (torch.mul, torch.mul, (MATRIX, ROW)),
    "matmul, broadcast": (torch.matmul, torch.matmul, (drawn(2, 3, 4), ROW)),
    "where": (torch.where, lambda x, y: torch.where(MATRIX > 0, x, y), (MATRIX, ROW)),
    "cat": (torch.cat, lambda x, y: torch.cat([x, y, x]), (MATRIX, OTHER)),
    "stack": (torch.stack, lambda x, y: torch.stack([x, y]), (MATRIX, OTHER)),
    "foreach": (torch._foreach_mul, lambda x, y: torch.cat(torch._foreach_mul([x, y], [y, x])), (MATRIX, OTHER)),
    "max along a dimension": (torch.max, lambda x: x.max(1)[0], (MATRIX,)),
    "sort": (torch.sort, lambda x: torch.sort(x, 1)[0] * ROW, (MATRIX,)),
    "one piece of split": (torch.split, lambda x: x.split(2)[1], (MATRIX,)),
    "two of unbind": (torch.unbind, lambda x: x.unbind(1)[0] * x.unbind(1)[2], (MATRIX,)),
    "singular values": (torch.linalg.svd, lambda x: torch.linalg.svd(x, full_matrices=False)[1], (MATRIX,)),
    "in place, by an own formula": (F.leaky_relu, lambda x: F.leaky_relu_(x * 1, 0.2), (MATRIX,)),
    "in place, of two": (torch.mul, lambda x, y: (x * 1).mul_(y), (MATRIX, ROW)),
    "setitem": (torch.Tensor.__setitem__, written, (MATRIX, ROW)),
    "index_add": (torch.index_add, lambda x, y: x.index_add(0, torch.tensor([0, 0]), y), (MATRIX, drawn(2, 4))),
    "scatter": (torch.scatter, lambda x, y: x.scatter(1, INDEX, y), (MATRIX, drawn(3, 2))),
    "prelu": (F.prelu, F.prelu, (drawn(2, 3, 2), drawn(3))),
    "dropout": (F.dropout, lambda x: F.dropout(x, 0.5), (MATRIX,)),
    "rrelu": (F.rrelu, lambda x: F.rrelu(x, training=True), (MATRIX,)),
    "embedding": (F.embedding, lambda w: F.embedding(INDEX[:, 0], w), (MATRIX,)),
    "complex by real": (torch.mul, lambda x, y: torch.view_as_real(x * y), (COMPLEX, ROW)),
    "complex abs": (torch.abs, torch.abs, (COMPLEX,)),
    "round": (torch.round, torch.round, (MATRIX,)),
    "to float32": (torch.Tensor.to, lambda x: x.to(torch.float32), (MATRIX,)),
}


def derivatives(call, tensors, wanted, rules) -> dict[str, Any]:
    """Value, kept bytes, gradients of both orders and both lanes, each beside another term."""
    found: dict[str, Any] = {}
    for lane in ("grad", "backward"):
        torch.manual_seed(3)
        arguments = [tracer.track(t.clone(), True) if i in wanted else t.clone() for i, t in enumerate(tensors)]
        inputs = [arguments[i] for i in wanted]
        with tracer.Graph() as graph, use(rules, expect=None):
            result = call(*arguments)
        found["value"], found["bytes"] = [result.detach()], graph.kept_bytes()
        loss = (result * result.detach().cos()).sum() + sum((0 * x).sum().real for x in inputs)
        if lane == "backward":
            loss.backward()
            found[lane] = [x.grad for x in inputs]
        else:
            found[lane] = torch.autograd.grad(loss, inputs, create_graph=True)
            squares = sum(
                torch.view_as_real(g).square().sum() if g.is_complex() else g.square().sum() for g in found[lane]
            )
            found["second"] = (
                torch.autograd.grad(squares, inputs, allow_unused=True) if squares.requires_grad else [None]
            )
    return found


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equal up to rounding; no gradient is one of zero."""
    if a is None or b is None:
        return all(t is None or not t.any() for t in (a, b))
    return a.dtype is b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("op", "call", "tensors"), CALLS.values(), ids=CALLS)
def test_default_gives_what_the_op_gives_and_saves_no_more(op, call, tensors) -> None:
    """For all inputs, and for each of them alone."""
    alone = [(i,) for i in range(len(tensors))] if len(tensors) > 1 else []
    for wanted in (tuple(range(len(tensors))), *alone):
        plain, wrapped = (derivatives(call, tensors, wanted, rules) for rules in ({}, {op: unchanged}))
        assert wrapped.pop("bytes") <= plain.pop("bytes")
        for name, expected in plain.items():
            assert all(map(same, wrapped[name], expected)), (name, wanted)


def test_default_may_be_called_several_times() -> None:
    x, y = tracked(MATRIX, OTHER)
    with use({torch.mul: lambda grad, default: [a + b for a, b in zip(default(grad), default(2 * grad), strict=True)]}):
        z = x * y
    z.sum().backward()
    torch.testing.assert_close(x.grad, 3 * OTHER)
    torch.testing.assert_close(y.grad, 3 * MATRIX)


def test_default_gives_nothing_for_an_input_that_nobody_asked_for() -> None:
    x, y = tracked(MATRIX, ROW)
    seen = []

    def watching(grad, default, needs):
        found = default(grad)
        seen.append((tuple(needs), needs.other, [None if g is None else tuple(g.shape) for g in found]))
        return found

    with use({torch.mul: watching}):
        z = x * y
    torch.autograd.grad(z.sum(), y)
    assert seen == [((False, True), True, [None, (4,)])]  # projected: a row, not a matrix


def test_a_zero_gradient_is_a_tensor_that_can_be_added_to() -> None:
    x = leaf(0.4, 1.6)
    with use({torch.round: lambda grad, default: default(grad) + 1}):
        torch.round(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_of_several_results_default_takes_the_gradients_that_came() -> None:
    x = leaf(1.0, 2.0, 3.0)
    with use({torch.unbind: lambda grad, default: default(tuple(None if g is None else g * 2 for g in grad))}):
        pieces = x.unbind(0)
    pieces[1].backward()
    assert x.grad.tolist() == [0.0, 2.0, 0.0]


@pytest.mark.parametrize("nothing", [lambda grad: None, lambda grad: tuple(None for _ in grad)], ids=["None", "Nones"])
def test_default_of_nothing_is_refused(nothing) -> None:
    x = leaf(1.0, 2.0)
    with use({torch.unbind: lambda grad, default: default(nothing(grad))}):
        pieces = x.unbind(0)
    with pytest.raises(RuleResultError, match="default of unbind was given None"):
        pieces[0].backward()
    assert x.grad is None


def test_an_inner_rule_of_the_wrong_number_of_gradients_is_named() -> None:
    x, y = leaf(1.0), leaf(2.0)
    wrong = use({torch.mul: lambda grad: (grad,)})
    with wrong, use({torch.mul: unchanged}):
        z = x * y
    with pytest.raises(RuleResultError, match="returned 1 gradients for 2 inputs"):
        z.backward()


def test_an_inner_gradient_of_another_shape_is_named() -> None:
    x = leaf(1.0, 2.0, 3.0)
    wrong = use({torch.tanh: lambda grad: grad[:2]})
    with wrong, use({torch.tanh: unchanged}):
        y = x.tanh()
    with pytest.raises(RuleResultError, match=r"default of tanh returned a gradient of shape \(2,\)"):
        y.sum().backward()


def test_what_formulas_call_in_a_recorded_backward_pass_takes_no_replaced_rule() -> None:
    """``sin`` multiplies by a cosine on its way back: that is no call of the user's."""
    x = leaf(0.5)
    with use({torch.mul: lambda grad: (grad * 100, grad * 100)}, expect=None) as rules:
        (first,) = torch.autograd.grad(x.sin(), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert second.item() == pytest.approx(-x.sin().item()) and rules.unused() == ["mul"]


@pytest.mark.parametrize(
    ("op", "call"), [(torch.gt, lambda x: (x > 0).double()), (torch.argmax, torch.argmax)], ids=["gt", "argmax"]
)
def test_a_rule_for_results_without_gradients_was_never_applied(op, call) -> None:
    with pytest.raises(UnusedRuleError, match="whole numbers or truth values"), use({op: lambda grad: grad}):
        call(leaf(1.0, 2.0))


def test_autocast_gives_a_wrapped_rule_what_the_op_got() -> None:
    for op, call, tensors in (CALLS["linear"], CALLS["convolution"], CALLS["layer_norm"]):
        found = []
        for rules in ({}, {op: unchanged}):
            inputs = tracked(*(t.float() for t in tensors))
            with torch.autocast("cpu", dtype=torch.bfloat16), use(rules):
                result = call(*inputs)
            result.float().square().sum().backward()
            found.append([x.grad for x in inputs])
        assert all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(*found, strict=True))
