"""Rules of ``ops_registry/rules/attention.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import (
    Case,
    Make,
    as_outputs,
    case,
    check_under_autocast,
    cotangents,
    derivatives,
    plain,
    rand,
    run_case,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

import ops_registry
import tracer

aten = torch.ops.aten
flash = aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(**options: Any) -> Any:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def masked(**options: Any) -> Any:
    return lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, **options)


def allowed(*shape: int) -> torch.Tensor:
    """A mask of bools that lets every query attend to something."""
    mask = rand(*shape)(torch.device("cpu")) > 0
    mask[..., 0] = True
    return mask


def bools(*shape: int) -> Make:
    return lambda device: allowed(*shape).to(device)


def first_row_blind(device: torch.device) -> torch.Tensor:
    mask = allowed(4, 5)
    mask[0] = False
    return mask.to(device)


# Four dimensions and equal widths: torch takes the fused kernel on the CPU, which has no second derivative there.
FUSED = rand(2, 4, 4, 6), rand(2, 4, 5, 6), rand(2, 4, 5, 6, seed=1)
# Another width of the values: the plain formula, with all derivatives.
PLAIN = rand(2, 2, 4, 3), rand(2, 2, 5, 3), rand(2, 2, 5, 2)
GROUPED = rand(2, 4, 4, 6), rand(2, 2, 5, 6), rand(2, 2, 5, 6, seed=1)
NAME = "scaled_dot_product_attention"
BY_DIFFERENCES: dict[str, Any] = {"second": "differences"}
QKV = ((0,), (1,), (2,), (0, 1, 2))


def kernel(**options: Any) -> Any:
    """The backward kernel of fused attention, with what the forward kernel has given for the same inputs."""

    def call(g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        causal, named = options.get("is_causal", False), {n: o for n, o in options.items() if n != "is_causal"}
        out, logsumexp = flash(q.detach(), k.detach(), v.detach(), 0.0, causal, **named)
        return list(flash_backward(g, q, k, v, out, logsumexp, 0.0, causal, **named))

    return call


CASES = [
    case(NAME, attend(), *FUSED, **BY_DIFFERENCES, label="fused"),
    case(NAME, attend(is_causal=True), *FUSED, **BY_DIFFERENCES, label="fused-causal"),
    case(NAME, attend(scale=0.3), *FUSED, **BY_DIFFERENCES, label="fused-scale"),
    case(NAME, masked(), *FUSED, bools(4, 5), **BY_DIFFERENCES, label="fused-bool-mask"),
    case(NAME, masked(), *FUSED, rand(2, 1, 1, 5), **BY_DIFFERENCES, needs=QKV, label="fused-float-mask"),
    case(NAME, attend(enable_gqa=True), *GROUPED, **BY_DIFFERENCES, label="fused-grouped"),
    case(
        NAME,
        lambda q, k, v: attend()(q.transpose(1, 2), k, v),
        rand(2, 4, 4, 6),
        *FUSED[1:],
        **BY_DIFFERENCES,
        label="fused-transposed",
    ),
    case(NAME, attend(), *PLAIN),
    case(NAME, attend(is_causal=True, scale=-0.7), *PLAIN, label="causal-negative-scale"),
    case(NAME, masked(), *PLAIN, rand(4, 5), label="float-mask"),
    case(NAME, masked(), *FUSED, rand(2, 1, 4, 5), needs=((3,), (0, 3), (0, 1, 2, 3)), label="gradient-of-the-mask"),
    case(NAME, masked(), *PLAIN, bools(2, 1, 4, 5), label="bool-mask"),
    case(NAME, masked(), *PLAIN, first_row_blind, label="a-row-without-keys"),
    case(NAME, attend(dropout_p=0.4), *PLAIN, label="dropout"),
    case(NAME, masked(dropout_p=0.4), *FUSED, rand(4, 5), label="dropout-mask"),
    case(NAME, attend(dropout_p=1.0), *PLAIN, differences=False, label="everything-dropped"),
    case(NAME, attend(enable_gqa=True, dropout_p=0.2), *GROUPED, label="grouped"),
    case(NAME, attend(), rand(4, 3), rand(5, 3), rand(5, 2), label="rank-2"),
    case(NAME, attend(), rand(3, 4, 3), rand(3, 5, 3), rand(3, 5, 3, seed=1), label="rank-3"),
    case(NAME, attend(), rand(2, 1, 2, 4, 3), rand(2, 1, 2, 5, 3), rand(2, 1, 2, 5, 2), label="rank-5"),
    case(NAME, attend(), rand(1, 2, 4, 3), rand(2, 1, 5, 3), rand(2, 2, 5, 3), label="broadcast"),
    case(NAME, attend(), rand(0, 2, 4, 3), rand(0, 2, 5, 3), rand(0, 2, 5, 2), label="empty-batch"),
    case(
        "_scaled_dot_product_flash_attention_for_cpu",
        lambda q, k, v: flash(q, k, v, is_causal=True, scale=0.4)[0],
        *FUSED,
        **BY_DIFFERENCES,
    ),
    # torch has no derivative of this kernel: differences decide.
    case(flash_backward.__name__, kernel(), rand(2, 4, 4, 6, seed=5), *FUSED, torch_agrees=False, second="differences"),
    case(
        flash_backward.__name__,
        kernel(is_causal=True, scale=0.6),
        rand(2, 4, 4, 6, seed=5),
        *FUSED,
        torch_agrees=False,
        second="differences",
        label="causal-scale",
    ),
    case(
        flash_backward.__name__,
        kernel(),
        rand(2, 4, 4, 6, seed=5),
        *GROUPED,
        torch_agrees=False,
        second="differences",
        label="grouped",
    ),
]


SINGLE = {"dtype": torch.float32}
#: autocast lowers the arguments of attention.
AUTOCAST = {
    "fused": (attend(), rand(2, 4, 4, 6, **SINGLE), rand(2, 4, 5, 6, **SINGLE), rand(2, 4, 5, 6, seed=1, **SINGLE)),
    "plain": (attend(), rand(2, 2, 4, 3, **SINGLE), rand(2, 2, 5, 3, **SINGLE), rand(2, 2, 5, 2, **SINGLE)),
    "mask": (masked(), *(rand(2, 2, 4, 4, seed=s, **SINGLE) for s in range(3)), rand(4, 4, **SINGLE)),
}


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": allowed(4, 5)}],
    ids=["plain", "causal", "scale", "mask"],
)
def test_second_derivatives_of_the_fused_kernel_equal_those_of_torchs_plain_formula(
    options: Any, device: torch.device
) -> None:
    options = {n: o.to(device) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    data = [make(device) for make in FUSED]
    mine = derivatives(attend(**options), [tracer.track(d.clone(), True) for d in data], (0, 1, 2), True)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = derivatives(attend(**options), [d.clone().requires_grad_() for d in data], (0, 1, 2), True)
    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, expected)


def test_third_derivatives_of_the_fused_kernel_equal_those_of_torchs_plain_formula(device: torch.device) -> None:
    def third(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out = attend()(q, k, v)
        first = torch.autograd.grad(out, (q, k, v), cotangents([out]), create_graph=True)
        second = torch.autograd.grad(first, (q, k, v), cotangents(list(first), 2), create_graph=True)
        return [plain(t) for t in torch.autograd.grad(second, (q, k, v), cotangents(list(second), 3))]

    data = [make(device) for make in FUSED]
    mine = third(*(tracer.track(d.clone(), True) for d in data))
    with sdpa_kernel(SDPBackend.MATH):
        theirs = third(*(d.clone().requires_grad_() for d in data))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shapes", [FUSED, PLAIN], ids=["fused", "plain"])
def test_gradients_in_low_precision_have_the_dtype_and_values_of_torch(
    shapes: tuple[Make, ...], dtype: torch.dtype, device: torch.device
) -> None:
    data, gradients = [make(device).to(dtype) for make in shapes], []
    for leaves in ([tracer.track(d.clone(), True) for d in data], [d.clone().requires_grad_() for d in data]):
        out = attend()(*leaves)
        assert out.dtype == dtype
        out.backward(cotangents([out])[0])
        gradients.append([plain(t.grad) for t in leaves])
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(*gradients, rtol=close, atol=close)


def test_the_same_weights_are_dropped_as_in_torch(device: torch.device) -> None:
    data, found = [make(device) for make in FUSED], []
    for leaves in ([tracer.track(d, True) for d in data], data):
        torch.manual_seed(3)
        found.append((plain(attend(dropout_p=0.5)(*leaves)), torch.rand(2)))
    torch.testing.assert_close(*found)


def test_the_fused_kernel_keeps_no_matrix_of_weights(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the fused kernel is one for the CPU")
    q = tracer.track(rand(1, 2, 64, 8)(device), True)
    kept = [k for k in attend()(q, q, q).grad_fn.saved if isinstance(k, torch.Tensor)]
    assert max(k.numel() for k in kept) == q.numel()


def test_a_mask_beside_is_causal_is_refused(device: torch.device) -> None:
    q, k, v = (make(device) for make in PLAIN)
    with pytest.raises(ops_registry.UnsupportedCallError, match="exclude each other"):
        F.scaled_dot_product_attention(tracer.track(q, True), k, v, rand(4, 5)(device), is_causal=True)


def test_the_logsumexp_of_the_kernel_has_no_gradient(device: torch.device) -> None:
    q = tracer.track(rand(1, 2, 4, 6)(device), True)
    with pytest.raises(ops_registry.UnsupportedCallError, match="logsumexp"):
        flash(q, q, q)[1].sum().backward()


def module_gradients(
    module: torch.nn.Module, inputs: list[torch.Tensor], track: bool, **options: Any
) -> list[torch.Tensor]:
    """The outputs and the gradients of all parameters and inputs of one call."""

    def leaf(t: torch.Tensor) -> torch.Tensor:
        return tracer.track(t.detach().clone(), True) if track else t.detach().clone().requires_grad_()

    parameters = {name: leaf(p) for name, p in module.named_parameters()}
    arguments = [leaf(t) for t in inputs]
    torch.manual_seed(11)
    outputs = torch.func.functional_call(module, parameters, tuple(arguments), options)
    outputs = as_outputs(outputs)
    torch.autograd.backward(outputs, cotangents(outputs))
    return [plain(t) for t in (*outputs, *(p.grad for p in parameters.values()), *(a.grad for a in arguments))]


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no-weights"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "time-first"])
def test_multihead_attention_equals_torch(batch_first: bool, need_weights: bool, device: torch.device) -> None:
    module = torch.nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=batch_first, dtype=torch.float64, device=device)
    inputs = [rand(3, 4, 6, seed=s)(device) for s in range(3)]
    mine = module_gradients(module, inputs, True, need_weights=need_weights)
    theirs = module_gradients(module, inputs, False, need_weights=need_weights)
    torch.testing.assert_close(mine, theirs)


def test_multihead_attention_with_masks_and_other_widths_equals_torch(device: torch.device) -> None:
    module = torch.nn.MultiheadAttention(6, 2, kdim=4, vdim=5, add_bias_kv=True, dtype=torch.float64, device=device)
    inputs = [rand(3, 2, 6)(device), rand(4, 2, 4)(device), rand(4, 2, 5)(device)]
    padding = torch.zeros(2, 4, dtype=torch.bool, device=device)
    padding[1, 3] = True
    options = {"attn_mask": ~bools(3, 4)(device), "key_padding_mask": padding}
    mine, theirs = (module_gradients(module, inputs, track, **options) for track in (True, False))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm-first", "norm-last"])
def test_a_transformer_layer_in_training_equals_torch(norm_first: bool, device: torch.device) -> None:
    module = torch.nn.TransformerEncoderLayer(
        6, 2, 8, dropout=0.2, norm_first=norm_first, activation="gelu", dtype=torch.float64, device=device
    )
    mine, theirs = (module_gradients(module, [rand(4, 3, 6)(device)], track) for track in (True, False))
    torch.testing.assert_close(mine, theirs)


def test_a_causal_transformer_layer_in_training_equals_torch(device: torch.device) -> None:
    module = torch.nn.TransformerEncoderLayer(
        6, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64, device=device
    )
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4, device=device, dtype=torch.float64)
    options = {"src_mask": mask, "is_causal": True}
    mine, theirs = (module_gradients(module, [rand(3, 4, 6)(device)], track, **options) for track in (True, False))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", AUTOCAST)
def test_under_autocast_dtypes_and_gradients_equal_torch(name: str, device: torch.device) -> None:
    function, *makers = AUTOCAST[name]
    check_under_autocast(function, makers, device, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(2, 2, 3, 0), (2, 2, 0, 4), (0, 2, 3, 4)], ids=str)
def test_attention_over_nothing_is_nothing(shape: tuple[int, ...], device: torch.device) -> None:
    x = tracer.track(rand(*shape)(device), True)
    out = F.scaled_dot_product_attention(x, x, x)
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert out.shape == g.shape == shape
