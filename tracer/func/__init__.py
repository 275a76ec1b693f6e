"""``torch.func`` on our own rules: its names, its signatures and options, and two that it lacks.

Replaced rules are honoured, and what a function closes over is differentiated through. The transforms nest in each other, and in those of
``torch.func``, which hand over to these wherever a tracked tensor takes part.
"""

from __future__ import annotations

from tracer.func.more import hvp, per_sample_grad
from tracer.func.names import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

__all__ = [
    "grad",
    "grad_and_value",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "per_sample_grad",
    "vjp",
    "vmap",
]
