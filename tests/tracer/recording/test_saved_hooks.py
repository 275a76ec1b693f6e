"""Saved-tensor hooks, ours and torch's, which are the same: what is saved goes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.functions import Square
from support.leaves import leaf

import tracer


def identity(tensor: Any) -> Any:
    return tensor


def test_every_saved_tensor_is_packed_and_unpacked_once() -> None:
    packed, unpacked = [], []

    def pack(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        packed.append(tensor)
        return len(packed), tensor

    def unpack(pair: tuple[int, torch.Tensor]) -> torch.Tensor:
        unpacked.append(pair[0])
        return pair[1]

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with tracer.saved_tensors_hooks(pack, unpack):
        out = (x * y).exp().sum()
    out.backward()
    assert len(packed) == 3 and sorted(unpacked) == [1, 2, 3]
    torch.testing.assert_close(x.grad, (x * y).exp().detach() * y.detach())


def test_the_hooks_see_tensors_without_history() -> None:
    seen: list[Any] = []
    x = leaf(1.0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, identity):
        y = (x * 2).exp()
    assert [(type(t), t.requires_grad) for t in seen] == [(torch.Tensor, False)] and y.requires_grad


def test_values_may_change_form_on_the_way() -> None:
    x = leaf(1.0, 2.0)
    with tracer.saved_tensors_hooks(lambda t: t.numpy().tolist(), lambda v: torch.tensor(v, dtype=torch.float64)):
        y = x.exp()
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.exp().detach())


def test_second_derivatives_go_through_unpacked_values() -> None:
    x = leaf(0.5)
    with tracer.saved_tensors_hooks(lambda t: t.clone(), identity):
        y = x.exp().sin()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    e = torch.tensor([0.5], dtype=torch.float64).exp()
    torch.testing.assert_close(h, -e.sin() * e * e + e.cos() * e)


def test_in_place_writes_keep_the_value_that_they_leave() -> None:
    x = leaf(1.0, -1.0)
    with tracer.saved_tensors_hooks(lambda t: t.clone(), identity):
        y = (x * 3).sigmoid_()
    y.sum().backward()
    s = (torch.tensor([1.0, -1.0], dtype=torch.float64) * 3).sigmoid()
    torch.testing.assert_close(x.grad, 3 * s * (1 - s))


def test_lists_and_joint_rules_are_packed_too() -> None:
    count: list[int] = []
    x, w = leaf(1.0, 2.0), leaf(0.5, 0.25)
    with tracer.saved_tensors_hooks(lambda t: count.append(1) or t.clone(), identity):
        y = torch.layer_norm(x * w, (2,), w)
    y.sum().backward()
    theirs = [t.detach().clone().as_subclass(torch.Tensor).requires_grad_() for t in (x, w)]
    torch.layer_norm(theirs[0] * theirs[1], (2,), theirs[1]).sum().backward()
    torch.testing.assert_close([x.grad, w.grad], [t.grad for t in theirs])
    assert len(count) >= 5


def test_the_innermost_pair_counts() -> None:
    outer: list[Any] = []
    x = leaf(1.0)
    with tracer.saved_tensors_hooks(lambda t: outer.append(1) or t, identity):
        with tracer.saved_tensors_hooks(identity, identity):
            x.exp()
        assert not outer
        x.exp()
    assert len(outer) == 1


def test_save_on_cpu() -> None:
    x = leaf(1.0)
    with tracer.save_on_cpu():
        y = x.exp()
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.exp().detach())


def test_disabling_hooks_is_honoured() -> None:
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        pytest.raises(RuntimeError, match="not here"),
        tracer.saved_tensors_hooks(identity, identity),
    ):
        leaf(1.0).exp()


def test_a_pack_hook_may_not_write_into_its_tensor() -> None:
    x = leaf(1.0)
    with (
        tracer.saved_tensors_hooks(lambda t: t.mul_(2), identity),
        pytest.raises(tracer.SavedTensorHookError, match="in place"),
    ):
        x.exp()


def test_an_unpack_hook_has_to_return_a_tensor() -> None:
    x = leaf(1.0)
    with tracer.saved_tensors_hooks(identity, lambda t: "text"):
        y = x.exp()
    with pytest.raises(tracer.SavedTensorHookError, match="returned str"):
        y.sum().backward()
    assert x.grad is None


def test_a_second_backward_without_retain_graph_raises_as_ever() -> None:
    x = leaf(1.0)
    with tracer.saved_tensors_hooks(identity, identity):
        y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(tracer.FreedGraphError):
        y.backward()


def test_hooks_run_with_interception_on() -> None:
    """A hook that works with tracked tensors of its own is user code like any other."""
    scale = leaf(2.0)
    kept: list[Any] = []

    def unpack(value: Any) -> Any:
        with torch.enable_grad():
            kept.append((scale * 3).requires_grad)
        return value

    x = leaf(1.0)
    with tracer.saved_tensors_hooks(identity, unpack):
        y = x.exp()
    y.sum().backward()
    assert kept == [True]


def test_a_custom_functions_saved_tensors_are_packed() -> None:
    x = leaf(3.0)
    with tracer.saved_tensors_hooks(lambda t: t + 1, identity):
        y = Square.apply(x)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0]


SELF_WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t.mul_(t),
    "quotient": lambda t: t.div_(t),
    "products": lambda t: t.addcmul_(t, t),
    "a view": lambda t: t.mul_(t.view(-1)),
    "the base": lambda t: t[1:].mul_(t[:1]),
}


@pytest.mark.parametrize("write", SELF_WRITES.values(), ids=SELF_WRITES)
def test_hooks_get_what_a_write_reads_as_it_was_before(write: Callable[[torch.Tensor], Any]) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, identity):
            written = x * 1
            write(written)
        written.sin().sum().backward()
        assert x.grad is not None
        return x.grad

    native = gradient(torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True))
    torch.testing.assert_close(gradient(leaf(2.0, 3.0)), native)
