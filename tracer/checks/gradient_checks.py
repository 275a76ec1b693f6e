"""What makes a gradient right beside its values: nothing for nothing, linear in what comes in, whatever the layout of that."""

from __future__ import annotations

import torch

from tracer.checks.checked_function import CheckedFunction, as_tuple, random_cotangent
from tracer.checks.jacobians import numerical_jacobians
from tracer.checks.leaves import can_have_gradient, non_contiguous, plain
from tracer.functions.undefined_grad import without_gradient


def check_that_nothing_depends(check: CheckedFunction) -> None:
    """No result has a history: then no result may change with the inputs."""

    def call() -> list[torch.Tensor]:
        results = [o for o in as_tuple(check.func(*check.inputs)) if isinstance(o, torch.Tensor)]
        return [plain(o).to(o.dtype if can_have_gradient(o) else torch.float64) for o in results]

    for k, data in enumerate(check.data):
        for o, jacobian in enumerate(numerical_jacobians(call, data, check.options.eps)):
            if bool((jacobian.values != 0).any()):
                raise check.error(
                    f"{check.prefix}{o} does not require grad, and yet it changes with {check.named(k)}: the history "
                    f"was cut (detach, .data, item, numpy, no_grad, or an op that glassgrad did not see)"
                )


def check_zeros(check: CheckedFunction) -> None:
    """A gradient of zero leads to gradients of zero."""
    zeros = [torch.zeros(o.shape, dtype=o.dtype, device=o.device) for o in check.outputs]
    for k, gradient in enumerate(check.backward(check.outputs, zeros)):
        if gradient is not None:
            check.check_kind(gradient, k)
            if bool((gradient.to_dense() != 0).any()):
                raise check.error(
                    f"the gradient of {check.named(k)} is not zero where that of every result is: a formula does not "
                    f"multiply by the gradient that comes in"
                )


def check_linearity(check: CheckedFunction) -> None:
    """The gradients are linear in those of the results."""
    for o, output in enumerate(check.outputs):
        values = random_cotangent(output)
        for k, (once, scaled) in enumerate(
            zip(check.backward([output], [values]), check.backward([output], [-2 * values]), strict=True)
        ):
            once, scaled = check.as_gradient(once, k), check.as_gradient(scaled, k)
            if not check.close(scaled, -2 * once):
                raise check.error(
                    f"the gradient of {check.named(k)} is not linear in that of {check.output_named(o)}: for -2 "
                    f"times the gradient it is {scaled} in place of {-2 * once}"
                )


def check_layouts(check: CheckedFunction) -> None:
    """How the gradient of a result lies in memory makes no difference."""
    for o, output in enumerate(check.outputs):
        if output.numel() < 2:
            continue
        values = random_cotangent(output)
        one = torch.ones((), dtype=output.dtype, device=output.device)
        for what, given, usual in (
            ("non-contiguous", non_contiguous(values), values),
            ("expanded", one.expand(output.shape), one.expand(output.shape).contiguous()),
        ):
            wanted = check.backward([output], [usual])
            try:
                found = check.backward([output], [given])
            except Exception as error:
                raise check.error(
                    f"backward raises when the gradient of {check.output_named(o)} comes in {what}: {error}"
                ) from error
            for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
                a, b = check.as_gradient(a, k), check.as_gradient(b, k)
                if not check.close(a, b):
                    raise check.error(
                        f"{check.named(k)} gets another gradient when that of {check.output_named(o)} comes in "
                        f"{what}: {a} in place of {b}"
                    )


def check_undefined(check: CheckedFunction) -> None:
    """Results without a gradient count as zeros: all of them, and each one alone beside the others."""
    zeros = [torch.zeros(o.shape, dtype=o.dtype, device=o.device) for o in check.outputs]
    _expect_undefined(check, [without_gradient(o) for o in check.outputs], zeros, None, "every result")
    if len(check.outputs) == 1:
        return
    given = [random_cotangent(o) for o in check.outputs]
    alone = [check.backward([o], [c]) for o, c in zip(check.outputs, given, strict=True)]
    for missing in range(len(check.outputs)):
        outputs = [without_gradient(o) if i == missing else o for i, o in enumerate(check.outputs)]
        rest = [a for i, a in enumerate(alone) if i != missing]
        _expect_undefined(check, outputs, given, rest, check.output_named(missing))


def _expect_undefined(
    check: CheckedFunction,
    outputs: list[torch.Tensor],
    cotangents: list[torch.Tensor],
    parts: list[list[torch.Tensor | None]] | None,
    which: str,
) -> None:
    try:
        found = check.backward(outputs, cotangents)
    except Exception as error:
        raise check.error(f"backward raises when {which} gets no gradient: {error}") from error
    for k, gradient in enumerate(found):
        wanted = torch.zeros_like(check.data[k])
        for part in parts or []:
            addend = part[k]
            wanted = wanted if addend is None else wanted + addend
        gradient = check.as_gradient(gradient, k)
        if not check.close(gradient, wanted):
            raise check.error(
                f"{check.named(k)} gets a wrong gradient when {which} gets none: {gradient} in place of {wanted}"
            )


def check_batched(check: CheckedFunction) -> None:
    """One sweep under ``torch.vmap`` for several gradients of a result gives what one sweep for each gives."""
    for o, output in enumerate(check.outputs):
        cotangents = [random_cotangent(output) for _ in range(3)]
        rows = [check.backward([output], [c]) for c in cotangents]
        try:
            batched = _batched_gradients(check, output, torch.stack(cotangents))
        except RuntimeError as error:
            where = "".join(f" ({note.strip()})" for note in getattr(error, "__notes__", ()))
            raise check.error(
                f"while computing batched gradients of {check.output_named(o)}, got: {error}{where}. check_batched_grad runs backward "
                f"under torch.vmap; a rule that decides by values, or leaves torch, cannot run there: write it without."
            ) from error
        for k, found in enumerate(batched):
            wanted = torch.stack([check.as_gradient(row[k], k).to_dense() for row in rows])
            found = torch.zeros_like(wanted) if found is None else found
            if not check.close(found, wanted):
                raise check.error(
                    f"the batched gradients of {check.named(k)} for {check.output_named(o)}, by one backward pass under torch.vmap, are "
                    f"not those of one pass for each: {found} in place of {wanted}"
                )


def _batched_gradients(
    check: CheckedFunction, output: torch.Tensor, cotangents: torch.Tensor
) -> list[torch.Tensor | None]:
    reached: list[int] = []

    def sweep(cotangent: torch.Tensor) -> list[torch.Tensor]:
        found = torch.autograd.grad(output, check.leaves, cotangent, retain_graph=True, allow_unused=True)
        reached[:] = [k for k, g in enumerate(found) if g is not None]
        return [g for g in found if g is not None]

    gradients = torch.vmap(sweep)(cotangents)
    results: list[torch.Tensor | None] = [None] * len(check.leaves)
    for k, gradient in zip(reached, gradients, strict=True):
        results[k] = plain(gradient)
    return results
