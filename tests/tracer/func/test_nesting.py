"""Every transform in every nesting of two, on arguments and on what the function closes over, beside torch on native tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.transformed import assert_as_torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import tracer

W = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
X = torch.tensor([0.5, 0.7, -0.4], dtype=torch.float64)
T = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)

#: Each makes a function of vectors out of another, by ``names``, where the transforms are looked up.
TRANSFORMS = {
    "grad": lambda names, g: lambda x: names.grad(lambda y: g(y).pow(2).sum())(x),
    "vjp": lambda names, g: lambda x: names.vjp(g, x)[1](T)[0],
    "jvp": lambda names, g: lambda x: names.jvp(g, (x,), (T,))[1],
    "linearize": lambda names, g: lambda x: names.linearize(g, x)[1](T),
    "jacrev": lambda names, g: lambda x: names.jacrev(g)(x) @ T,
    "jacfwd": lambda names, g: lambda x: names.jacfwd(g)(x) @ T,
    "hessian": lambda names, g: lambda x: names.hessian(lambda y: (g(y) * T).sum())(x) @ T,
    "vmap": lambda names, g: lambda x: names.vmap(g)(torch.stack([x, 2 * x])).sum(0),
}


class _Torch:
    """torch's transforms; its ``linearize`` forgets what lies outside, and is another way to write ``jvp``."""

    grad, vjp, jvp, jacrev, jacfwd, hessian, vmap = map(staticmethod, (grad, vjp, jvp, jacrev, jacfwd, hessian, vmap))

    @staticmethod
    def linearize(f, x):
        return None, lambda t: jvp(f, (x,), (t,))[1]


def network(w):
    return lambda x: (w * x).tanh() * x.sum() + w.sin() * x.prod()


ARGUMENTS = {
    "the function closes over a leaf": (lambda transformed: lambda w: transformed(network(w))(X), (W,)),
    "the argument is a leaf": (lambda transformed: lambda x: transformed(network(W))(x), (X,)),
    "both": (lambda transformed: lambda w, x: transformed(network(w))(x), (W, X)),
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("pair", list(itertools.product(TRANSFORMS, repeat=2)), ids="-".join)
def test_a_nesting_of_two(pair, arguments):
    outer, inner = pair

    def nested(names):
        return lambda g: TRANSFORMS[outer](names, TRANSFORMS[inner](names, g))

    make, tensors = ARGUMENTS[arguments]
    native = make(nested(_Torch))
    torch_names = type("torch.func", (), {**{n: staticmethod(getattr(torch.func, n)) for n in TRANSFORMS}})
    order = 1 if "hessian" in pair else 2
    assert_as_torch(make(nested(torch_names)), *tensors, native=native, order=order)
    assert_as_torch(make(nested(tracer.func)), *tensors, native=native, order=1)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_plain_tensors_give_the_values_of_torch(name):
    ours = TRANSFORMS[name](tracer.func, network(W))(X)
    theirs = TRANSFORMS[name](_Torch, network(W))(X)
    torch.testing.assert_close(ours.as_subclass(torch.Tensor), theirs)
    assert not ours.requires_grad


def test_a_hessian_over_a_tracked_closure_is_not_zero():
    w = tracer.tensor(torch.eye(3, dtype=torch.float64), requires_grad=True)
    found = torch.func.hessian(lambda x: (w @ x).tanh().sum())(X)
    torch.testing.assert_close(
        found.detach().as_subclass(torch.Tensor), torch.func.hessian(lambda x: x.tanh().sum())(X)
    )


@pytest.mark.parametrize("batch", [False, True])
def test_the_vjp_of_plain_tensors_takes_tracked_cotangents(batch):
    def program(v):
        pull = vjp(torch.sin, X)[1]
        return vmap(pull)(torch.stack([v, 2 * v]))[0] if batch else pull(v)[0]

    assert_as_torch(program, W)


def test_a_tracked_cotangent_inside_another_transform():
    assert_as_torch(lambda v: grad(lambda x: vjp(torch.sin, x)[1](v)[0].sum())(X), W)


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalize_leaves_values_and_derivatives_alone(remove):
    def written(x, w):
        y = x * w
        y.view(3, 1)[1:].mul_(w.sum())
        return y.sin()

    assert_as_torch(
        lambda w, x: torch.func.functionalize(written, remove=remove)(x, w), W, X, native=lambda w, x: written(x, w)
    )
    assert_as_torch(
        lambda w: torch.func.functionalize(lambda x: written(x, w), remove=remove)(X), W, native=lambda w: written(X, w)
    )
