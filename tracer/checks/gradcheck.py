"""Whether the gradients of a function are right: ``torch.autograd.gradcheck`` and ``gradgradcheck`` for tracked tensors.

Gradients of backward against central differences, plus what else makes a gradient right: its shape, dtype and layout, the same answer
twice, whatever the layout of the gradient that comes in, nothing for nothing. A failure says where, and what mistake it looks like.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from tracer.checks.checked_function import (
    CheckedFunction,
    GradcheckOptions,
    TensorFunction,
    differentiable,
    random_cotangent,
    requires_grad,
)
from tracer.checks.gradient_checks import (
    check_batched,
    check_layouts,
    check_linearity,
    check_that_nothing_depends,
    check_undefined,
    check_zeros,
)
from tracer.checks.jacobian_checks import check_jacobians, check_projections
from tracer.errors import GradcheckError, GradientArgumentError, UnsupportedError
from tracer.tracked_tensor import Tensor, track

Inputs = torch.Tensor | Sequence[Any]


def gradcheck(
    func: TensorFunction,
    inputs: Inputs,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the gradients of ``func`` with respect to each of ``inputs`` that requires grad are those of central differences.

    ``func`` takes the inputs and returns a tensor or a tuple of tensors. An input that is a plain tensor and requires grad is checked as a
    tracked one that shares its memory. While the check runs, inputs are moved in place, one element at a time, so a
    function that reads them from elsewhere (a module checked for its own parameters) is followed; they should be float64 or complex128.

    Elements agree within ``atol + rtol * |numerical|``. ``fast_mode`` compares one random projection of each Jacobian, complex ones
    too, and computes the whole only where that fails. The other options mean what they mean in ``torch.autograd.gradcheck``. Beyond
    torch's checks, the gradients of inputs have to be linear in those of results, and the same for a gradient that comes in non-contiguous
    or expanded.

    Returns True, or raises ``GradcheckError`` (False without ``raise_exception``). Raises ``GradientArgumentError`` where no input
    requires grad or one has elements that share memory, ``UnsupportedError`` for forward mode and sparse tensors.
    """
    if check_forward_ad or check_batched_forward_grad or not check_backward_ad:
        raise UnsupportedError(
            "gradcheck: check_forward_ad, check_batched_forward_grad and check_backward_ad=False check forward-mode AD "
            "(torch.autograd.forward_ad), which has no formulas here: a rule is a backward formula, and tracer.func.jvp is made of it. "
            "Leave these options alone."
        )
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    names = [f"input {i}" for i in range(len(given))]
    options = GradcheckOptions(
        eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, fast_mode, check_batched_grad
    )
    return _run(func, given, names, options, raise_exception)


def gradgradcheck(
    func: TensorFunction,
    inputs: Inputs,
    grad_outputs: Inputs | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """``gradcheck`` of the gradients themselves: of what backward gives, as a function of ``inputs`` and ``grad_outputs``.

    ``grad_outputs``, the gradients of the results, are random where they are left out, and lie in memory with gaps where
    ``gen_non_contig_grad_outputs``. Returns and raises what ``gradcheck`` does.
    """
    if check_fwd_over_rev or not check_rev_over_rev:
        raise UnsupportedError(
            "gradgradcheck: there is no forward mode here; leave check_fwd_over_rev and check_rev_over_rev alone"
        )
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    tracked = _tracked(given)
    if grad_outputs is None:
        cotangents: tuple[Any, ...] = tuple(
            track(random_cotangent(o, gen_non_contig_grad_outputs), True) for o in differentiable(func(*tracked))
        )
    else:
        cotangents = tuple(grad_outputs) if isinstance(grad_outputs, tuple | list) else (grad_outputs,)
    wanted = [i for i, x in enumerate(tracked) if requires_grad(x)]

    def gradients(*arguments: Any) -> tuple[torch.Tensor, ...]:
        values, seeds = arguments[: len(tracked)], arguments[len(tracked) :]
        outputs = differentiable(func(*values))
        if not outputs:
            raise GradcheckError("no result of the function requires grad: there are no gradients to differentiate")
        found = torch.autograd.grad(outputs, [values[i] for i in wanted], seeds, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    names = [f"input {i}" for i in range(len(tracked))]
    names += [f"the gradient of output {i}" for i in range(len(cotangents))]
    options = GradcheckOptions(
        eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, fast_mode, check_batched_grad
    )
    return _run(gradients, (*tracked, *cotangents), names, options, raise_exception, "gradient ", "gradgradcheck")


# ---------------------------------------------------------------------------------------------- inputs and outputs
def _run(
    func: TensorFunction,
    inputs: tuple[Any, ...],
    names: list[str],
    options: GradcheckOptions,
    raise_exception: bool,
    output_prefix: str = "output ",
    title: str = "gradcheck",
) -> bool:
    tracked = _tracked(inputs)
    _check_inputs(tracked, title)
    try:
        _check(CheckedFunction(func, tracked, names, options, output_prefix, title))
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check(check: CheckedFunction) -> None:
    if not check.outputs:
        check_that_nothing_depends(check)
        return
    if check.options.fast_mode:
        check_projections(check)
    else:
        check_jacobians(check)
    check_zeros(check)
    if check.options.check_batched_grad:
        check_batched(check)
    check_linearity(check)
    check_layouts(check)
    if check.options.check_undefined_grad:
        check_undefined(check)


def _tracked(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, those of torch's autograd that require grad as tracked ones in the same memory."""
    return tuple(
        track(x.detach(), True) if requires_grad(x) and not isinstance(x, Tensor) and x.layout == torch.strided else x
        for x in inputs
    )


def _check_inputs(inputs: tuple[Any, ...], title: str) -> None:
    wanted = [(i, x) for i, x in enumerate(inputs) if requires_grad(x)]
    if not wanted:
        raise GradientArgumentError(f"{title} needs at least one input that requires grad")
    for i, x in wanted:
        if x.layout != torch.strided:
            raise UnsupportedError(f"{title}: input {i} is {x.layout}; only strided tensors are supported")
        if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
            raise GradientArgumentError(
                f"{title}: elements of input {i} share memory (a stride is 0), so that none can be moved alone. Pass x.contiguous()."
            )
        if x.dtype not in (torch.float64, torch.complex128):
            warnings.warn(
                f"{title}: input {i} is {x.dtype}; differences are exact enough in float64 and complex128 only",
                stacklevel=5,
            )
