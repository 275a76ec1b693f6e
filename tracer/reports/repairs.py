"""The usual repair for each op that makes nan or inf: in forward of finite inputs, in backward of finite gradients."""

from __future__ import annotations

import torch

_LOG = (
    "Clamp before the log, x.clamp(min=eps).log(), or stay in the log domain: log_softmax, logsigmoid, a loss that takes logits "
    "(cross_entropy, binary_cross_entropy_with_logits)."
)
_ROOT = "Put eps inside the root, (x + eps).sqrt(), or clamp its argument from below."
_DIVISION = "Put eps into the denominator, or clamp it away from 0."
_EXP = "Subtract the largest exponent first (softmax, logsumexp, log_softmax do), or clamp the argument."
_ARC = "Clamp the argument to the inside of its range, x.clamp(-1 + eps, 1 - eps)."
_SOFTMAX = (
    "A row that is -inf throughout has no softmax: leave one entry of each row unmasked, or mask with torch.finfo(dtype).min in place of "
    "-inf."
)
_INFINITIES = (
    "0 * inf and inf - inf are nan: put in a large finite number (torch.finfo(dtype).min) in place of the infinity, or mask with "
    "torch.where after this call."
)
_IGNORED = (
    "Every target is ignore_index, and a mean over no element is nan: skip such batches, or divide reduction='sum' by the count "
    "clamped to 1."
)
_POW = "Clamp the base away from 0 (eps), and keep it positive where the exponent is no integer."
_STD = (
    "A spread (standard deviation, variance) needs more than one element; use correction=0, or the variance with eps."
)
_MATRIX = "The matrix is singular or nearly so: add eps to its diagonal, or use a pseudo-inverse."
_POLES = "It is infinite at 0 and at the negative whole numbers: keep its argument above 0, x.clamp(min=eps)."
_NORMALISING = "It divides by the spread of its input, which is 0 here: give it an eps above 0."
_DETERMINANT = (
    "The determinant is 0 or negative, and its log is -inf or nan: add eps to the diagonal of the matrix; slogdet gives the sign "
    "apart."
)
_SPECTRUM = "Equal or vanishing singular values (eigenvalues) have no derivative of their vectors: use the values alone, or a little noise."
_NORM = "A norm has no derivative at 0: (x.square().sum() + eps).sqrt(), or F.normalize and losses with their eps."
_ANGLE = "The angle has no derivative at the origin: keep both parts from being 0 together."
_BCE = "Give logits to binary_cross_entropy_with_logits in place of probabilities."
_MEAN = "A mean over no element is nan: skip empty batches, or divide by the count clamped to 1."

#: float16 and what is smaller ends early.
_HALF = (
    "It overflows in float16, whose largest number is 65504: compute it in float32 or bfloat16 (autocast with dtype=torch.bfloat16), or "
    "scale it down."
)
_HALF_GRADIENT = (
    "The gradient overflows in float16, whose largest number is 65504: scale the loss (torch.amp.GradScaler skips such steps and lowers "
    "the scale), or use bfloat16."
)
_HALF_EPS = " An eps below 6e-8 is 0 in float16."
_OVERFLOW = "The numbers grow too large: normalise what goes in, lower the learning rate, clip gradients, or compute it in float64."

#: A branch that where() drops.
DOUBLE_WHERE = (
    "Where another branch is taken instead (where, masked_fill, nan_to_num), the value is dropped and its derivative is not: replace the "
    "argument too (the double where): torch.where(mask, f(torch.where(mask, x, 1.0)), other)."
)

_FORWARD = {
    **dict.fromkeys(
        ("log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py", "special_entr", "kl_div"), _LOG
    ),
    **dict.fromkeys(("lgamma", "digamma", "polygamma"), _POLES),
    **dict.fromkeys(("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"), _NORMALISING),
    **dict.fromkeys(("logdet", "slogdet", "linalg_slogdet"), _DETERMINANT),
    **dict.fromkeys(("sqrt", "rsqrt"), _ROOT),
    **dict.fromkeys(("div", "reciprocal", "remainder", "fmod", "addcdiv", "floor_divide"), _DIVISION),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), _EXP),
    **dict.fromkeys(("acos", "asin", "acosh", "atanh", "erfinv", "special_ndtri"), _ARC),
    **dict.fromkeys(
        ("softmax", "log_softmax", "_softmax", "_log_softmax", "scaled_dot_product_attention", "cross_entropy_loss"),
        _SOFTMAX,
    ),
    **dict.fromkeys(("pow", "float_power"), _POW),
    **dict.fromkeys(("std", "var", "std.dim", "var.dim", "std.correction", "var.correction"), _STD),
    **dict.fromkeys(
        ("std_mean", "var_mean", "std_mean.dim", "var_mean.dim", "std_mean.correction", "var_mean.correction"), _STD
    ),
    **dict.fromkeys(
        (
            "inverse",
            "linalg_inv",
            "linalg_inv_ex",
            "linalg_solve",
            "linalg_solve_ex",
            "linalg_cholesky",
            "cholesky",
            "linalg_pinv",
        ),
        _MATRIX,
    ),
    **dict.fromkeys(("mean", "nanmean", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "median"), _MEAN),
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss2d"), _IGNORED),
    "binary_cross_entropy": _BCE,
}

_BACKWARD = {
    **_FORWARD,
    **dict.fromkeys(
        (
            "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", "linalg_vector_norm", "linalg_norm",
            "linalg_matrix_norm", "frobenius_norm", "dist", "cdist", "_cdist_forward", "pdist", "_pdist_forward", "pairwise_distance",
            "hypot", "cosine_similarity", "norm_except_dim", "_weight_norm", "renorm",
        ),
        _NORM,
    ),
    **dict.fromkeys(("std", "std.dim", "std.correction", "std_mean", "std_mean.dim", "std_mean.correction"), _ROOT),
    **dict.fromkeys(("svd", "linalg_svd", "linalg_eigh", "linalg_eig", "linalg_qr", "linalg_svdvals", "nuclear_norm"), _SPECTRUM),
    **dict.fromkeys(("atan2", "angle", "polar", "sgn"), _ANGLE),
}  # fmt: skip


#: Ops that put something else in the place of what they drop.
_DROPPING = frozenset(
    ("where", "masked_fill", "nan_to_num", "masked_scatter", "index_fill", "index_put", "__setitem__", "__getitem__", "masked_select")
)  # fmt: skip


def drops(op: str) -> bool:
    """Whether the op leaves elements out, as the branch of a condition that is not taken; others make finite numbers of bad ones."""
    return op in _DROPPING


#: Ops that give infinities at their ends and no nan.
_INFINITIES_ALONE = frozenset(("cosh", "exp", "exp2", "expm1", "lgamma", "reciprocal", "sinh"))


def makes_bad(op: str, nan: bool) -> bool:
    """Whether the op can give nan, or an infinity, for finite inputs that do not overflow."""
    return op in _FORWARD and not (nan and op in _INFINITIES_ALONE)


def makes_gradients(op: str) -> bool:
    """Whether the op's derivative is infinite or undefined at some finite inputs."""
    return op in _BACKWARD


def in_forward(op: str, dtype: torch.dtype | None, not_at_zero: bool = False) -> str:
    """What to do about an op that makes nan or inf of finite inputs; ``not_at_zero``: inf, where no element of its input is 0."""
    known = _FORWARD.get(op)
    if known is _POW and not_at_zero:
        known = None
    if known is None or known is _EXP:
        return _HALF if dtype is torch.float16 else known or _OVERFLOW
    return known + (_HALF_EPS if dtype is torch.float16 and known in (_LOG, _ROOT, _DIVISION, _POW) else "")


def of_infinities(op: str) -> str:
    """What to do about an op that makes nan of infinities that the program put in."""
    return _SOFTMAX if _FORWARD.get(op) is _SOFTMAX else _INFINITIES


def in_backward(op: str, dtype: torch.dtype | None, zero_gradient: bool) -> str:
    """What to do about a rule that makes nan or inf of finite gradients; ``zero_gradient``: the one that came in is 0 there."""
    known = _BACKWARD.get(op)
    if zero_gradient:
        return DOUBLE_WHERE if known is None else f"{known} {DOUBLE_WHERE}"
    if known is None:
        return _HALF_GRADIENT if dtype is torch.float16 else _OVERFLOW
    return known + (_HALF_EPS if dtype is torch.float16 else "")


def of_sum(dtype: torch.dtype | None) -> str:
    """What to do where finite gradients add up to inf."""
    return _HALF_GRADIENT if dtype is torch.float16 else _OVERFLOW
