"""Rules of ``ops_registry/rules/dropout.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, plain, rand, run_case, values

import tracer

FUNCTIONS = [torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout]
IN_PLACE = [torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_, torch.feature_alpha_dropout_]


def mask(device: torch.device) -> torch.Tensor:
    return rand(3, 4)(device) > 0


CASES = [
    case(name, lambda x, f=function: f(x, 0.3, True), rand(3, 4, 5))
    for name, function in zip(
        ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), FUNCTIONS, strict=True
    )
]
CASES += [
    case("dropout", lambda x: torch.dropout(x, train=True, p=0.5), rand(), label="scalar-keywords"),
    case("dropout", lambda x: F.dropout(x, 0.5), rand(0, 3), label="empty"),
    case("dropout", lambda x: F.dropout(x.t().expand(2, 4, 3), 0.5), rand(3, 4), label="expanded"),
    case("dropout", lambda x: F.dropout(x, 1.0), rand(3, 4), label="everything"),
    case("dropout", lambda x: F.dropout(x * 1, 0.4, inplace=True), rand(3, 4), label="in-place"),
    case("feature_dropout", lambda x: F.dropout3d(x, 0.5), rand(2, 4, 2, 3, 2), label="rank-5"),
    case("alpha_dropout", lambda x: torch.alpha_dropout(x, 1.0, True), rand(3, 4), label="everything"),
    case("native_dropout", lambda x: torch.native_dropout(x, 0.3, True)[0], rand(3, 4)),
    case(
        "native_dropout",
        lambda x: torch.native_dropout(x, 0.3, None)[0],
        rand(3, 4),
        torch_agrees=False,
        second="differences",  # torch trains, but takes the scale of the gradient as 1
        label="default-mode",
    ),
    case("native_dropout", lambda x: torch.native_dropout(x, 0.3, False)[0], rand(3, 4), label="idle"),
    case(
        "native_dropout_backward",
        lambda g: torch.ops.aten.native_dropout_backward(g, mask(g.device), 1.25),
        rand(3, 4),
        rtol=1e-6,  # torch multiplies the mask by the scale in single precision
        atol=1e-6,
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("function", FUNCTIONS + IN_PLACE, ids=lambda f: f.__name__)
def test_values_and_gradients_are_those_of_torch_bit_for_bit(
    function: Callable[..., Any], p: float, dtype: torch.dtype, device: torch.device
) -> None:
    x = rand(6, 5, 4, dtype=dtype)(device).transpose(0, 2)
    found = []
    for leaf in (tracer.track(x.clone(), True), x.clone().requires_grad_()):
        torch.manual_seed(7)
        result = function(leaf * 1, p, True)
        result.sum().backward()
        found.append((plain(result), plain(leaf.grad), torch.rand(2)))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_without_effect_the_input_itself_comes_back(function: Callable[..., Any], device: torch.device) -> None:
    x = tracer.track(rand(3, 4)(device), True)
    assert function(x, 0.5, False) is x
    assert function(x, 0.0, True) is x


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_an_invalid_probability_raises_what_torch_raises(function: Callable[..., Any], device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
        function(tracer.track(rand(3, 4)(device), True), 1.5, True)


def test_one_bool_a_value_is_kept(device: torch.device) -> None:
    x = tracer.track(rand(30, 4)(device), True)
    (kept,) = [k for k in torch.dropout(x, 0.5, True).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert kept.dtype == torch.bool and kept.shape == (30, 4)


def test_one_bool_a_channel_is_kept(device: torch.device) -> None:
    x = tracer.track(rand(3, 4, 5, 6)(device), True)
    (kept,) = [k for k in F.dropout2d(x, 0.5).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert kept.dtype == torch.bool and kept.shape == (3, 4, 1, 1)


def test_a_surviving_value_is_scaled_and_a_dropped_one_gets_no_gradient(device: torch.device) -> None:
    x = tracer.track(values([1.0] * 64)(device), True)
    result = torch.dropout(x, 0.75, True)
    result.sum().backward()
    assert set(plain(result).tolist()) == {0.0, 4.0}
    assert torch.equal(plain(x.grad), plain(result))


def test_without_a_mode_the_native_kernel_trains_and_scales_the_gradient(device: torch.device) -> None:
    x = tracer.track(values([1.0] * 64)(device), True)
    result = torch.native_dropout(x, 0.75, None)[0]
    result.sum().backward()
    assert set(plain(result).tolist()) == {0.0, 4.0}
    assert torch.equal(plain(x.grad), plain(result))
