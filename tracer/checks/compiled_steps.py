"""``python -m tracer.checks.compiled_steps``: compiled steps over torch's operator database, in float64.

Of every sample of every operator that torch can differentiate, a step that runs the operator and goes back through it is compiled. It is
called with the sample, and again with other values of the same shapes, where a number that was taken from the values of the first call
would show. Results, gradients and what the operator writes are held to the same step run eagerly with the same seed. Each sample is

- *equal* to the eager step, both times;
- *refused* by a ``CaptureError``, before anything is computed; or
- *of another stream*: the operator draws random numbers, and ``--backend inductor`` draws them in another way.

Anything else is a failure. ``--ops REGEX`` takes only operators in whose name it finds a match, ``--samples N`` at most N samples an
operator (4 unless said). The exit status is 1 when something fails that ``KNOWN`` does not name.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import Way, operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples
from tracer.checks.leaves import can_have_gradient, plain, requiring_grad, tensors_of, tracked_leaf, twin
from tracer.checks.tolerances import database_tolerance
from tracer.compiled.api import compile
from tracer.errors import CaptureError

#: What fails, by operator, and why.
KNOWN: dict[str, str] = {}

#: What a step gives: its results, the gradients of its inputs, its inputs as the step leaves them.
Given = list[torch.Tensor | None]


@dataclass
class Step:
    """One sample as a training step: the operator, then a backward pass from everything that requires grad."""

    way: Way
    sample: OpSample

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """``tensors`` take the places of the sample's. Returns the results of the operator."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(v, torch.Tensor) else v for v in self.sample.leaves]
        arguments, keywords = tree_unflatten(leaves, self.sample.spec)
        results = tensors_of(self.sample.process(self.way(arguments, keywords)))
        wanted = requiring_grad(results)
        torch.autograd.backward(wanted, [cotangent_of(result) for result in wanted])
        return results

    def inputs(self, other: bool) -> list[torch.Tensor]:
        """Fresh tensors, tracked where a gradient is wanted; with ``other`` the values of the sample in another order."""
        made: dict[int, torch.Tensor] = {}
        for leaf in self.sample.leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
                copied = twin(leaf)
                if other and leaf.layout is torch.strided and leaf.dim():
                    copied.copy_(copied.clone().roll(1, -1))
                able = can_have_gradient(leaf) and leaf.requires_grad
                made[id(leaf)] = tracked_leaf(copied, True) if able else copied
        return [made[id(leaf)] for leaf in self.sample.leaves if isinstance(leaf, torch.Tensor)]


def cotangent_of(result: torch.Tensor) -> torch.Tensor:
    """A cotangent whose elements differ. None drawn at random: that would be a part of the step."""
    numbers = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape).sin() + 0.5
    wide = torch.complex(numbers, 1 - numbers) if result.is_complex() else numbers
    return wide.to(result.dtype)


def given_by(step: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int = 0) -> Given:
    """What one call gives, as plain tensors."""
    torch.default_generator.manual_seed(seed)
    results = step(*inputs)
    return [None if t is None else plain(t).clone() for t in (*results, *(t.grad for t in inputs), *inputs)]


def differ(ours: Given, theirs: Given) -> str | None:
    """How two lists of tensors differ, to the tolerance of the database."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results and {len(theirs)}"
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a is None or b is None:
            if a is not b:
                return f"tensor {position} is missing on one side"
        elif a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
            return f"tensor {position}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        else:
            rtol, atol = database_tolerance(b)
            if not torch.allclose(a.to_dense(), b.to_dense(), rtol=rtol, atol=atol, equal_nan=True):
                return f"tensor {position}: {a.flatten()[:3].tolist()} and {b.flatten()[:3].tolist()}"
    return None


@dataclass
class Outcome:
    """What was found of all operators."""

    counts: Counter[str] = field(default_factory=Counter)
    #: By operator, the first sample that is refused, and the first that fails.
    refused: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    other_streams: set[str] = field(default_factory=set)


def hold(name: str, step: Step, backend: str, outcome: Outcome) -> None:
    """Compile one step and compare its first and its second call with eager ones."""
    try:
        eager = [given_by(step, step.inputs(False))]
    except Exception:
        outcome.counts["raises eagerly"] += 1
        return
    compiled = compile(step, backend=backend)
    try:
        found = [given_by(compiled, step.inputs(False))]
        try:
            eager.append(given_by(step, step.inputs(True)))
        except Exception:
            outcome.counts["other values raise eagerly"] += 1
        else:
            found.append(given_by(compiled, step.inputs(True)))
    except CaptureError as error:
        outcome.counts["refused"] += 1
        outcome.refused.setdefault(name, str(error))
        return
    except Exception as error:
        text: str | None = f"{type(error).__name__}: {error}"
    else:
        parts = (differ(a, b) for a, b in zip(found, eager, strict=True))
        text = next((f"call {call}: {part}" for call, part in enumerate(parts) if part is not None), None)
    if text is None:
        outcome.counts["equal"] += 1
    elif backend != "replay" and differ(eager[0], given_by(step, step.inputs(False), seed=1)) is not None:
        outcome.counts["of another stream"] += 1
        outcome.other_streams.add(name)
    else:
        outcome.counts["failed"] += 1
        outcome.failures.setdefault(name, f"{step.sample.text}: {text}"[:600])


def check(pattern: str, samples: int | None, backend: str) -> Outcome:
    """Hold every operator in whose name ``pattern`` finds a match."""
    outcome = Outcome()
    for name, op in operators(pattern).items():
        function = next(way for way in ways(op) if way.name == "function")
        for sample in first_samples(op, samples):
            step = Step(function, sample)
            if any(isinstance(v, torch.Tensor) and v.requires_grad for v in sample.leaves):
                hold(name, step, backend, outcome)
    return outcome


def report(outcome: Outcome) -> int:
    """Print what was found; the exit status."""
    print(", ".join(f"{count} {what}" for what, count in outcome.counts.most_common()))
    print(f"draw another stream: {', '.join(sorted(outcome.other_streams)) or 'none'}")
    for name, text in outcome.refused.items():
        print(f"  refused: {name}: {text[:200]}")
    for name, text in outcome.failures.items():
        print(f"  {name}: {KNOWN.get(name, text)}")
    return int(any(name not in KNOWN for name in outcome.failures))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tracer.checks.compiled_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators in whose name this expression finds a match")
    parser.add_argument("--samples", type=int, default=4, help="at most so many samples an operator")
    parser.add_argument("--backend", default="replay", choices=("replay", "inductor"), help="what runs the graphs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return report(check(options.ops, options.samples, options.backend))


if __name__ == "__main__":
    sys.exit(main())
