"""Whether the Jacobians by backward are those of central differences; a failure says where, and what mistake it looks like."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracer.checks.checked_function import CheckedFunction
from tracer.checks.jacobians import (
    Jacobian,
    directional,
    from_rows,
    numerical_jacobians,
    real_and_imaginary,
    unit_cotangents,
)
from tracer.checks.leaves import plain
from tracer.checks.mistakes import diagnose, worst
from tracer.errors import GradcheckError

#: Jacobians up to this many elements are printed in full.
PRINTED = 400


def check_jacobians(check: CheckedFunction) -> None:
    """Every element of every Jacobian."""
    numerical = [numerical_jacobians(check.call, data, check.options.eps) for data in check.data]
    for o, output in enumerate(check.outputs):
        rows = check.rows(output, unit_cotangents(output))
        found = [from_rows(r, output, d) for r, d in zip(rows, check.data, strict=True)]
        for k in range(len(check.leaves)):
            if not check.agree(found[k].values, numerical[k][o].values):
                raise _failure(check, o, k, found, [n[o] for n in numerical])


def check_projections(check: CheckedFunction) -> None:
    """``v J u`` for one random ``u`` an input and ``v`` an output; the tolerance is that of ``J`` projected likewise."""
    generator = torch.Generator().manual_seed(0)

    def vector(like: torch.Tensor) -> torch.Tensor:
        made = torch.rand(tuple(like.shape), generator=generator, dtype=torch.float64)
        made = made / made.norm() if made.numel() else made
        return made.to(device=like.device, dtype=like.real.dtype)

    turns = [[vector(d) for _ in range(2 if d.is_complex() else 1)] for d in check.data]
    moved = [
        [directional(check.call, data, u * unit, check.options.eps) for u, unit in zip(turn, (1, 1j), strict=False)]
        for data, turn in zip(check.data, turns, strict=True)
    ]
    for o, output in enumerate(check.outputs):
        seeds = [vector(output) for _ in range(2 if output.is_complex() else 1)]
        cotangents = [(v * unit).to(output.dtype) for v, unit in zip(seeds, (1, 1j), strict=False)]
        for k, rows in enumerate(check.rows(output, cotangents)):
            for part, (v, row) in enumerate(zip(seeds, rows, strict=True)):
                gradient = (row.real, row.imag) if row.is_complex() else (row,)
                predicted = _number([(g * u).sum() for g, u in zip(gradient, turns[k], strict=True)])
                measured = _number([(real_and_imaginary(m[o])[part] * v).sum() for m in moved[k]])
                atol = check.options.atol * float(sum(u.sum() for u in turns[k]) * v.sum())
                if not check.agree(predicted, measured, atol):
                    raise _slow_failure(check, o, k, predicted, measured)


def _slow_failure(
    check: CheckedFunction, o: int, k: int, predicted: torch.Tensor, measured: torch.Tensor
) -> GradcheckError:
    """What the whole Jacobians say of a projection that failed."""
    numerical = [numerical_jacobians(check.call, data, check.options.eps)[o] for data in check.data]
    output = check.outputs[o]
    rows = check.rows(output, unit_cotangents(output))
    found = [from_rows(r, output, d) for r, d in zip(rows, check.data, strict=True)]
    if not check.agree(found[k].values, numerical[k].values):
        return _failure(check, o, k, found, numerical)
    return check.error(
        f"a random projection of the gradient of {check.output_named(o)} with respect to {check.named(k)} is "
        f"{predicted.item():.10g} by backward and {measured.item():.10g} by differences, though each element alone is within the "
        f"tolerance: fast_mode=False would pass. Small errors add up in a sum; look at eps, and at the sizes of the values."
    )


def _failure(
    check: CheckedFunction, o: int, k: int, found: list[Jacobian], numerical: list[Jacobian]
) -> GradcheckError:
    """The report of one wrong Jacobian."""
    a, n = found[k], numerical[k]
    others = {check.named(i): j for i, j in enumerate(numerical) if i != k}
    values = {check.named(i): d for i, d in enumerate(check.data)} | {"the result": plain(check.outputs[o])}
    mistake = diagnose(a, n, others, values, check.options.rtol, check.options.atol)
    at_output, at_input, part, analytic, measured = worst(a, n)
    kind = torch.promote_types(a.values.dtype, n.values.dtype)
    close = torch.isclose(a.values.to(kind), n.values.to(kind), check.options.rtol, check.options.atol)
    which = ("real part of ", "imaginary part of ")[part] if check.outputs[o].is_complex() else ""
    lines = [
        f"the gradient of {check.output_named(o)} with respect to {check.named(k)} is wrong in "
        f"{int((~close).sum())} of {close.numel()} elements of the Jacobian.",
        f"  shapes: result {a.output_shape}, {check.named(k)} {a.input_shape}",
        f"  worst: {which}result element {list(at_output)}, {check.named(k)} element {list(at_input)}: "
        f"analytic {_shown(analytic)}, numerical {_shown(measured)}",
        f"  it looks like: {mistake}",
    ]
    lines += _randomness(check)
    if a.values.numel() <= PRINTED:
        lines += [f"  analytic (a row for each result element):\n{a.matrix}", f"  numerical:\n{n.matrix}"]
    return check.error("\n".join(lines), mistake)


def _randomness(check: CheckedFunction) -> list[str]:
    """A hint where the function itself is what cannot be differenced."""
    once, again = check.call(), check.call()
    if all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(once, again, strict=True)):
        return []
    return [
        "  the function gives different results for the same inputs: set the random seed inside it, or turn dropout off"
    ]


def _number(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One number out of its parts."""
    return torch.complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _shown(value: complex) -> str:
    return f"{value:.10g}" if value.imag else f"{value.real:.10g}"
