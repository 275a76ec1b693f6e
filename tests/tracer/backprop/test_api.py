"""``backward`` and ``grad``: what they accumulate, what they return, which arguments they take."""

from __future__ import annotations

import pytest
import torch
from support.leaves import leaf

import tracer


def test_backward_fills_leaves() -> None:
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_gradient_argument_is_the_cotangent() -> None:
    x = leaf(1.0, 2.0)
    (x * 3).backward(torch.tensor([1.0, 10.0], dtype=torch.float64))
    assert x.grad.tolist() == [3.0, 30.0]


def test_inputs_restricts_what_is_filled() -> None:
    x, y = leaf(1.0), leaf(2.0)
    (x * y).backward(inputs=[x])
    assert x.grad.tolist() == [2.0] and y.grad is None


def test_inputs_may_be_results() -> None:
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    (y * 3).backward(inputs=[y])
    assert y.grad.tolist() == [3.0] and x.grad is None


def test_grad_returns_and_fills_nothing() -> None:
    x = leaf(3.0)
    (g,) = torch.autograd.grad(x * x, x)
    assert g.tolist() == [6.0] and x.grad is None


def test_grad_with_respect_to_a_result() -> None:
    x = leaf(3.0)
    y = x * 2
    gy, gx = torch.autograd.grad(y * y, [y, x])
    assert gy.tolist() == [12.0] and gx.tolist() == [24.0]


def test_grad_of_an_output_with_respect_to_itself_is_the_cotangent() -> None:
    x = leaf(3.0)
    y = x * 2
    (g,) = torch.autograd.grad(y, y)
    assert g.tolist() == [1.0]


def test_grad_of_several_outputs_adds_up() -> None:
    x = leaf(3.0)
    (g,) = torch.autograd.grad([x * 2, x * x], x, [torch.tensor([10.0]).double(), None])
    assert g.tolist() == [20.0 + 6.0]


def test_allow_unused_gives_none_and_materialize_gives_zeros() -> None:
    x, y = leaf(1.0), leaf(2.0)
    assert torch.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    zeros = torch.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)[1]
    assert zeros.tolist() == [0.0]


def test_an_unused_input_raises() -> None:
    x, y = leaf(1.0), leaf(2.0)
    with pytest.raises(tracer.UnusedInputError, match="input 1"):
        torch.autograd.grad((x * 2).sum(), [x, y])


def test_inputs_given_as_a_dict_come_back_as_one() -> None:
    x, y = leaf(1.0), leaf(2.0)
    found = torch.autograd.grad(x * y, {"x": x, "y": y})
    assert found["x"].tolist() == [2.0] and found["y"].tolist() == [1.0]


def test_tracer_grad_and_backward_are_the_same_engine() -> None:
    x = leaf(3.0)
    assert tracer.grad(x * x, x)[0].tolist() == [6.0]
    tracer.backward(x * x)
    assert x.grad.tolist() == [6.0]


def test_torch_autograd_backward_takes_several_tensors() -> None:
    x = leaf(3.0)
    torch.autograd.backward([x * 2, x * 3], [torch.ones(1).double(), torch.full((1,), 10.0).double()])
    assert x.grad.tolist() == [32.0]


def test_create_graph_gives_higher_derivatives() -> None:
    x = leaf(2.0)
    (first,) = torch.autograd.grad(x**4, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x, create_graph=True)
    (third,) = torch.autograd.grad(second, x)
    assert [first.item(), second.item(), third.item()] == [32.0, 48.0, 48.0]


def test_gradients_have_the_dtype_of_their_leaf() -> None:
    a = tracer.tensor(2.0, dtype=torch.float64, requires_grad=True)
    b = tracer.tensor([3.0, 4.0], dtype=torch.float32, requires_grad=True)
    (a * b).sum().backward()
    assert (a.grad.dtype, a.grad.item()) == (torch.float64, 7.0)
    assert (b.grad.dtype, b.grad.tolist()) == (torch.float32, [2.0, 2.0])


def test_the_real_leaf_of_a_complex_product_gets_a_real_gradient() -> None:
    a = tracer.tensor([2.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([1 + 2j], dtype=torch.complex128)
    (a * z).real.sum().backward()
    assert a.grad.dtype == torch.float64 and a.grad.tolist() == [1.0]


def test_a_batch_of_cotangents_gives_a_stack_of_gradients() -> None:
    found = []
    for x in (tracer.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 2.0], requires_grad=True)):
        y = x * x
        (rows,) = torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True, create_graph=True)
        (second,) = torch.autograd.grad(rows.sum(), x)
        found.append((rows.tolist(), second.tolist()))
    assert found[0] == found[1]


def test_the_vectorized_jacobian_of_torch_works() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    found = torch.autograd.functional.jacobian(lambda t: t * t.sum(), x, vectorize=True)
    assert found.tolist() == [[4.0, 1.0], [2.0, 5.0]]
