"""``python -m tracer.checks.symbolic_sizes``: compiled steps of symbolic sizes over torch's operator database, in float64.

Of every sample of every operator that torch can differentiate, a step that runs the operator and goes back through it is compiled with
``dynamic=True``. It is called with the sample, and then at up to three other sizes that the operator takes eagerly: all dimensions of one
length made longer, where a number that was taken from the sizes of the first call would show. Each call is held to the eager step with the
same seed. Each sample is *equal* in all calls, *refused* by a ``CaptureError``, or a failure.

A call at another size is *served* by the graph that is there, or *captured again*: operators whose code asks for sizes have a graph for
each answer. ``--ops REGEX`` takes only operators in whose name it finds a match, ``--samples N`` at most N samples an operator (4 unless
said). The exit status is 1 when anything fails.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tracer.checks.compiled_steps.steps import Given, Step, differ, given_by, unseeded
from tracer.checks.conformance.operators import operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples
from tracer.checks.leaves import can_have_gradient, plain
from tracer.checks.over_operators import run_over_operators
from tracer.compiled.api import compile
from tracer.errors import CaptureError

#: torch writes beyond its memory where lengths do not fit the data, which they no longer do.
NOT_RESIZED = "_segment_reduce"
#: At so many other sizes a sample is called.
SIZES = 3


@dataclass
class Outcome:
    """What was found of all operators."""

    counts: Counter[str] = field(default_factory=Counter)
    #: By operator, the first sample that is refused, and the first that fails.
    refused: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def resized(name: str, sample: OpSample) -> Iterator[OpSample]:
    """The sample with all dimensions of one length made longer, twice as long or by one. The operator need not take it."""
    tensors = [v for v in sample.leaves if isinstance(v, torch.Tensor)]
    if name.startswith(NOT_RESIZED) or any(t.layout is not torch.strided for t in tensors):
        return
    lengths = sorted({size for t in tensors for size in t.shape if size > 1})
    for length in lengths:
        for more in (length, 1):
            leaves = [_longer(v, length, more) if isinstance(v, torch.Tensor) else v for v in sample.leaves]
            yield replace(sample, leaves=leaves, text=f"{sample.text}, with {length + more} for {length}")


def _longer(tensor: torch.Tensor, length: int, more: int) -> torch.Tensor:
    """Floating elements are made smaller, each by another factor: they stay in most domains, and no two rows are the same."""
    longer = plain(tensor)
    for dim, size in enumerate(tensor.shape):
        if size == length:
            longer = longer.index_select(dim, torch.arange(length + more) % length)
    if can_have_gradient(tensor) and longer.numel():
        longer = longer * (0.6 + 0.4 * torch.linspace(0, 50, longer.numel()).sin().square().reshape(longer.shape))
    return longer.to(tensor.dtype).requires_grad_(tensor.requires_grad)


def _eager(step: Step) -> Given | None:
    try:
        return given_by(step, step.inputs(False))
    except Exception:
        return None


def hold(name: str, step: Step, outcome: Outcome) -> None:
    """Compile one step and compare its calls with eager ones."""
    calls = [(step, _eager(step))]
    for sample in resized(name, step.sample):
        other = Step(step.way, sample)
        calls.append((other, _eager(other)))
    calls = [calls[0], *[call for call in calls[1:] if call[1] is not None][:SIZES]]
    if calls[0][1] is None or len(calls) == 1:
        outcome.counts["takes no other size"] += 1
        return
    compiled = compile(step, backend="replay", dynamic=True)
    text: Any = None
    try:
        for called, expected in calls:
            found = differ(given_by(compiled, called.inputs(False)), expected or [])
            text = text or (found and f"{called.sample.text}: {found}")
    except CaptureError as error:
        outcome.counts["refused"] += 1
        outcome.refused.setdefault(name, f"{called.sample.text}: {error}")
        return
    except Exception as error:
        text = f"{called.sample.text}: {type(error).__name__}: {error}"
    graphs = len(compiled.explain().rows)
    outcome.counts["captured again"] += max(graphs - 1, 0)
    outcome.counts["served"] += len(calls) - max(graphs, 1)
    outcome.counts["equal" if text is None else "failed"] += 1
    if text is not None:
        outcome.failures.setdefault(name, text[:600])


def check(pattern: str, samples: int | None) -> Outcome:
    """Hold every operator in whose name ``pattern`` finds a match."""
    outcome = Outcome()
    for name, op in operators(pattern).items():
        function = next(way for way in ways(op) if way.name == "function")
        with unseeded(function.function):
            for sample in first_samples(op, samples):
                if any(isinstance(v, torch.Tensor) and v.requires_grad for v in sample.leaves):
                    hold(name, Step(function, sample), outcome)
    return outcome


def report(outcome: Outcome) -> int:
    """Print what was found; the exit status."""
    print(", ".join(f"{count} {what}" for what, count in outcome.counts.most_common()))
    for name, text in outcome.refused.items():
        print(f"  refused: {name}: {text[:300]}")
    for name, text in outcome.failures.items():
        print(f"  FAILED: {name}: {text}")
    return int(bool(outcome.failures))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    assert __doc__ is not None
    return run_over_operators("tracer.checks.symbolic_sizes", __doc__, 4, check, report, arguments)


if __name__ == "__main__":
    sys.exit(main())
