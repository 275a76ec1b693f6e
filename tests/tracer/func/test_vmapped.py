"""``torch.vmap`` over tracked tensors: values and derivatives as torch's, whatever is batched or closed over."""

from __future__ import annotations

import pytest
import torch
from support.memory import live_tensors, no_collector
from support.transformed import assert_as_torch, tracked_leaf
from torch.func import vmap

import tracer
from tracer.errors import UnsupportedError

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
C = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

PROGRAMS = {
    "an argument": (lambda x: vmap(lambda a: a * a)(x), X),
    "an argument and a tensor closed over": (lambda x, w: vmap(lambda a: torch.dot(a, w).tanh() ** 2)(x), X, W),
    "a tensor closed over alone": (lambda w: vmap(lambda a: torch.dot(a, w).tanh() ** 2)(X), W),
    "a result along dimension 1": (lambda x, w: vmap(lambda a: (a * w).sin(), out_dims=1)(x), X, W),
    "a result along the last dimension": (lambda x, w: vmap(lambda a: (a * w).sin(), out_dims=-1)(x), X, W),
    "an argument along dimension 1": (lambda x, c: vmap(lambda a: (a * c).sin().sum(), in_dims=1)(x), X, C),
    "several results": (lambda x, w: vmap(lambda a: (a * w, {"s": a.sin() * w.sum()}))(x), X, W),
    "a result that is no batch": (lambda x, w: vmap(lambda a: (a * w, w.sin()))(x), X, W),
    "a result that stays outside": (lambda x, w: vmap(lambda a: (a * w, w.sin()), out_dims=(0, None))(x), X, W),
    "in chunks": (lambda x, w: vmap(lambda a: (a * w).tanh(), chunk_size=2)(x), X, W),
    "two levels": (lambda x, w: vmap(lambda a: vmap(lambda b: (b * w).sin().sum() * a.sum())(a))(x), X, W),
    "two levels, the outer batch closed over": (
        lambda x, w: vmap(lambda a: vmap(lambda b: (b * a).sin().sum() * w.sum())(w))(x),
        X,
        W,
    ),
    "views and several results of one call": (lambda x: vmap(lambda a: a.chunk(2)[0] * a.unbind()[1])(x), X),
    "an op with an index": (lambda x: vmap(lambda a: torch.topk(a, 2)[0] * a[0])(x), X),
    "a cumulative product": (lambda x: vmap(lambda a: a.cumprod(0))(x), X),
    "a history before and after": (lambda x, w: vmap(lambda a: (a * w).exp())(x.sin()).cos(), X, W),
    "integers and no grad inside": (lambda x: vmap(lambda a: a * (a > 0) * a.detach().abs())(x), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_derivatives_are_those_of_torch(name):
    program, *tensors = PROGRAMS[name]
    assert_as_torch(program, *tensors)


def overwritten_whole(a, w):
    b = a * w
    b.add_(a.sin())
    return b


def written_through_a_slice(a, w):
    b = a * w
    c = b[1:]
    c.mul_(w[1:].cos())
    return b.sin() + c.sum()


def filled_by_index(a, w):
    b = torch.zeros(4, dtype=a.dtype) + a * 0
    b[0] = a[1] * w[2]
    b[1:3] = (a * w)[2:]
    return b.exp()


def written_through_views_of_views(a, w):
    b = (a * w).reshape(2, 2)
    d = b.t()
    d[0].mul_(a[0])
    e = b.sum(1)
    b.add_(1)
    return e * d.prod(0)


def seen_through_a_view(a, w):
    b = torch.zeros_like(a) * w
    v = b.view(2, 2)
    b[2] = a[0] * w[0]
    return v.sum(0) * a[:2]


def plain_until_written(a, w):
    y = a.detach() * 1
    seen = y.view(2, 2)
    y[2] = w[0] * 3
    return seen.sum(0) * y[:2]


def written_through_a_plain_view(a, w):
    y = a.detach() * 1
    written, seen = y[1:], y.view(2, 2)
    written[1] = w[0] * a.detach()[0]
    return seen.sum(0) * y[2:]


@pytest.mark.parametrize(
    "function",
    [
        plain_until_written,
        written_through_a_plain_view,
        overwritten_whole,
        written_through_a_slice,
        filled_by_index,
        written_through_views_of_views,
        seen_through_a_view,
    ],
)
def test_writes_in_place_inside(function):
    assert_as_torch(lambda x, w: vmap(function, in_dims=(0, None))(x, w), X, W)


@pytest.mark.parametrize("function", [plain_until_written, written_through_a_plain_view])
def test_views_of_plain_tensors_follow_a_recorded_write(function):
    assert_as_torch(lambda w: vmap(function, in_dims=(0, None))(X, w), W)
    assert_as_torch(lambda w: vmap(vmap(function, in_dims=(0, None)), in_dims=(0, None))(X.expand(2, 3, 4), w), W)


def test_plain_views_of_a_tensor_that_is_gone_are_not_written():
    def function(a, w):
        y = (a * 1).view(2, 2)
        seen = y[1:]
        y[1, 0] = w[0] * 3
        return seen.sum() * w.sum()

    with pytest.raises(UnsupportedError, match="clone"):
        vmap(function, in_dims=(0, None))(X, tracked_leaf(W))


def test_a_result_that_is_no_batch_may_go_along_any_dimension():
    w = tracked_leaf(W)
    y = vmap(lambda a: w.sin(), out_dims=1)(X)
    assert y.shape == (4, 3)
    y.sum().backward()
    torch.testing.assert_close(w.grad.as_subclass(torch.Tensor), 3 * W.cos())


def test_an_overwritten_saved_tensor_raises():
    def overwriting(a):
        b = a.exp()
        b.add_(1)
        return b

    y = vmap(overwriting)(tracked_leaf(X))
    with pytest.raises(tracer.OverwrittenError, match="exp"):
        y.sum().backward()


def test_an_overwritten_plain_saved_tensor_raises():
    def overwriting(a):
        mask = torch.ones(4, dtype=a.dtype) * a.detach()
        b = a * mask
        mask.add_(1)
        return b

    y = vmap(overwriting)(tracked_leaf(X))
    with pytest.raises(tracer.OverwrittenError, match="mul"):
        y.sum().backward()


def test_backward_inside_is_refused():
    with pytest.raises(UnsupportedError, match=r"inside torch\.vmap"):
        vmap(lambda a: a.sum().backward())(tracked_leaf(X))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_drawn_as_by_torch(randomness):
    def program(x):
        torch.manual_seed(0)
        return vmap(lambda a: torch.nn.functional.dropout(a * a, 0.5), randomness=randomness)(x)

    assert_as_torch(program, X)


def test_random_numbers_raise_where_torch_raises():
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda a: torch.nn.functional.dropout(a, 0.5))(tracked_leaf(X))


def test_batch_norm_without_running_statistics():
    assert_as_torch(
        lambda x: vmap(lambda a: torch.nn.functional.batch_norm(a.reshape(2, 2) ** 3, None, None, training=True))(x), X
    )


def test_a_native_argument_keeps_its_gradient_beside_a_tracked_tensor():
    found = []
    for leaf in (lambda t: t.clone().requires_grad_(), tracked_leaf):
        x, w = X.clone().requires_grad_(), leaf(W)
        vmap(lambda a, w=w: (a * w).tanh() * (a * w).sin())(x * 2).pow(2).sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1].as_subclass(torch.Tensor), found[0][1])


def test_the_gradient_inside_of_a_hidden_native_history_is_refused():
    x, w = X.clone().requires_grad_(), tracked_leaf(W)
    with pytest.raises(tracer.TransformError, match=r"tracer\.track"):
        vmap(torch.func.grad(lambda a: (a * w).sum()))(x * 2)


def test_an_error_inside_leaves_no_level_open():
    with pytest.raises(ZeroDivisionError):
        vmap(lambda a: a * a / (1 // 0))(tracked_leaf(X))
    x = tracked_leaf(X)
    (x * x).sum().backward()
    torch.testing.assert_close(x.grad.as_subclass(torch.Tensor), 2 * X)


def test_what_was_recorded_inside_is_freed_with_the_result():
    x = tracked_leaf(X)
    with no_collector():
        before = live_tensors()
        y = vmap(lambda a: (a * a).sin().exp())(x)
        assert live_tensors() > before
        del y
        assert live_tensors() == before


def test_a_replaced_rule_holds_inside():
    import ops_registry

    x = tracked_leaf(X)
    with ops_registry.use({torch.sin: lambda grad: grad * 7}):
        vmap(lambda a: a.sin())(x).sum().backward()
    assert (x.grad == 7).all()


def test_a_graph_opened_inside_sees_the_calls_and_an_overwritten_tensor_still_raises():
    graph = tracer.Graph()

    def overwriting(a):
        with graph:
            b = a.exp()
        b.add_(1)
        return b

    y = vmap(overwriting)(tracked_leaf(X))
    assert graph.counts() == {"exp": 1}
    with pytest.raises(tracer.OverwrittenError, match="exp"):
        y.sum().backward()
