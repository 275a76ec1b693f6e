"""What the page says of second derivatives is read rightly from the source of formulas."""

from __future__ import annotations

import torch

from ops_registry.catalogue.formula_calls import refuses, returns_none, without_rule
from ops_registry.errors import UnsupportedCallError


def test_a_function_without_a_rule_is_found_in_a_formula() -> None:
    assert without_rule(lambda grad: torch.quantize_per_tensor(grad, 1, 0, torch.qint8)) == [
        "torch.quantize_per_tensor"
    ]


def test_functions_that_have_rules_are_not_listed() -> None:
    assert without_rule(lambda grad, input: grad.sum(0).mT * torch.exp(input)) == []


def test_only_the_branch_that_runs_while_backward_is_recorded_counts() -> None:
    def formula(grad: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return grad * 2
        return torch.quantize_per_tensor(grad, 1, 0, torch.qint8)

    assert without_rule(formula) == []


def test_a_branch_that_does_not_run_while_backward_is_recorded_does_not_count() -> None:
    def negated(grad: torch.Tensor, fast: bool) -> torch.Tensor:
        if fast and not torch.is_grad_enabled():
            return torch.quantize_per_tensor(grad, 1, 0, torch.qint8)
        return grad * 2

    def enclosed(grad: torch.Tensor, slow: bool) -> torch.Tensor:
        if not (slow or torch.is_grad_enabled()):
            return torch.quantize_per_tensor(grad, 1, 0, torch.qint8)
        return grad * 2

    assert without_rule(negated) == without_rule(enclosed) == []


def test_a_branch_that_may_run_while_backward_is_recorded_counts() -> None:
    def formula(grad: torch.Tensor, fast: bool) -> torch.Tensor:
        if fast or not torch.is_grad_enabled():
            return torch.quantize_per_tensor(grad, 1, 0, torch.qint8)
        return grad * 2

    assert without_rule(formula) == ["torch.quantize_per_tensor"]


def test_a_method_of_a_string_is_not_taken_for_a_tensors() -> None:
    assert without_rule(lambda grad, equation: grad.select(equation.index(","), 0)) == []


def test_a_formula_that_only_raises_refuses_every_call() -> None:
    def formula(grad: torch.Tensor) -> None:
        raise UnsupportedCallError("no")

    assert refuses(formula) == "every"


def test_a_formula_that_may_raise_refuses_some_calls() -> None:
    def formula(grad: torch.Tensor) -> torch.Tensor:
        if grad.dim() > 2:
            raise UnsupportedCallError("no")
        return grad

    assert refuses(formula) == "some"


def test_a_formula_that_answers_none_has_the_derivative_zero() -> None:
    def formula(grad: torch.Tensor) -> None:
        return None

    assert returns_none(formula)
    assert not returns_none(lambda grad: grad)
