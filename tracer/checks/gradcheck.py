"""Whether the gradients of a function are right: ``torch.autograd.gradcheck`` and ``gradgradcheck`` for tracked tensors.

Gradients of backward against central differences, plus what else makes a gradient right: its shape, dtype and layout, the same answer
twice, whatever the layout of the gradient that comes in, nothing for nothing. A failure says where, and what mistake it looks like.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer.checks.derivatives import plain, strewn
from tracer.checks.jacobians import Jacobian, directional, from_rows, numerical_jacobians, parts_of, unit_cotangents
from tracer.checks.mistakes import diagnose, worst
from tracer.errors import GradcheckError, GradientArgumentError, UnsupportedError
from tracer.functions.undefined_grad import without_gradient
from tracer.tracked_tensor import Tensor, track

Function = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
Inputs = torch.Tensor | Sequence[Any]

#: Jacobians up to this many elements are printed in full.
_PRINTED = 400


@dataclass(frozen=True)
class _Options:
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_grad_dtypes: bool
    fast_mode: bool


def gradcheck(
    func: Function,
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
    requires grad or one has elements that share memory, ``UnsupportedError`` for forward mode, batched gradients and sparse tensors.
    """
    if check_forward_ad or check_batched_forward_grad or not check_backward_ad:
        raise UnsupportedError(
            "gradcheck: there is no forward mode here; leave check_forward_ad, check_batched_forward_grad and check_backward_ad alone"
        )
    if check_batched_grad:
        raise UnsupportedError("gradcheck: batched gradients are not supported; leave check_batched_grad alone")
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    names = [f"input {i}" for i in range(len(given))]
    options = _Options(eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, fast_mode)
    return _run(func, given, names, options, raise_exception)


def gradgradcheck(
    func: Function,
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
    if check_batched_grad:
        raise UnsupportedError("gradgradcheck: batched gradients are not supported; leave check_batched_grad alone")
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    tracked = _tracked(given)
    if grad_outputs is None:
        cotangents: tuple[Any, ...] = tuple(
            track(_random(o, gen_non_contig_grad_outputs), True) for o in _differentiable(func(*tracked))
        )
    else:
        cotangents = tuple(grad_outputs) if isinstance(grad_outputs, tuple | list) else (grad_outputs,)
    wanted = [i for i, x in enumerate(tracked) if _requires_grad(x)]

    def gradients(*arguments: Any) -> tuple[torch.Tensor, ...]:
        values, seeds = arguments[: len(tracked)], arguments[len(tracked) :]
        outputs = _differentiable(func(*values))
        if not outputs:
            raise GradcheckError("no result of the function requires grad: there are no gradients to differentiate")
        found = torch.autograd.grad(outputs, [values[i] for i in wanted], seeds, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    names = [f"input {i}" for i in range(len(tracked))]
    names += [f"the gradient of output {i}" for i in range(len(cotangents))]
    options = _Options(eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, fast_mode)
    return _run(gradients, (*tracked, *cotangents), names, options, raise_exception, "gradient ", "gradgradcheck")


# ---------------------------------------------------------------------------------------------- inputs and outputs
def _run(
    func: Function,
    inputs: tuple[Any, ...],
    names: list[str],
    options: _Options,
    raise_exception: bool,
    output_prefix: str = "output ",
    title: str = "gradcheck",
) -> bool:
    tracked = _tracked(inputs)
    _check_inputs(tracked, title)
    try:
        _Check(func, tracked, names, options, output_prefix, title).run()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _tracked(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, those of torch's autograd that require grad as tracked ones in the same memory."""
    return tuple(
        track(x.detach(), True) if _requires_grad(x) and not isinstance(x, Tensor) and x.layout == torch.strided else x
        for x in inputs
    )


def _check_inputs(inputs: tuple[Any, ...], title: str) -> None:
    wanted = [(i, x) for i, x in enumerate(inputs) if _requires_grad(x)]
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


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _differentiable(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(o for o in _as_tuple(result) if _requires_grad(o))


def _random(like: torch.Tensor, with_gaps: bool = False) -> torch.Tensor:
    return torch.testing.make_tensor(
        tuple(like.shape),
        dtype=like.dtype,
        device=like.device,
        low=-1,
        high=1,
        noncontiguous=with_gaps and like.numel() > 1,
    )


# ---------------------------------------------------------------------------------------------- the check
class _Check:
    """One function at one set of inputs."""

    def __init__(
        self, func: Function, inputs: tuple[Any, ...], names: list[str], options: _Options, prefix: str, title: str
    ) -> None:
        self.func, self.inputs, self.options = func, inputs, options
        self.prefix, self.title = prefix, title
        self.names = names
        self.wanted = [i for i, x in enumerate(inputs) if _requires_grad(x)]
        self.leaves = [inputs[i] for i in self.wanted]
        #: The memory of those, to move elements in.
        self.data = [x.data for x in self.leaves]
        results = _as_tuple(func(*inputs))
        #: Positions of the differentiable results.
        self.positions = [i for i, o in enumerate(results) if _requires_grad(o)]
        self.outputs = [results[i] for i in self.positions]
        if any(o.layout != torch.strided for o in self.outputs):
            raise UnsupportedError(f"{title}: a result is sparse. Return result.to_dense().")

    def run(self) -> None:
        if not self.outputs:
            self._check_that_nothing_depends()
            return
        if self.options.fast_mode:
            self._check_projections()
        else:
            self._check_jacobians()
        self._check_zeros()
        self._check_linearity()
        self._check_layouts()
        if self.options.check_undefined_grad:
            self._check_undefined()

    # ---------------------------------------------------------------- values
    def call(self) -> list[torch.Tensor]:
        """The differentiable results at the present values of the inputs, plain."""
        results = _as_tuple(self.func(*self.inputs))
        return [plain(results[i]) for i in self.positions]

    def backward(
        self, outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs, plain."""
        found = torch.autograd.grad(list(outputs), self.leaves, list(cotangents), retain_graph=True, allow_unused=True)
        return [None if g is None else plain(g) for g in found]

    def rows(self, output: torch.Tensor, cotangents: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """For each input, the gradients that it gets for each cotangent; checked to be gradients of it, and the same twice."""
        found: list[list[torch.Tensor]] = [[] for _ in self.leaves]
        for cotangent in cotangents:
            once, again = (self.backward([output], [cotangent.clone()]) for _ in range(2))
            for k, (first, second) in enumerate(zip(once, again, strict=True)):
                zero = torch.zeros_like(self.data[k])
                first, second = (zero if g is None else g for g in (first, second))
                self._check_kind(first, k)
                change = (first - second).abs()
                change[first.isnan() & second.isnan()] = 0
                if not bool((change <= self.options.nondet_tol).all()):
                    raise GradcheckError(
                        f"{self.title}: backward is not deterministic: the same gradient of the result gave {self._named(k)} different "
                        f"gradients, up to {float(change.max()):.3g} apart; nondet_tol is {self.options.nondet_tol}"
                    )
                found[k].append(first.to_dense() if first.layout != torch.strided else first.clone())
        return found

    def _check_kind(self, gradient: torch.Tensor, k: int) -> None:
        data = self.data[k]
        wrong = ""
        if gradient.shape != data.shape:
            wrong = f"shape {tuple(gradient.shape)}, and the input {tuple(data.shape)}"
        elif self.options.check_grad_dtypes and gradient.dtype != data.dtype:
            wrong = f"dtype {gradient.dtype}, and the input {data.dtype}"
        elif gradient.device != data.device:
            wrong = f"device {gradient.device}, and the input {data.device}"
        elif gradient.layout != data.layout and gradient.layout != torch.strided:
            wrong = f"layout {gradient.layout}, and the input {data.layout}"
        if wrong:
            raise GradcheckError(f"{self.title}: the gradient of {self._named(k)} has {wrong}")

    def _check_jacobians(self) -> None:
        numerical = [numerical_jacobians(self.call, data, self.options.eps) for data in self.data]
        for o, output in enumerate(self.outputs):
            rows = self.rows(output, unit_cotangents(output))
            found = [from_rows(r, output, d) for r, d in zip(rows, self.data, strict=True)]
            for k in range(len(self.leaves)):
                if not self._agree(found[k].values, numerical[k][o].values):
                    raise self._failure(o, k, found, [n[o] for n in numerical])

    def _agree(self, analytic: torch.Tensor, numerical: torch.Tensor, atol: float | None = None) -> bool:
        kind = torch.promote_types(analytic.dtype, numerical.dtype)
        atol = self.options.atol if atol is None else atol
        return torch.allclose(analytic.to(kind), numerical.to(kind), self.options.rtol, atol)

    def _check_projections(self) -> None:
        """``v J u`` for one random ``u`` an input and ``v`` an output; the tolerance is that of ``J`` projected likewise."""
        generator = torch.Generator().manual_seed(0)

        def vector(like: torch.Tensor) -> torch.Tensor:
            made = torch.rand(tuple(like.shape), generator=generator, dtype=torch.float64)
            made = made / made.norm() if made.numel() else made
            return made.to(device=like.device, dtype=like.real.dtype)

        turns = [[vector(d) for _ in range(2 if d.is_complex() else 1)] for d in self.data]
        moved = [
            [directional(self.call, data, u * unit, self.options.eps) for u, unit in zip(turn, (1, 1j), strict=False)]
            for data, turn in zip(self.data, turns, strict=True)
        ]
        for o, output in enumerate(self.outputs):
            seeds = [vector(output) for _ in range(2 if output.is_complex() else 1)]
            cotangents = [(v * unit).to(output.dtype) for v, unit in zip(seeds, (1, 1j), strict=False)]
            for k, rows in enumerate(self.rows(output, cotangents)):
                for part, (v, row) in enumerate(zip(seeds, rows, strict=True)):
                    gradient = (row.real, row.imag) if row.is_complex() else (row,)
                    predicted = _number([(g * u).sum() for g, u in zip(gradient, turns[k], strict=True)])
                    measured = _number([(parts_of(m[o])[part] * v).sum() for m in moved[k]])
                    atol = self.options.atol * float(sum(u.sum() for u in turns[k]) * v.sum())
                    if not self._agree(predicted, measured, atol):
                        raise self._slow_failure(o, k, predicted, measured)

    def _slow_failure(self, o: int, k: int, predicted: torch.Tensor, measured: torch.Tensor) -> GradcheckError:
        """What the whole Jacobians say of a projection that failed."""
        numerical = [numerical_jacobians(self.call, data, self.options.eps)[o] for data in self.data]
        output = self.outputs[o]
        rows = self.rows(output, unit_cotangents(output))
        found = [from_rows(r, output, d) for r, d in zip(rows, self.data, strict=True)]
        if not self._agree(found[k].values, numerical[k].values):
            return self._failure(o, k, found, numerical)
        return GradcheckError(
            f"{self.title}: a random projection of the gradient of {self.prefix}{self.positions[o]} with respect to {self._named(k)} is "
            f"{predicted.item():.10g} by backward and {measured.item():.10g} by differences, though each element alone is within the "
            f"tolerance: fast_mode=False would pass. Small errors add up in a sum; look at eps, and at the sizes of the values."
        )

    # ---------------------------------------------------------------- gradients of other kinds
    def _check_that_nothing_depends(self) -> None:
        """No result has a history: then no result may change with the inputs."""
        kinds = [o for o in _as_tuple(self.func(*self.inputs)) if isinstance(o, torch.Tensor)]
        self.positions = list(range(len(kinds)))

        def call() -> list[torch.Tensor]:
            results = [o for o in _as_tuple(self.func(*self.inputs)) if isinstance(o, torch.Tensor)]
            return [plain(o).to(o.dtype if o.is_floating_point() or o.is_complex() else torch.float64) for o in results]

        for k, data in enumerate(self.data):
            for o, jacobian in enumerate(numerical_jacobians(call, data, self.options.eps)):
                if bool((jacobian.values != 0).any()):
                    raise GradcheckError(
                        f"{self.title}: {self.prefix}{o} does not require grad, and yet it changes with {self._named(k)}: the history "
                        f"was cut (detach, .data, item, numpy, no_grad, or an op that glassgrad did not see)"
                    )

    def _check_zeros(self) -> None:
        """A gradient of zero leads to gradients of zero."""
        zeros = [torch.zeros(o.shape, dtype=o.dtype, device=o.device) for o in self.outputs]
        for k, gradient in enumerate(self.backward(self.outputs, zeros)):
            if gradient is not None:
                self._check_kind(gradient, k)
                if bool((gradient.to_dense() != 0).any()):
                    raise GradcheckError(
                        f"{self.title}: the gradient of {self._named(k)} is not zero where that of every result is: a formula does not "
                        f"multiply by the gradient that comes in"
                    )

    def _check_linearity(self) -> None:
        """The gradients are linear in those of the results."""
        for o, output in enumerate(self.outputs):
            values = _random(output)
            for k, (once, scaled) in enumerate(
                zip(self.backward([output], [values]), self.backward([output], [-2 * values]), strict=True)
            ):
                once, scaled = (torch.zeros_like(self.data[k]) if g is None else g for g in (once, scaled))
                if not torch.allclose(scaled, -2 * once, self.options.rtol, self.options.atol, equal_nan=True):
                    raise GradcheckError(
                        f"{self.title}: the gradient of {self._named(k)} is not linear in that of {self.prefix}{self.positions[o]}: for -2 "
                        f"times the gradient it is {scaled} in place of {-2 * once}"
                    )

    def _check_layouts(self) -> None:
        """How the gradient of a result lies in memory makes no difference."""
        for o, output in enumerate(self.outputs):
            if output.numel() < 2:
                continue
            values = _random(output)
            one = torch.ones((), dtype=output.dtype, device=output.device)
            for what, given, usual in (
                ("non-contiguous", strewn(values), values),
                ("expanded", one.expand(output.shape), one.expand(output.shape).contiguous()),
            ):
                wanted = self.backward([output], [usual])
                try:
                    found = self.backward([output], [given])
                except Exception as error:
                    raise GradcheckError(
                        f"{self.title}: backward raises when the gradient of {self.prefix}{self.positions[o]} comes in {what}: {error}"
                    ) from error
                for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
                    a, b = (torch.zeros_like(self.data[k]) if g is None else g for g in (a, b))
                    if not torch.allclose(a, b, self.options.rtol, self.options.atol, equal_nan=True):
                        raise GradcheckError(
                            f"{self.title}: {self._named(k)} gets another gradient when that of {self.prefix}{self.positions[o]} comes in "
                            f"{what}: {a} in place of {b}"
                        )

    def _check_undefined(self) -> None:
        """Results without a gradient count as zeros: all of them, and each one alone beside the others."""
        zeros = [torch.zeros(o.shape, dtype=o.dtype, device=o.device) for o in self.outputs]
        self._expect_undefined([without_gradient(o) for o in self.outputs], zeros, None, "every result")
        if len(self.outputs) == 1:
            return
        given = [_random(o) for o in self.outputs]
        alone = [self.backward([o], [c]) for o, c in zip(self.outputs, given, strict=True)]
        for missing, position in enumerate(self.positions):
            outputs = [without_gradient(o) if i == missing else o for i, o in enumerate(self.outputs)]
            rest = [a for i, a in enumerate(alone) if i != missing]
            self._expect_undefined(outputs, given, rest, f"{self.prefix}{position}")

    def _expect_undefined(
        self,
        outputs: list[torch.Tensor],
        cotangents: list[torch.Tensor],
        parts: list[list[torch.Tensor | None]] | None,
        which: str,
    ) -> None:
        try:
            found = self.backward(outputs, cotangents)
        except Exception as error:
            raise GradcheckError(f"{self.title}: backward raises when {which} gets no gradient: {error}") from error
        for k, gradient in enumerate(found):
            wanted = torch.zeros_like(self.data[k])
            for part in parts or []:
                addend = part[k]
                wanted = wanted if addend is None else wanted + addend
            gradient = torch.zeros_like(self.data[k]) if gradient is None else gradient
            if not torch.allclose(gradient, wanted, self.options.rtol, self.options.atol, equal_nan=True):
                raise GradcheckError(
                    f"{self.title}: {self._named(k)} gets a wrong gradient when {which} gets none: {gradient} in place of {wanted}"
                )

    # ---------------------------------------------------------------- the report
    def _named(self, k: int) -> str:
        return self.names[self.wanted[k]]

    def _failure(self, o: int, k: int, found: list[Jacobian], numerical: list[Jacobian]) -> GradcheckError:
        """The report of one wrong Jacobian."""
        a, n = found[k], numerical[k]
        others = {self._named(i): j for i, j in enumerate(numerical) if i != k}
        values = {self._named(i): d for i, d in enumerate(self.data)} | {"the result": plain(self.outputs[o])}
        mistake = diagnose(a, n, others, values, self.options.rtol, self.options.atol)
        at_output, at_input, part, analytic, measured = worst(a, n)
        kind = torch.promote_types(a.values.dtype, n.values.dtype)
        close = torch.isclose(a.values.to(kind), n.values.to(kind), self.options.rtol, self.options.atol)
        which = ("real part of ", "imaginary part of ")[part] if self.outputs[o].is_complex() else ""
        lines = [
            f"{self.title}: the gradient of {self.prefix}{self.positions[o]} with respect to {self._named(k)} is wrong in "
            f"{int((~close).sum())} of {close.numel()} elements of the Jacobian.",
            f"  shapes: result {a.output_shape}, {self._named(k)} {a.input_shape}",
            f"  worst: {which}result element {list(at_output)}, {self._named(k)} element {list(at_input)}: "
            f"analytic {_shown(analytic)}, numerical {_shown(measured)}",
            f"  it looks like: {mistake}",
        ]
        lines += self._randomness()
        if a.values.numel() <= _PRINTED:
            lines += [f"  analytic (a row for each result element):\n{a.matrix}", f"  numerical:\n{n.matrix}"]
        return GradcheckError("\n".join(lines), mistake=mistake)

    def _randomness(self) -> list[str]:
        """A hint where the function itself is what cannot be differenced."""
        once, again = self.call(), self.call()
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
