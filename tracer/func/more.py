"""Transforms that ``torch.func`` leaves to its users: Hessian-vector products, gradients sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten, vmap_parts
from tracer.errors import TransformError
from tracer.func.handover import on_our_rules
from tracer.func.jacobians import hessian_product
from tracer.func.reverse import scalar_gradients
from tracer.func.vmapped import at_once


def hvp(func: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The Hessian of the scalar ``func(*primals)`` times ``tangents``, in the structure of ``primals``; no Hessian is built.

    ``primals`` is a tuple of the arguments (pytrees of tensors), or the one argument itself; ``tangents`` has its structure, shapes and
    dtypes. The gradient is recorded and differentiated along the tangents: two sweeps, whatever the size. Raises ``TransformError`` for
    structures that do not fit and for a function that returns no scalar.
    """
    alone = not isinstance(primals, tuple)
    product = hessian_product(func, (primals,) if alone else primals, (tangents,) if alone else tangents)
    return product[0] if alone else product


def per_sample_grad(loss: Callable[..., Any], params: Any, *batch: Any) -> Any:
    """The gradients of ``loss(params, *sample)`` with respect to ``params``, for each sample of ``batch``.

    ``params`` is a pytree of tensors; each of ``batch`` a pytree of tensors whose dimension 0 counts samples. ``loss`` returns a scalar
    for one sample, without that dimension. Returns the structure of ``params``, each gradient with the samples along dimension 0. Raises
    ``TransformError`` without a batch.
    """
    if not tree_flatten(batch)[0]:
        raise TransformError("per_sample_grad(loss, params, *batch): there is no batch")
    _, dims, samples, batch_spec = vmap_parts._process_batched_inputs(0, batch, loss)
    spec: Any = None

    def of_one(*sample: torch.Tensor) -> list[torch.Tensor]:
        nonlocal spec
        args = (params, *tree_unflatten(sample, batch_spec))
        grads, spec, _, _ = scalar_gradients(loss, 0, False, args, {}, "per_sample_grad(loss, params, *batch)")
        return grads

    with on_our_rules():
        grads = at_once(of_one, samples, dims, "different")
    return tree_unflatten(grads, spec)
