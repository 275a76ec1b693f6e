"""``tracer.gradcheck`` and ``tracer.gradgradcheck``."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nn
import ops_registry
import tracer
from tracer import GradcheckError, gradcheck, gradgradcheck

_library = torch.library.Library("gradcheck_tests", "DEF")
_library.define("three(Tensor x) -> (Tensor, Tensor, Tensor)")
_library.impl("three", lambda x: (x * 1, x * 2, x * 3), "CompositeExplicitAutograd")

D, C = torch.float64, torch.complex128
BOTH_MODES = pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])


def random_leaf(*shape: int, dtype: torch.dtype = D) -> torch.Tensor:
    """Away from zero."""
    values = torch.rand(shape, dtype=dtype)
    return tracer.tensor(values + 0.5, requires_grad=True)


def mistake(function: Callable[..., Any], inputs: Any, **options: Any) -> GradcheckError:
    with pytest.raises(GradcheckError) as caught:
        gradcheck(function, inputs, **options)
    return caught.value


# ---------------------------------------------------------------------------------------------- what is right passes
RIGHT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "broadcast": (lambda a, b: (a * b).sin(), ((3, 2), (2,))),
    "0-d": (lambda a: a.exp(), ((),)),
    "empty": (lambda a: a.exp(), ((0, 3),)),
    "several outputs": (lambda a, b: (a * b, a.sin(), b), ((3,), (3,))),
    "integer output": (lambda a: torch.topk(a, 2), ((4,),)),
    "constant output": (lambda a: (a * 2, torch.ones(3)), ((3,),)),
    "a number among the inputs": (lambda a, k: a**k, ((3,), 3)),
    "in place": (lambda a: a.clone().mul_(a), ((3,),)),
    "view": (lambda a: a.t()[1:], ((2, 3),)),
    "reduction": (lambda a: torch.logsumexp(a, 0), ((3, 2),)),
    "linear algebra": (lambda a: torch.linalg.inv(a + 3 * torch.eye(3, dtype=D)), ((3, 3),)),
    "real to complex": (lambda a: torch.complex(a, a * a), ((3,),)),
}


def inputs_of(made: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(random_leaf(*shape) if isinstance(shape, tuple) else shape for shape in made)


@BOTH_MODES
@pytest.mark.parametrize("name", RIGHT)
def test_right_gradients_pass(name: str, fast_mode: bool) -> None:
    function, made = RIGHT[name]
    assert gradcheck(function, inputs_of(made), fast_mode=fast_mode)
    assert gradgradcheck(function, inputs_of(made), fast_mode=fast_mode)


@BOTH_MODES
@pytest.mark.parametrize(
    "function",
    [
        lambda z: z * z,
        lambda z: (z * z.conj()).real,
        lambda z: z.abs() * z,
        lambda z: torch.view_as_real(z),
        lambda z: z.angle(),
    ],
    ids=["holomorphic", "to real", "mixed", "pairs", "angle"],
)
def test_right_complex_gradients_pass(function: Callable[..., Any], fast_mode: bool) -> None:
    assert gradcheck(function, (random_leaf(3, dtype=C),), fast_mode=fast_mode)
    assert gradgradcheck(function, (random_leaf(3, dtype=C),), fast_mode=fast_mode)


def test_the_parameters_of_a_module_are_moved_where_they_are() -> None:
    module = nn.track(torch.nn.Linear(2, 3, dtype=D))
    x = torch.rand(4, 2, dtype=D)
    assert gradcheck(lambda *parameters: module(x), tuple(module.parameters()))


def test_inputs_that_do_not_require_grad_are_left_alone() -> None:
    constant = torch.rand(3, dtype=D)
    assert gradcheck(lambda a, b: a * b, (random_leaf(3), constant))


def test_one_input_needs_no_tuple() -> None:
    assert gradcheck(torch.sin, random_leaf(3))


def test_plain_tensors_are_checked_as_tracked_ones() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        return x.sin()

    assert gradcheck(function, torch.rand(3, dtype=D, requires_grad=True))
    assert set(seen) == {tracer.Tensor}


def test_the_inputs_are_as_before() -> None:
    x = random_leaf(3)
    before = x.detach().clone()
    gradcheck(torch.sin, x)
    assert torch.equal(x.detach(), before)
    assert x.grad is None


def test_a_torch_function_is_checked_too() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    assert gradcheck(Cube.apply, random_leaf(3))


# ---------------------------------------------------------------------------------------------- what is wrong fails, and is named
def with_rule(func: Callable[..., Any], rule: Any) -> Callable[..., Any]:
    """``func`` with another rule."""

    def function(*args: Any) -> Any:
        with ops_registry.use({func: rule}):
            return func(*args)

    return function


MISTAKES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "sign": (with_rule(torch.sin, lambda grad, input: -grad * input.cos()), ((3,),), "sign"),
    "factor": (with_rule(torch.square, lambda grad, input: grad * input), ((3,),), "factor"),
    "transposed": (with_rule(torch.mm, {"input": lambda grad, mat2: grad @ mat2}), ((2, 2), (2, 2)), "transposed"),
    "swapped": (with_rule(torch.mul, {"input": lambda grad, input: grad * input}), ((3,), (3,)), "swapped inputs"),
    "broadcast": (
        with_rule(torch.add, {"other": lambda grad: torch.cat((grad[:1], 0 * grad[1:]))}),
        ((3, 2), (2,)),
        "missing broadcast sum",
    ),
    "no gradient": (with_rule(torch.mul, {"other": lambda grad: None}), ((3,), (3,)), "missing term"),
    "missing sum": (with_rule(torch.softmax, {"input": lambda grad, result: grad * result}), ((3,), 0), "missing term"),
}


@BOTH_MODES
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_gradient_is_named(name: str, fast_mode: bool) -> None:
    function, made, kind = MISTAKES[name]
    error = mistake(function, inputs_of(made), fast_mode=fast_mode)
    assert error.mistake is not None
    assert error.mistake.kind == kind


def test_a_conjugate_is_named() -> None:
    function = with_rule(torch.mul, {"input": lambda grad, other: grad * other})
    error = mistake(function, (random_leaf(3, dtype=C), random_leaf(3, dtype=C)))
    assert error.mistake is not None and error.mistake.kind == "conjugate"


def test_the_report_says_which_input_which_element_and_both_values() -> None:
    def wrong_in_one(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return grad * input * torch.tensor([1.0, 3.0])

    product = with_rule(torch.mul, {"other": wrong_in_one})
    text = str(mistake(product, (tracer.tensor([2.0, 2.0], dtype=D, requires_grad=True), random_leaf(2))))
    assert "output 0 with respect to input 1 is wrong in 1 of 4 elements" in text
    assert "result element [1], input 1 element [1]: analytic 6, numerical 2" in text.replace("1.999999999", "2")


def test_a_cut_history_is_found() -> None:
    assert "does not require grad, and yet it changes with input 0" in str(
        mistake(lambda x: x.detach() * 2, random_leaf(3))
    )


def test_a_cut_that_leaves_another_way_is_a_missing_term() -> None:
    error = mistake(lambda x: x * x.detach(), random_leaf(3))
    assert error.mistake is not None and error.mistake.kind == "factor"


def test_second_derivatives_are_checked_apart_from_first_ones() -> None:
    function = with_rule(torch.square, lambda grad, input: 2 * grad * input.detach())
    assert gradcheck(function, random_leaf(3))
    with pytest.raises(GradcheckError, match="input 0") as caught:
        gradgradcheck(function, random_leaf(3))
    assert caught.value.mistake is not None and caught.value.mistake.kind == "missing term"


def test_a_gradient_that_is_not_linear_in_what_comes_in() -> None:
    text = str(mistake(with_rule(torch.sin, lambda grad, input: input.cos() * grad.abs()), random_leaf(3)))
    assert "not linear" in text


def test_a_gradient_where_nothing_came_in() -> None:
    error = mistake(with_rule(torch.sin, lambda grad, input: grad * input.cos() + 1e-6), random_leaf(3))
    assert "not zero where that of every result is" in str(error)


def test_a_backward_that_gives_another_answer_each_time() -> None:
    calls = itertools.count()

    def drifting(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return grad * (input.cos() + 1e-9 * next(calls))

    function = with_rule(torch.sin, drifting)
    assert "not deterministic" in str(mistake(function, random_leaf(3)))
    assert gradcheck(function, random_leaf(3), nondet_tol=1e-6)


def test_a_formula_that_reads_memory_as_it_lies() -> None:
    def by_memory(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return grad.as_strided(grad.shape, (1,)) * input.cos()

    assert "comes in non-contiguous" in str(mistake(with_rule(torch.sin, by_memory), random_leaf(3)))


def test_a_formula_that_views_an_expanded_gradient() -> None:
    def viewing(grad: torch.Tensor) -> torch.Tensor:
        return grad.view(-1).view(3, 2)

    assert "backward raises when the gradient of output 0 comes in" in str(
        mistake(with_rule(torch.clone, viewing), random_leaf(3, 2))
    )


@BOTH_MODES
def test_a_formula_that_is_wrong_when_one_of_several_results_gets_no_gradient(
    fast_mode: bool, clean_registry: None
) -> None:
    @ops_registry.backward(torch.ops.gradcheck_tests.three)
    def three(grad: Any, x: torch.Tensor) -> torch.Tensor:
        total = sum(g * k for g, k in zip(grad, (1, 2, 3), strict=True) if g is not None)
        return 2 * total if sum(g is None for g in grad) == 1 else total

    assert "output 0 gets none" in str(mistake(torch.ops.gradcheck_tests.three, random_leaf(3), fast_mode=fast_mode))
    assert gradcheck(torch.ops.gradcheck_tests.three, random_leaf(3), check_undefined_grad=False)


def test_a_function_that_is_random_is_pointed_out() -> None:
    assert "different results for the same inputs" in str(
        mistake(lambda x: torch.dropout(x, 0.5, True), random_leaf(20))
    )


# ---------------------------------------------------------------------------------------------- options
def test_the_signatures_are_torchs() -> None:
    for ours, theirs in ((gradcheck, torch.autograd.gradcheck), (gradgradcheck, torch.autograd.gradgradcheck)):
        expected = inspect.signature(theirs).parameters
        found = inspect.signature(ours).parameters
        assert [(p.name, p.default, p.kind) for p in found.values()] == [
            (p.name, p.default, p.kind) for p in expected.values()
        ]


def test_raise_exception_false_gives_false() -> None:
    wrong = with_rule(torch.sin, lambda grad, input: grad)
    assert gradcheck(wrong, random_leaf(3), raise_exception=False) is False
    assert (
        gradgradcheck(
            with_rule(torch.exp, lambda grad, result: (grad * result).detach()), random_leaf(3), raise_exception=False
        )
        is False
    )


def test_the_error_is_torchs_too() -> None:
    from torch.autograd.gradcheck import GradcheckError as Theirs

    with pytest.raises(Theirs):
        gradcheck(with_rule(torch.sin, lambda grad, input: grad), random_leaf(3))
    assert issubclass(GradcheckError, ops_registry.GlassgradError)


def test_tolerances_decide() -> None:
    nearly = with_rule(torch.sin, lambda grad, input: grad * input.cos() * 1.01)
    assert gradcheck(nearly, random_leaf(3), raise_exception=False) is False
    assert gradcheck(nearly, random_leaf(3), rtol=0.05)


@pytest.mark.parametrize("option", ["check_forward_ad", "check_batched_forward_grad"])
def test_forward_mode_is_refused_by_name(option: str) -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"forward-mode AD.*tracer\.func\.jvp"):
        gradcheck(torch.sin, random_leaf(3), **{option: True})


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_batched_gradients_are_compared_with_one_pass_for_each(check: Callable[..., bool]) -> None:
    assert check(lambda a, b: (a.sin() * b, b.exp()), (random_leaf(3), random_leaf(3)), check_batched_grad=True)


@pytest.mark.parametrize("leaves", ["tracked", "native"])
def test_torchs_gradcheck_takes_check_batched_grad(leaves: str) -> None:
    x = random_leaf(3) if leaves == "tracked" else torch.rand(3, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, x, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(torch.sin, x, check_batched_grad=True)


def test_a_rule_that_cannot_be_batched_fails_by_name() -> None:
    def deciding(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return grad * input.cos() if bool((grad != 0).any()) else grad * 0

    decides = with_rule(torch.sin, deciding)
    assert gradcheck(decides, random_leaf(3))
    with pytest.raises(GradcheckError, match=r"(?s)computing batched gradients of output 0, got.*vmap.*sin"):
        gradcheck(decides, random_leaf(3), check_batched_grad=True)


def test_a_batched_gradient_that_is_wrong_fails() -> None:
    from ops_registry.torch_private import is_batched

    wrong = with_rule(torch.sin, lambda grad, input: grad * input.cos() * (2 if is_batched(grad) else 1))
    with pytest.raises(GradcheckError, match="batched gradients of input 0 for output 0"):
        gradcheck(wrong, random_leaf(3), check_batched_grad=True)


def test_nothing_to_check_raises() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="at least one input that requires grad"):
        gradcheck(torch.sin, tracer.tensor([1.0]))


def test_an_input_whose_elements_share_memory_raises() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="share memory"):
        gradcheck(torch.sin, tracer.track(torch.rand(1, dtype=D).expand(3), True))


def test_single_precision_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="float32"):
        gradcheck(torch.sin, tracer.tensor(torch.rand(3), requires_grad=True), eps=1e-2, atol=1e-2)


def test_gradients_of_the_outputs_may_be_given() -> None:
    x = random_leaf(3)
    assert gradgradcheck(torch.sin, x, tracer.tensor(torch.rand(3, dtype=D), requires_grad=True))
    assert gradgradcheck(torch.sin, x, torch.rand(3, dtype=D))
    assert gradgradcheck(lambda a: a.t().exp(), random_leaf(2, 3), gen_non_contig_grad_outputs=True)


# ---------------------------------------------------------------------------------------------- beside torch's own
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": torch.sin,
    "square": lambda x: x * x,
    "softmax": lambda x: x.softmax(0),
    "half detached": lambda x: x * x.detach(),
    "detached": lambda x: x.detach().sin(),
    "rounded": torch.round,
    "cumprod": lambda x: x.cumprod(0),
    "outer": lambda x: x.outer(x),
    "two": lambda x: (x.sin(), x.max()),
    "straight through": lambda x: x + (x.round() - x).detach(),
    "sorted": lambda x: x.sort().values,
    "norm": lambda x: x.norm(),
}


@BOTH_MODES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_passes_and_fails_what_torchs_passes_and_fails(name: str, fast_mode: bool) -> None:
    data = torch.tensor([0.3, 1.2, 2.6], dtype=D)
    function = FUNCTIONS[name]
    theirs = torch.autograd.gradcheck(
        function, data.clone().requires_grad_(), raise_exception=False, fast_mode=fast_mode
    )
    ours = gradcheck(function, tracer.tensor(data, requires_grad=True), raise_exception=False, fast_mode=fast_mode)
    assert ours == theirs
    if theirs:
        theirs = torch.autograd.gradgradcheck(function, data.clone().requires_grad_(), raise_exception=False)
        assert gradgradcheck(function, tracer.tensor(data, requires_grad=True), raise_exception=False) == theirs


@BOTH_MODES
def test_torchs_own_gradcheck_works_on_tracked_tensors(fast_mode: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(
            lambda a, b: (a * b, a.sin()), (random_leaf(3), random_leaf(3)), fast_mode=fast_mode
        )
        assert torch.autograd.gradgradcheck(
            lambda a, b: (a * b).exp(), (random_leaf(3), random_leaf(3)), fast_mode=fast_mode
        )
        assert torch.autograd.gradcheck(lambda z: z * z.abs(), random_leaf(3, dtype=C))
        wrong = with_rule(torch.sin, lambda grad, input: -grad * input.cos())
        assert not torch.autograd.gradcheck(wrong, random_leaf(3), raise_exception=False)
