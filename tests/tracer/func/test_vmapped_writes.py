"""In-place writes into what a vmapped function shares memory with: its arguments, what it closes over, what it returned."""

from __future__ import annotations

import random

import pytest
import torch
from support.transformed import assert_as_torch, derivatives, native_leaf, tracked_leaf
from torch.func import grad, vmap

import tracer
from tracer.errors import InPlaceError, UnsupportedError

D = torch.float64
X = torch.arange(6.0, dtype=D).reshape(2, 3) / 3
W = torch.tensor([0.5, 0.2, -0.3], dtype=D)


def whole(x, w):
    y = x * w
    return vmap(lambda a: a.mul_(w).sin())(y) + y * y


def view(x, w):
    y = x * w
    return vmap(lambda a: (a[1:].mul_(w[1:]), a.sin())[1])(y) + y * y


def along_dimension_1(x, w):
    y = x * w
    return vmap(lambda a: (a[1:].mul_(w[0]), a.mul_(w[1]).sin())[1], in_dims=1, out_dims=1)(y) + y * y


def diagonal_of_a_middle_dimension(x, w):
    y = (x * w)[:, :, None] * torch.ones(4, dtype=D)
    r = vmap(lambda a: (a.diagonal().mul_(w[:2]), a.t()[2:].mul_(w[1]), a.sin())[2], in_dims=1, out_dims=1)(y)
    return (r + y * y).sum(-1)


def of_a_plain_tensor(x, w):
    y = torch.ones(2, 3, dtype=D)
    return vmap(lambda a: a.mul_(w))(y) * x + y * y


def of_a_view_outside(x, w):
    y = x * w
    return vmap(lambda a: a.mul_(w[0]))(y[:, 1:]).sum() + y * y


def seen_by_a_view_outside(x, w):
    y = x * w
    seen = y[:, 1:]
    return vmap(lambda a: a.mul_(w))(y) + seen.sum()


def overwritten(x, w):
    y = x * w
    return vmap(lambda a: (a.zero_(), a + w)[1])(y) + vmap(lambda a: a.copy_(w) * w)(x * 2) + y * x


def in_two_levels(x, w):
    y = x * w
    return vmap(lambda a: vmap(lambda b: b.mul_(w[0]))(a) * a)(y) + y * y


def in_the_inner_level(x, w):
    y = x * w
    return vmap(lambda a: (vmap(lambda b, c: b.mul_(c))(a, w), a.sin())[1])(y) + y * y


def what_grad_closes_over(x, w):
    y = x * w
    return vmap(lambda a: grad(lambda b: (a * b).sum())(a.mul_(2)))(y) + y * y


def no_batch(x, w):
    y = w * 2
    return vmap(lambda a, b: a * b.mul_(2), in_dims=(0, None))(x, y) + y * y


def closed_over(x, w):
    y = w * 2
    return vmap(lambda a: (y[1:].mul_(w[0]), y * a)[1])(x) + y * y


def returned_argument(x, w):
    y = x * w
    vmap(lambda a: a)(y).mul_(w)
    return y * y


def returned_view(x, w):
    y = x * w
    vmap(lambda a: a[1:])(y).mul_(w[1:])
    return y * y


def argument_of_a_returned_view(x, w):
    y = x * w
    r = vmap(lambda a: a[1:], out_dims=1)(y)
    y.mul_(w)
    return r * r


def constant_with_a_returned_view(x, w):
    y = tracer.tensor(X) if type(x) is tracer.Tensor else X.clone()
    r = vmap(lambda a: a[1:])(y)
    y.mul_(w)
    return r * r


def one_of_two_results_in_one_memory(x, w):
    def both(a):
        b = a * w
        return b, b[1:]

    r, s = vmap(both)(x)
    s.mul_(2)
    return r * r


PROGRAMS = [
    whole,
    view,
    along_dimension_1,
    diagonal_of_a_middle_dimension,
    of_a_plain_tensor,
    of_a_view_outside,
    seen_by_a_view_outside,
    overwritten,
    in_two_levels,
    in_the_inner_level,
    what_grad_closes_over,
    no_batch,
    closed_over,
    returned_argument,
    returned_view,
    argument_of_a_returned_view,
    constant_with_a_returned_view,
    one_of_two_results_in_one_memory,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_write_has_the_derivatives_of_torch(program):
    assert_as_torch(program, X, W)


def test_a_leaf_as_argument_is_not_written():
    with pytest.raises(InPlaceError, match="leaf"):
        vmap(lambda a: a.mul_(2))(tracked_leaf(X))


def test_an_argument_that_comes_in_twice_is_not_written():
    y = tracked_leaf(X) * 1
    with pytest.raises(UnsupportedError, match=r"torch\.vmap.*clone"):
        vmap(lambda a, b: a.mul_(2) * b)(y, y)


def test_an_argument_is_not_given_other_dimensions():
    with pytest.raises(UnsupportedError, match=r"torch\.vmap.*clone"):
        vmap(lambda a: a.unsqueeze_(0))(tracked_leaf(X) * 1)


def test_a_written_argument_that_is_closed_over_too_raises_in_backward():
    y = tracked_leaf(X) * 1
    r = vmap(lambda a: a.mul_(2) * y.sum())(y)
    with pytest.raises(UnsupportedError, match="used by another way"):
        (r.sum() + y.sum()).backward()


def views(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A view of a view of the tensor, at random."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["select", "slice", "transpose", "diagonal", "flat", "unsqueeze"])
        if kind == "flat":
            tensor = tensor.view(-1) if tensor.is_contiguous() else tensor
        elif kind == "unsqueeze":
            tensor = tensor.unsqueeze(rng.randint(0, tensor.dim()))
        elif kind in ("transpose", "diagonal") and tensor.dim() > 1:
            tensor = tensor.transpose(0, -1) if kind == "transpose" else tensor.diagonal(offset=rng.choice([0, 1]))
        elif kind == "select" and tensor.dim() and 0 not in tensor.shape:
            tensor = tensor.select(rng.randrange(tensor.dim()), -1)
        elif kind == "slice" and tensor.dim():
            tensor = tensor.transpose(0, rng.randrange(tensor.dim()))[rng.randint(0, 1) :: rng.choice([1, 2])]
    return tensor


def random_program(seed, x, w):
    """Writes through random views of an argument that is batched along a random dimension."""

    def function(a):
        rng = random.Random(seed)
        seen = views(a, rng) if rng.random() < 0.5 else a
        written = views(a, rng)
        if rng.random() < 0.5:
            written.add_(w * w)
        else:
            written.copy_(written * w)
        views(a, rng).mul_(2)
        return a * w + seen.sum() * w

    rng = random.Random(seed)
    y = x.permute(rng.sample(range(3), 3)) * 1
    batched = function if rng.random() < 0.2 else vmap(function, in_dims=rng.randrange(3))
    return batched(y) + y.sum()


@pytest.mark.parametrize("seed", range(100))
def test_random_writes_through_views(seed):
    tensors = (torch.linspace(-1, 1, 36, dtype=D).reshape(3, 4, 3), torch.tensor(0.7, dtype=D))
    try:
        derivatives(lambda x, w: random_program(seed, x, w), tensors, native_leaf, 2)
    except RuntimeError:
        return  # what torch itself refuses is no program
    assert_as_torch(lambda x, w: random_program(seed, x, w), *tensors)
