"""Custom Functions on tracked tensors, side by side with torch's own machinery on the same classes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support import functions as f
from support.checking import plain
from support.memory import no_collector
from torch.overrides import TorchFunctionMode

import ops_registry
import tracer
from ops_registry.errors import GlassgradError

Leaf = Callable[..., Any]

PASS, RAISE = "pass", "raise"


def once(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """The gradient of ``function``, whose results are weighted, at a leaf."""

    def run(x: Any) -> Any:
        outputs = function(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        live = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        loss = sum((o * torch.tensor([3.0, 5.0], dtype=o.dtype)[: o.numel()]).sum() for o in live)
        return torch.autograd.grad(loss, x)[0]

    return run


def twice(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """The second derivative: the gradient of the first one's weighted sum."""

    def run(x: Any) -> Any:
        outputs = function(x)
        loss = (outputs[0] if isinstance(outputs, tuple) else outputs).square().sum()
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad((g * torch.tensor([2.0, 7.0], dtype=g.dtype)).sum(), x)[0]

    return run


def overwrites_saved(x: Any) -> Any:
    y = x * 1
    out = f.Square.apply(y)
    y.add_(1)
    return torch.autograd.grad(out.sum(), x)[0]


def backward_twice(x: Any) -> Any:
    out = f.Square.apply(x).sum()
    torch.autograd.grad(out, x)
    return torch.autograd.grad(out, x)[0]


def writes_into_identity(x: Any) -> Any:
    out = f.Identity.apply(x * 1)
    out.mul_(2)
    return torch.autograd.grad(out.sum(), x)[0]


def writes_into_view(x: Any) -> Any:
    out = f.OneElement.apply(x * 1)
    out.mul_(2)
    return torch.autograd.grad(out.sum(), x)[0]


def writes_under_view(x: Any) -> Any:
    y = x * 1
    out = f.OneElement.apply(y)
    y.mul_(2)
    return torch.autograd.grad(out.sum(), x)[0]


def dirty_view(x: Any) -> Any:
    y = x * 1
    f.DoubleInPlace.apply(y[:1])
    return torch.autograd.grad((y * y).sum(), x)[0]


def unused_result(x: Any) -> Any:
    return torch.autograd.grad(f.Unmaterialised.apply(x)[0].sum(), x)[0]


def no_gradient_given(x: Any) -> Any:
    out = f.NoGradientGiven.apply(x * 1)
    (g,) = torch.autograd.grad(out.sum(), x, allow_unused=True)
    return torch.tensor(0.0 if g is None else 1.0)


def broadcast(x: Any) -> Any:
    return f.BroadcastGradient.apply(x, torch.ones(3, 2, dtype=x.dtype))


def needs(x: Any) -> Any:
    return f.NeedsInputGrad.apply(x, torch.tensor([2.0, 3.0], dtype=x.dtype), "text")


#: What is done, what torch does with it, what we do. Where torch passes and we raise, torch's answer is wrong (see below).
TABLE: list[tuple[str, Callable[[Any], Any], str, str]] = [
    ("square", once(f.Square.apply), PASS, PASS),
    ("square, twice", twice(f.Square.apply), PASS, PASS),
    ("setup_context and a default", once(f.Cube.apply), PASS, PASS),
    ("setup_context, twice", twice(lambda x: f.Cube.apply(x, 3.0)), PASS, PASS),
    ("setup_context, by keyword", once(lambda x: f.Cube.apply(x, scale=3.0)), PASS, PASS),
    ("saved result, twice", twice(f.SavesResult.apply), PASS, PASS),
    ("result as an attribute, twice", twice(f.KeepsResultAsAttribute.apply), PASS, PASS),
    ("input as an attribute, twice", twice(f.KeepsInputAsAttribute.apply), PASS, PASS),
    ("intermediate returned, twice", twice(f.ReturnsIntermediate.apply), PASS, PASS),
    ("several results", once(f.SinAndCos.apply), PASS, PASS),
    ("several results, twice", twice(f.SinAndCos.apply), PASS, PASS),
    ("one of several results used", once(lambda x: f.SinAndCos.apply(x)[1]), PASS, PASS),
    ("gradients not materialised", unused_result, PASS, PASS),
    ("results that are not differentiable", once(f.MaskAndIndex.apply), PASS, PASS),
    ("in place, marked dirty", once(lambda x: f.DoubleInPlace.apply(x * 1)), PASS, PASS),
    ("in place, saved after the write", twice(lambda x: f.SavesWhatItWrote.apply(x * 1)), PASS, PASS),
    ("in place on a view, marked dirty", dirty_view, PASS, PASS),
    ("input returned as it is", once(f.Identity.apply), PASS, PASS),
    ("view of the input returned", once(f.OneElement.apply), PASS, PASS),
    ("needs_input_grad", once(needs), PASS, PASS),
    ("vjp", once(f.Vjp.apply), PASS, PASS),
    ("gradient of the broadcast shape", once(broadcast), PASS, PASS),
    ("None beyond the arguments", once(f.TooManyNones.apply), PASS, PASS),
    ("None as the gradient", no_gradient_given, PASS, PASS),
    ("once_differentiable", once(f.Once.apply), PASS, PASS),
    ("random mask saved, twice", twice(f.RandomMask.apply), PASS, PASS),
    ("once_differentiable, twice", twice(f.Once.apply), RAISE, RAISE),
    ("backward and vjp", once(f.BackwardAndVjp.apply), RAISE, RAISE),
    ("too few gradients", once(lambda x: f.TooFewGradients.apply(x, x)), RAISE, RAISE),
    ("too many gradients", once(f.TooManyGradients.apply), RAISE, RAISE),
    ("gradient of a wrong shape", once(f.WrongShape.apply), RAISE, RAISE),
    ("gradient for a number", once(f.GradientForNumber.apply), RAISE, RAISE),
    ("gradient that is no tensor", once(f.NotATensor.apply), RAISE, RAISE),
    ("number saved for backward", once(f.SavesNumber.apply), RAISE, RAISE),
    ("dirty and not returned", once(lambda x: f.DirtyNotReturned.apply(x * 1)), RAISE, RAISE),
    ("leaf written in place", once(f.DoubleInPlace.apply), RAISE, RAISE),
    ("saved tensor overwritten", overwrites_saved, RAISE, RAISE),
    ("backward a second time", backward_twice, RAISE, RAISE),
    ("write into an input returned as it is", writes_into_identity, RAISE, RAISE),
    ("write into a view that was returned", writes_into_view, RAISE, RAISE),
    ("write under a view that was returned", writes_under_view, RAISE, RAISE),
    ("intermediate saved, twice", twice(f.HiddenIntermediate.apply), PASS, RAISE),
    ("intermediate as an attribute, twice", twice(f.HiddenAttribute.apply), PASS, RAISE),
    ("intermediate in a buffer, twice", twice(f.HiddenInBuffer.apply), PASS, RAISE),
    ("backward under no_grad in part, twice", twice(f.NoGradInBackward.apply), PASS, RAISE),
    ("backward under no_grad, twice", twice(f.AllNoGradInBackward.apply), RAISE, RAISE),
    ("input changed without mark_dirty", once(lambda x: f.ChangesInput.apply(x * 1)), PASS, RAISE),
    ("gradient changed in place", once(f.ChangesGradient.apply), PASS, RAISE),
    ("gradient changed in place, by a Function of torch's", once(f.ChangesGradientTorchs.apply), PASS, PASS),
    ("shared gradient changed in place", once(lambda x: f.ChangesGradientTorchs.apply(x) + x), PASS, RAISE),
]


def value_or_error(program: Callable[[Any], Any], leaf: Any) -> Any:
    try:
        return plain(program(leaf))
    except (RuntimeError, TypeError, AttributeError) as error:
        return error


@pytest.mark.parametrize(("name", "program", "theirs", "ours"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_what_passes_and_what_raises(
    name: str, program: Callable[[Any], Any], theirs: str, ours: str
) -> None:
    start = torch.tensor([0.5, -1.5], dtype=torch.float64)
    native = value_or_error(program, start.clone().requires_grad_())
    tracked = value_or_error(program, tracer.tensor(start, requires_grad=True))
    assert isinstance(native, Exception) == (theirs == RAISE), native
    assert isinstance(tracked, Exception) == (ours == RAISE), tracked
    if theirs == ours == PASS:
        torch.testing.assert_close(tracked, native)
    if ours == RAISE:
        assert isinstance(tracked, GlassgradError), repr(tracked)


@pytest.mark.parametrize("name", [row[0] for row in TABLE if row[2:] == (PASS, RAISE) and "twice" in row[0]])
def test_where_torch_answers_and_we_raise_torch_is_wrong(name: str) -> None:
    program = next(row[1] for row in TABLE if row[0] == name)
    start = torch.tensor([0.5, -1.5], dtype=torch.float64)
    hides_exp = "no_grad" in name
    truth = twice(torch.exp if hides_exp else lambda x: x.exp().sin())(start.clone().requires_grad_())
    assert not torch.allclose(program(start.clone().requires_grad_()), truth)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (f.TooManyGradients, tracer.FunctionError, "TooManyGradients returned 2 gradients, and its forward took 1"),
        (f.WrongShape, RuntimeError, r"WrongShape.*shape \(7,\) for an input of shape \(2,\)"),
        (f.NotATensor, tracer.FunctionError, "NotATensor returned str as the gradient of argument 0"),
        (f.SavesNumber, tracer.FunctionError, "save_for_backward of the Function SavesNumber"),
        (f.ChangesInput, tracer.InPlaceError, r"forward of the Function ChangesInput.*mark_dirty"),
        (f.DirtyNotReturned, tracer.FunctionError, "DirtyNotReturned marked an argument .* did not return it"),
        (
            f.ChangesGradient,
            tracer.InPlaceError,
            "backward of the Function ChangesGradient wrote in place into the grad",
        ),
    ],
)
def test_each_mistake_has_an_error_that_names_the_function(function: Any, error: type[Exception], message: str) -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.grad = torch.ones(2)
    with pytest.raises(error, match=message):
        (function.apply(x * 1) * 1.5).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_an_overwritten_saved_tensor_is_named() -> None:
    with pytest.raises(tracer.OverwrittenError, match=r"the Function Square saved .*tensor 0, a"):
        overwrites_saved(tracer.tensor([1.0, 2.0], requires_grad=True))


def test_a_hidden_intermediate_does_not_disturb_the_first_derivative() -> None:
    x = tracer.tensor([0.5], requires_grad=True)
    (g,) = torch.autograd.grad(f.HiddenIntermediate.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(plain(g), (x.exp().cos() * x.exp()).detach(), check_dtype=False)


def test_saved_inputs_come_back_as_the_very_objects() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.extend(ctx.saved_tensors)
            return grad, grad

    x, y = tracer.tensor([1.0], requires_grad=True), torch.ones(1)
    z = x * 2
    Look.apply(z, y).sum().backward()
    assert seen[0] is z and seen[1] is y


def test_an_apply_bound_before_is_caught_too() -> None:
    apply = f.Vjp.apply
    x = tracer.tensor([1.0], requires_grad=True)
    apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0]


def test_a_native_leaf_beside_a_tracked_one_gets_its_gradient() -> None:
    x, y = tracer.tensor([1.0]), torch.ones(1, requires_grad=True)
    f.BroadcastGradient.apply(x, y).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [1.0]


def test_plain_tensors_are_left_to_torch() -> None:
    x = torch.ones(1, requires_grad=True)
    with tracer.Graph() as graph:
        f.Vjp.apply(x).sum().backward()
    assert len(graph) == 0 and x.grad is not None and x.grad.tolist() == [3.0]


def test_the_graph_shows_one_call_under_the_functions_name() -> None:
    with tracer.Graph() as graph:
        y = f.Square.apply(tracer.tensor([1.0], requires_grad=True))
    assert graph.counts() == {"Square": 1}
    assert y.grad_fn.name() == "SquareBackward"


def test_attributes_of_ctx_can_be_read_from_grad_fn() -> None:
    y = f.Cube.apply(tracer.tensor([1.0], requires_grad=True), 4.0)
    assert y.grad_fn.scale == 4.0


def test_gradients_come_in_the_dtype_of_the_argument() -> None:
    class Wide(f.TooManyNones):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.double() * 2

    x = tracer.tensor([1.0], requires_grad=True)
    Wide.apply(x).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("function", [f.SavesResult, f.KeepsResultAsAttribute, f.Square, f.ReturnsIntermediate])
def test_a_dropped_result_frees_everything_without_the_collector(function: Any) -> None:
    with no_collector():
        x = tracer.tensor([1.0], requires_grad=True)
        y = function.apply(x)
        y = y[0] if isinstance(y, tuple) else y
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None


def test_backward_releases_what_was_saved() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph() as graph:
        y = f.SavesResult.apply(x)
        assert graph.kept_bytes() == 4
        y.sum().backward()
        assert graph.kept_bytes() == 0


def test_a_pinned_gradient_runs_where_the_gradient_is_zero() -> None:
    class Pinned(f.TooManyNones):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return torch.full_like(grad, 4.0)

    x = tracer.tensor([1.5], requires_grad=True)
    Pinned.apply(x).floor().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4.0]


def test_hooks_of_the_node_see_both_gradients() -> None:
    seen: list[Any] = []
    x = tracer.tensor([1.0], requires_grad=True)
    y = f.Vjp.apply(x)
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.sum().backward()
    assert [t.tolist() for t in (*seen[0][0], *seen[0][1])] == [[3.0], [1.0]]


def test_a_tensor_of_somebody_elses_returned_as_a_constant_keeps_its_history() -> None:
    parameter = tracer.tensor([1.0], requires_grad=True)

    class WithConstant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_non_differentiable(parameter)
            return x * 2, parameter

        @staticmethod
        def backward(ctx: Any, grad: Any, other: Any) -> Any:
            return 2 * grad

    _, constant = WithConstant.apply(tracer.tensor([1.0], requires_grad=True))
    assert parameter.requires_grad and not constant.requires_grad


def test_an_input_written_in_place_to_a_constant_loses_its_history() -> None:
    class Zeroed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.zero_()
            ctx.mark_dirty(x)
            ctx.mark_non_differentiable(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    x = tracer.tensor([1.0], requires_grad=True) * 3
    assert Zeroed.apply(x) is x and not x.requires_grad


def test_what_is_read_by_an_operator_method_is_not_taken_for_written() -> None:
    """``1 - x`` arrives as ``__rsub__``: its name ends like that of an in-place method."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            _ = weight.__rsub__(x)
            ctx.save_for_backward(x, weight.clone())
            return x * x * weight

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, weight = ctx.saved_tensors
            return 2 * grad * x * weight, None

    x = tracer.tensor([3.0], requires_grad=True)
    (g,) = torch.autograd.grad(Scaled.apply(x, torch.tensor([5.0])).sum(), x, create_graph=True)
    assert torch.autograd.grad(g.sum(), x)[0].tolist() == [10.0]


class RunAgain(torch.autograd.Function):
    """A checkpoint as packages write it for themselves."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, grad)
        return None, x.grad


@pytest.mark.parametrize("forward_inside", [True, False])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_a_forward_that_backward_runs_again_keeps_the_rules_of_its_first_run(
    forward_inside: bool, backward_inside: bool
) -> None:
    rules = ops_registry.use({torch.tanh: lambda grad, input: 10 * grad * input}, expect=None)
    x = tracer.tensor([0.5], requires_grad=True)
    with rules if forward_inside else nullcontext():
        y = RunAgain.apply(torch.tanh, x)
    with rules if backward_inside else nullcontext():
        (y + 0 * x).backward()
    assert x.grad.item() == pytest.approx(5.0 if forward_inside else 1 - math.tanh(0.5) ** 2)


def test_a_forward_that_backward_runs_again_stands_where_it_stood() -> None:
    class Part(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return RunAgain.apply(torch.tanh, x)

    model, x = torch.nn.Sequential(Part(), Part()), tracer.tensor([0.5], requires_grad=True)
    with ops_registry.use({torch.tanh: lambda grad: 10 * grad}, where="0", expect=None):
        y = model(x)
    y.backward()
    assert x.grad.item() == pytest.approx(10 * (1 - y.item() ** 2))


def test_a_mode_of_the_users_sees_what_forward_asks_of_a_tensor() -> None:
    seen = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * x.shape[0]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with Seeing():
        Asks.apply(x)
    assert torch.Tensor.shape.__get__ in seen and torch.Tensor.mul in seen  # type: ignore[attr-defined]
    seen.clear()
    Asks.apply(x).sum().backward()
    assert not seen and x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_a_function_of_plain_tensors_that_computes_with_tracked_ones_keeps_its_history() -> None:
    weight = tracer.tensor([2.0, 3.0], requires_grad=True)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * weight.detach(), x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return grad * weight.detach() + other * 2

    x = torch.ones(2, requires_grad=True)
    scaled, doubled = Scaled.apply(x)
    ((scaled + doubled) * weight).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0, 15.0]
    assert weight.grad is not None and weight.grad.tolist() == [4.0, 5.0]


def test_a_gradient_that_leaves_a_function_is_plain_in_every_backward_pass() -> None:
    seen: list[type] = []

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            (y,) = ctx.saved_tensors
            return grad * y, None

    x, y = tracer.tensor([1.0, 2.0], requires_grad=True), tracer.tensor([3.0, 4.0], requires_grad=True)
    before = x * 2
    before.register_hook(lambda grad: seen.append(type(grad)))
    Scale.apply(before, y).sum().backward()
    assert seen == [torch.Tensor] and x.grad.tolist() == [6.0, 8.0]
