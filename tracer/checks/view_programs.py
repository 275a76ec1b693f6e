"""``python -m tracer.checks.view_programs``: random programs of views, in-place writes, ordinary ops and reads, on torch and on ours.

Values, gradients and second gradients are equal, or both raise. ``python -m tracer.checks.view_programs 20000`` runs that many programs
(20,000 where no number is given), drawn by ``--seed N`` (0), and prints what came of them and the first ``--show N`` (5) that differ.
The exit status is 1 when one differs. The suite runs a few hundred.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer.checks.leaves import plain
from tracer.errors import UnsupportedError
from tracer.tracked_tensor import tensor

T = torch.Tensor


def _dim(t: T, k: int) -> int:
    return k % t.dim()


def _narrow(t: T, k: int) -> T:
    d = _dim(t, k)
    size = t.size(d)
    start = (k // 3) % size
    return t.narrow(d, start, 1 + (k // 7) % (size - start))


VIEWS: dict[str, Callable[[T, int], T]] = {
    "select": lambda t, k: t.select(_dim(t, k), k % t.size(_dim(t, k))),
    "slice": lambda t, k: t[k % t.size(0) :],
    "step": lambda t, k: t[:: 1 + k % 2],
    "narrow": _narrow,
    "transpose": lambda t, k: t.transpose(0, _dim(t, k)),
    "T": lambda t, k: t.mT if t.dim() > 1 else t.view_as(t),
    "flatten": lambda t, k: t.view(-1),
    "unsqueeze": lambda t, k: t.unsqueeze(k % 2),
    "squeeze": lambda t, k: t.squeeze(),
    "diagonal": lambda t, k: t.diagonal() if t.dim() > 1 else t[:1],
    "view_as": lambda t, k: t.view_as(t),
    "unbind": lambda t, k: t.unbind(0)[k % t.size(0)],
    "split": lambda t, k: t.split(1 + k % 2)[0],
    "expand": lambda t, k: t.unsqueeze(0).expand(2, *t.shape),
    "item": lambda t, k: t[k % t.size(0)],
    "reshape": lambda t, k: t.reshape(-1),
    "unfold": lambda t, k: t.unfold(0, 1 + k % t.size(0), 1),
}

PURE: dict[str, Callable[[T, int], T]] = {
    "sin": lambda t, k: t.sin(),
    "tanh": lambda t, k: t.tanh(),
    "scaled": lambda t, k: t * 0.7,
    "square": lambda t, k: t * t,
    "clone": lambda t, k: t.clone(),
    "sum": lambda t, k: t.sum(0, keepdim=True),
    "shuffled": lambda t, k: t[torch.arange(t.size(0)).flip(0)],
}

WRITES: dict[str, Callable[[T, int], Any]] = {
    "mul_": lambda t, k: t.mul_(0.9),
    "add_": lambda t, k: t.add_(0.3),
    "sin_": lambda t, k: t.sin_(),
    "tanh_": lambda t, k: t.tanh_(),
    "zero_": lambda t, k: t.zero_(),
    "fill_": lambda t, k: t.fill_(0.4),
    "clamp_": lambda t, k: t.clamp_(-0.5, 0.5),
    "relu_": lambda t, k: t.relu_(),
    "item = number": lambda t, k: t.__setitem__(k % t.size(0), 0.2),
    "slice = number": lambda t, k: t.__setitem__(slice(k % t.size(0), None), -0.1),
    "mask = number": lambda t, k: t.__setitem__(t.detach() > 0, 0.5),
    "masked_fill_": lambda t, k: t.masked_fill_(t.detach() < 0, 0.1),
    "neg_": lambda t, k: t.neg_(),
    "t_": lambda t, k: t.t_() if t.dim() <= 2 else t.transpose_(0, 1),
    "unsqueeze_": lambda t, k: t.unsqueeze_(0),
    "squeeze_": lambda t, k: t.squeeze_(),
}

#: With a second tensor of the same shape.
BINARY: dict[str, Callable[[T, T], Any]] = {
    "product": lambda a, b: a * b,
    "difference": lambda a, b: a - b,
}

BINARY_WRITES: dict[str, Callable[[T, T], Any]] = {
    "add_ tensor": lambda a, b: a.add_(b),
    "mul_ tensor": lambda a, b: a.mul_(b),
    "copy_": lambda a, b: a.copy_(b),
    "all = tensor": lambda a, b: a.__setitem__(slice(None), b),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
}

# Views made under no_grad are left out: in torch 2.13 they say that they require grad, against its documentation.
SPECIAL = ("detach", "no_grad write", "buffer", "drop")

NAMES = [*VIEWS, *VIEWS, *PURE, *WRITES, *BINARY, *BINARY_WRITES, *BINARY_WRITES, *SPECIAL]


@dataclass(frozen=True)
class Instruction:
    """One line of a program: what is done to which tensor, with which numbers."""

    name: str
    target: int
    other: int
    number: int


Program = tuple[Instruction, ...]


def random_program(rng: random.Random) -> Program:
    """Three to twelve random instructions."""
    length = rng.randint(3, 12)
    return tuple(
        Instruction(rng.choice(NAMES), rng.randrange(1000), rng.randrange(1000), rng.randrange(1000))
        for _ in range(length)
    )


@dataclass
class ProgramResult:
    """What a program led to: the step that raised, or values and derivatives."""

    raised_at: int | None
    error: Exception | None
    values: list[T]
    first: list[T]
    second: list[T]
    #: Which of the tensors that the program ends with require grad: the loss is made of them.
    carrying: list[bool] = field(default_factory=list)


def _step(tensors: list[T], step: Instruction) -> None:
    t = tensors[step.target % len(tensors)]
    name, k = step.name, step.number
    if name in SPECIAL:
        if name == "detach":
            tensors.append(t.detach())
        elif name == "buffer":
            tensors.append(torch.zeros(t.shape, dtype=t.dtype))
        elif name == "drop":
            if len(tensors) > 2:
                tensors.pop(1 + k % (len(tensors) - 1))
        else:
            with torch.no_grad():
                t.mul_(0.8)
        return
    if name in BINARY or name in BINARY_WRITES:
        same = [s for s in tensors if s.shape == t.shape]
        other = same[step.other % len(same)]
        result = BINARY[name](t, other) if name in BINARY else BINARY_WRITES[name](t, other)
        if name in BINARY:
            tensors.append(result)
        return
    if t.dim() == 0 or 0 in t.shape or t.dim() > 4:
        return
    if name in WRITES:
        WRITES[name](t, k)
    else:
        tensors.append((VIEWS.get(name) or PURE[name])(t, k))


def run_program(program: Program, leaf: T) -> ProgramResult:
    """Run a program from one leaf; the same code for torch and for ours."""
    tensors = [leaf * 1.1, leaf.sin()]
    if program[0].number % 10 == 0:  # seldom the leaf itself: most that is written into it or its views raises
        tensors.append(leaf)
    for i, step in enumerate(program):
        try:
            _step(tensors, step)
        except (RuntimeError, IndexError) as error:
            return ProgramResult(i, error, [], [], [])
    values = [plain(t).clone() for t in tensors]
    try:
        parts = ((t * (i + 1)).sum() for i, t in enumerate(tensors) if t.requires_grad)
        loss: Any = sum(parts, torch.zeros((), dtype=leaf.dtype))
        (first,) = torch.autograd.grad(loss.square(), leaf, create_graph=True, allow_unused=True)
        second = None
        if first is not None and first.requires_grad:
            (second,) = torch.autograd.grad(first.square().sum(), leaf, allow_unused=True)
    except (RuntimeError, IndexError) as error:
        return ProgramResult(len(program), error, values, [], [])
    zero = torch.zeros_like(plain(leaf))
    carrying = [t.requires_grad for t in tensors]
    return ProgramResult(
        None,
        None,
        values,
        [zero if first is None else plain(first)],
        [zero if second is None else plain(second)],
        carrying,
    )


def compare_program(program: Program) -> str:
    """``"equal"``, ``"both raise"``, ``"unsupported"`` or ``"torch stricter"``; raises ``AssertionError`` where they differ."""
    data = torch.linspace(-1, 1.3, 12, dtype=torch.float64).view(3, 4)
    theirs = run_program(program, data.clone().requires_grad_())
    ours = run_program(program, tensor(data, requires_grad=True))
    if isinstance(ours.error, UnsupportedError):
        return "unsupported"
    if theirs.error is not None and ours.error is None:
        check_by_differences(program, data, ours)
        return "torch stricter"
    if theirs.raised_at is not None or ours.raised_at is not None:
        # What torch finds when a tensor is used, ours may find in the backward pass only.
        in_order = theirs.raised_at is not None and ours.raised_at is not None and theirs.raised_at <= ours.raised_at
        assert in_order, (
            f"torch raised at {theirs.raised_at}: {theirs.error}\nours at {ours.raised_at}: {type(ours.error)} {ours.error}\n{program}"
        )
        return "both raise"
    for what in ("values", "first", "second"):
        for i, (a, b) in enumerate(zip(getattr(ours, what), getattr(theirs, what), strict=True)):
            where = f"{what} {i}"
            assert a.shape == b.shape, f"{where}: shape {a.shape} and {b.shape}\n{program}"
            assert_close(a, b, 1e-8, 1e-10, f"{where} of {program}")
    return "equal"


def assert_close(ours: T, theirs: T, rtol: float, atol: float, where: str) -> None:
    """``torch.testing.assert_close``, whose message says where."""
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, msg=lambda message: f"{where}: {message}")


def check_by_differences(program: Program, data: T, ours: ProgramResult) -> None:
    """Where torch refuses a program and ours does not, our gradient is that of central differences.

    torch forbids the use of views after some writes that harm nothing, and counts what only a gradient of zero would have read.
    Programs that cut the history themselves are beyond differences.
    """
    if any(step.name in ("detach", "no_grad write") for step in program):
        return

    def loss(at: T) -> T:
        tensors = values_of(program, at)
        parts = ((t * (i + 1)).sum() for i, t in enumerate(tensors) if ours.carrying[i])
        return sum(parts, torch.zeros((), dtype=at.dtype)).square()

    direction = torch.randn(data.shape, generator=torch.Generator().manual_seed(0), dtype=data.dtype)
    measured = (loss(data + 1e-6 * direction) - loss(data - 1e-6 * direction)) / 2e-6
    predicted = (ours.first[0] * direction).sum()
    assert_close(predicted, measured, 1e-4, 1e-4, f"differences of {program}")


def values_of(program: Program, data: T) -> list[T]:
    """The tensors that a program ends with, without any gradient."""
    tensors = [data * 1.1, data.sin()]
    if program[0].number % 10 == 0:
        tensors.append(data.clone())
    for step in program:
        _step(tensors, step)
    return tensors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs; what it returns is the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tracer.checks.view_programs", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("count", type=int, nargs="?", default=20_000, help="how many programs (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the programs drawn (default: 0)")
    parser.add_argument("--show", type=int, default=5, help="how many of the failures to print (default: 5)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rng, counts, shown = random.Random(options.seed), Counter[str](), 0
    for i in range(options.count):
        program = random_program(rng)
        try:
            counts[compare_program(program)] += 1
        except AssertionError as error:
            counts["different"] += 1
            if shown < options.show:
                shown += 1
                print(f"program {i}:\n{error}\n", flush=True)
    print(f"{options.count} programs, seed {options.seed}: {dict(counts)}")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
