"""torch.compile, torch.export, make_fx and torch.fx on tracked tensors and models: right, or an error that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.leaves import leaf32
from support.models import Model
from torch.fx.experimental.proxy_tensor import make_fx

import nn
import tracer

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def square(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def gradients(model: torch.nn.Module, call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor | None]:
    model.zero_grad()
    call(X).pow(2).sum().backward()
    return [p.grad for p in model.parameters()]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_on_tracked_tensors_is_right(backend: str) -> None:
    x, native = tracer.tensor(X, requires_grad=True), X.clone().requires_grad_()
    (torch.compile(square, backend=backend)(x) + 0 * x.sum()).backward()
    square(native).backward()
    torch.testing.assert_close(x.grad, native.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_tracked_model_is_right(backend: str) -> None:
    tracked, native = nn.track(Model()), Model()
    found = gradients(tracked, torch.compile(tracked, backend=backend))
    torch.testing.assert_close(found, gradients(native, native))


def test_a_model_tracked_after_it_was_compiled_is_right() -> None:
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    before = gradients(model, compiled)
    nn.track(model)
    torch.testing.assert_close(gradients(model, compiled), before)


def test_a_tracked_tensor_closed_over_is_right() -> None:
    w = leaf32(1.0, 2.0, 3.0)
    compiled = torch.compile(lambda x: (x * w).sum(), backend="aot_eager")
    (compiled(X) + 0 * w.sum()).backward()
    torch.testing.assert_close(w.grad, X.sum(0))


def test_a_whole_step_in_compiled_code_is_right() -> None:
    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        leaf = tracer.tensor(x, requires_grad=True)
        (leaf * leaf).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    torch.testing.assert_close(torch.Tensor(step(X)), 2 * X)


@pytest.mark.parametrize("make", [nn.track, torch.nn.Module.train])
def test_in_a_compiled_step_it_runs_as_it_is_written(make: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    model, native = make(Model()), Model()
    called = torch.compile(model, backend="aot_eager")
    tracer.compile(lambda: called(X).pow(2).sum().backward(), backend="replay")()
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients(native, native))


def test_a_compiled_plain_model_passes_gradients_on() -> None:
    model, x = Model(), tracer.tensor(X, requires_grad=True)
    torch.compile(model, backend="aot_eager")(x).pow(2).sum().backward()
    native, native_x = Model(), X.clone().requires_grad_()
    native(native_x).pow(2).sum().backward()
    torch.testing.assert_close(x.grad, native_x.grad)
    torch.testing.assert_close(model.linear.weight.grad, native.linear.weight.grad)


def test_it_warns_that_the_code_runs_eagerly_and_says_what_to_do() -> None:
    source: dict[str, Any] = {}
    # A file of its own: it warns once a file.
    exec(compile("def f(x):\n    return x.sin()", "somewhere.py", "exec"), source)
    compiled = torch.compile(source["f"], backend="aot_eager")
    with pytest.warns(UserWarning, match=r"runs eagerly .*tracer\.compile"):
        compiled(leaf32(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(leaf32(1.0))


def test_fullgraph_raises_and_says_what_to_do() -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"fullgraph=True .*tracer\.compile"):
        torch.compile(square, backend="aot_eager", fullgraph=True)(leaf32(1.0))


def test_plain_code_is_compiled_as_before() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def branching(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    x = torch.ones(3, requires_grad=True)
    branching(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())


@pytest.mark.parametrize("strict", [False, True])
def test_a_tracked_model_is_exported_as_torch_does(strict: bool) -> None:
    tracked, native = nn.track(Model()), Model()
    exported = torch.export.export(tracked, (tracer.tensor(X),), strict=strict).module()
    torch.testing.assert_close(gradients(exported, exported), gradients(native, native))
    assert type(tracked.linear.weight) is tracer.Tensor


def test_make_fx_follows_its_arguments_and_refuses_other_tracked_tensors() -> None:
    x, w, native = tracer.tensor(X, requires_grad=True), leaf32(1.0), X.clone().requires_grad_()
    (make_fx(square)(x)(x) + 0 * x.sum()).backward()
    square(native).backward()
    torch.testing.assert_close(x.grad, native.grad)
    with pytest.raises(tracer.UnsupportedError, match=r"make_fx, .* would become a constant\. Make it an argument"):
        make_fx(lambda t: t * w)(torch.ones(1))


def test_export_refuses_a_tracked_tensor_that_is_no_parameter() -> None:
    w = leaf32(1.0, 2.0, 3.0)

    class Closing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * w

    with pytest.raises(tracer.UnsupportedError, match=r"torch\.export"):
        torch.export.export(Closing(), (X,))


def test_a_symbolically_traced_tracked_model_trains() -> None:
    tracked, native = nn.track(Model()), Model()
    torch.testing.assert_close(gradients(tracked, torch.fx.symbolic_trace(tracked)), gradients(native, native))


def test_ahead_of_time_autograd_is_refused_by_name() -> None:
    from functorch.compile import aot_function, aot_module, nop

    x = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    model = nn.track(torch.nn.Linear(3, 2))
    for compiled, given in (
        (aot_function(lambda t: t.sin() * t, fw_compiler=nop), x),
        (aot_function(lambda t: t.sin() * x, fw_compiler=nop), torch.ones(3)),
        (aot_module(model, fw_compiler=nop), torch.ones(2, 3)),
    ):
        with pytest.raises(tracer.UnsupportedError, match="aot_function"):
            compiled(given)
    plain = torch.ones(3, requires_grad=True)
    aot_function(lambda t: t.sin() * t, fw_compiler=nop)(plain).sum().backward()
    assert plain.grad is not None
