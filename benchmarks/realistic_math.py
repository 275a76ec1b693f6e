"""Calls of pointwise ops, reductions, scans, matrix products and linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from op_calls import (
    BATCH,
    POINTS,
    ROWS,
    TOKENS,
    Call,
    fixed,
    integers,
    make_calls,
    mask,
    normal,
    positive_definite,
    uniform,
    well_conditioned,
)

#: Pointwise ops of one tensor, by the numbers that they take.
ANY = (
    "abs angle asinh atan ceil conj conj_physical cos cosh deg2rad erf erfc exp exp2 expm1 floor frac imag nan_to_num "
    "neg positive rad2deg real resolve_conj resolve_neg round sgn sigmoid sign sin sinc sinh square tan tanh trunc "
    "clone"
)
BETWEEN = "acos asin atanh digamma erfinv lgamma log log10 log1p log2 logit reciprocal rsqrt sqrt"

BINARY = "atan2 copysign fmax fmin hypot logaddexp logaddexp2 maximum minimum mul sub add"


def pointwise() -> Iterator[Call]:
    for op in ANY.split():
        if op not in ("imag", "real"):
            yield Call(op, getattr(torch, op), (normal(*POINTS),))
    for op in BETWEEN.split():
        yield Call(op, getattr(torch, op), (uniform(*POINTS),))
    for op in BINARY.split():
        yield Call(op, getattr(torch, op), (normal(*POINTS), normal(*POINTS)))
    x, p, complex_x = normal(*POINTS), uniform(*POINTS), normal(*POINTS, dtype=torch.complex64)
    yield from make_calls(
        {
            "__radd__": (lambda x: 2 + x, x),
            "__rdiv__": (lambda x: 2 / x, p),
            "__rmul__": (lambda x: 2 * x, x),
            "__rpow__": (lambda x: 2**x, x),
            "__rsub__": (lambda x: 2 - x, x),
            "acosh": (torch.acosh, uniform(*POINTS, low=1.1, high=3.0)),
            "add with alpha": (lambda x, y: torch.add(x, y, alpha=0.5), x, x),
            "add of a bias": (torch.add, normal(*TOKENS), normal(768)),
            "addcdiv": (torch.addcdiv, x, x, p),
            "addcmul": (torch.addcmul, x, x, x),
            "clamp": (lambda x: x.clamp(-1, 1), x),
            "clamp_max": (lambda x: x.clamp_max(1), x),
            "clamp_min": (lambda x: x.clamp_min(-1), x),
            "complex": (torch.complex, x, x),
            "div.floor_rounding": (lambda x, y: torch.div(x, y, rounding_mode="floor"), x, p),
            "div.no_rounding_mode": (torch.div, x, p),
            "div.trunc_rounding": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), x, p),
            "float_power": (lambda x: torch.float_power(x, 3), x),
            "fmod": (torch.fmod, x, p),
            "imag": (lambda x: x.imag * 2, complex_x),
            "ldexp": (torch.ldexp, x, fixed(integers(4, *POINTS))),
            "lerp": (lambda x, y: torch.lerp(x, y, 0.3), x, x),
            "lerp by a tensor": (torch.lerp, x, x, p),
            "mul by a mask": (torch.mul, x, fixed(p)),
            "mul of complex": (torch.mul, complex_x, complex_x),
            "mul of a scale": (torch.mul, normal(*TOKENS), normal(768)),
            "polar": (torch.polar, p, x),
            "pow": (lambda x: x**3, x),
            "pow by 2": (lambda x: x**2, x),
            "pow by a tensor": (torch.pow, p, x),
            "real": (lambda x: x.real * 2, complex_x),
            "remainder": (torch.remainder, x, p),
            "round.decimals_0": (lambda x: torch.round(x, decimals=0), x),
            "round.decimals_3": (lambda x: torch.round(x, decimals=3), x),
            "rsub": (torch.rsub, x, x),
            "true_divide": (torch.true_divide, x, p),
            "view_as_complex": (torch.view_as_complex, normal(*POINTS, 2)),
            "view_as_real": (torch.view_as_real, complex_x),
            "where": (torch.where, fixed(mask(*POINTS)), x, x),
            "xlogy": (torch.xlogy, x, p),
        }
    )


def along(op: str, *arguments: Any, first: bool = False, **named: Any) -> Callable[[torch.Tensor], Any]:
    """The op with these further arguments; only its first result, where asked."""
    function = getattr(torch, op)
    return lambda x: function(x, *arguments, **named)[0] if first else function(x, *arguments, **named)


def masked(op: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    function = getattr(torch.masked, op)
    return lambda x, m: function(x, -1, mask=m)


def reductions() -> Iterator[Call]:
    x, big, p = normal(*ROWS), normal(*TOKENS), uniform(*ROWS, low=0.9, high=1.1)
    for op in ("amax", "amin", "mean", "nanmean", "nansum", "sum"):
        yield Call(op, getattr(torch, op), (big,))
        yield Call(f"{op} along a dim", along(op, -1), (big,))
        yield Call(f"{op} along the first dim", along(op, 0), (x,))
    for op in ("std", "std_mean", "var", "var_mean"):
        yield Call(op, along(op, -1), (big,))
        yield Call(f"{op}.unbiased", along(op, unbiased=False), (big,))
    for op in ("kthvalue", "topk"):
        yield Call(op, along(op, 10, -1, first=True), (x,))
    for op in ("cummax", "cummin", "median", "mode", "nanmedian", "sort"):
        yield Call(op, along(op, -1, first=True), (x,))
    for op in ("cumprod", "cumsum", "logcumsumexp", "logsumexp", "msort", "prod"):
        yield Call(op, along(op) if op == "msort" else along(op, -1), (p,))
    for op in ("max", "min"):
        function = getattr(torch, op)
        yield Call(f"{op}.binary", function, (normal(*POINTS), normal(*POINTS)))
        yield Call(f"{op}.reduction_no_dim", function, (big,))
        yield Call(f"{op}.reduction_with_dim", along(op, -1, first=True), (big,))
    for op in ("mean", "softmax", "sum"):
        yield Call(f"masked.{op}", masked(op), (x, mask(*ROWS)))
    yield from make_calls(
        {
            "aminmax": (lambda x: torch.aminmax(x, dim=-1), big),
            "corrcoef": (torch.corrcoef, x),
            "cov": (torch.cov, x),
            "cumprod along the first dim": (lambda x: torch.cumprod(x, 0), p),
            "cumsum along the first dim": (lambda x: torch.cumsum(x, 0), p),
            "cumulative_trapezoid": (torch.cumulative_trapezoid, x),
            "diff": (torch.diff, x),
            "dist": (torch.dist, big, big),
            "gradient": (lambda x: torch.gradient(x, dim=1)[0], x),
            "linalg.norm": (torch.linalg.norm, big),
            "linalg.vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), big),
            "linalg.vector_norm of order 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=-1), big),
            "linalg.vector_norm of order 3": (lambda x: torch.linalg.vector_norm(x, 3, dim=-1), big),
            "nanquantile": (lambda x: torch.nanquantile(x, 0.3, dim=-1), x),
            "norm": (lambda x: torch.norm(x, 2, -1), big),
            "norm.fro": (torch.norm, big),
            "norm.inf": (lambda x: torch.norm(x, float("inf"), -1), big),
            "norm.nuc": (lambda x: torch.norm(x, "nuc"), normal(128, 128)),
            "prod of all": (torch.prod, uniform(1000, low=0.9, high=1.1)),
            "quantile": (lambda x: torch.quantile(x, 0.3, dim=-1), x),
            "sum_to_size": (lambda x: x.sum_to_size(1, 1024), x),
            "trapezoid": (torch.trapezoid, x),
            "trapz": (torch.trapz, x),
        }
    )


def products() -> Iterator[Call]:
    square, batch, long = normal(512, 512), normal(*BATCH), normal(10**6)
    yield from make_calls(
        {
            "__rmatmul__": (lambda x, y: y.__rmatmul__(x), square, square),
            "addbmm": (torch.addbmm, normal(64, 64), batch, batch),
            "addmm": (torch.addmm, square, square, square),
            "addmm.decomposed": (lambda *x: torch.addmm(*x, beta=0.5, alpha=2), square, square, square),
            "addmv": (torch.addmv, normal(1024), normal(1024, 1024), normal(1024)),
            "addr": (torch.addr, normal(1024, 1024), normal(1024), normal(1024)),
            "baddbmm": (torch.baddbmm, batch, batch, batch),
            "bmm": (torch.bmm, batch, batch),
            "cdist": (torch.cdist, normal(512, 64), normal(512, 64)),
            "cdist of order 1": (lambda x, y: torch.cdist(x, y, 1), normal(256, 64), normal(256, 64)),
            "cross": (torch.cross, normal(10**5, 3), normal(10**5, 3)),
            "dot": (torch.dot, long, long),
            "einsum": (lambda x, y: torch.einsum("bik,bjk->bij", x, y), batch, batch),
            "einsum of a head": (
                lambda x, w: torch.einsum("bsd,hde->bhse", x, w),
                normal(8, 256, 256),
                normal(4, 256, 64),
            ),
            "inner": (torch.inner, square, square),
            "kron": (torch.kron, normal(32, 32), normal(32, 32)),
            "linalg.cross": (torch.linalg.cross, normal(10**5, 3), normal(10**5, 3)),
            "linalg.matrix_power": (lambda x: torch.linalg.matrix_power(x, 5), well_conditioned(128, 128)),
            "linalg.multi_dot": (
                lambda *x: torch.linalg.multi_dot(x),
                normal(256, 64),
                normal(64, 512),
                normal(512, 64),
            ),
            "linalg.vecdot": (torch.linalg.vecdot, normal(*TOKENS), normal(*TOKENS)),
            "matmul": (torch.matmul, normal(8, 128, 768), normal(768, 768)),
            "mm": (torch.mm, square, square),
            "mv": (torch.mv, normal(1024, 1024), normal(1024)),
            "outer": (torch.outer, normal(1000), normal(1000)),
            "tensordot": (lambda x, y: torch.tensordot(x, y, 2), normal(256, 16, 32), normal(16, 32, 256)),
            "vdot": (torch.vdot, long, long),
        }
    )


def linear_algebra() -> Iterator[Call]:
    a, spd, b, pair = (
        well_conditioned(128, 128),
        positive_definite(128, 128),
        normal(128, 16),
        well_conditioned(16, 32, 32),
    )
    wide = well_conditioned(192, 128)
    lower = lambda make: lambda: torch.linalg.cholesky(make())  # noqa: E731
    linalg = torch.linalg
    yield from make_calls(
        {
            "cholesky": (torch.cholesky, spd),
            "cholesky_solve": (torch.cholesky_solve, b, lower(spd)),
            "linalg.cholesky": (linalg.cholesky, spd),
            "linalg.cholesky of a batch": (linalg.cholesky, positive_definite(16, 32, 32)),
            "linalg.det": (linalg.det, lambda: torch.eye(128) + torch.randn(128, 128) / 50),
            "linalg.det of a batch": (linalg.det, pair),
            "linalg.eigh": (linalg.eigh, spd),
            "linalg.inv": (linalg.inv, a),
            "linalg.inv of a batch": (linalg.inv, pair),
            "linalg.lstsq": (lambda a, b: linalg.lstsq(a, b)[0], wide, normal(192, 16)),
            "linalg.matrix_norm": (linalg.matrix_norm, normal(*BATCH)),
            "linalg.pinv": (linalg.pinv, wide),
            "linalg.qr": (linalg.qr, wide),
            "linalg.slogdet": (lambda a: linalg.slogdet(a)[1], a),
            "linalg.slogdet of a batch": (lambda a: linalg.slogdet(a)[1], pair),
            "linalg.solve": (linalg.solve, a, b),
            "linalg.solve of a batch": (linalg.solve, pair, normal(16, 32, 4)),
            "linalg.solve_triangular": (lambda a, b: linalg.solve_triangular(a, b, upper=False), lower(spd), b),
            "linalg.svd": (lambda a: linalg.svd(a, full_matrices=False)[1], wide),
            "linalg.svd, vectors too": (lambda a: linalg.svd(a, full_matrices=False), wide),
            "logdet": (torch.logdet, spd),
            "lu_solve": (lambda b, a: torch.lu_solve(b, *linalg.lu_factor(a)), b, a),
            "matrix_exp": (torch.matrix_exp, normal(8, 32, 32)),
            "pinverse": (torch.pinverse, wide),
            "qr": (torch.qr, wide),
            "svd": (lambda a: torch.svd(a)[1], wide),
            "trace": (torch.trace, normal(1024, 1024)),
            "triangular_solve": (lambda b, a: torch.triangular_solve(b, a, upper=False)[0], b, lower(spd)),
        }
    )


def math_calls() -> Iterator[Call]:
    for subject in (pointwise, reductions, products, linear_algebra):
        yield from subject()
