"""torch's control flow on tracked tensors, as operands and closed over: values, first and second derivatives as torch's."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf32
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import nn
import tracer

Made = Callable[[torch.Tensor], torch.Tensor]

X = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
W = torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5


def affine(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def folded_backwards(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    rows = [(first[3], second[3])]
    for i in (2, 1, 0):
        rows.insert(0, affine(rows[0], (first[i], second[i])))
    return torch.cat([torch.stack(column) for column in zip(*rows, strict=True)])


#: Programs of an operand ``x`` and a closed-over ``w``, beside the same in plain Python.
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "cond true": (
        lambda x, w: torch.cond(torch.tensor(True), lambda t: t.sin() * w, lambda t: t.cos(), (x,)),
        lambda x, w: x.sin() * w,
    ),
    "cond false": (
        lambda x, w: torch.cond(x.sum() < 0, lambda t: t.sin() * w, lambda t: t.cos() * w, (x,)),
        lambda x, w: x.cos() * w,
    ),
    "while_loop": (
        lambda x, w: while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.sin() * w), (torch.tensor(0), x))[1],
        lambda x, w: (((x.sin() * w).sin()) * w).sin() * w,
    ),
    "scan": (
        lambda x, w: scan(lambda c, t: ((c * t).sin(), c * w), torch.ones_like(W), x)[1],
        lambda x, w: torch.stack(
            [w, x[0].sin() * w, (x[0].sin() * x[1]).sin() * w, ((x[0].sin() * x[1]).sin() * x[2]).sin() * w]
        ),
    ),
    "scan in reverse along another dimension": (
        lambda x, w: (
            scan(lambda c, t: (c * t, (c * t).clone()), torch.ones_like(X[:, 0]), x, dim=1, reverse=True)[1] * w
        ),
        lambda x, w: x.flip(1).cumprod(1).flip(1) * w,
    ),
    "scan, its carry": (
        lambda x, w: scan(lambda c, t: (c * t + w, c * 2), w, x)[0],
        lambda x, w: (((w * x[0] + w) * x[1] + w) * x[2] + w) * x[3] + w,
    ),
    "associative_scan": (
        lambda x, w: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic") * w,
        lambda x, w: x.cumprod(0) * w,
    ),
    "associative_scan of pairs, in reverse": (
        lambda x, w: torch.cat(associative_scan(affine, (x, x * w), 0, reverse=True, combine_mode="generic")),
        lambda x, w: folded_backwards(x, x * w),
    ),
    "map": (lambda x, w: torch_map(lambda t, a: t.sin() * a * w, x, w), lambda x, w: x.sin() * w * w),
}


def derivatives(program: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """The value, the gradients, and the gradients of a sum of squared gradients."""
    value = program(x, w)
    loss = value.pow(2).sum() + 0 * x.sum() + 0 * w.sum()
    first = torch.autograd.grad(loss, (x, w), create_graph=True)
    second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, w))  # type: ignore[arg-type]
    return [t.detach() for t in (value, *first, *second)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_those_of_the_program_in_python(name: str) -> None:
    program, in_python = PROGRAMS[name]
    x, w = tracer.tensor(X, requires_grad=True), tracer.tensor(W, requires_grad=True)
    expected = derivatives(in_python, X.clone().requires_grad_(), W.clone().requires_grad_())
    for found, wanted in zip(derivatives(program, x, w), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("tracked", ["both", "operand", "closed over"])
def test_backward_fills_grad_of_tracked_and_native_tensors(name: str, tracked: str) -> None:
    program, in_python = PROGRAMS[name]
    x, w = (
        tracer.tensor(t, requires_grad=True) if tracked in ("both", role) else t.clone().requires_grad_()
        for t, role in ((X, "operand"), (W, "closed over"))
    )
    native_x, native_w = X.clone().requires_grad_(), W.clone().requires_grad_()
    (program(x, w).sum() + 0 * x.sum() + 0 * w.sum()).backward()
    (in_python(native_x, native_w).sum() + 0 * native_w.sum()).backward()
    torch.testing.assert_close(x.grad, native_x.grad)
    torch.testing.assert_close(w.grad, native_w.grad)


def test_a_module_within_reach_of_a_branch_gets_its_gradient() -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, self.linear, lambda t: t.clone(), (x,))

    model = nn.track(Branching())
    model(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(model.linear.weight.grad, torch.full((3, 3), 2.0))


def test_an_operator_called_past_torchs_function_raises() -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"torch\.cond"):
        torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (leaf32(1.0),))


def test_torchs_functions_keep_their_signatures() -> None:
    assert list(inspect.signature(torch.cond).parameters) == ["pred", "true_fn", "false_fn", "operands"]
    assert inspect.signature(scan).parameters["dim"].default == 0


#: torch's names are mostly imported before glassgrad.
BOUND_BEFORE = """
import torch
from torch import cond
import tracer
x = tracer.tensor([1.0], requires_grad=True)
(cond(torch.tensor(True), torch.sin, torch.cos, (x,)).sum() + 0 * x.sum()).backward()
print(x.grad.item() == torch.tensor([1.0]).cos().item())
"""


def test_names_bound_before_the_import_are_answered_too() -> None:
    done = subprocess.run([sys.executable, "-c", BOUND_BEFORE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
