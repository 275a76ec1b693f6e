"""What shape of mistake a wrong Jacobian shows: a sign, a factor, a transposition, a term or a sum that is missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import torch

from tracer.checks.jacobians import Jacobian
from tracer.errors import Mistake

#: No pattern is looked for in more elements than that.
LIMIT = 1 << 20


UNKNOWN = Mistake("no known shape of mistake", "")


def diagnose(
    analytic: Jacobian,
    numerical: Jacobian,
    others: Mapping[str, Jacobian] | None = None,
    values: Mapping[str, torch.Tensor] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
) -> Mistake:
    """The simplest mistake that turns the numerical Jacobian into the analytic one.

    ``others`` are numerical Jacobians of the same output with respect to other inputs, by name; ``values`` are tensors that the rule could
    have used (inputs, the result), by name: a term or a factor that is missing may be one of them.
    """
    if analytic.values.shape != numerical.values.shape:
        return Mistake("wrong shape", f"{list(analytic.values.shape)} in place of {list(numerical.values.shape)}")
    case = _Case(analytic, numerical, others or {}, values or {}, rtol, atol)
    if case.n.numel() == 0 or case.n.numel() > LIMIT:
        return UNKNOWN
    for question in QUESTIONS:
        found = question(case)
        if found is not None:
            return found
    return UNKNOWN


class _Case:
    """Both Jacobians in one dtype, with what the questions ask of them."""

    def __init__(
        self,
        analytic: Jacobian,
        numerical: Jacobian,
        others: Mapping[str, Jacobian],
        values: Mapping[str, torch.Tensor],
        rtol: float,
        atol: float,
    ) -> None:
        self.complex = analytic.values.is_complex() or numerical.values.is_complex()
        wide = torch.complex128 if self.complex else torch.float64
        self.a, self.n = analytic.values.to(wide), numerical.values.to(wide)
        self.out, self.inp = analytic.output_shape, analytic.input_shape
        self.others, self.values = others, values
        finite = torch.cat((self.a.flatten(), self.n.flatten())).abs()
        finite = finite[finite.isfinite()]
        self.scale = float(finite.max()) if finite.numel() else 0.0
        self.tolerance = max(rtol * self.scale, atol)

    def same(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        return left.shape == right.shape and bool(((left - right).abs() <= self.tolerance).all())

    @property
    def wrong(self) -> torch.Tensor:
        return ~((self.a - self.n).abs() <= self.tolerance)

    @property
    def axes(self) -> list[tuple[int, int, str]]:
        """Every axis longer than one: its position in the Jacobian, its length, its name."""
        named = [(1 + i, s, f"axis {i} of the output") for i, s in enumerate(self.out)]
        named += [(1 + len(self.out) + i, s, f"axis {i} of the input") for i, s in enumerate(self.inp)]
        return [entry for entry in named if entry[1] > 1]

    def matrix(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(values.shape[0] * math.prod(self.out), math.prod(self.inp))

    def diagonals(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """For a function that acts on each element alone, real: the analytic and numerical derivatives, shaped as the output."""
        if self.out != self.inp or self.a.shape[0] != 1 or self.complex:
            return None
        a, n = self.matrix(self.a), self.matrix(self.n)
        if not (self.same(a, torch.diag(a.diagonal())) and self.same(n, torch.diag(n.diagonal()))):
            return None
        return a.diagonal().reshape(self.out), n.diagonal().reshape(self.out)


# ---------------------------------------------------------------------------------------------- the questions, in order
def _not_finite(case: _Case) -> Mistake | None:
    if bool(case.a.isfinite().all()) and bool(case.n.isfinite().all()):
        return None
    which = "analytic" if bool(case.n.isfinite().all()) else "numerical" if bool(case.a.isfinite().all()) else "both"
    found = (case.a if which != "numerical" else case.n).isfinite().logical_not()
    return Mistake("not finite", f"nan or infinity in {int(found.sum())} of {found.numel()} elements ({which})")


def _precision(case: _Case) -> Mistake | None:
    if case.wrong.any():
        return None
    error = float((case.a - case.n).abs().max()) / (case.scale or 1.0)
    return Mistake(
        "precision",
        f"right to about {max(0, round(-math.log10(error or 1)))} digits: a formula computed in a narrower dtype?",
    )


def _nothing(case: _Case) -> Mistake | None:
    nothing = torch.zeros_like(case.a)
    if case.same(case.a, nothing):
        return Mistake("missing term", "no gradient arrives at all")
    if case.same(case.n, nothing):
        return Mistake("extra term", "the output does not depend on this input, and yet a gradient arrives")
    return None


def _sign(case: _Case) -> Mistake | None:
    if case.same(case.a, -case.n):
        return Mistake("sign", "the analytic gradient is the negative of the numerical one")
    return None


def _conjugate(case: _Case) -> Mistake | None:
    if not case.complex and case.a.shape[0] == 1:
        return None
    n, conjugate = case.n, case.n.conj()
    for real, which in ((n, "the gradient that comes in"), (conjugate, "a factor")):
        if case.a.shape[0] == 1:
            if real is conjugate and case.same(case.a, conjugate):
                return Mistake(
                    "conjugate",
                    f"{which} is conjugated, or ought to be: the gradient is the conjugate of the numerical one",
                )
            continue
        for imaginary in (-real, real) if real is conjugate else (-n,):
            if case.same(case.a, torch.stack((real[0], imaginary[1]))):
                return Mistake("conjugate", f"{which} is conjugated where it ought not to be, or not where it ought to")
    return None


def _factor(case: _Case) -> Mistake | None:
    factor = complex((case.n.conj() * case.a).sum() / (case.n.conj() * case.n).sum())
    if not case.same(case.a, case.n * (factor if case.complex else factor.real)):
        return None
    fraction = _as_fraction(factor)
    if int((case.n.abs() > case.tolerance).sum()) == 1 and fraction is None:
        return None  # one number is always a multiple of another
    shown = fraction or (f"{factor.real:.6g}" if abs(factor.imag) < 1e-6 else f"{factor:.6g}")
    return Mistake("factor", f"the analytic gradient is {shown} times the numerical one{_sizes(case, factor)}")


def _as_fraction(number: complex) -> str | None:
    near = Fraction(number.real).limit_denominator(64)
    return (
        str(near)
        if abs(number.imag) < 1e-4 and near != 0 and abs(float(near) - number.real) < 1e-4 * abs(number.real)
        else None
    )


def _sizes(case: _Case, factor: complex) -> str:
    """Which size the factor is, if it is one."""
    size = abs(factor) if abs(factor) > 1 else 1 / abs(factor)
    names = {length: name for _, length, name in reversed(case.axes)}
    names = {k: f"the length of {name}" for k, name in names.items()}
    names |= {
        math.prod(case.out): "the number of elements of the output",
        math.prod(case.inp): "the number of elements of the input",
    }
    stretched = math.prod(case.out[i] for i in _stretched(case))
    if stretched > 1:
        names[stretched] = (
            "the number of output elements that each input element was broadcast to: a mean in place of a sum?"
        )
    nearest = round(size)
    return (
        f"; {nearest} is {names[nearest]}"
        if nearest > 2 and abs(size - nearest) < 1e-3 * size and nearest in names
        else ""
    )


def _transposed(case: _Case) -> Mistake | None:
    for (p, length, first), (q, other, second) in itertools.combinations(case.axes, 2):
        if length == other and case.same(case.a, case.n.transpose(p, q)):
            return Mistake("transposed", f"{first} and {second} are exchanged")
    if case.out == case.inp and case.same(case.matrix(case.a), _exchanged(case)):
        return Mistake("transposed", "the Jacobian is applied where its transpose ought to be")
    for text, reshaped in _reshaped(case):
        if case.same(case.a, reshaped):
            return Mistake(
                "transposed", f"the last two axes of the {text} are reshaped where they ought to be transposed"
            )
    return None


def _exchanged(case: _Case) -> torch.Tensor:
    size = math.prod(case.out)
    return case.n.reshape(-1, size, size).mT.reshape(-1, size)


def _reshaped(case: _Case) -> Iterator[tuple[str, torch.Tensor]]:
    for text, shape, end in (
        ("input", case.inp, 1 + len(case.out) + len(case.inp)),
        ("output", case.out, 1 + len(case.out)),
    ):
        if len(shape) >= 2 and shape[-1] != shape[-2]:
            yield text, case.n.transpose(end - 2, end - 1).reshape(case.n.shape)


def _swapped(case: _Case) -> Mistake | None:
    for name, other in case.others.items():
        if case.same(case.a, other.values.to(case.a.dtype)):
            return Mistake("swapped inputs", f"this is the gradient of {name}")
    return None


def _stretched(case: _Case) -> list[int]:
    """The axes of the output along which the input was broadcast."""
    lead = len(case.out) - len(case.inp)
    if lead < 0 or any(s not in (1, t) for s, t in zip(case.inp, case.out[lead:], strict=True)):
        return []
    return [i for i, size in enumerate(case.out) if size > 1 and (i < lead or case.inp[i - lead] == 1)]


def _missing_sum(case: _Case) -> Mistake | None:
    axes = _stretched(case)
    for count in range(len(axes), 0, -1):
        for chosen in itertools.combinations(axes, count):
            for last in (False, True):
                one = torch.zeros_like(case.n)
                place: list[slice] = [slice(None)] * case.n.dim()
                for axis in chosen:
                    place[1 + axis] = slice(case.out[axis] - 1, None) if last else slice(0, 1)
                one[tuple(place)] = case.n[tuple(place)]
                if case.same(case.a, one):
                    names = " and ".join(map(str, chosen))
                    return Mistake(
                        "missing broadcast sum",
                        f"the input was broadcast along axis {names} of the output, and only the {'last' if last else 'first'} element "
                        f"of it sends a gradient back: sum over the axis",
                    )
    return None


def _missing_elements(case: _Case) -> Mistake | None:
    wrong = case.wrong
    count = f"{int(wrong.sum())} of {wrong.numel()} elements of the Jacobian"
    if bool((case.a[wrong].abs() <= case.tolerance).all()):
        return Mistake("missing term", f"right except that {count} are zero{_where(case, wrong)}")
    if bool((case.n[wrong].abs() <= case.tolerance).all()):
        return Mistake("extra term", f"right except that {count} ought to be zero{_where(case, wrong)}")
    return None


def _mixing(case: _Case) -> Mistake | None:
    """The rule treats each element alone, and the function does not."""
    if case.out != case.inp or math.prod(case.out) < 2:
        return None
    a, n = case.matrix(case.a), case.matrix(case.n)
    off = ~torch.eye(a.shape[1], dtype=torch.bool).repeat(a.shape[0] // a.shape[1], 1)
    if bool((a[off].abs() <= case.tolerance).all()) and bool((n[off].abs() > case.tolerance).any()):
        return Mistake(
            "missing term",
            "each output element sends a gradient to its own input element only, and the function mixes elements: a term that sums "
            "over them is missing",
        )
    return None


def _constant(case: _Case) -> Mistake | None:
    missing = case.n - case.a
    if missing.numel() > 1 and case.same(missing, missing.mean().expand_as(missing)):
        return Mistake(
            "missing term", f"the same number, {_number(missing.flatten()[0])}, is missing from every element"
        )
    return None


def _known_value(case: _Case) -> Mistake | None:
    """For a function of each element: a factor or term that is one of the tensors at hand."""
    pair = case.diagonals()
    if pair is None or math.prod(case.out) < 2:
        return None
    a, n = pair
    if case.same(n - a, (n - a).mean().expand_as(a)):
        return Mistake("missing term", f"the analytic derivative lacks + {_number((n - a).flatten()[0])}")
    for name, value in _candidates(case):
        if value.is_complex() or not value.is_floating_point() or not expands_to(value.shape, case.out):
            continue
        value = value.detach().to(a.dtype).expand(case.out)
        for text, wanted in ((f"+ {name}", a + value), (f"- {name}", a - value)):
            if case.same(n, wanted):
                return Mistake("missing term", f"the analytic derivative lacks {text}")
        for text, wanted in ((f"* {name}", a * value), (f"/ {name}", a / value)):
            if case.same(n, wanted):
                return Mistake("factor", f"the analytic derivative lacks {text}")
    return None


def _candidates(case: _Case) -> Iterator[tuple[str, torch.Tensor]]:
    """What could be missing: the tensors at hand, and the other factor of a product with one of them."""
    yield from case.values.items()
    result = case.values.get("the result")
    if result is not None and not result.is_complex():
        for name, value in case.values.items():
            if value is not result and value.is_floating_point() and value.shape == result.shape:
                yield f"the result / {name}", result / value


def expands_to(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a tensor of one shape broadcasts to the other."""
    lead = len(to) - len(shape)
    return lead >= 0 and all(s in (1, t) for s, t in zip(shape, to[lead:], strict=True))


def _rank_one(case: _Case) -> Mistake | None:
    difference = case.matrix(case.n - case.a)
    wrong = case.matrix(case.wrong)
    difference = difference[wrong.any(1)][:, wrong.any(0)]  # one wrong row is no product of anything
    if min(difference.shape) < 3 or max(difference.shape) > 512:
        return None
    sizes = torch.linalg.svdvals(difference)
    if float(sizes[1]) <= 1e-3 * float(sizes[0]):
        return Mistake("missing term", "what is missing is one outer product: a term through a sum, a mean or a norm")
    return None


def _signs(case: _Case) -> Mistake | None:
    if not case.complex and case.same(case.a.abs(), case.n.abs()):
        return Mistake("sign", f"right in magnitude, wrong in sign{_where(case, case.wrong)}")
    return None


def _some_elements(case: _Case) -> Mistake | None:
    wrong, matters = case.wrong, case.n.abs() > case.tolerance
    right = int((~wrong & matters).sum())
    if not right:
        return None
    return Mistake(
        "some elements",
        f"right in {right} of the {int(matters.sum())} elements of the Jacobian that are not zero{_where(case, wrong)}",
    )


QUESTIONS = (
    _not_finite,
    _precision,
    _nothing,
    _sign,
    _conjugate,
    _factor,
    _transposed,
    _swapped,
    _missing_sum,
    _missing_elements,
    _mixing,
    _known_value,
    _constant,
    _rank_one,
    _signs,
    _some_elements,
)


# ---------------------------------------------------------------------------------------------- wording
def _where(case: _Case, wrong: torch.Tensor) -> str:
    """The slice of the input or the output that all wrong elements lie in, if there is one."""
    for axis, length, name in case.axes:
        hit = wrong.movedim(axis, 0).reshape(length, -1).any(1).nonzero().flatten().tolist()
        if len(hit) < length:
            return f"; all that is wrong lies at {'index' if len(hit) == 1 else 'indices'} {', '.join(map(str, hit[:6]))} of {name}"
    return ""


def _number(value: torch.Tensor) -> str:
    number = complex(value)
    return f"{number.real:.6g}" if number.imag == 0 else f"{number:.6g}"


def worst(analytic: Jacobian, numerical: Jacobian) -> tuple[Sequence[int], Sequence[int], int, complex, complex]:
    """Where the two differ most: output element, input element, part of the output, and both values."""
    wide = torch.complex128 if analytic.values.is_complex() or numerical.values.is_complex() else torch.float64
    a, n = analytic.values.to(wide), numerical.values.to(wide)
    error = (a - n).abs().nan_to_num(nan=math.inf)
    position = [int(i) for i in torch.unravel_index(error.argmax(), error.shape)]
    rank = len(analytic.output_shape)
    place = tuple(position)
    return position[1 : 1 + rank], position[1 + rank :], position[0], complex(a[place]), complex(n[place])
