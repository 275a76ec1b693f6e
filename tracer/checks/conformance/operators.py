"""One operator of torch's operator database through tracked tensors, compared with torch's own autograd."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tracer.checks.derivatives import (
    Derivatives,
    MakeLeaf,
    can_have_gradient,
    differentiate,
    first_difference,
    leaves_of,
    native_leaf,
    tracked_leaf,
)

#: torch's own list of operators with sample inputs, which its test suite is built on.
OP_DB = "torch.testing._internal.common_methods_invocations:op_db"

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "complex128": torch.complex128,
}

#: Relative to each element, and absolute; in low precision the latter grows with the largest element, since a sum that cancels
#: leaves the rounding error of its terms.
TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.bfloat16: 4e-2,
}


@dataclass(frozen=True)
class Job:
    """What is to be run of one operator; plain data that travels to a worker process."""

    op: str
    dtype: str = "float64"
    order: int = 1
    device: str = "cpu"
    #: At most that many samples; all of them where None.
    samples: int | None = None
    #: ``module:attribute`` of the list of operators.
    source: str = OP_DB


@dataclass
class Failure:
    """One way in which an operator fails: how often, and where first."""

    cause: str
    spelling: str
    sample: int
    example: str
    count: int = 1


@dataclass
class Outcome:
    """What came of one operator."""

    op: str
    tier: str
    dtype: str
    order: int
    #: Samples that at least one spelling compared, spellings that took part, comparisons made (one a sample and spelling).
    samples: int = 0
    spellings: list[str] = field(default_factory=list)
    checks: int = 0
    #: Calls that torch itself refuses, or cannot differentiate.
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    #: Why nothing was compared, where nothing was.
    note: str = ""

    @property
    def status(self) -> str:
        """``passed``, ``failed`` or ``untested`` (torch raised for every sample, or there is none)."""
        return "failed" if self.failures else "passed" if self.checks else "untested"

    def fail(self, cause: str, spelling: str = "", sample: int = -1, example: str = "") -> None:
        """Note a failure, together with those of the same cause."""
        for failure in self.failures:
            if failure.cause == cause:
                failure.count += 1
                return
        self.failures.append(Failure(cause, spelling, sample, example))


def full_name(op: Any) -> str:
    """``linalg.norm.subgradients_at_zero``: the operator and its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@cache
def load_ops(source: str) -> dict[str, Any]:
    """The operators of a list that torch can differentiate, by full name."""
    module, _, attribute = source.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = getattr(importlib.import_module(module), attribute)
    return {full_name(op): op for op in listed if op.supports_autograd}


@cache
def tiers() -> dict[str, str]:
    """The tier of each operator: A is what most networks need, D what hardly anyone calls."""
    sorting = json.loads((Path(__file__).parent / "op_tiers.json").read_text())
    return {name: tier for tier, names in sorting.items() for name in names}


def tier_of(name: str) -> str:
    """The tier of an operator; ``-`` for one that a newer torch added."""
    return tiers().get(name, "-")


def applies(op: Any, dtype: str, order: int, device: str) -> bool:
    """Whether torch differentiates the operator in this dtype, to this order."""
    known = op.supported_backward_dtypes(torch.device(device).type)
    return DTYPES[dtype] in known and (order == 1 or op.supports_gradgrad)


@dataclass(frozen=True)
class Way:
    """One way to write the operator."""

    name: str
    function: Callable[..., Any]
    in_place: bool = False

    def __call__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self.in_place:
            return self.function(*arguments, **keywords)
        written = arguments[0].clone()
        result = self.function(written, *arguments[1:], **keywords)
        assert result is written, "an in-place call has to give back the tensor that it wrote into"
        return result


def ways(op: Any) -> list[Way]:
    """Every way to write the operator that the database knows, each once."""
    listed = [
        ("function", op.get_op(), False),
        ("method", op.get_method(), False),
        ("in-place", op.get_inplace(), True),
        ("operator", op.get_operator(), False),
        ("in-place operator", op.get_inplace_operator(), True),
    ]
    for alias in op.aliases:
        listed += [
            (f"alias {alias.name}", alias.op, False),
            (f"alias {alias.name}, method", alias.method_variant, False),
            (f"alias {alias.name}, in-place", alias.inplace_variant, True),
        ]
    found: list[Way] = []
    for name, function, in_place in listed:
        if function is not None and all(function is not way.function for way in found):
            found.append(Way(name, function, in_place))
    return found


def tolerance_of(theirs: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute tolerance for a tensor of torch's."""
    tolerance = absolute = TOLERANCE.get(theirs.dtype, 0.0 if theirs.dtype != torch.float16 else 1e-2)
    if tolerance > 1e-6 and theirs.numel():
        absolute *= max(1.0, float(theirs.to_dense().abs().nan_to_num(0, 0, 0).max()))
    return tolerance, absolute


def compare(ours: Derivatives, theirs: Derivatives) -> str:
    """The first difference, said so that the same fault of two operators reads the same; empty if there is none."""
    found = first_difference(ours, theirs, tolerance_of)
    return "" if found is None else found.cause


def cause_of(error: BaseException) -> str:
    """Class and first line of an error, without what stands in brackets: the arguments differ from sample to sample."""
    line = next(iter(str(error).strip().splitlines()), "")
    shorter = re.sub(r" ?\([^()]*\)", "", line)
    while shorter != line:
        line, shorter = shorter, re.sub(r" ?\([^()]*\)", "", shorter)
    return f"{type(error).__name__}: {line[:200]}".rstrip(": ")


@dataclass
class Sample:
    """A sample taken apart: its tensors can be replaced by leaves of either kind."""

    leaves: list[Any]
    spec: Any
    process: Callable[[Any], Any]
    text: str

    @classmethod
    def of(cls, sample: Any) -> Sample:
        """Take a sample of the database apart."""
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        text = ", ".join(
            f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, torch.Tensor) else repr(v)[:60] for v in leaves
        )
        return cls(leaves, spec, sample.output_process_fn_grad, text[:300])

    def native(self, way: Way, order: int) -> tuple[list[int], Derivatives]:
        """What torch gives, and for which inputs: for all, or, where it cannot, for those that the database marks.

        Raises what torch raises.
        """
        able = [i for i, v in enumerate(self.leaves) if can_have_gradient(v)]
        marked = [i for i in able if self.leaves[i].requires_grad]
        try:
            found = self.run(way, able, order, native_leaf)
        except Exception:
            if able == marked:
                raise
            return marked, self.run(way, marked, order, native_leaf)
        # torch takes running statistics that require grad when the batch is empty, and gives them nothing.
        useful = [i for i, g in zip(able, found.first, strict=True) if i in marked or g is not None]
        return (able, found) if useful == able else (useful, self.run(way, useful, order, native_leaf))

    def run(self, way: Way, wanted: list[int], order: int, leaf: MakeLeaf) -> Derivatives:
        """Call the operator on fresh leaves."""

        def call(leaves: list[Any]) -> Any:
            arguments, keywords = tree_unflatten(leaves, self.spec)
            return self.process(way(arguments, keywords))

        return differentiate(call, leaves_of(self.leaves, wanted, leaf), wanted, order, leaf)


def samples_of(op: Any, job: Job) -> Iterator[Sample]:
    """The operator's samples."""
    taken = op.sample_inputs(job.device, DTYPES[job.dtype], requires_grad=True)
    return map(Sample.of, itertools.islice(taken, job.samples))


def lost(job: Job, cause: str, seconds: float) -> Outcome:
    """What came of an operator whose process crashed or ran out of time."""
    outcome = Outcome(job.op, tier_of(job.op), job.dtype, job.order, seconds=seconds)
    outcome.fail(cause)
    return outcome


def run(job: Job) -> Outcome:
    """Every spelling of one operator on every sample. Nothing but an end of the process keeps it from an answer."""
    began = time.perf_counter()
    outcome = Outcome(job.op, tier_of(job.op), job.dtype, job.order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op = load_ops(job.source)[job.op]
        try:
            samples = list(samples_of(op, job))
        except Exception as error:
            samples, outcome.note = [], f"torch cannot make the samples: {cause_of(error)}"
        compared = set()
        for way in ways(op):
            for index, sample in enumerate(samples):
                if _check(outcome, way, index, sample):
                    compared.add(index)
                    if way.name not in outcome.spellings:
                        outcome.spellings.append(way.name)
    outcome.samples = len(compared)
    if not outcome.checks and not outcome.note:
        outcome.note = f"torch itself raises for all of {len(samples)} samples" if samples else "no samples"
    outcome.seconds = time.perf_counter() - began
    return outcome


def _check(outcome: Outcome, way: Way, index: int, sample: Sample) -> bool:
    """Compare one call; False where torch itself raises."""
    try:
        wanted, theirs = sample.native(way, outcome.order)
    except Exception:
        outcome.skipped += 1
        return False
    outcome.checks += 1
    try:
        difference = compare(sample.run(way, wanted, outcome.order, tracked_leaf), theirs)
    except Exception as error:
        difference = cause_of(error)
    if difference:
        outcome.fail(difference, way.name, index, sample.text)
    return True
