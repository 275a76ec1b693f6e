"""Random programs: a chain or a DAG of 5 to 40 ops with shared subexpressions, run on torch and on ours; gradients are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import tensor_of

import tracer

# Ops that keep values in a moderate range, so that long programs neither overflow nor vanish.
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.Tensor.cos,
    "relu": torch.relu,
    "neg": lambda a: -a,
    "half": lambda a: a * 0.5,
    "one minus": lambda a: 1 - a,
    "clamped": lambda a: a.clamp(-1.5, 1.5),
    "softmax": lambda a: a.softmax(-1),
    "transposed": lambda a: a.transpose(0, 1),
    "reshaped": lambda a: a.reshape(-1).view(3, 3),
    "row broadcast": lambda a: a[0].expand(3, 3),
    "mean broadcast": lambda a: a.mean(1, keepdim=True).expand(3, 3),
    "sum broadcast": lambda a: (a.sum() / 9).expand(3, 3),
    "shuffled": lambda a: a[torch.tensor([2, 0, 0])],
    "diagonal": lambda a: torch.diag_embed(a.diagonal()),
    "sliced": lambda a: torch.cat([a[1:], a[:1]]),
    "in place": lambda a: (a * 1).mul_(0.5).add_(a),
    "written": lambda a: written(a),
    "unbound": lambda a: torch.stack(a.unbind(1)[::-1], 1),
    "flipped": lambda a: a.flip(0),
}

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: (a * b).tanh(),
    "matmul": lambda a, b: (a @ b).tanh(),
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "div": lambda a, b: a / (1.5 + b.abs()),
    "row plus column": lambda a, b: (a[:1] + b[:, :1]) * 0.5,
    "rows joined": lambda a, b: torch.cat([a[:2], b[2:]]),
}


def written(a: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[1] = a[0] * 0.5
    return b


@dataclass(frozen=True)
class Program:
    """Instructions, each an op with the positions of its operands among what was computed before; the inputs come first."""

    inputs: int
    instructions: tuple[tuple[str, int, int], ...]

    def run(self, leaves: list[torch.Tensor]) -> torch.Tensor:
        values = list(leaves)
        for name, i, j in self.instructions:
            values.append(UNARY[name](values[i]) if name in UNARY else BINARY[name](values[i], values[j]))
        return sum((v * (k + 1) for k, v in enumerate(values[-3:])), torch.zeros(3, 3, dtype=torch.float64))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    inputs = draw(st.integers(1, 3))
    chain = draw(st.booleans())
    instructions = []
    for k in range(draw(st.integers(5, 40))):
        last = inputs + k - 1
        name = draw(st.sampled_from(sorted(UNARY) + sorted(BINARY)))
        i = last if chain else draw(st.integers(0, last))
        instructions.append((name, i, draw(st.integers(0, last))))
    return Program(inputs, tuple(instructions))


@pytest.mark.slow
@settings(max_examples=150)
@given(program=programs(), seed=st.integers(0, 10_000))
def test_gradients_of_random_programs_equal_torchs(program: Program, seed: int) -> None:
    data = [tensor_of((3, 3), seed + i) for i in range(program.inputs)]
    ours, theirs = [tracer.tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]
    out, expected = program.run(ours), program.run(theirs)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach(), rtol=0, atol=0)
    if not expected.requires_grad:
        assert not out.requires_grad
        return
    found = torch.autograd.grad(out.sum(), ours, allow_unused=True)
    wanted = torch.autograd.grad(expected.sum(), theirs, allow_unused=True)
    for f, w in zip(found, wanted, strict=True):
        assert (f is None) == (w is None)
        if w is not None:
            torch.testing.assert_close(f, w, rtol=1e-9, atol=1e-11)


@settings(max_examples=60)
@given(program=programs(), seed=st.integers(0, 10_000))
def test_second_derivatives_of_random_programs_equal_torchs(program: Program, seed: int) -> None:
    data = [tensor_of((3, 3), seed + i) for i in range(program.inputs)]
    results = []
    for leaves in ([tracer.tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]):
        first = torch.autograd.grad(program.run(leaves).square().sum(), leaves, create_graph=True, allow_unused=True)
        used = [g for g in first if g is not None and g.requires_grad]
        second = (
            torch.autograd.grad([g.square().sum() for g in used], leaves, allow_unused=True)
            if used
            else [None] * len(leaves)
        )
        results.append([torch.zeros(3, 3, dtype=torch.float64) if g is None else g for g in second])
    for f, w in zip(*results, strict=True):
        torch.testing.assert_close(f, w, rtol=1e-7, atol=1e-9)


@given(program=programs(), seed=st.integers(0, 10_000))
def test_nothing_of_a_random_program_outlives_it(program: Program, seed: int) -> None:
    leaves = [tracer.tensor(tensor_of((3, 3), seed + i), requires_grad=True) for i in range(program.inputs)]
    with tracer.Graph() as graph:
        program.run(leaves).sum().backward()
        assert len(graph) == 0
