"""How far our values and derivatives may be from torch's: relative to each element, and absolute for a largest element of 1."""

from __future__ import annotations

import torch

from tracer.checks.leaves import can_have_gradient

Tolerances = dict[torch.dtype, tuple[float, float]]

_LOW_PRECISION: Tolerances = {
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}

#: For the arguments that ``check_rule`` draws and for single calls: small, and seldom badly conditioned.
DRAWN: Tolerances = {**_LOW_PRECISION, torch.float64: (1e-9, 1e-10), torch.complex128: (1e-9, 1e-10)}

#: For the samples of torch's database, some of which are badly conditioned: the second derivatives of ``svd_lowrank``, ``pca_lowrank``
#: and ``linalg.householder_product`` of complex matrices keep eight digits.
DATABASE: Tolerances = {**_LOW_PRECISION, torch.float64: (1e-7, 1e-8), torch.complex128: (1e-7, 1e-8)}


def drawn_tolerance(theirs: torch.Tensor) -> tuple[float, float]:
    """The tolerance for a tensor of torch's, of a call whose arguments were drawn."""
    return _tolerance(theirs, DRAWN)


def database_tolerance(theirs: torch.Tensor) -> tuple[float, float]:
    """The tolerance for a tensor of torch's, of a sample of the database."""
    return _tolerance(theirs, DATABASE)


def _tolerance(theirs: torch.Tensor, tolerances: Tolerances) -> tuple[float, float]:
    rtol, atol = tolerances.get(theirs.dtype, (0.0, 0.0))
    if theirs.numel() and can_have_gradient(theirs):
        # Elements share the rounding errors of the largest one: a sum that cancels leaves those of its terms.
        atol *= max(1.0, float(theirs.to_dense().abs().nan_to_num(0, 0, 0).max()))
    return rtol, atol
