"""How exact gradients in half precision are, beside those of torch's own backward on the same inputs (``--accuracy``).

The error of a gradient is its distance from the one that the same call has in float64, of the same numbers. It is taken in two ways, and
the worse counts. In the mean each element counts relative to itself, or to the median element where that is larger: so neither a huge
element nor one that cancels to nothing decides alone. The largest counts relative to the largest element. What is reported is the ratio
of our error to torch's.

Two things keep chance out. An error below that of a correctly rounded result counts as that: torch is exact by luck now and then. And a
ratio that is found to be high is measured again, on ever more fresh inputs and cotangents: only what is found in the last look counts.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.check import Job, cause_of
from tracer.checks.conformance.enlarged import AS_IT_IS, Variant, enlarged
from tracer.checks.conformance.operators import DTYPES, load_ops, tier_of, ways
from tracer.checks.conformance.samples import OpSample, seed_call
from tracer.checks.leaves import MakeLeaf, can_have_gradient, leaves_of, native_leaf, plain, tensors_of, tracked_leaf
from tracer.checks.op_database import SEED, samples_of

#: The largest ratio of our error to torch's.
LIMIT = 1.5

#: Dtypes that are rounded so coarsely that it matters.
HALF = ("bfloat16", "float16")

#: At most that many samples of an operator, evenly spread, and so many of them enlarged.
MOST_SAMPLES, MOST_ENLARGED = 24, 8

#: How often the inputs are drawn in one look after the other. The next look is taken where the last one found a ratio above
#: ``DOUBTFUL`` in fewer than ``ENOUGH`` elements.
LOOKS, DOUBTFUL, ENOUGH = (3, 12, 50, 200), 1.3, 10_000

#: Cotangents for each draw of the inputs, and the most elements that the arguments may have.
COTANGENTS, MOST_ELEMENTS = 2, 40_000

#: A smaller element of a gradient in float64 is taken for the rounding error of a zero; and there ours and torch's are as close as this,
#: or are left out: which of them is right is for the comparison in float64.
SMALLEST, SAME = 1e-9, 1e-5

#: What stands for an error that is infinite.
HUGE = 1e6


@dataclass
class Draws:
    """The gradient of one input in all draws: ours and torch's in half precision, and that in float64."""

    dtype: torch.dtype
    ours: list[torch.Tensor] = field(default_factory=list)
    theirs: list[torch.Tensor] = field(default_factory=list)
    exact: list[torch.Tensor] = field(default_factory=list)

    def add(self, ours: torch.Tensor, theirs: torch.Tensor, our_exact: torch.Tensor, exact: torch.Tensor) -> None:
        """Note one draw, but for the elements that the dtype cannot hold or that have no one value in float64."""
        ours, theirs, our_exact, exact = (g.to_dense().double().reshape(-1) for g in (ours, theirs, our_exact, exact))
        kept = exact.to(self.dtype).isfinite() & theirs.isfinite() & (exact.abs() > SMALLEST)
        kept &= (our_exact - exact).abs() <= SAME * exact.abs()
        if kept.any():
            self.ours.append(ours[kept].nan_to_num(HUGE, HUGE, -HUGE))
            self.theirs.append(theirs[kept])
            self.exact.append(exact[kept])

    def elements(self) -> int:
        """How many numbers were compared."""
        return sum(g.numel() for g in self.exact)

    def errors(self) -> tuple[float, float, float]:
        """The ratio of our error to torch's, and both, for the way of taking it in which the ratio is larger."""
        if not self.exact:
            return 0.0, 0.0, 0.0
        rounded = [g.to(self.dtype).double() for g in self.exact]
        least = torch.finfo(self.dtype).eps / 6  # about that of a rounded result
        found = []
        for error in (mean_error, largest_error):
            ours, theirs, rounding = (error(gradients, self.exact) for gradients in (self.ours, self.theirs, rounded))
            found.append((ours / max(theirs, rounding, least), ours, theirs))
        return max(found)


def mean_error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The mean over all elements, each relative to itself or to the median one."""
    wanted = torch.cat(list(exact))
    size = wanted.abs()
    return float(((torch.cat(list(found)) - wanted).abs() / torch.maximum(size, size.median())).mean())


def largest_error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest of each draw relative to the largest element, both in the mean over the draws."""
    errors = sum(float((f - e).abs().max()) for f, e in zip(found, exact, strict=True))
    return errors / sum(float(e.abs().max()) for e in exact)


# ---------------------------------------------------------------------------------------------- gradients
class NotComparableError(Exception):
    """torch refuses the call, or it is another call in another dtype: a random op draws other numbers."""


class Measurement:
    """One operator in one dtype."""

    def __init__(self, job: Job) -> None:
        self.device = job.device
        self.dtype = DTYPES[job.dtype]
        self.op = load_ops(job.source)[job.op]
        self.way = ways(self.op)[0]
        self._drawn: dict[int, list[OpSample]] = {}

    def samples(self, draw: int) -> list[OpSample]:
        """The samples of the database, with other random numbers for each draw."""
        if draw not in self._drawn:
            taken = samples_of(self.op, self.device, self.dtype, requires_grad=True, seed=SEED + draw)
            self._drawn[draw] = [OpSample.of(s) for s in taken]
        return self._drawn[draw]

    def measure(self, index: int, variant: Variant, draws: range) -> dict[int, Draws]:
        """The gradient of each input, by its position, in these draws. Raises ``NotComparableError``, and what our call raises."""
        found: dict[int, Draws] = {}
        for draw in draws:
            if index >= len(self.samples(draw)):  # how many there are may depend on chance
                raise NotComparableError
            sample = self.samples(draw)[index]
            arguments = variant.arguments(sample.leaves, torch.Generator().manual_seed(draw))
            if sum(v.numel() for v in arguments if isinstance(v, torch.Tensor)) > MOST_ELEMENTS:
                raise NotComparableError
            self._draw(found, sample, arguments, draw)
        return found

    def _draw(self, found: dict[int, Draws], sample: OpSample, arguments: list[Any], seed: int) -> None:
        able = [i for i, v in enumerate(arguments) if can_have_gradient(v) and v.numel()]
        wanted = [i for i in able if sample.leaves[i].requires_grad] or able
        doubles = [in_double(v) for v in arguments]
        try:
            values, theirs = self._gradients(sample, arguments, wanted, native_leaf, seed)
            exact_values, exact = self._gradients(sample, doubles, wanted, native_leaf, seed)
        except Exception as error:
            raise NotComparableError from error
        if not same_call(values, exact_values):
            raise NotComparableError
        _, ours = self._gradients(sample, arguments, wanted, tracked_leaf, seed)
        _, our_exact = self._gradients(sample, doubles, wanted, tracked_leaf, seed)
        for of_one_cotangent in zip(ours, theirs, our_exact, exact, strict=True):
            for position, four in zip(wanted, zip(*of_one_cotangent, strict=True), strict=True):
                present = [g for g in four if g is not None]
                if arguments[position].dtype is self.dtype and len(present) == len(four):
                    found.setdefault(position, Draws(self.dtype)).add(*present)

    def _gradients(
        self, sample: OpSample, arguments: list[Any], wanted: list[int], leaf: MakeLeaf, seed: int
    ) -> tuple[list[torch.Tensor], list[list[torch.Tensor | None]]]:
        """The results, and the gradients of the wanted arguments for each cotangent."""
        leaves = leaves_of(arguments, wanted, leaf)
        seed_call()
        positional, keywords = tree_unflatten(leaves, sample.spec)
        outputs = [o for o in tensors_of(sample.process(self.way(positional, keywords))) if o.requires_grad]
        found: list[list[torch.Tensor | None]] = []
        for number in range(COTANGENTS if outputs else 0):
            cotangents = [cotangent_of(o, COTANGENTS * seed + number) for o in outputs]
            grads = torch.autograd.grad(
                outputs, [leaves[i] for i in wanted], cotangents, retain_graph=True, allow_unused=True
            )
            found.append([None if g is None else plain(g) for g in grads])
        return [plain(o) for o in outputs], found


def cotangent_of(output: torch.Tensor, seed: int) -> torch.Tensor:
    """Random numbers of 8 significant bits, which every dtype holds exactly."""
    generator = torch.Generator().manual_seed(-1 - seed)  # other numbers than those of the samples
    values = torch.randn(tuple(output.shape), generator=generator).bfloat16()
    return values.to(device=output.device, dtype=output.dtype)


def in_double(value: Any) -> Any:
    """The same argument of the call in float64."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return plain(value).double()
    return torch.float64 if isinstance(value, torch.dtype) and value in (torch.bfloat16, torch.float16) else value


def same_call(values: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> bool:
    """Whether a call gave the same results in two dtypes, up to rounding."""
    for value, wanted in zip(values, exact, strict=True):
        value, wanted = value.to_dense().double(), wanted.to_dense().double()
        kept = value.isfinite() & wanted.isfinite()
        if kept.any() and float((value - wanted)[kept].norm()) > 0.1 * float(wanted[kept].norm()):
            return False
    return True


# ---------------------------------------------------------------------------------------------- one operator
@dataclass
class Accuracy:
    """What came of one operator: the largest ratio of our error to torch's, with both errors, and where."""

    op: str
    tier: str
    dtype: str
    ratio: float = 0.0
    ours: float = 0.0
    torch: float = 0.0
    where: str = ""
    #: Gradients compared.
    checks: int = 0
    seconds: float = 0.0


def lost_accuracy(job: Job, cause: str, seconds: float) -> Accuracy:
    """What came of an operator whose process crashed or ran out of time."""
    return Accuracy(job.op, tier_of(job.op), job.dtype, math.inf, where=cause, seconds=seconds)


def check_accuracy(job: Job) -> Accuracy:
    """The worst gradient of one operator. Nothing but an end of the process keeps it from an answer."""
    began = time.perf_counter()
    outcome = Accuracy(job.op, tier_of(job.op), job.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            measurement = Measurement(job)
            samples = measurement.samples(0)
        except Exception as error:
            outcome.where = f"torch cannot make the samples: {cause_of(error)}"
            return outcome
        most = job.samples or MOST_SAMPLES
        step, large_step = (max(1, -(-len(samples) // count)) for count in (most, min(most, MOST_ENLARGED)))
        for index, sample in enumerate(samples):
            variants = [AS_IT_IS] if index % step == 0 else []
            variants += enlarged(job.op, sample) if index % large_step == 0 else []
            for variant in variants:
                _look_at(outcome, measurement, index, variant)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _look_at(outcome: Accuracy, measurement: Measurement, index: int, variant: Variant) -> None:
    """Measure one call, as often as it takes."""
    text = f"of sample {index} ({measurement.samples(0)[index].text}) {variant.name}".rstrip()
    seen, found = 0, {}
    try:
        for draws in LOOKS:
            found = measurement.measure(index, variant, range(seen, seen + draws))
            seen += draws
            if all(f.elements() >= ENOUGH for f in found.values() if f.errors()[0] > DOUBTFUL):
                break
    except (NotComparableError, UnsupportedCallError):
        return
    except Exception as error:
        outcome.ratio, outcome.where = math.inf, f"{cause_of(error)} {text}"
        return
    outcome.checks += len(found)
    for position, gradients in found.items():
        errors = gradients.errors()
        if errors[0] > outcome.ratio:
            outcome.ratio, outcome.ours, outcome.torch = errors
            outcome.where = f"argument {position} {text}"


def accuracy_table(outcomes: Iterable[Accuracy]) -> str:
    """Every operator, the worst first, and how many are above the limit."""
    rows = sorted(outcomes, key=lambda o: (-o.ratio, o.op))
    lines = ["ratio  our error  torch's  gradients  operator, and where"]
    for o in rows:
        where = o.where or ("exact" if o.checks else "nothing to compare")
        lines.append(f"{o.ratio:5.2f}  {o.ours:9.1e}  {o.torch:7.1e}  {o.checks:9}  {o.tier} {o.op}: {where}")
    above = sum(o.ratio > LIMIT for o in rows)
    compared = sum(o.checks > 0 for o in rows)
    return "\n".join([*lines, "", f"{compared} operators compared, {above} above {LIMIT} times torch's error."])
