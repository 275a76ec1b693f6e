"""Other people's tensor subclasses beside tracked tensors: no gradient is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf32
from support.subclasses import MEETING, Dispatches, Duck, HandsOn, Refuses, RunsBelow, of_class

import nn
import tracer

F = torch.nn.functional

#: Calls on another class's tensor of shape (2, 3) and a leaf of shape (3,).
CALLS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "theirs first": lambda x, w: torch.mul(x, w),
    "ours first": lambda x, w: torch.mul(w, x),
    "an operator": lambda x, w: w * x,
    "a matrix product": lambda x, w: F.linear(x, w.expand(2, 3)),
    "by keyword": lambda x, w: torch.mul(input=x, other=w),
    "in a list": lambda x, w: torch.cat([x, w.expand(2, 3)]).cos(),
    "several results": lambda x, w: torch.stack(torch.broadcast_tensors(x, w)).prod(0),
    "a function that torch writes in Python": lambda x, w: F.cosine_similarity(x, w.expand(2, 3), 1),
    "a layer norm": lambda x, w: F.layer_norm(x, (3,), w, w),
    "a choice": lambda x, w: torch.where(x > 0, w, x),
    "a loss": lambda x, w: F.cross_entropy(x * w, torch.tensor([0, 1])),
    "its dtype and shape alone": lambda x, w: w.type_as(x).expand_as(x),
    "a write of it into ours": lambda x, w: (w * 1).add_(x[0]),
    "iteration": lambda x, w: torch.stack([row * w for row in x]),
    "a call without a rule of its own": lambda x, w: torch.addcmul(x, w, w),
    "after another call": lambda x, w: torch.add(torch.mul(x, w), x),
}


def values() -> torch.Tensor:
    return torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", [kind for kind in MEETING if kind is not Duck])
def test_the_gradient_is_torchs(kind: Any, call: Callable[[Any, Any], torch.Tensor]) -> None:
    native = torch.tensor([0.3, -0.7, 1.1], requires_grad=True)
    expected = call(values(), native)
    (expected.pow(2).sum() + 0 * native.sum()).backward()
    for engine in ("backward", "grad"):
        w = leaf32(0.3, -0.7, 1.1)
        made = call(of_class(kind, values()), w)
        assert made.requires_grad
        loss = made.pow(2).sum() + 0 * w.sum()
        if engine == "grad":
            (gradient,) = torch.autograd.grad(loss, w)
        else:
            loss.backward()
            gradient = w.grad
        torch.testing.assert_close(made.detach(), expected.detach(), check_dtype=True)
        torch.testing.assert_close(gradient, native.grad)


def test_what_is_no_tensor_answers_as_before() -> None:
    w = leaf32(0.3, -0.7, 1.1)
    (torch.mul(Duck(values()), w) + torch.mul(w, Duck(values()))).sum().backward()
    torch.testing.assert_close(w.grad, 2 * values().sum(0))


@pytest.mark.parametrize("kind", MEETING)
def test_a_tracked_model_takes_them(kind: Any) -> None:
    grads = []
    for track in (lambda m: m, nn.track):
        torch.manual_seed(0)
        model = track(
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        )
        x = of_class(kind, values()) if track is nn.track else values()
        F.mse_loss(model(x), torch.ones(2, 1)).backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(grads[0], grads[1])


def test_second_derivatives_go_through() -> None:
    w = leaf32(2.0)
    y = torch.tensor([3.0]).as_subclass(HandsOn) * w**3
    (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert (first.item(), second.item()) == (36.0, 36.0)


def test_their_handler_runs() -> None:
    before = HandsOn.calls
    torch.mul(torch.ones(1).as_subclass(HandsOn), leaf32(2.0))
    assert HandsOn.calls == before + 1


def test_the_call_is_recorded_under_its_rule() -> None:
    with tracer.Graph() as graph:
        y = torch.ones(1).as_subclass(RunsBelow) * leaf32(2.0)
    assert list(graph.counts()) == ["mul"]
    del y


@pytest.mark.parametrize("kind", [HandsOn, RunsBelow])
def test_their_leaves_get_their_gradient(kind: Any) -> None:
    x, w = values().as_subclass(kind).requires_grad_(), leaf32(0.3, -0.7, 1.1)
    (x * w).sum().backward()
    assert x.grad is not None and x.grad.tolist() == w.detach().expand(2, 3).tolist()
    torch.testing.assert_close(w.grad, values().sum(0))


@pytest.mark.parametrize("bases", [(torch.nn.Parameter,), (RunsBelow, torch.nn.Parameter)], ids=["silent", "answering"])
def test_native_parameters_of_a_class_of_their_own(bases: tuple[type, ...]) -> None:
    kind: Any = type("Own", bases, {})
    weight = torch.Tensor._make_subclass(kind, torch.tensor([[2.0, 3.0]]), True)
    x = leaf32(1.0, 2.0)
    (F.linear(x, weight).sum() + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 3.0]
    assert weight.grad is not None and weight.grad.tolist() == [[1.0, 2.0]]


def test_without_a_gradient_the_result_is_theirs() -> None:
    x, w = torch.ones(1).as_subclass(HandsOn), leaf32(2.0)
    with torch.no_grad():
        assert type(x * w) is HandsOn and type(w * x) is HandsOn
    assert type(x * tracer.tensor([2.0])) is HandsOn


def test_what_comes_back_as_it_came_in_stays_theirs() -> None:
    x = torch.ones(1).as_subclass(HandsOn)
    assert x.to(leaf32(2.0)) is x


def test_a_write_into_theirs_raises() -> None:
    x = torch.ones(1).as_subclass(HandsOn)
    with pytest.raises(
        tracer.UnsupportedError, match=r"add_\(\) writes a tracked tensor .* into a HandsOn.*[Uu]se the out-of-place"
    ):
        x.add_(leaf32(2.0))
    with pytest.raises(tracer.UnsupportedError, match="into a HandsOn"):
        x[0] = leaf32(2.0)[0]


def test_a_write_of_theirs_into_ours_is_recorded() -> None:
    w = leaf32(2.0)
    y = w * 1
    y.mul_(torch.tensor([3.0]).as_subclass(HandsOn))
    y.sum().backward()
    assert w.grad is not None and w.grad.item() == 3.0


def test_classes_that_cannot_meet_are_both_named() -> None:
    refusing = torch.ones(1).as_subclass(Refuses)
    for call in (lambda: torch.mul(refusing, leaf32(2.0)), lambda: torch.mul(leaf32(2.0), refusing)):
        with pytest.raises(tracer.UnsupportedError, match=r"tracer\.Tensor.*subclasses\.Refuses.*Convert"):
            call()


def test_a_class_that_works_below_autograd_is_refused() -> None:
    x = Dispatches(torch.ones(2, 3))
    for call in (
        lambda: x * leaf32(1.0, 2.0, 3.0),
        lambda: leaf32(1.0, 2.0, 3.0) * x,
        lambda: F.linear(x, leaf32(1.0, 2.0, 3.0).expand(2, 3)),
    ):
        with pytest.raises(
            tracer.UnsupportedError, match=r"made a support\.subclasses\.Dispatches out of a tracked tensor \(tracer"
        ):
            call()
    with torch.no_grad():
        assert type(x * leaf32(1.0, 2.0, 3.0)) is Dispatches
    with pytest.raises(tracer.UnsupportedError, match="Dispatches"):
        tracer.track(x)
    with pytest.raises(tracer.UnsupportedError, match="Dispatches"):
        tracer.tensor(x)


def test_two_foreign_classes_and_a_tracked_tensor() -> None:
    w = leaf32(2.0)
    y = torch.addcmul(torch.ones(1).as_subclass(HandsOn), torch.tensor([3.0]).as_subclass(RunsBelow), w)
    y.sum().backward()
    assert w.grad is not None and w.grad.item() == 3.0


def test_classes_made_before_the_import_meet_too() -> None:
    code = """
import torch
class Before(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
import tracer
w = tracer.tensor([2.0], requires_grad=True)
((torch.ones(1).as_subclass(Before) * w).sum() + 0 * w.sum()).backward()
print(w.grad.item())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1.0"]
