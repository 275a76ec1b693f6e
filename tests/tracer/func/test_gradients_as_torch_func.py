"""Signatures, options, structures and errors of ``grad``, ``vjp``, ``jvp``, ``linearize`` and the Jacobians, as those of ``torch.func``."""

from __future__ import annotations

import inspect

import pytest
import torch
from support.transform_parity import WORLDS, Call, assert_same_outcome, plain, tracked

import tracer
from tracer.errors import InPlaceError, TransformError

D = torch.float64
X = torch.tensor([0.5, 0.7, -0.4], dtype=D)
Y = torch.tensor([1.0, -0.3, 0.2], dtype=D)
M = torch.arange(6.0, dtype=D).reshape(2, 3) / 5
S = torch.tensor(2.0, dtype=D)
Z = torch.tensor([1 + 2j, 0.5j], dtype=torch.complex128)
INTS = torch.arange(3)


def product(x, y):
    return (x * y).sin()


def scalar(x, y):
    return product(x, y).sum()


CASES: dict[str, Call] = {}

#: Good ones and bad ones. torch's jacfwd takes a negative one for none, and gives zeros.
ARGNUMS = (0, 1, (0,), (1,), (0, 1), (1, 0), (0, 0), (), 2, -3, (0, 5), 1.0, "0", [0], None, (0, 1.0))
for argnums in (*ARGNUMS, -1, (-1,), (0, -2)):
    for name in ("grad", "grad_and_value", "jacrev"):
        CASES[f"{name}, argnums={argnums!r}"] = lambda n, t, name=name, argnums=argnums: getattr(n, name)(
            scalar, argnums=argnums
        )(t(X), t(Y))
for argnums in ARGNUMS:
    for name in ("jacfwd", "hessian"):
        CASES[f"{name}, argnums={argnums!r}"] = lambda n, t, name=name, argnums=argnums: getattr(n, name)(
            scalar, argnums=argnums
        )(t(X), t(Y))
    CASES[f"jacrev of a vector, argnums={argnums!r}"] = lambda n, t, argnums=argnums: n.jacrev(
        product, argnums=argnums
    )(t(X), t(Y))

#: What a function of X returns beside its output, for ``has_aux``; the last three are no such pair.
RETURNS = {
    "a dict": lambda x: (x.sin().sum(), {"a": x * 2, "i": INTS}),
    "a nest": lambda x: (x.sin().sum(), (x, [x * 2])),
    "a string": lambda x: (x.sin().sum(), "s"),
    "None": lambda x: (x.sin().sum(), None),
    "a number": lambda x: (x.sin().sum(), 3),
    "nothing": lambda x: x.sin().sum(),
    "two things": lambda x: (x.sum(), x, x),
    "in a list": lambda x: [x.sum(), x],
}
for kind, function in RETURNS.items():
    for name in ("grad", "grad_and_value", "jacrev", "jacfwd"):
        CASES[f"{name} with aux: {kind}"] = lambda n, t, name=name, function=function: getattr(n, name)(
            function, has_aux=True
        )(t(X))
    CASES[f"vjp with aux: {kind}"] = lambda n, t, function=function: (lambda out, pull, aux: (out, pull(t(S)), aux))(
        *n.vjp(function, t(X), has_aux=True)
    )
    CASES[f"jvp with aux: {kind}"] = lambda n, t, function=function: n.jvp(function, (t(X),), (t(Y),), has_aux=True)


def without_grad(x):
    with torch.no_grad():
        s = x.sin()
    return (s * x).sum()


def written_by_index(x):
    y = torch.zeros(3, dtype=D)
    y[0] = x[1]
    return (y * x).sum()


#: Functions of one argument: what they return, and what they are given.
FUNCTIONS = {
    "a scalar": (lambda x: x.sin().sum(), X),
    "the argument": (lambda x: x, S),
    "a vector": (lambda x: x.sin(), X),
    "one element": (lambda x: x.sin().sum()[None], X),
    "a matrix": (lambda m: m @ m.t(), M),
    "a tuple": (lambda x: (x.sin(), x.sum()), X),
    "a list": (lambda x: [x.sin(), x.sum()], X),
    "a dict of a dict": (lambda p: {"u": p["a"] * p["b"], "v": p["a"].sum()}, {"a": X, "b": Y}),
    "nothing": (lambda x: (), X),
    "no element": (lambda x: x[:0], X),
    "of no element": (lambda x: x.sum(0), torch.zeros(0, 3, dtype=D)),
    "a number": (lambda x: 1.0, X),
    "a tensor and a number": (lambda x: (x, 1.0), X),
    "None": (lambda x: None, X),
    "integers": (lambda x: x.argsort(), X),
    "an integer": (lambda x: x.argmax(), X),
    "a constant": (lambda x: Y * 2, X),
    "a constant scalar": (lambda x: Y.sum(), X),
    "something complex": (lambda x: (x * 1j).sum(), X),
    "something real of complex": (lambda z: z.abs().sum(), Z),
    "of integers": (lambda i: i * 2, INTS),
    "of a number": (lambda x: X * x, 2.0),
    "of a dict with a number": (lambda p: (p["a"] * p["b"]).sum(), {"a": X, "b": 2.0}),
    "of a dict with integers": (lambda p: (p["a"] * p["b"]).sum(), {"a": X, "b": INTS}),
    "of a dict with None": (lambda p: p["a"].sum(), {"a": X, "b": None}),
    "of a list": (lambda t: (t[0] * t[1]).sum(), [X, Y]),
    "two dtypes": (lambda x: (x.sin(), x.float().cos()), X),
    "by item": (lambda x: (x * x[0].item()).sum(), X),
    "by a branch": (lambda x: x.sin().sum() if x[0] > 0 else x.sum(), X),
    "under no_grad": (without_grad, X),
    "written by index": (written_by_index, X),
    "of half precision": (lambda x: x.sum(), X.half()),
}


def made(value, t):
    return torch.utils._pytree.tree_map_only(torch.Tensor, t, value)


for kind, (function, argument) in FUNCTIONS.items():
    for name in ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian"):
        if kind == "under no_grad" and name in ("jacfwd", "hessian"):
            continue  # torch's forward mode looks past no_grad
        if kind == "by item" and name != "grad":
            continue
        CASES[f"{name} of {kind}"] = lambda n, t, name=name, function=function, argument=argument: getattr(n, name)(
            function
        )(made(argument, t))
    CASES[f"the outputs of vjp of {kind}"] = lambda n, t, function=function, argument=argument: n.vjp(
        function, made(argument, t)
    )[0]

#: Cotangents for the outputs of a function of X and Y.
COTANGENTS = {
    "a tensor": (product, lambda t: (t(X),)),
    "of another shape": (product, lambda t: (t(S),)),
    "of a shape that would broadcast": (product, lambda t: (t(X[:1]),)),
    "of another precision": (product, lambda t: (t(X.float()),)),
    "in a tuple": (product, lambda t: ((t(X),),)),
    "None": (product, lambda t: (None,)),
    "none": (product, lambda t: ()),
    "a number": (scalar, lambda t: (1.0,)),
    "a tuple": (lambda x, y: (x * y, x), lambda t: ((t(X), t(Y)),)),
    "a list for a tuple": (lambda x, y: (x * y, x), lambda t: ([t(X), t(Y)],)),
    "a tuple with None": (lambda x, y: (x * y, x), lambda t: ((t(X), None),)),
    "a dict": (lambda x, y: {"a": x.sin() * y, "b": x}, lambda t: ({"b": t(X), "a": t(Y)},)),
    "a dict of other names": (lambda x, y: {"a": x.sin() * y, "b": x}, lambda t: ({"b": t(X), "c": t(Y)},)),
    "complex for real": (product, lambda t: (t(X * 1j),)),
    "real for complex": (lambda x, y: x * y * 1j, lambda t: (t(X),)),
    "for the argument": (lambda x, y: x, lambda t: (t(Y),)),
    "for a constant": (lambda x, y: Y * 2, lambda t: (t(Y),)),
}
for kind, (function, given) in COTANGENTS.items():
    CASES[f"cotangents: {kind}"] = lambda n, t, function=function, given=given: n.vjp(function, t(X), t(Y))[1](
        *given(t)
    )
CASES["cotangents, twice"] = lambda n, t: (lambda out, pull: (out, pull(t(X)), pull(t(Y))))(*n.vjp(product, t(X), t(Y)))
CASES["cotangents of no argument"] = lambda n, t: n.vjp(lambda: X.sin())[1](t(X))

#: Tangents for the arguments X and Y.
TANGENTS = {
    "a tuple": lambda t: ((t(X), t(Y)), (t(Y), t(X))),
    "a list": lambda t: ((t(X), t(Y)), [t(Y), t(X)]),
    "of a list": lambda t: ([t(X), t(Y)], [t(Y), t(X)]),
    "of a tensor": lambda t: (t(X), t(Y)),
    "one for two": lambda t: ((t(X), t(Y)), (t(Y),)),
    "of another shape": lambda t: ((t(X), t(Y)), (t(S), t(X))),
    "of a shape that would broadcast": lambda t: ((t(X), t(Y)), (t(X[:1]), t(X))),
    "of another precision": lambda t: ((t(X), t(Y)), (t(X.float()), t(X))),
    "None": lambda t: ((t(X), t(Y)), (None, t(X))),
    "a number": lambda t: ((t(X), 2.0), (t(Y), 1.0)),
    "of integers": lambda t: ((t(X), INTS), (t(Y), INTS)),
    "nothing": lambda t: ((), ()),
}
for kind, both in TANGENTS.items():
    CASES[f"tangents: {kind}"] = lambda n, t, both=both: n.jvp(product, *both(t))
OUTPUTS = {
    "a dict": lambda x: {"a": x.sin(), "b": [x]},
    "the argument": lambda x: x,
    "a constant": lambda x: Y * 2,
    "the argument and a constant": lambda x: (x, Y * 2),
    "integers": lambda x: x.argsort(),
    "integers too": lambda x: (x.sin(), x.argsort()),
    "a number": lambda x: 1.0,
    "None too": lambda x: (x, None),
    "nothing": lambda x: (),
}
for kind, function in OUTPUTS.items():
    for strict in (False, True):
        CASES[f"jvp of {kind}, strict={strict}"] = lambda n, t, function=function, strict=strict: n.jvp(
            function, (t(X),), (Y.clone(),), strict=strict
        )
    if kind not in ("a number", "None too"):  # which torch gives as their own derivatives
        CASES[f"linearize of {kind}"] = lambda n, t, function=function: (lambda out, push: (out, push(t(Y))))(
            *n.linearize(function, t(X))
        )
CASES["linearize, twice"] = lambda n, t: (lambda out, push: (out, push(t(Y), t(X)), push(t(X), t(Y))))(
    *n.linearize(product, t(X), t(Y))
)
CASES["linearize, one tangent for two"] = lambda n, t: n.linearize(product, t(X), t(Y))[1](t(X))
CASES["linearize, another shape"] = lambda n, t: n.linearize(torch.sin, t(X))[1](t(S))
CASES["linearize, another dtype"] = lambda n, t: n.linearize(torch.sin, t(X))[1](t(X.float()))
CASES["linearize of nothing"] = lambda n, t: n.linearize(lambda: X)

for size in (None, 1, 2, 3, 100, 0, -1, 1.5, "1"):
    for copies in (False, True):
        options = {"chunk_size": size, "_preallocate_and_copy": copies}
        CASES[f"jacrev, {options}"] = lambda n, t, options=options: n.jacrev(
            lambda x, y: (product(x, y), scalar(x, y)), argnums=(0, 1), **options
        )(t(X), t(Y))
        if size != 1:  # torch's own code fails an assertion of its own there
            CASES[f"jacrev of no element, {options}"] = lambda n, t, options=options: n.jacrev(
                lambda x: x[:0], **options
            )(t(X))
for randomness in ("error", "same", "different", "foo", None):
    CASES[f"jacfwd of random numbers, {randomness!r}"] = lambda n, t, randomness=randomness: n.jacfwd(
        lambda x: x * torch.rand(3, dtype=D), randomness=randomness
    )(t(X))
    CASES[f"jacfwd of dropout, {randomness!r}"] = lambda n, t, randomness=randomness: n.jacfwd(
        lambda x: torch.nn.functional.dropout(x, 0.5), randomness=randomness
    )(t(X))
CASES["keywords"] = lambda n, t: n.grad(lambda x, k=1, y=None: (x * k * y).sum())(t(X), y=t(Y))
CASES["the argument by its name"] = lambda n, t: n.grad(lambda x: x.sum())(x=t(X))
CASES["no argument"] = lambda n, t: n.grad(lambda: X.sum())()
CASES["no argument of jacrev"] = lambda n, t: n.jacrev(lambda: X)()
CASES["jacrev with a keyword"] = lambda n, t: n.jacrev(lambda x, k=2: x * k)(t(X), k=3)
CASES["nothing to call"] = lambda n, t: n.grad(3)(t(X))
CASES["an unused argument"] = lambda n, t: n.grad(lambda x, y: y.sum(), argnums=(0, 1))(t(X), t(Y))
CASES["a Jacobian of Jacobians"] = lambda n, t: n.jacfwd(n.jacrev(scalar, argnums=(0, 1)), argnums=(0, 1))(t(X), t(Y))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_torch_func_gives_or_raises_as_it_does(name, world):
    assert_same_outcome(CASES[name], world)


@pytest.mark.parametrize(
    "name", ["grad", "grad_and_value", "vjp", "jvp", "linearize", "jacrev", "jacfwd", "hessian", "vmap"]
)
def test_signatures_are_those_of_torch_func(name):
    ours, theirs = (inspect.signature(getattr(m, name)).parameters.values() for m in (tracer.func, torch.func))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


@pytest.mark.parametrize("name", ["jacfwd", "hessian"])
def test_negative_argnums_count_from_the_end(name):
    found = getattr(tracer.func, name)(scalar, argnums=-1)(X, Y)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), getattr(torch.func, name)(scalar, argnums=1)(X, Y))


@pytest.mark.parametrize("kind", ["a vector", "a number", "something complex", "of integers"])
def test_what_grad_refuses_is_an_error_of_ours_that_names_it(kind):
    function, argument = FUNCTIONS[kind]
    with pytest.raises(TransformError, match="grad"):
        tracer.func.grad(function)(argument)


def test_a_complex_tangent_of_a_real_primal_is_refused():
    with pytest.raises(TransformError, match="complex"):
        tracer.func.jvp(torch.sin, (X,), (X * 1j,))


@pytest.mark.parametrize("make", [plain, tracked])
@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x[1:].mul_(2)])
def test_writing_into_what_is_differentiated_with_respect_to_is_refused(make, write):
    def function(x):
        write(x)
        return (x * x).sum()

    for transform in (tracer.func.grad(function), lambda x: tracer.func.jvp(function, (x,), (Y,))):
        with pytest.raises((TransformError, InPlaceError), match=r"clone|copy"):
            transform(make(X))


def test_the_outputs_of_vjp_may_be_written_before_cotangents_come():
    x = tracked(X)
    out, pull = torch.func.vjp(lambda a: a * a, x)
    out.mul_(5)
    torch.testing.assert_close(pull(torch.ones_like(X))[0].detach().as_subclass(torch.Tensor), 2 * X)
