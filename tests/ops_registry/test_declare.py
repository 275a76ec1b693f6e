"""Rules that are declared: several functions at once, pass-through, zero gradient, self-adjoint kernels, arguments cast to ``grad``."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from support.leaves import leaf, leaf32, tracked

import ops_registry
import tracer
from ops_registry.catalogue.page import second_order
from ops_registry.errors import DuplicateRuleError, RuleError, RuleResultError
from ops_registry.formula import Formula
from ops_registry.shared.dimensions import broadcast_shape

pytestmark = pytest.mark.usefixtures("clean_registry")

library = torch.library.Library("declared", "DEF")


def op(schema: str, body):
    """A new op of its own, so that no rule of another test meets it."""
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, body, "CompositeExplicitAutograd")
    return getattr(torch.ops.declared, name)


def formula_of(func) -> Formula:
    rule = ops_registry.lookup(func)
    assert rule is not None
    (formula,) = rule.formulas
    return formula


def test_one_formula_serves_several_functions() -> None:
    one = op("one(Tensor x) -> Tensor", lambda x: 2 * x)
    two = op("two(Tensor x) -> Tensor", lambda x: 2 * x)

    @ops_registry.backward(one, two)
    def doubled(grad):
        return 2 * grad

    x = leaf(1.0, 2.0)
    (one(x) + two(x)).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    assert formula_of(one).location == formula_of(two).location


def test_backward_of_no_function_is_refused() -> None:
    with pytest.raises(RuleError, match="no function"):
        ops_registry.backward(wrt="input")


def test_a_gradient_passes_through_and_is_projected() -> None:
    shifted = op("shifted(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    ops_registry.passes_through(shifted, wrt=("x", "y"))
    x, y = leaf(1.0, 2.0, 3.0), leaf(5.0)
    shifted(x, y).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
    assert y.grad.tolist() == [3.0]
    tracer.check_rule(shifted)


def test_a_zero_gradient_saves_nothing_and_counts_as_zero() -> None:
    steps = op("steps(Tensor x) -> Tensor", lambda x: x.floor())
    ops_registry.zero_gradient(steps)
    x = leaf(1.5, 2.5)
    y = steps(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is None or x.grad.tolist() == [0.0, 0.0]
    assert formula_of(steps).saves == ()
    assert second_order(formula_of(steps).function) == "zero"
    tracer.check_rule(steps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_self_adjoint_kernel_is_applied_to_the_gradient(dtype: torch.dtype) -> None:
    kernel = op(
        "slope_backward(Tensor grad_output, Tensor x, *, float rate=1.0) -> Tensor"
        if dtype is torch.float64
        else "complex_slope_backward(Tensor grad_output, Tensor x, *, float rate=1.0) -> Tensor",
        lambda grad_output, x, rate=1.0: grad_output * (rate * x * x),
    )
    ops_registry.self_adjoint(kernel, wrt="grad_output")
    assert formula_of(kernel).parameters == ("grad", "x", "rate")
    g = tracked([1.0, 2.0], dtype=dtype)
    x = torch.tensor([3.0, -1.0], dtype=dtype) + (2j if dtype.is_complex else 0)
    weight = torch.tensor([0.5, 4.0], dtype=dtype) + (1j if dtype.is_complex else 0)
    result = kernel(g, x, rate=3.0)
    (found,) = torch.autograd.grad(result, g, weight, create_graph=True)
    assert torch.equal(found.detach(), weight * (3 * x * x).conj())


def test_self_adjoint_in_what_the_kernel_does_not_have_is_refused() -> None:
    with pytest.raises(RuleError, match="no input 'grad'"):
        ops_registry.self_adjoint(torch.ops.aten.threshold_backward, wrt="grad")


def test_the_location_of_a_declared_rule_is_its_declaration() -> None:
    def line() -> int:
        return sys._getframe(1).f_lineno

    passing = op("passing(Tensor x) -> Tensor", lambda x: x.clone())
    flat = op("flat(Tensor x) -> Tensor", lambda x: x * 0)
    adjoint = op("adjoint_backward(Tensor grad_output, Tensor x) -> Tensor", lambda grad_output, x: grad_output * x)
    silent = op("silent(Tensor x) -> Tensor", lambda x: x > 0)
    before = line()
    ops_registry.passes_through(passing)
    ops_registry.zero_gradient(flat)
    ops_registry.self_adjoint(adjoint, wrt="grad_output")
    ops_registry.no_gradient(silent)
    found = [ops_registry.lookup(f).location for f in (passing, flat, adjoint, silent)]  # type: ignore[union-attr]
    assert found == [f"{__file__}:{before + k}" for k in (1, 2, 3, 4)]
    with pytest.raises(DuplicateRuleError, match=f"written at {found[3]}"):
        ops_registry.no_gradient(silent)


def test_the_error_of_a_declared_rule_names_the_rule_and_its_line() -> None:
    summed = op("summed(Tensor x) -> Tensor", lambda x: torch.cat((x, x)))
    ops_registry.passes_through(summed)  # wrong: the result is longer than the input
    with pytest.raises(RuleResultError, match=rf"'passes_through' \({__file__}:\d+\)"):
        summed(leaf(1.0, 2.0)).sum().backward()


def test_an_argument_arrives_in_the_dtype_of_the_gradient() -> None:
    halved = op("halved(Tensor x, Tensor w) -> Tensor", lambda x, w: x.half() * w.half())
    seen = []

    @ops_registry.backward(halved, wrt="x", cast_to_grad="w")
    def halved_x(grad, w):
        seen.append(w.dtype)
        return grad * w

    x = leaf32(1.0, 2.0)
    halved(x, torch.tensor([3.0, 4.0])).sum().backward()
    assert seen == [torch.float16]
    assert x.grad.dtype == torch.float32

    def ten_times(grad, w):
        seen.append(w.dtype)
        return grad * w * 10

    with ops_registry.use({halved: {"x": ten_times}}):  # a rule in its place is given the same
        halved(x, torch.tensor([3.0, 4.0])).sum().backward()
    assert seen == [torch.float16, torch.float16]


def test_what_is_no_tensor_is_not_cast() -> None:
    powered = op("powered(Tensor x, Scalar n) -> Tensor", lambda x, n: x.double() ** n)

    @ops_registry.backward(powered, wrt="x", cast_to_grad=("x", "n"))
    def powered_x(grad, x, n):
        return grad * n * x ** (n - 1)

    x = leaf32(3.0)
    powered(x, 2).sum().backward()
    assert x.grad.tolist() == [6.0]


def test_casting_what_the_formula_does_not_ask_for_is_refused() -> None:
    lacking = op("lacking(Tensor x, Tensor w) -> Tensor", lambda x, w: x * w)
    with pytest.raises(RuleError, match="casts 'x'"):

        @ops_registry.backward(lacking, wrt="x", cast_to_grad="x")
        def lacking_x(grad, w):
            return grad * w


@pytest.mark.parametrize(
    "shapes",
    [[(2, 3), (3,)], [(2, 1), (1, 4)], [(), (5,)], [(1,), (0,)], [(4, 1, 2), (3, 1), ()], [(2, 3)]],
)
def test_the_shape_of_a_broadcast_is_torchs(shapes) -> None:
    assert broadcast_shape(*shapes) == torch.broadcast_shapes(*shapes)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shape((2, 3), (2,))


def test_a_self_adjoint_rule_reads_as_if_it_were_written() -> None:
    function = next(
        f for f in ops_registry.lookup(torch.ops.aten.gelu_backward).formulas if f.wrt == ("grad_output",)
    ).function  # type: ignore[union-attr]
    assert inspect.getsource(function) == (
        "def self_adjoint(grad, input, approximate):\n    return kernel(grad, conj(input), approximate=approximate)\n"
    )
    assert second_order(function) == "yes"


def test_a_joint_formula_that_lost_an_input_is_asked_by_name_for_the_others() -> None:
    weighted = op("weighted(Tensor x, Tensor w) -> Tensor", lambda x, w: x * w)
    asked = []

    @ops_registry.backward(weighted, wrt=("x", "w"))
    def both(grad, x, w, needs):
        asked.append((needs.x, needs.w))
        return grad * w if needs.x else None, grad * x if needs.w else None

    x, w = leaf(2.0), leaf(3.0)
    with ops_registry.use({weighted: {"w": lambda grad: grad * 10}}):
        weighted(x, w).sum().backward()
    assert asked == [(True, False)]
    assert (x.grad.item(), w.grad.item()) == (3.0, 10.0)
    with (
        ops_registry.use({weighted: {"w": lambda grad: grad * 10}}),
        ops_registry.use({weighted: {"x": lambda grad: grad * 20}}),
    ):
        weighted(x, w).sum().backward()
    assert asked == [(True, False)]
    assert (x.grad.item(), w.grad.item()) == (23.0, 20.0)
