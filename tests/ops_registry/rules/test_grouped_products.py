"""Rules of ``ops_registry/rules/grouped_products.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, Make, case, plain, rand, run_case

import tracer

F32 = torch.float32
RANKS = {
    "stack-stack": (rand(3, 4, 8, dtype=F32), rand(3, 8, 16, dtype=F32), None),
    "matrix-stack": (rand(8, 8, dtype=F32), rand(3, 8, 16, dtype=F32), [2, 4, 8]),
    "matrix-matrix": (rand(4, 8, dtype=F32), rand(8, 16, dtype=F32), [2, 2, 8]),
    "stack-matrix": (rand(3, 4, 8, dtype=F32), rand(8, 16, dtype=F32), [4, 8, 16]),
}


def product(a: torch.Tensor, b: torch.Tensor, offs: list[int] | None, **options: Any) -> torch.Tensor:
    cuts = None if offs is None else torch.tensor(offs, dtype=torch.int32, device=a.device)
    return torch._grouped_mm(a, b, cuts, **options)


# The kernel takes no float64, so nothing is held against differences.
CASES = [
    case(
        "_grouped_mm",
        lambda a, b, offs=offs: product(a, b, offs),
        left,
        right,
        label=name,
        differences=False,
        rtol=1e-5,
        atol=1e-5,
    )
    for name, (left, right, offs) in RANKS.items()
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch(c: Case, device: torch.device) -> None:
    run_case(c, device)


def groups(a: torch.Tensor, b: torch.Tensor, offs: list[int] | None) -> torch.Tensor:
    """The same, one product after the other."""
    if offs is None:
        return a @ b
    pairs = list(zip([0, *offs[:-1]], offs, strict=True))
    if a.dim() == 2 and b.dim() == 3:
        return torch.cat([a[i:j] @ b[k] for k, (i, j) in enumerate(pairs)])
    if a.dim() == 3:
        return torch.cat([a[k] @ b[:, i:j] for k, (i, j) in enumerate(pairs)], 1)
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in pairs])


@pytest.mark.parametrize("name", RANKS)
def test_gradients_are_those_of_the_products_one_by_one(name: str, device: torch.device) -> None:
    """With a gradient of equal elements, which torch 2.13 refuses."""
    left, right, offs = RANKS[name]
    grads = []
    for function in (product, groups):
        a, b = (tracer.track(make(device), True) for make in (left, right))
        function(a, b, offs).sum().backward()
        grads.append([plain(a.grad), plain(b.grad)])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("left", "right", "offs", "unused"),
    [
        (rand(8, 8, dtype=F32), rand(3, 8, 16, dtype=F32), [2, 4, 6], lambda a, b: a[6:]),
        (rand(4, 8, dtype=F32), rand(8, 16, dtype=F32), [2, 2, 6], lambda a, b: torch.cat((a[:, 6:].mT, b[6:]), 1)),
        (rand(3, 4, 8, dtype=F32), rand(8, 16, dtype=F32), [4, 8, 12], lambda a, b: b[:, 12:]),
    ],
)
def test_what_lies_beyond_the_last_cut_gets_zeros(
    left: Make, right: Make, offs: list[int], unused: Any, device: torch.device
) -> None:
    """torch 2.13 answers with whatever was in memory."""
    a, b = (tracer.track(make(device), True) for make in (left, right))
    result = product(a, b, offs)
    first = torch.autograd.grad(result, (a, b), torch.ones_like(result), create_graph=True)
    second = torch.autograd.grad(first, (a, b), [torch.ones_like(g) for g in first])
    for by_a, by_b in (first, second):
        assert plain(unused(by_a, by_b)).eq(0).all()


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="not in this torch")
def test_public_function_in_bfloat16(device: torch.device) -> None:
    a, b = (tracer.track(make(device).bfloat16(), True) for make in RANKS["matrix-stack"][:2])
    cuts = torch.tensor([2, 4, 8], dtype=torch.int32, device=device)
    F.grouped_mm(a, b, offs=cuts).sum().backward()
    assert a.grad is not None and a.grad.dtype == torch.bfloat16
    torch.testing.assert_close(
        plain(a.grad)[:2].float(), plain(b).float().sum(-1)[0].expand(2, 8), rtol=2e-2, atol=2e-2
    )
