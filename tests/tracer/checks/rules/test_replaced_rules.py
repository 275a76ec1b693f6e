"""``check_rule`` inside ``use``: of rules that wrap another, and of rules that are not to be the derivative."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ops_registry import RuleCheckError, use
from tracer.checks.rules.check import check_rule


def unchanged(grad, default):
    return default(grad)


def times_two(value: Any) -> Any:
    """Twice a gradient, or a tuple or list of them."""
    if isinstance(value, tuple | list):
        return type(value)(map(times_two, value))
    return None if value is None else 2 * value


def doubled(grad, default):
    return times_two(default(grad))


OPS = (
    torch.tanh,
    torch.mul,
    torch.atan2,
    F.linear,
    F.layer_norm,
    torch.cat,
    torch.max,
    torch.sort,
    F.cosine_similarity,
)


def checked(op: Any, rule: Any, **options: Any) -> Any:
    with use({op: rule}, expect=None):
        return check_rule(op, max_examples=6, **options)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_a_rule_that_returns_default_is_right(op) -> None:
    report = checked(op, unchanged)
    assert report.orders[2] and report.against_torch and report.dtypes["complex128" if op is torch.mul else "float64"]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_a_rule_that_scales_default_is_wrong_by_that_scale(op) -> None:
    with pytest.raises(RuleCheckError) as caught:
        checked(op, doubled)
    assert caught.value.kind == "factor" and "test_replaced_rules.py" in str(caught.value)


def test_a_second_derivative_that_is_lost_around_default_is_seen() -> None:
    with pytest.raises(RuleCheckError, match="second derivative"):
        checked(torch.tanh, lambda grad, default: default(grad).detach())


def test_what_a_rule_saves_beside_default_is_seen() -> None:
    with pytest.raises(RuleCheckError) as caught:
        checked(torch.tanh, lambda grad, default, input: default(grad) + 0 * input.sum())
    assert caught.value.kind == "memory"


class ByResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.tanh()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def test_a_rule_is_held_against_its_own_definition() -> None:
    report = checked(torch.tanh, lambda grad, result: grad * result, against=ByResult.apply)
    assert report.orders[2] and report.torch_bytes == report.kept_bytes > 0 and not report.against_differences


def test_a_rule_that_is_not_its_definition_is_found_by_the_definitions_own_derivative() -> None:
    with pytest.raises(RuleCheckError) as caught:
        checked(torch.tanh, lambda grad, result: -grad * result, against=ByResult.apply)
    assert caught.value.kind == "sign"


def test_more_than_the_definition_saves_is_too_much() -> None:
    with pytest.raises(RuleCheckError, match="its definition") as caught:
        checked(torch.tanh, lambda grad, result, input: grad * result + 0 * input.sum(), against=ByResult.apply)
    assert caught.value.kind == "memory"


def test_a_definition_that_takes_no_call_is_said_to() -> None:
    with pytest.raises(RuleCheckError, match="took none of its calls: no tanh today"):
        checked(torch.tanh, unchanged, against=refusing)


def refusing(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no tanh today")


def test_a_rule_in_a_scope_is_not_checked_outside_of_it() -> None:
    with use({torch.tanh: unchanged}, where="layer4", expect=None), pytest.raises(RuleCheckError, match="where="):
        check_rule(torch.tanh)
