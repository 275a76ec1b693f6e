"""``torch.autograd.functional`` on tracked tensors: every option, beside torch on native ones."""

from __future__ import annotations

import pytest
import torch
from support.transformed import derivatives, native_leaf, tracked_leaf

import tracer
from tracer.errors import UnsupportedError

AF = torch.autograd.functional
D = torch.float64
X = torch.tensor([0.5, 0.7, -0.4], dtype=D)
Y = torch.tensor([1.0, -0.3, 0.2], dtype=D)
W = torch.tensor([0.2, 0.3, 0.4], dtype=D)

#: Functions of one or two arguments and of what they close over.
FUNCTIONS = {
    "a vector": (lambda w: lambda x: (x * w).sin(), 1),
    "a scalar": (lambda w: lambda x: (x * w).sin().sum(), 1),
    "one element": (lambda w: lambda x: (x * w).sum()[None], 1),
    "two of two": (lambda w: lambda x, y: ((x * w).sin() * y, x.prod() * w), 2),
    "a scalar of two": (lambda w: lambda x, y: ((x * w).sin() * y).sum(), 2),
    "something linear": (lambda w: lambda x: (x * w).sum(), 1),
    "a constant": (lambda w: lambda x: w * 2, 1),
    "a constant and more": (lambda w: lambda x: (w * 2, x * x), 1),
    "an unused argument": (lambda w: lambda x, y: (y * y * w).sum(), 2),
    "the argument": (lambda w: lambda x: x, 1),
    "a list": (lambda w: lambda x: [x * w], 1),
}
COMMON = [{}, {"create_graph": True}, {"strict": True}, {"strict": True, "create_graph": True}]
VECTORIZED = [{"vectorize": True, **rest} for rest in ({}, {"create_graph": True}, {"strict": True})]
FORWARD = [{"strategy": "forward-mode", **rest} for rest in ({}, {"vectorize": True})]
CALLS = [
    *(("jacobian", options) for options in (*COMMON, *VECTORIZED, *FORWARD)),
    *(("hessian", options) for options in (*COMMON, *VECTORIZED)),
    *((name, options) for name in ("vjp", "jvp", "vhp", "hvp") for options in COMMON),
]


def program(function, count, name, options):
    """The call as a function of what the function closes over and of its arguments."""

    def run(w, *arguments):
        inner = function(w)
        vectors = []
        if name == "vjp":
            vectors = [torch.utils._pytree.tree_map(torch.ones_like, inner(*arguments))]
        elif name in ("jvp", "vhp", "hvp"):
            vectors = [Y if count == 1 else (Y, X)]
        return getattr(AF, name)(inner, arguments[0] if count == 1 else arguments, *vectors, **options)

    return run


@pytest.mark.parametrize(("name", "options"), CALLS, ids=str)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_it_gives_what_torch_gives_or_raises_as_it_does(kind, name, options):
    function, count = FUNCTIONS[kind]
    run = program(function, count, name, options)
    tensors = (W, X, Y)[: count + 1]
    outcomes = []
    for leaf in (native_leaf, tracked_leaf):
        try:
            if options.get("create_graph"):
                outcomes.append(derivatives(run, tensors, leaf, 1))
            else:
                found = run(*map(leaf, tensors))
                outcomes.append([t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor)])
        except (RuntimeError, TypeError) as error:
            outcomes.append(error)
    theirs, ours = outcomes
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception)
        return
    assert isinstance(ours, list), ours
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found.detach().as_subclass(torch.Tensor), expected.detach())


def test_forward_mode_over_reverse_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="dual number"):
        AF.hessian(lambda x: (x * x).sum(), tracked_leaf(X), vectorize=True, outer_jacobian_strategy="forward-mode")


@pytest.mark.parametrize("vectorize", [False, True])
def test_native_arguments_beside_a_tracked_tensor_have_their_jacobian_in_forward_mode_too(vectorize):
    w, x = tracked_leaf(W), native_leaf(X)
    strategy = "forward-mode" if vectorize else "reverse-mode"
    found = AF.jacobian(lambda x: (x * w).sin(), x, vectorize=vectorize, strategy=strategy)
    torch.testing.assert_close(found.detach().as_subclass(torch.Tensor), torch.diag(W * (X * W).cos()))


def test_a_native_cotangent_is_differentiated_through():
    x, c = tracked_leaf(X), native_leaf(Y)
    (g,) = torch.autograd.grad(x.sin().sum() * 1, x, c.sum(), create_graph=True)
    (by_c,) = torch.autograd.grad((g * g).sum(), c)
    torch.testing.assert_close(by_c, (2 * Y.sum() * (X.cos() ** 2).sum()).expand(3))


def test_a_native_history_is_gone_through_as_often_as_the_graph_is_kept():
    x = native_leaf(X)
    y = x * x
    z = y.prod() * tracer.tensor(W, requires_grad=True)
    first = torch.autograd.grad(z[0], x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(z[0], x, retain_graph=True)[0], first)
    z.sum().backward(retain_graph=True)
    z.sum().backward()
    torch.testing.assert_close(x.grad, 2 * W.sum() * (X.prod() ** 2) * 2 / X)
