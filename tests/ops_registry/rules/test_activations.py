"""Rules of ``ops_registry/rules/activations.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

import tracer
from ops_registry.errors import UnsupportedCallError

aten = torch.ops.aten
nn = torch._C._nn
INF, NAN = math.inf, math.nan
UP = {"low": 0.5, "high": 2.0}


def gradient_of(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The gradient of ``function`` as a function of the cotangent and the input."""
    return lambda g, x: torch.autograd.grad(function(x), x, g, create_graph=True)[0]


#: A gradient is taken with respect to the second input, which therefore has to want one.
THROUGH_GRADIENT: dict[str, Any] = {"needs": ((1,), (0, 1)), "differences": False}

#: Functions of one tensor, under the name of their rule.
ACTIVATIONS: list[tuple[str, str, Callable[..., torch.Tensor]]] = [
    ("relu", "", torch.relu),
    ("relu6", "", lambda x: F.relu6(x * 4)),
    ("threshold", "", lambda x: F.threshold(x, 0.3, -1.0)),
    ("leaky_relu", "", F.leaky_relu),
    ("leaky_relu", "negative-slope", lambda x: F.leaky_relu(x, negative_slope=-0.5)),
    ("hardtanh", "", F.hardtanh),
    ("hardtanh", "bounds", lambda x: F.hardtanh(x, min_val=-0.3, max_val=1.5)),
    ("hardshrink", "", F.hardshrink),
    ("hardshrink", "lambd", lambda x: x.hardshrink(lambd=1.1)),
    ("softshrink", "", F.softshrink),
    ("softshrink", "lambd", lambda x: F.softshrink(x, lambd=1.1)),
    ("rrelu", "training", lambda x: F.rrelu(x, 0.1, 0.6, training=True)),
    ("rrelu", "evaluation", lambda x: F.rrelu(x, 0.1, 0.6)),
    ("rrelu", "torch", lambda x: torch.rrelu(x, lower=0.2, training=True)),
    ("elu", "", F.elu),
    ("elu", "alpha", lambda x: F.elu(x, alpha=1.7)),
    ("elu", "all-scales", lambda x: nn.elu(x, 1.2, 0.7, 1.9)),
    ("selu", "", F.selu),
    ("celu", "", F.celu),
    ("celu", "alpha", lambda x: F.celu(x, alpha=0.5)),
    ("gelu", "", F.gelu),
    ("gelu", "tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("silu", "", F.silu),
    ("mish", "", F.mish),
    ("softplus", "", F.softplus),
    ("softplus", "beta-and-threshold", lambda x: F.softplus(x, beta=3, threshold=2)),
    ("log_sigmoid", "", F.logsigmoid),
    ("hardswish", "", lambda x: F.hardswish(x * 2)),
]

IN_PLACE: list[tuple[str, Callable[..., torch.Tensor]]] = [
    ("relu", lambda x: F.relu(x, inplace=True)),
    ("relu", torch.relu_),
    ("relu", lambda x: x.relu_()),
    ("relu6", lambda x: F.relu6(x, inplace=True)),
    ("threshold", lambda x: F.threshold(x, 0.3, -1.0, inplace=True)),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.2, inplace=True)),
    ("hardtanh", lambda x: F.hardtanh(x, inplace=True)),
    ("rrelu", lambda x: F.rrelu(x, training=True, inplace=True)),
    ("elu", lambda x: F.elu(x, inplace=True)),
    ("elu", F.elu_),
    ("selu", lambda x: F.selu(x, inplace=True)),
    ("celu", lambda x: F.celu(x, inplace=True)),
    ("silu", lambda x: F.silu(x, inplace=True)),
    ("mish", lambda x: F.mish(x, inplace=True)),
    ("hardswish", lambda x: F.hardswish(x, inplace=True)),
]

#: torch has no second derivative of hardsigmoid; a test of its own has.
HARDSIGMOID = [
    case("hardsigmoid", lambda x: F.hardsigmoid(x * 2), rand(*shape), label=str(shape), second="differences")
    for shape in [(3, 4), (), (0, 3), (1, 2, 1, 3, 2)]
]

CASES = [
    *HARDSIGMOID,
    case(
        "hardsigmoid", lambda x: F.hardsigmoid(x * 2, inplace=True), rand(3, 4), label="in-place", second="differences"
    ),
    case("hardsigmoid", lambda x: F.hardsigmoid(x.t()), rand(3, 4), label="transposed", second="differences"),
    # torch rounds 1 / alpha to float32 in the gradient of celu: central differences decide where that is not exact.
    case(
        "celu",
        lambda x: F.celu(x, alpha=0.6),
        rand(3, 4),
        label="inexact-alpha",
        second="differences",
        torch_agrees=False,
    ),
    *(case(name, f, rand(3, 4), label=label) for name, label, f in ACTIVATIONS),
    *(case(name, f, rand(1, 2, 1, 3, 2), label=f"rank-5-{label}") for name, label, f in ACTIVATIONS),
    *(case(name, lambda x, f=f: f(x.t()), rand(3, 4), label=f"transposed-{label}") for name, label, f in ACTIVATIONS),
    *(
        case(name, lambda x, f=f: f(x.expand(3, 4)), rand(4), label=f"expanded-{label}")
        for name, label, f in ACTIVATIONS
    ),
    *(case(name, f, rand(), label=f"0-d-{label}") for name, label, f in ACTIVATIONS),
    *(case(name, f, rand(0, 3), label=f"empty-{label}") for name, label, f in ACTIVATIONS),
    *(case(name, lambda x, f=f: f(x * 1.5), rand(3, 4), label="in-place") for name, f in IN_PLACE),
    # torch has no gradient for a complex silu: central differences decide.
    case("silu", F.silu, rand(3, dtype=torch.complex128), label="complex", second="differences", torch_agrees=False),
    case("prelu", F.prelu, rand(3, 4), rand(1), label="one-weight"),
    case("prelu", F.prelu, rand(3, 4), rand(), label="0-d-weight"),
    case("prelu", F.prelu, rand(3, 4), rand(4), label="one-per-channel"),
    case("prelu", F.prelu, rand(4), rand(1), label="vector"),
    case("prelu", F.prelu, rand(), rand(1), label="0-d"),
    case("prelu", F.prelu, rand(2, 3, 1, 2, 2), rand(3), label="rank-5"),
    case("prelu", F.prelu, rand(0, 3), rand(3), label="empty"),
    case("prelu", lambda x, w: torch.prelu(x.t(), weight=w), rand(3, 4), rand(3), label="transposed"),
    case("_prelu_kernel", torch._prelu_kernel, rand(3, 4), rand(3, 1)),
    case("rrelu_with_noise", lambda x: nn.rrelu_with_noise(x, torch.empty_like(x), 0.1, 0.4, True), rand(3, 4)),
    case(
        "rrelu_with_noise",
        lambda x: nn.rrelu_with_noise(x, torch.empty_like(x), 0.1, 0.4),
        rand(3, 4),
        label="evaluation",
    ),
    case("glu", F.glu, rand(3, 4)),
    case("glu", lambda x: F.glu(x, dim=0), rand(4, 3), label="dim"),
    case("glu", lambda x: F.glu(x, dim=-2), rand(2, 1, 2, 4, 3), label="rank-5"),
    case("glu", lambda x: F.glu(x.t()), rand(4, 3), label="transposed"),
    case("glu", F.glu, rand(0, 4), label="empty"),
    case("threshold_backward", lambda g, x: aten.threshold_backward(g, x, 0.2), rand(3, 4), rand(3, 4, seed=1)),
    case(
        "leaky_relu_backward", lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False), rand(3, 4), rand(3, 4, seed=1)
    ),
    case("hardtanh_backward", lambda g, x: aten.hardtanh_backward(g, x, -1, 1), rand(3, 4), rand(3, 4, seed=1)),
    case(
        "hardsigmoid_backward",
        lambda g, x: aten.hardsigmoid_backward(g, x * 2),
        rand(3, 4),
        rand(3, 4, seed=1),
        second="differences",
        torch_agrees=False,  # torch cannot differentiate it
    ),
    case("hardshrink_backward", lambda g, x: aten.hardshrink_backward(g, x, 0.5), rand(3, 4), rand(3, 4, seed=1)),
    case("softshrink_backward", lambda g, x: aten.softshrink_backward(g, x, 0.5), rand(3, 4), rand(3, 4, seed=1)),
    case("elu_backward", lambda g, x: aten.elu_backward(g, 1.2, 0.7, 1.9, False, x), rand(3, 4), rand(3, 4, seed=1)),
    case(
        "elu_backward",
        lambda g, y: aten.elu_backward(g, 1.2, 0.7, 1.9, True, y),
        rand(3, 4),
        rand(3, 4, seed=1),
        label="of-result",
    ),
    case("gelu_backward", aten.gelu_backward, rand(3, 4), rand(3, 4, seed=1)),
    case(
        "gelu_backward",
        lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
        rand(3, 4),
        rand(3, 4, seed=1),
        label="tanh",
    ),
    # torch differentiates the gradients of silu and mish, not the kernels.
    case("silu_backward", aten.silu_backward, rand(3, 4), rand(3, 4, seed=1), second="differences", torch_agrees=False),
    case("silu_backward", gradient_of(F.silu), rand(3, 4), rand(3, 4, seed=1), label="twice", **THROUGH_GRADIENT),
    case("mish_backward", gradient_of(F.mish), rand(3, 4), rand(3, 4, seed=1), label="twice", **THROUGH_GRADIENT),
    case(
        "silu_backward",
        aten.silu_backward,
        rand(3, dtype=torch.complex128),
        rand(3, dtype=torch.complex128, seed=1),
        label="complex",
        second="differences",
        torch_agrees=False,
    ),
    case("mish_backward", aten.mish_backward, rand(3, 4), rand(3, 4, seed=1), second="differences", torch_agrees=False),
    case("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 3, 2), rand(3, 4), rand(3, 4, seed=1)),
    case(
        "log_sigmoid_backward",
        lambda g, x: aten.log_sigmoid_backward(g, x, (-x.detach().abs()).exp()),
        rand(3, 4),
        rand(3, 4, seed=1),
        differences=False,  # the buffer is a function of x that the derivative takes care of
    ),
    case("hardswish_backward", lambda g, x: aten.hardswish_backward(g, x * 2), rand(3, 4), rand(3, 4, seed=1)),
    case("glu_backward", lambda g, x: aten.glu_backward(g, x, 1), rand(3, 2), rand(3, 4)),
    case(
        "_prelu_kernel_backward",
        aten._prelu_kernel_backward,
        rand(3, 4),
        rand(3, 4, seed=1),
        rand(3, 1),
        second="differences",  # torch has no derivative of its double backward
    ),
    case("sigmoid", torch.sigmoid, rand(3, 4, **UP)),
    case("sigmoid", torch.sigmoid, rand(**UP), label="0-d"),
    case("sigmoid", torch.sigmoid, rand(2, 0), label="empty"),
    case("sigmoid", torch.sigmoid, rand(3, dtype=torch.complex128, **UP), label="complex"),
    case(
        "sigmoid",
        lambda x: torch.sigmoid(x.transpose(0, 3).expand(3, 2, 2, 2, 2)),
        rand(2, 2, 2, 1, 2, **UP),
        label="rank 5, strides",
    ),
    case("sigmoid", lambda x: x.clone().sigmoid_(), rand(3, **UP), label="in place"),
    case("sigmoid", torch.special.expit, rand(3), label="alias"),
    case("sigmoid_backward", aten.sigmoid_backward, rand(3), rand(3, seed=1)),
    case(
        "sigmoid_backward",
        aten.sigmoid_backward,
        rand(3, dtype=torch.complex128),
        rand(3, dtype=torch.complex128, seed=1),
        label="complex",
    ),
    case("logit", torch.logit, rand(3, 4, low=0.1, high=0.9)),
    case("logit", partial(torch.logit, eps=0.2), rand(3, 4, low=0.0, high=1.0), label="eps"),
    case("logit", lambda x: x.clone().logit_(eps=0.2), rand(3, 4, low=0.0, high=1.0), label="in place"),
    case("logit", torch.special.logit, rand(0), label="empty alias"),
    # torch has no derivative of its kernel.
    *[
        case(
            "logit_backward",
            lambda g, x, eps=eps: torch.ops.aten.logit_backward(g, x, eps),
            rand(3, 4),
            rand(3, 4, low=0.1, high=0.9),
            torch_agrees=False,
            second="differences",
            label=f"eps-{eps}",
        )
        for eps in (None, 0.2)
    ],
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def gradient(function: Callable[[torch.Tensor], torch.Tensor], data: list[float], device: torch.device) -> list[float]:
    """The gradient of the sum of ``function``."""
    x = tracer.track(torch.tensor(data, dtype=torch.float64, device=device), True)
    function(x).sum().backward()
    return x.grad.tolist()


@pytest.mark.parametrize(
    ("function", "kinks", "slopes"),
    [
        (torch.relu, [0.0, -0.0], [0.0, 0.0]),
        (F.relu6, [0.0, 6.0], [0.0, 0.0]),
        (F.hardtanh, [-1.0, 1.0], [0.0, 0.0]),
        (F.hardsigmoid, [-3.0, 3.0], [0.0, 0.0]),
        (F.hardshrink, [-0.5, 0.5], [0.0, 0.0]),
        (F.softshrink, [-0.5, 0.5], [0.0, 0.0]),
        (lambda x: F.threshold(x, 2.0, 1.0), [2.0], [0.0]),
        (lambda x: F.leaky_relu(x, 0.25), [0.0], [0.25]),
        (F.elu, [0.0], [1.0]),
        (lambda x: F.prelu(x, torch.full((), 0.25, dtype=x.dtype, device=x.device)), [0.0], [0.25]),
    ],
    ids=[
        "relu",
        "relu6",
        "hardtanh",
        "hardsigmoid",
        "hardshrink",
        "softshrink",
        "threshold",
        "leaky_relu",
        "elu",
        "prelu",
    ],
)
def test_slope_at_a_kink(
    function: Callable[[torch.Tensor], torch.Tensor], kinks: list[float], slopes: list[float], device: torch.device
) -> None:
    # pytorch/pytorch#7002, pytorch/pytorch#7049, pytorch/pytorch#76522, pytorch/pytorch#184574
    assert gradient(function, kinks, device) == slopes


@pytest.mark.parametrize(
    ("function", "slopes"),
    [
        (torch.relu, [0.0, 1.0]),
        (F.elu, [0.0, 1.0]),
        (F.selu, [0.0, 1.0507009873554805]),
        (F.celu, [0.0, 1.0]),
        (F.softplus, [0.0, 1.0]),
        (F.logsigmoid, [1.0, 0.0]),
        (F.hardswish, [0.0, 1.0]),
    ],
    ids=["relu", "elu", "selu", "celu", "softplus", "log_sigmoid", "hardswish"],
)
def test_slope_at_infinity_is_that_of_the_asymptote(
    function: Callable[[torch.Tensor], torch.Tensor], slopes: list[float], device: torch.device
) -> None:
    assert gradient(function, [-math.inf, math.inf], device) == slopes


def test_relu_drops_an_infinite_gradient_where_it_is_flat(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1.0, 1.0], device=device), True)
    torch.relu(x).backward(torch.tensor([math.inf, 2.0], device=device))
    assert x.grad.tolist() == [0.0, 2.0]


def test_softplus_is_linear_above_its_threshold(device: torch.device) -> None:
    assert gradient(lambda x: F.softplus(x, beta=1, threshold=1), [1.5, 3.0], device) == [1.0, 1.0]


def test_log_sigmoid_keeps_small_gradients_exact(device: torch.device) -> None:
    (slope,) = gradient(F.logsigmoid, [40.0], device)
    assert slope == pytest.approx(math.exp(-40), rel=1e-12)


def test_second_derivative_of_hardsigmoid_is_zero(device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1.0, 4.0], dtype=torch.float64, device=device), True)
    weight = tracer.track(torch.tensor([2.0, 3.0], dtype=torch.float64, device=device), True)
    (slope,) = torch.autograd.grad((weight * F.hardsigmoid(x)).sum(), x, create_graph=True)
    bend, mixed = torch.autograd.grad(slope.sum(), (x, weight))
    assert bend.tolist() == [0, 0]
    assert mixed.tolist() == pytest.approx([1 / 6, 0])


def test_rrelu_with_noise_refuses_a_noise_that_is_not_contiguous() -> None:
    x = tracer.track(torch.ones(3, 4), True)
    out = nn.rrelu_with_noise(x, torch.empty(4, 3).t(), 0.1, 0.4, True)
    with pytest.raises(UnsupportedCallError, match="not contiguous"):
        out.sum().backward()


def test_third_derivative_of_gelu(device: torch.device) -> None:
    x = tracer.track(torch.zeros(1, dtype=torch.float64, device=device), True)
    g: torch.Tensor = F.gelu(x)
    for _ in range(4):
        (g,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    assert g.item() == pytest.approx(-8 / 2 / math.sqrt(2 * math.pi))


def test_relu_keeps_its_result_and_not_its_input() -> None:
    x = tracer.tensor([1.0, -1.0], requires_grad=True)
    hidden = x * 3
    out = torch.relu(hidden)
    hidden.mul_(2)  # free to go
    out.sum().backward()
    assert x.grad.tolist() == [3.0, 0.0]


def test_rrelu_draws_the_same_slopes_as_torch(device: torch.device) -> None:
    x = torch.linspace(-2, 2, 9, device=device)
    torch.manual_seed(5)
    theirs = F.rrelu(x, training=True)
    torch.manual_seed(5)
    assert torch.equal(F.rrelu(tracer.track(x, True), training=True).detach().as_subclass(torch.Tensor), theirs)


def test_prelu_refuses_a_wrong_number_of_weights() -> None:
    with pytest.raises(RuntimeError, match="Mismatch of parameter numbers"):
        F.prelu(tracer.track(torch.ones(2, 1, 4), True), torch.ones(3))


@pytest.mark.parametrize(
    "write",
    [lambda x: F.elu_(x, alpha=-2.0), lambda x: F.celu_(x, alpha=-2.0), lambda x: F.leaky_relu_(x, -0.5)],
    ids=["elu", "celu", "leaky_relu"],
)
def test_written_in_place_a_negative_slope_is_refused(write: Callable[..., Any], device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1.0, 1.0], dtype=torch.float64, device=device), True)
    with pytest.raises(UnsupportedCallError, match="out of place"):
        write(x * 1).sum().backward()


@pytest.mark.parametrize("write", [F.elu_, F.selu_, F.celu_, F.leaky_relu_])
def test_written_in_place_it_keeps_the_result_and_no_copy(write: Callable[..., Any], device: torch.device) -> None:
    written = write(tracer.track(torch.ones(3, device=device), True) * 1)
    assert [t.data_ptr() for t, _ in written.grad_fn.saved_versions] == [written.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradient_has_the_dtype_of_the_input(dtype: torch.dtype, device: torch.device) -> None:
    x = tracer.track(torch.tensor([-1.0, 2.0], dtype=dtype, device=device), True)
    F.gelu(x).sum().backward()
    assert x.grad.dtype == dtype


def test_logit_outside_of_its_domain_is_nan(device: torch.device) -> None:
    assert_values(first(torch.logit, [-1.0, 0.5, 2.0], device=device)[0], [NAN, 4.0, NAN])


def test_logit_at_the_ends_is_infinitely_steep(device: torch.device) -> None:
    assert_values(first(torch.logit, [0.0, 1.0], device=device)[0], [INF, INF])


def test_logit_is_flat_where_eps_clamps(device: torch.device) -> None:
    for derivative in (first, second):
        assert_values(
            derivative(lambda x: torch.logit(x, eps=0.1), [0.0, 0.05, 1.0], device=device)[0], [0.0, 0.0, 0.0]
        )


def test_sigmoid_saturates_to_a_slope_of_zero(device: torch.device) -> None:
    assert_values(first(torch.sigmoid, [-1000.0, 0.0, 1000.0], device=device)[0], [0.0, 0.25, 0.0])
