"""``vmap``: its options, structures and errors as those of ``torch.func.vmap``."""

from __future__ import annotations

import functools

import pytest
import torch
from support.transform_parity import WORLDS, Call, assert_same_outcome
from torch.nn import functional as F

import tracer
from tracer.errors import TransformError

D = torch.float64
X = torch.tensor([0.5, 0.7, -0.4], dtype=D)
Y = torch.tensor([1.0, -0.3, 0.2], dtype=D)
M = torch.arange(6.0, dtype=D).reshape(2, 3) / 5
CUBE = torch.arange(12.0, dtype=D).reshape(2, 3, 2)
NONE = torch.zeros(0, 3, dtype=D)
ROWS = torch.tensor([0, 2])

CASES: dict[str, Call] = {}

IN_DIMS = (0, 1, -1, -2, 2, -3, (0,), (0, 0), (0, 1), (0, None), (None, 0), (None, None), None, (0, 0, 0), [0, 0], 1.0)
for dims in (*IN_DIMS, "0", (0, [0]), (0, "0"), (0, 1.0), ((0,), 0)):
    CASES[f"in_dims={dims!r}"] = lambda n, t, dims=dims: n.vmap(torch.mul, in_dims=dims)(t(M), t(M.sin()))
    CASES[f"in_dims={dims!r} of one"] = lambda n, t, dims=dims: n.vmap(torch.sin, in_dims=dims)(t(M))

#: What a vmapped function returns of its argument.
RETURNS = {
    "one": lambda x: x.sin(),
    "two": lambda x: (x, x.sin()),
    "a list": lambda x: [x, x.sin()],
    "a dict": lambda x: {"a": x.sin()},
    "a scalar": lambda x: x.sum(),
    "a constant": lambda x: X.sin(),
    "one and a constant": lambda x: (x, X.sin()),
}
OUT_DIMS = (0, 1, -1, -2, 2, -3, None, (0,), (0, 1), (1, 0), (0, None), [0, 1], [0], "0", 1.0, (0, 1, 2), (0, (1,)))
for dims in (*OUT_DIMS, {"a": 0}):
    for kind, function in RETURNS.items():
        CASES[f"out_dims={dims!r} of {kind}"] = lambda n, t, dims=dims, function=function: n.vmap(
            function, out_dims=dims
        )(t(M))
for size in (None, 1, 2, 3, 100, 0, -1, 1.5, "1"):
    for dims in (0, 1, None, (0, 1)):
        CASES[f"chunk_size={size!r}, out_dims={dims!r}"] = lambda n, t, size=size, dims=dims: n.vmap(
            RETURNS["two"], out_dims=dims, chunk_size=size
        )(t(CUBE))

#: Functions that draw random numbers.
RANDOM = {
    "rand": lambda x: x * torch.rand(3, dtype=D),
    "several": lambda x: (torch.rand_like(x), torch.randperm(4), torch.randn(2, dtype=D), torch.randint(3, (2,))),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of a constant": lambda x: F.dropout(X, 0.5) * x,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5),
    "a write": lambda x: x.clone().bernoulli_(0.5) * x,
}
for randomness in ("error", "same", "different", "foo", None, 1):
    for kind, function in RANDOM.items():
        for size in (None, 1):
            CASES[f"randomness={randomness!r}, {kind}, chunk_size={size}"] = (
                lambda n, t, randomness=randomness, function=function, size=size: n.vmap(
                    function, randomness=randomness, chunk_size=size
                )(t(M))
            )
    CASES[f"randomness={randomness!r}, inside of grad"] = lambda n, t, randomness=randomness: n.vmap(
        n.grad(lambda x: F.dropout(x, 0.5).sin().sum()), randomness=randomness
    )(t(M))
    CASES[f"randomness={randomness!r}, dropout of what is closed over"] = lambda n, t, randomness=randomness: (
        lambda closed: n.vmap(lambda x: F.dropout(closed, 0.5) * x, randomness=randomness)(M)
    )(t(X))


def written_by_index(x):
    y = torch.zeros(3, dtype=D)
    y[0] = x[1]
    return y


def into_zeros(x):
    y = torch.zeros(3, dtype=D)
    y.add_(x)
    return y


def into_zeros_of_the_argument(x):
    y = x.new_zeros(3)
    y[1:] += x[1:]
    return y + torch.zeros_like(x).copy_(x)


#: Functions of one argument.
FUNCTIONS = {
    "a number": lambda x: 1.0,
    "None": lambda x: None,
    "nothing": lambda x: (),
    "the argument": lambda x: x,
    "the argument twice": lambda x: (x, x),
    "item": lambda x: x * x[0].item(),
    "item of what is no batch": lambda x: x * X[0].item(),
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "bool": lambda x: x * bool(x[0]),
    "float": lambda x: x * float(x[0]),
    "int": lambda x: x * int(x[0]),
    "tolist": lambda x: x * x.tolist()[0],
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "allclose": lambda x: x * float(torch.allclose(x, x)),
    "where": lambda x: torch.where(x > 0, x, -x),
    "a sum over elements": sum,
    "its shape": lambda x: x * x.dim() * x.shape[0] * x.numel() * len(x),
    "a write by index": written_by_index,
    "a write into zeros": into_zeros,
    "writes into zeros like the argument": into_zeros_of_the_argument,
    "batch norm": lambda x: F.batch_norm(x.reshape(3, 1), None, None, training=True),
    "batch norm with statistics": lambda x: F.batch_norm(
        x.reshape(3, 1), torch.zeros(1, dtype=D), torch.ones(1, dtype=D), training=True
    ),
    "batch norm outside of training": lambda x: F.batch_norm(
        x.reshape(3, 1), torch.zeros(1, dtype=D), torch.ones(1, dtype=D)
    ),
    "named results": lambda x: torch.max(x, 0),
    "several results": lambda x: tuple(torch.topk(x, 2)),
    "a partial function": functools.partial(torch.mul, X),
}
for kind, function in FUNCTIONS.items():
    CASES[f"of {kind}"] = lambda n, t, function=function: n.vmap(function)(t(M))
    CASES[f"of {kind}, no batch"] = lambda n, t, function=function: n.vmap(function)(t(NONE))


def mixed(a, b):
    return a["x"] * b


CALLS: dict[str, Call] = {
    "a dict and a dict of dimensions": lambda n, t: n.vmap(mixed, in_dims=({"x": 0}, None))({"x": t(M)}, t(X)),
    "a dict and one dimension": lambda n, t: n.vmap(mixed)({"x": t(M)}, t(M)),
    "a dict and dimensions for another": lambda n, t: n.vmap(mixed, in_dims=({"y": 0}, None))({"x": t(M)}, t(X)),
    "a dict that is no batch": lambda n, t: n.vmap(mixed, in_dims=(None, 0))({"x": 2}, t(M)),
    "unequal sizes": lambda n, t: n.vmap(torch.mul)(t(M), t(CUBE[:1])),
    "a number": lambda n, t: n.vmap(torch.mul)(t(M), 2.0),
    "a number that is no batch": lambda n, t: n.vmap(torch.mul, in_dims=(0, None))(t(M), 2.0),
    "a string that is no batch": lambda n, t: n.vmap(lambda x, s: x.sin() if s else x, in_dims=(0, None))(t(M), "a"),
    "None": lambda n, t: n.vmap(lambda x, s: x)(t(M), None),
    "a scalar tensor": lambda n, t: n.vmap(torch.sin)(t(torch.tensor(2.0))),
    "no argument": lambda n, t: n.vmap(lambda: X)(),
    "a keyword": lambda n, t: n.vmap(lambda x, k=1: x * k)(t(M), k=2),
    "a keyword with a tensor": lambda n, t: n.vmap(lambda x, k=1: x + k.sum())(t(M), k=t(M)),
    "integers": lambda n, t: n.vmap(lambda i: i * 2)(ROWS),
    "an index that is a batch": lambda n, t: n.vmap(lambda x, i: x[i])(t(M), ROWS),
    "nothing to call": lambda n, t: n.vmap(3)(t(M)),
    "vmap of vmap": lambda n, t: n.vmap(n.vmap(torch.mul, in_dims=(0, None)), in_dims=(None, 0))(t(X), t(Y)),
    "cotangents": lambda n, t: n.vmap(n.vjp(torch.sin, t(X))[1])(torch.eye(3, dtype=D)),
    "tangents": lambda n, t: n.vmap(lambda v: n.jvp(torch.sin, (t(X),), (v,)))(torch.eye(3, dtype=D)),
    "gradients of no sample": lambda n, t: n.vmap(n.grad(lambda x: x.sin().sum()))(t(NONE)),
    "Jacobians of no sample": lambda n, t: n.vmap(n.jacrev(torch.sin))(t(NONE)),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_options_and_functions(name, world):
    assert_same_outcome(CASES[name], world)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CALLS)
def test_arguments(name, world):
    assert_same_outcome(CALLS[name], world)


@pytest.mark.parametrize(
    ("options", "arguments"), [({"in_dims": (0, 0, 0)}, (M,)), ({}, (M, CUBE[:1])), ({"out_dims": (0, 1)}, (M,))]
)
def test_errors_of_tracer_func_are_ours_and_of_torchs_class(options, arguments):
    with pytest.raises(TransformError, match="vmap") as caught:
        tracer.func.vmap(lambda *a: a[0], **options)(*arguments)
    assert isinstance(caught.value, ValueError)


def test_an_error_of_the_function_comes_through_as_it_is():
    with pytest.raises(KeyError):
        tracer.func.vmap(lambda x: {}["missing"])(M)
