"""Dual numbers of ``torch.autograd.forward_ad`` among tracked tensors: right values, and an error where a gradient would be lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwd
from support.leaves import leaf

import tracer

REFUSED = r"forward-mode AD.*tracer\.func\.(jvp|hvp)"


def one() -> torch.Tensor:
    return torch.ones(2, dtype=torch.float64)


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tangent of a result": lambda x: fwd.unpack_dual(fwd.make_dual(one(), one()) * x).tangent,
    "primal of a result": lambda x: fwd.unpack_dual(fwd.make_dual(one(), one()) * x).primal,
    "tracked tangent": lambda x: fwd.unpack_dual(fwd.make_dual(one(), x) * 3).tangent,
    "tracked primal": lambda x: fwd.unpack_dual(fwd.make_dual(x, one()) * x).tangent,
    "a dual number itself": lambda x: fwd.make_dual(one(), one()) * x,
    "written in place": lambda x: torch.zeros_like(one()).copy_(fwd.make_dual(one(), one()) * x),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_dual_number_in_a_loss_is_refused_by_name(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = leaf(1.0, 2.0)
    with fwd.dual_level():
        total = loss(x).sum() + 0 * x.sum()
        with pytest.raises(tracer.UnsupportedError, match=REFUSED):
            total.backward()
        with pytest.raises(tracer.UnsupportedError, match=REFUSED):
            torch.autograd.grad(total, x)
    assert x.grad is None


def test_backward_over_a_dual_number_is_refused() -> None:
    x = leaf(1.0, 2.0)
    with fwd.dual_level():
        dual = fwd.make_dual(x, one())
        with pytest.raises(tracer.UnsupportedError, match=REFUSED):
            torch.autograd.grad((dual**3).sum(), dual)


def test_values_of_tangents_are_right_and_may_be_used_as_constants() -> None:
    x = leaf(1.0, 2.0)
    with fwd.dual_level():
        with torch.no_grad():
            tangent = fwd.unpack_dual((fwd.make_dual(one(), one()) * x).exp()).tangent
        (tangent * x).sum().backward()
    assert torch.equal(x.grad, x.detach() * x.detach().exp())


def test_other_losses_inside_a_dual_level_are_left_alone() -> None:
    x = leaf(1.0, 2.0)
    with fwd.dual_level():
        fwd.make_dual(one(), one()) * x
        (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("jvp", [tracer.func.jvp, torch.func.jvp], ids=["tracer", "torch"])
def test_the_remedy_of_the_message_gives_a_tangent_with_a_history(jvp: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    x = leaf(1.0, 2.0)
    _, tangent = jvp(lambda a: (a * x).sin(), (one(),), (one(),))
    tangent.sum().backward()
    value = x.detach()
    assert torch.allclose(x.grad, value.cos() - value * value.sin())  # of x cos(x)
