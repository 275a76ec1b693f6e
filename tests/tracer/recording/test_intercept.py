"""How calls are recorded where the call is unusual."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery_pair
from support.leaves import leaf32

import ops_registry
import tracer


def test_a_native_leaf_handed_back_as_it_was_stays_native() -> None:
    x, n = leaf32(1.0), torch.ones(1, requires_grad=True)
    assert n.to(x) is n and type(n) is torch.Tensor


def test_a_view_of_a_native_leaf_is_not_recorded_by_torch() -> None:
    x, n = leaf32(1.0), torch.ones(1, 1, requires_grad=True)
    y = torch.cat([n.view(1).view_as(x), x])
    (y * torch.tensor([3.0, 5.0])).sum().backward()
    assert n.grad is not None and n.grad.tolist() == [[3.0]]


def test_a_comparison_written_in_place_cuts_the_gradient() -> None:
    x = leaf32(1.0, 2.0)
    y = x * 3
    y.eq_(3.0)
    (y * 5).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]


def test_a_tracked_value_written_into_integers_leaves_them_plain() -> None:
    x, b = leaf32(1.5, 2.5), torch.zeros(2, 2, dtype=torch.long)
    b[0] = x
    assert type(b) is torch.Tensor and b.tolist() == [[1, 2], [0, 0]]


def test_an_in_place_method_whose_tensor_is_not_its_first_argument() -> None:
    x, native = leaf32(1.0, 2.0), torch.tensor([1.0, 2.0], requires_grad=True)
    for t in (x, native):
        y = t + 2
        y.polygamma_(1)
        y.sum().backward()
    torch.testing.assert_close(x.grad, native.grad)


def test_a_number_argument_that_requires_grad_is_refused() -> None:
    x = leaf32(1.0)
    with pytest.raises(ops_registry.UnsupportedCallError, match="'alpha'"):
        torch.add(x, x, alpha=tracer.tensor(2.0, requires_grad=True))


def test_fresh_tensors_made_from_a_tracked_one_want_no_gradient() -> None:
    x = leaf32(1.0, 2.0)
    for made in (x.new_tensor([1.0]), x.new_zeros(2), torch.zeros_like(x), torch.rand_like(x), x.new_full((2,), 3.0)):
        assert not made.requires_grad


def test_a_variadic_python_function_keeps_all_its_arguments() -> None:
    x = leaf32(1.0, 2.0)
    a, b = torch.broadcast_tensors(x, torch.ones(3, 2))
    (a * b).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_out_of_a_decomposed_op_is_filled_or_refused() -> None:
    x, out = leaf32(1.0, 2.0, 3.0), torch.empty(())
    with torch.no_grad():
        torch.quantile(x, 0.5, out=out)
    assert out.item() == 2.0
    with pytest.raises(tracer.OutArgumentError, match="quantile"):
        torch.quantile(x, 0.5, out=out)


def test_c_functions_reduce_by_their_own_default() -> None:
    x = leaf32(1.0, 2.0)
    losses = torch._C._nn.mse_loss(x, torch.zeros(2))
    assert losses.shape == (2,)
    losses.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]


def test_another_subclass_answers_its_own_calls() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return "loud"

    assert torch.add(leaf32(1.0), torch.ones(1).as_subclass(Loud)) == "loud"


def test_a_deprecated_order_of_arguments_is_refused_where_a_gradient_would_be_lost() -> None:
    x, m = torch.ones(2, 2), tracer.tensor(torch.ones(2, 2), requires_grad=True)
    with pytest.raises(ops_registry.UnsupportedCallError, match="addmm was called with 5 arguments"):
        torch.addmm(0.5, x, 2, m, m)
    with torch.no_grad():
        assert torch.addmm(0.5, x, 2, m, m).tolist() == [[4.5, 4.5], [4.5, 4.5]]


def test_a_function_of_several_results_without_a_rule_says_so() -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    a, b = mystery_pair(x)
    with pytest.raises(tracer.MissingRuleError, match="mystery_pair"):
        (a.sum(0).sum() + b.sum()).backward()


def test_results_that_no_gradient_reaches_need_no_rule() -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    mystery_pair(x)
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[2.0, 2.0]]


def test_out_that_requires_grad_itself_is_refused() -> None:
    x = leaf32(1.0)
    with pytest.raises(tracer.OutArgumentError, match=r"add\(\)"):
        torch.add(torch.ones(1), torch.ones(1), out=x)
    with torch.no_grad():
        torch.add(torch.ones(1), torch.ones(1), out=x)
    assert x.tolist() == [2.0]


def test_an_argument_given_twice_is_torchs_error_and_a_name_from_numpy_is_known() -> None:
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    with pytest.raises(TypeError):
        torch.sum(x, 1, dim=1)
    x.sum(axis=1)[0].backward()
    assert x.grad is not None and x.grad.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_tensor_that_a_rule_does_not_cover_is_refused_by_name_too() -> None:
    x, weight = (tracer.tensor([0.5, 0.25], requires_grad=True) for _ in range(2))
    with pytest.raises(ops_registry.UnsupportedCallError, match="weight"):
        F.binary_cross_entropy(x, torch.ones(2), weight=weight)
    with pytest.raises(ops_registry.UnsupportedCallError, match="weight"):
        torch._C._nn.binary_cross_entropy(x, torch.ones(2), weight=weight)
