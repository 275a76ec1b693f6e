"""How far our values and derivatives may be from torch's."""

from __future__ import annotations

import torch

from tracer.checks.leaves import can_have_gradient

#: Relative to each element, and absolute for a largest element of 1.
TOLERANCES = {
    torch.float64: (1e-9, 1e-10),
    torch.complex128: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}

#: In double precision, for the samples of torch's database, some of which are badly conditioned: second derivatives of ``svd_lowrank``,
#: ``pca_lowrank`` and ``linalg.householder_product`` of complex matrices. Absolute whatever the largest element.
DATABASE_DOUBLE = (1e-7, 1e-7)


def drawn_tolerance(theirs: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute tolerance for a tensor of torch's, of a call whose arguments ``check_rule`` draws.

    The absolute one grows with the largest element, whose rounding others share: a sum that cancels leaves the errors of its terms.
    """
    rtol, atol = TOLERANCES.get(theirs.dtype, (0.0, 0.0))
    if theirs.numel() and can_have_gradient(theirs):
        atol *= max(1.0, float(theirs.to_dense().abs().nan_to_num(0, 0, 0).max()))
    return rtol, atol


def database_tolerance(theirs: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute tolerance for a tensor of torch's, of a sample of its database."""
    return DATABASE_DOUBLE if theirs.dtype in (torch.float64, torch.complex128) else drawn_tolerance(theirs)
