"""Jacobians and Hessians: one sweep for all elements of the outputs, and what a recorded gradient has for its derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, transform_parts, tree_unflatten
from tracer.errors import TransformError
from tracer.func.reverse import Taped, check_argnums, checked_tangents, run_for_cotangents, taped
from tracer.func.vmapped import at_once
from tracer.recording.parents import any_node
from tracer.tracked_tensor import plain_alias


def jacobian(
    func: Callable[..., Any], args: tuple[Any, ...], argnums: Any, has_aux: bool, chunk_size: int | None
) -> Any:
    """The Jacobian in the structure of the outputs, and within it in that of the inputs (and aux): ``torch.func.jacrev``."""
    check_argnums(argnums, len(args), "jacrev(f)(*args)")
    transform_parts.error_if_complex("jacrev", args, is_input=True)
    run, aux = run_for_cotangents(func, args, argnums, has_aux, "jacrev(f)(*args)")
    transform_parts.error_if_complex("jacrev", run.outputs, is_input=False)
    blocks = _blocks(run.tape, run.outputs, recorded=run.beyond, chunk_size=chunk_size)
    found = tree_unflatten([tree_unflatten(row, run.spec) for row in blocks], run.out_spec)
    return (found, aux) if has_aux else found


def _blocks(
    tape: Taped, outputs: Sequence[torch.Tensor], *, recorded: bool, chunk_size: int | None = None
) -> list[list[torch.Tensor]]:
    """The derivative of each output by each input of a run, in the shape of the one followed by that of the other.

    ``chunk_size`` rows are swept at once; None for all.
    """
    ends = list(accumulate([o.numel() for o in map(plain_alias, outputs)], initial=0))
    rows = ends[-1]
    size = chunk_size or max(rows, 1)
    with torch.enable_grad():
        chunks = [
            _swept(tape, outputs, _basis(outputs, ends, start, min(start + size, rows)), recorded)
            for start in range(0, rows, size)
        ] or [[torch.zeros(0, *x.shape, dtype=x.dtype, device=x.device) for x in tape.inputs]]
        columns = chunks[0] if len(chunks) == 1 else [torch.cat(parts) for parts in zip(*chunks, strict=True)]
        return [
            [
                _shaped(column if len(outputs) == 1 else column[start:stop], o.shape + x.shape)
                for column, x in zip(columns, tape.inputs, strict=True)
            ]
            for o, (start, stop) in zip(outputs, pairwise(ends), strict=True)
        ]


def _basis(outputs: Sequence[torch.Tensor], ends: list[int], start: int, stop: int) -> list[torch.Tensor]:
    """Cotangents for rows ``start`` to ``stop`` of the Jacobian: one element of one output is 1 in each."""
    basis = []
    for o, (before, end) in zip(outputs, pairwise(ends), strict=True):
        cotangents = torch.zeros(stop - start, end - before, dtype=o.dtype, device=o.device)
        first, last = max(start, before), min(stop, end)
        if first < last:
            cotangents[first - start : last - start, first - before : last - before].diagonal().fill_(1)
        basis.append(cotangents.view(stop - start, *o.shape))
    return basis


def _swept(
    tape: Taped, outputs: Sequence[torch.Tensor], basis: list[torch.Tensor], recorded: bool
) -> list[torch.Tensor]:
    """The rows of the Jacobian for some of its cotangents."""
    if len(basis[0]) == 1:  # as in torch, without the limitations of vmap
        return [g[None] for g in tape.pull(outputs, [b[0] for b in basis], keep=True, recorded=recorded)]
    return at_once(
        lambda *cotangents: tape.pull(outputs, cotangents, keep=True, recorded=recorded),
        basis,
        [0] * len(basis),
        "error",
    )


def _shaped(block: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return block if block.shape == shape else block.reshape(shape)


class Gradient:
    """The gradient of a scalar function at a point, recorded: what a Hessian is made of."""

    def __init__(self, func: Callable[..., Any], primals: tuple[Any, ...], argnums: Any, title: str) -> None:
        self.recording = torch.is_grad_enabled()
        with torch.enable_grad():
            self.tape, self.spec, output = taped(func, primals, {}, argnums, title)
            with DisableTorchFunctionSubclass():
                self.is_scalar = isinstance(output, torch.Tensor) and output.dim() == 0 and output.is_floating_point()
                if not self.is_scalar:
                    return
                one = torch.ones_like(plain_alias(output))
            self.beyond = self.recording and self.tape.reaches_beyond([output])
            self.parts = self.tape.pull([output], [one], keep=True, recorded=True)

    def along(self, tangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The derivative of the gradient along ``tangents``: the Hessian times them."""
        recorded = self.recording and (self.beyond or any(any_node(t) is not None for t in tangents))
        with torch.enable_grad():
            return self.tape.pull(self.parts, tangents, keep=True, recorded=recorded)


def hessian_product(func: Callable[..., Any], primals: tuple[Any, ...], tangents: Any) -> Any:
    """The Hessian of a scalar function times ``tangents``: the gradient, differentiated along them."""
    title = "hvp(f, primals, tangents)"
    given = checked_tangents(primals, tangents, title)
    gradient = Gradient(func, primals, None, title)
    if not gradient.is_scalar:
        raise TransformError(f"{title}: expected f(*primals) to return a real scalar tensor")
    return tree_unflatten(gradient.along(given), gradient.spec)


def scalar_hessian(func: Callable[..., Any], args: tuple[Any, ...], argnums: Any) -> Any:
    """The Hessian of a scalar function in the structure of its inputs, twice: the Jacobian of its gradient.

    None for a function that returns something else than a real scalar.
    """
    check_argnums(argnums, len(args), "hessian(f)(*args)")
    gradient = Gradient(func, args, argnums, "hessian(f)(*args)")
    if not gradient.is_scalar or any(p.dtype.is_complex for p in gradient.parts):
        return None
    blocks = _blocks(gradient.tape, gradient.parts, recorded=gradient.beyond)
    return tree_unflatten([tree_unflatten(row, gradient.spec) for row in blocks], gradient.spec)
