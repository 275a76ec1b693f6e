"""Scaled dot product attention ``O = dropout(P) V`` with ``P = softmax(Z)`` and scores ``Z = s Q K^T + mask``.

Where torch would take its fused kernel for the CPU, that kernel runs here, forward and backward, and no matrix of the
size of ``Z`` is ever saved. Elsewhere ``P`` is computed and saved.
"""

import math

import torch
from torch.nn.attention import SDPBackend

from ops_registry.declare import zero_gradient
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward
from ops_registry.rules.dropout import drop, times_mask
from ops_registry.shared.optional import total
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded
from ops_registry.torch_private import is_batched

aten = torch.ops.aten
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def factor(query, scale):
    """The ``s`` in ``s Q K^T``."""
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def per_head(x, heads):
    """Keys or values with each head repeated for all the query heads that it serves."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def merged(grad, heads):
    """The adjoint of ``per_head``: the sum over the query heads that each of ``heads`` heads serves."""
    if grad.shape[-3] == heads:
        return grad
    return grad.reshape(*grad.shape[:-3], heads, -1, *grad.shape[-2:]).sum(-3)


def additive(mask, dtype):
    """A mask of bools, True where attention is paid, as one to be added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def attention_weights(query, key, mask, is_causal, s):
    """``P``. The scale is split between queries and keys, as in torch, so that half precision does not overflow."""
    root = math.sqrt(abs(s))
    scores = (query * math.copysign(root, s)) @ (key * root).transpose(-2, -1)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores + additive(mask, scores.dtype)
    return torch._safe_softmax(scores, -1)


def takes_flash(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa):
    """Whether torch would take its fused kernel for the CPU, where no gradient of the mask is wanted."""
    if query.device.type != "cpu" or (mask is not None and mask.dtype != query.dtype):
        return False
    if not (query.numel() and key.numel() and value.numel()):
        return False  # it divides by the sizes, and would end the process
    if is_batched(query) or is_batched(key) or is_batched(value):
        return False  # inside torch.vmap the choice cannot be asked for
    choice = torch._fused_sdp_choice(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return choice == SDPBackend.FLASH_ATTENTION.value


def forward_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    device = query.device.type
    options = dropout_p, is_causal, scale, enable_gqa, attn_mask is None or not attn_mask.requires_grad
    if not torch.is_autocast_enabled(device):
        return attend(query, key, value, attn_mask, *options)
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return attend(*(cast(x, dtype) for x in (query, key, value, attn_mask)), *options)


def cast(x, dtype):
    """What autocast makes of an argument."""
    return x if x is None or not x.is_floating_point() or x.dtype == torch.double else x.to(dtype)


def fits(query, key, value, attn_mask, dropout_p):
    """Whether torch takes arguments of these ranks and dtypes; the shapes are checked by the products."""
    same = query.dtype == key.dtype == value.dtype and min(query.dim(), key.dim(), value.dim()) > 1
    mask_fits = attn_mask is None or attn_mask.dtype in (torch.bool, torch.float, query.dtype)
    return same and mask_fits and 0 <= dropout_p <= 1


def attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, fused):
    """``O``, and what the rule needs beside the arguments; ``fused``: the fused kernel gives all gradients wanted."""
    if not fits(query, key, value, attn_mask, dropout_p):
        arguments = query, key, value, attn_mask, dropout_p, is_causal
        refused = torch._C._nn.scaled_dot_product_attention(*arguments, scale=scale, enable_gqa=enable_gqa)
        return refused, {}  # torch has said what is wrong
    mask, mask_dtype = additive(attn_mask, query.dtype), None if attn_mask is None else attn_mask.dtype
    if fused and takes_flash(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa):
        result, logsumexp = flash(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)
        of_kernel = {"output": result, "logsumexp": logsumexp, "weights": None, "dropout_mask": None}
        return result, {**of_kernel, "mask_dtype": mask_dtype}
    if is_causal and attn_mask is not None:
        raise UnsupportedCallError("scaled_dot_product_attention: attn_mask and is_causal=True exclude each other")
    dtype, s = query.dtype, factor(query, scale)
    query, key, value = wide(query), wide(key), wide(value)
    if enable_gqa:
        key, value = per_head(key, query.shape[-3]), per_head(value, query.shape[-3])
    weights, dropout_mask = attention_weights(query, key, attn_mask, is_causal, s), None
    paid = weights
    if dropout_p > 0:
        paid, dropout_mask = drop(weights, dropout_p) if dropout_p < 1 else (weights * 0, None)
    written_out = {"output": None, "logsumexp": None, "weights": weights, "dropout_mask": dropout_mask}
    return (paid @ value).to(dtype), {**written_out, "mask_dtype": mask_dtype}


@backward(
    torch._C._nn.scaled_dot_product_attention,
    wrt=("query", "key", "value", "attn_mask"),
    cast_to_grad=("query", "key", "value"),
    forward=forward_attention,
)
def scaled_dot_product_attention(
    grad, query, key, value, attn_mask, mask_dtype, dropout_p, is_causal, scale, enable_gqa, output, logsumexp, weights, dropout_mask, needs
):  # fmt: skip
    """dV = drop(P)^T G and dP = drop(G V^T), from which dZ by softmax; dQ = s dZ K and dK = s dZ^T Q."""
    mask = None if attn_mask is None else attn_mask.to(mask_dtype)  # autocast casts it, but not where it is double
    if weights is None:
        options = {"attn_mask": additive(mask, query.dtype), "scale": scale}
        gradients = flash_backward(grad, query, key, value, output, logsumexp, dropout_p, is_causal, **options)
        # The kernel computes all three; what is not wanted is let go of at once.
        return *(g if need else None for g, need in zip(gradients, needs[:3], strict=True)), None
    s = factor(query, scale)
    grad, query, key, value = wide(grad), wide(query), wide(key), wide(value)
    heads = [x.shape[-3] if enable_gqa else None for x in (key, value)]
    if enable_gqa:
        key, value = per_head(key, query.shape[-3]), per_head(value, query.shape[-3])
    if recorded():  # what was saved is a constant: compute it again, on record
        weights = attention_weights(query, key, mask, is_causal, s)

    def dropped(x):
        return (
            x if dropout_p == 0 else x * 0 if dropout_mask is None else times_mask(x, dropout_mask, 1 / (1 - dropout_p))
        )

    grad_query = grad_key = grad_value = grad_scores = None
    if needs.value:
        grad_value = dropped(weights).transpose(-2, -1) @ grad
    if needs.query or needs.key or needs.attn_mask:
        grad_weights = dropped(grad @ value.transpose(-2, -1))
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_query = (grad_scores @ key) * s if needs.query else None
        grad_key = (grad_scores.transpose(-2, -1) @ query) * s if needs.key else None
    if enable_gqa:
        grad_key = None if grad_key is None else merged(grad_key, heads[0])
        grad_value = None if grad_value is None else merged(grad_value, heads[1])
    return grad_query, grad_key, grad_value, grad_scores if needs.attn_mask else None


@backward(flash, wrt=("query", "key", "value"))
def flash_attention(grad, query, key, value, output, logsumexp, dropout_p, is_causal, attn_mask, scale):
    g, grad_logsumexp = grad
    if grad_logsumexp is not None:
        raise UnsupportedCallError("the logsumexp of fused attention has no gradient here: compute it from the scores")
    return flash_backward(
        g, query, key, value, output, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )


# The kernel returns dQ = s dZ K, dK = s dZ^T Q and dV = P^T G, where dZ = P * (dP - rows(P * dP)) and dP = G V^T.
# Against cotangents A, B, C and with T = s (A K^T + Q B^T) that is
#     S = <T, dZ> + <P, G C^T> = <P * (T - rows(P * T)), dP> + <P, G C^T>,
# as the derivative of softmax is symmetric. ``out`` and ``logsumexp`` are functions of the other arguments, and are
# counted there.


@backward(flash_backward, wrt=("grad_out", "query", "key", "value"))
def flash_attention_backward(grad, grad_out, query, key, value, is_causal, attn_mask, scale):
    s, heads = factor(query, scale), (query.shape[-3], key.shape[-3])
    g, q, k, v, a, b, c = (None if x is None else wide(x) for x in (grad_out, query, key, value, *grad))
    k, v, b, c = (None if x is None else per_head(x, heads[0]) for x in (k, v, b, c))

    def rows(x):
        return x.sum(-1, keepdim=True)

    p = attention_weights(q, k, attn_mask, is_causal, s)
    grad_p = None if c is None else g @ c.transpose(-2, -1)
    grad_g = None if c is None else p @ c
    grad_q = grad_k = grad_v = None
    t = total(None if a is None else a @ k.transpose(-2, -1), None if b is None else q @ b.transpose(-2, -1))
    if t is not None:
        t = t * s
        dp = g @ v.transpose(-2, -1)
        t_rows, dp_rows = rows(p * t), rows(p * dp)
        dz = p * (dp - dp_rows)
        e = p * (t - t_rows)
        grad_g, grad_v = total(grad_g, e @ v), e.transpose(-2, -1) @ g
        grad_p = total(grad_p, t * dp - t_rows * dp - dp_rows * t)
        grad_q = None if b is None else dz @ b
        grad_k = None if a is None else dz.transpose(-2, -1) @ a
    if grad_p is not None:
        f = p * (grad_p - rows(p * grad_p))
        grad_q, grad_k = total(grad_q, f @ k), total(grad_k, f.transpose(-2, -1) @ q)
    return (
        grad_g,
        None if grad_q is None else grad_q * s,
        None if grad_k is None else merged(grad_k * s, heads[1]),
        None if grad_v is None else merged(grad_v, heads[1]),
    )


zero_gradient(flash_backward, wrt=("out", "logsumexp"))
