"""Memory lies in a compiled step as it lies in the eager one, whatever was written in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer

T = torch.Tensor
MASK, INDEX = torch.tensor([[True, False, False]] * 3), torch.tensor([0, 2, 1])

#: Their counterparts that are not in place give a result whose layout is not that of the first argument.
WRITES: dict[str, Callable[[T], Any]] = {
    "masked_fill_": lambda x: x.masked_fill_(MASK, 0.1),
    "masked_scatter_": lambda x: x.masked_scatter_(MASK, torch.arange(9.0)),
    "index_add_": lambda x: x.index_add_(0, INDEX, torch.ones(3, 3)),
    "index_copy_": lambda x: x.index_copy_(1, INDEX, torch.ones(3, 3)),
    "scatter_": lambda x: x.scatter_(1, INDEX[None], 2.0),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, INDEX[None], torch.ones(1, 3), "amax"),
    "tril_": lambda x: x.tril_(),
    "cumsum_": lambda x: x.cumsum_(0),
    "addmm_": lambda x: x.addmm_(torch.ones(3, 2), torch.ones(2, 3)),
    "renorm_": lambda x: x.renorm_(2, 0, 1.0),
    "copysign_": lambda x: x.copysign_(torch.ones(3, 3)),
    "div_": lambda x: x.div_(torch.full((3, 3), 0.3), rounding_mode="floor"),
    "item": lambda x: x.__setitem__(MASK, 0.3),
    "foreach": lambda x: torch._foreach_mul_([x], [torch.full((3, 3), 2.0)]),
    "a function": lambda x: torch.nn.functional.leaky_relu(x, inplace=True),
}


def of_leaf(write: Callable[[T], Any], leaf: T) -> list[T]:
    base = leaf * 1.5
    turned, last = base.mT, base[2:]
    write(turned)
    ((base * base).sum() + (3 * turned.sin()).sum() + (4 * last).sum()).backward()
    return [base.detach(), turned.detach(), last.detach()]


def of_plain(write: Callable[[T], Any], leaf: T) -> list[T]:
    base = leaf.detach() * 1.5
    turned = base.mT
    write(turned)
    return [base, turned, turned.as_strided((2, 2), (1, 2))]


def into_out(write: Callable[[T], Any], leaf: T) -> list[T]:
    base = torch.zeros(3, 3)
    turned = base.mT
    with torch.no_grad():
        torch.mul(leaf, 2.0, out=turned)
    return [base, turned, turned.as_strided((2, 2), (1, 2))]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("step", [of_leaf, of_plain, into_out])
def test_a_write_into_a_transposed_tensor_leaves_its_layout(
    step: Callable[..., list[T]], write: Callable[[T], Any]
) -> None:
    compiled = tracer.compile(lambda leaf: step(write, leaf), backend="replay")
    for data in (torch.linspace(-1, 1.3, 9).view(3, 3), torch.linspace(2, -1, 9).view(3, 3)):
        ours, theirs = (tracer.tensor(data, requires_grad=True) for _ in range(2))
        for a, b in zip(compiled(ours), step(write, theirs), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_is_meant_to_change_the_layout_does() -> None:
    def step(leaf: T) -> list[T]:
        y, z = leaf * 2, leaf.detach() * 3
        y.t_()
        z.unsqueeze_(0).squeeze_()
        y.sum().backward()
        return [y.detach(), z]

    ours, theirs = (tracer.tensor(torch.arange(6.0).view(2, 3), requires_grad=True) for _ in range(2))
    for a, b in zip(tracer.compile(step, backend="replay")(ours), step(theirs), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_a_tensor_from_elsewhere_may_be_taken_twice() -> None:
    elsewhere = [torch.tensor([2.0, 3.0])]
    take = elsewhere.__getitem__

    def step(leaf: T) -> T:
        loss = (leaf * take(0) * take(0)).sum()
        loss.backward()
        return loss

    leaf = tracer.tensor([1.0, 1.0], requires_grad=True)
    tracer.compile(step, backend="replay")(leaf)
    assert leaf.grad is not None and leaf.grad.tolist() == [4.0, 9.0]
