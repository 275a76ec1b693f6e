"""``ops_registry.use``: rules replaced inside a block."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery, ten_times
from support.leaves import leaf

import ops_registry
import tracer

SPELLINGS_OF_TANH = {
    "function": torch.tanh,
    "method": torch.Tensor.tanh,
    "functional": F.tanh,
    "module": torch.nn.Tanh(),
    "packet": torch.ops.aten.tanh,
    "overload": torch.ops.aten.tanh.default,
    "in place": lambda x: (x * 1).tanh_(),
    "in-place function": lambda x: torch.tanh_(x * 1),
}


@pytest.mark.parametrize("call", SPELLINGS_OF_TANH.values(), ids=SPELLINGS_OF_TANH)
def test_use_replaces_a_rule_for_every_spelling(call) -> None:
    x = leaf(1.0, 2.0)
    with ops_registry.use({torch.tanh: ten_times}):
        y = call(x)
    y.sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]


def test_use_replaces_the_formula_of_in_place_spellings_too() -> None:
    x = leaf(1.0)
    with ops_registry.use({F.leaky_relu: ten_times}):
        y = F.leaky_relu_(x * 1)
    y.sum().backward()
    assert x.grad.tolist() == [10.0]


def test_use_ends_with_its_block() -> None:
    x = leaf(1.0)
    with ops_registry.use({torch.tanh: ten_times}, expect=None):
        pass
    x.tanh().sum().backward()
    assert x.grad.item() == pytest.approx(1 - torch.tanh(torch.tensor(1.0)).item() ** 2)


def test_use_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), ops_registry.use({torch.tanh: ten_times}):
        raise KeyError
    assert ops_registry.lookup(torch.tanh).formulas[0].function is not ten_times  # type: ignore[union-attr]


def test_calls_recorded_inside_use_keep_its_rule() -> None:
    x = leaf(1.0)
    with ops_registry.use({torch.tanh: ten_times}):
        y = x.tanh()
    y.sum().backward()
    assert x.grad.tolist() == [10.0]


def test_use_nests_and_the_inner_rule_wins() -> None:
    x = leaf(1.0)
    with ops_registry.use({torch.tanh: ten_times, torch.exp: ten_times}):
        with ops_registry.use({torch.tanh: lambda grad: grad * 2}):
            inner = x.tanh() + x.exp()
        outer = x.tanh()
    inner.sum().backward()
    assert x.grad.tolist() == [12.0]
    outer.sum().backward()
    assert x.grad.tolist() == [22.0]


def test_use_is_the_threads_own() -> None:
    seen = []
    with ops_registry.use({torch.tanh: ten_times}, expect=None):
        thread = threading.Thread(target=lambda: seen.append(ops_registry.lookup(torch.tanh).formulas[0].function))  # type: ignore[union-attr]
        thread.start()
        thread.join()
    assert seen[0] is not ten_times


def test_use_may_replace_the_formula_of_one_input_only() -> None:
    x, y = leaf(2.0), leaf(3.0)
    with ops_registry.use({torch.mul: {"input": ten_times}}):
        z = x * y
    z.sum().backward()
    assert x.grad.tolist() == [10.0] and y.grad.tolist() == [2.0]


def test_use_with_one_function_for_an_op_of_two_inputs_gives_both_gradients() -> None:
    x, y = leaf(2.0), leaf(3.0)
    with ops_registry.use({torch.mul: lambda grad: (grad * 10, grad * 20)}):
        z = x * y
    z.sum().backward()
    assert x.grad.tolist() == [10.0] and y.grad.tolist() == [20.0]


def test_use_may_replace_one_input_of_a_joint_formula() -> None:
    layer = torch.nn.LayerNorm(3, dtype=torch.float64)
    x, twin = leaf(1.0, 2.0, 4.0), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    weight = tracer.track(torch.ones(3, dtype=torch.float64), True)
    with ops_registry.use({torch.layer_norm: {"input": ten_times}}):
        y = F.layer_norm(x, (3,), weight)
    y.sum().backward()
    torch.testing.assert_close(weight.grad, layer(twin).detach())
    assert x.grad.tolist() == [10.0, 10.0, 10.0]


def test_use_gives_a_rule_to_a_function_that_has_none() -> None:
    x = leaf(1.0)
    with ops_registry.use({mystery: lambda grad, scale: grad * scale}):
        y = mystery(x, 3.0)
    y.sum().backward()
    assert x.grad.tolist() == [3.0]


def test_use_may_replace_a_python_level_function_as_a_whole() -> None:
    x = leaf(3.0, 4.0)
    with ops_registry.use({F.normalize: ten_times}):
        y = F.normalize(x, dim=0)
    y.sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]


def test_use_refuses_a_rule_that_asks_for_what_the_op_does_not_have() -> None:
    with (
        pytest.raises(ops_registry.RuleError, match="nonsense"),
        ops_registry.use({torch.tanh: lambda grad, nonsense: grad}),
    ):
        pass


def test_a_joint_formula_that_lost_an_input_still_asks_needs_by_every_name() -> None:
    y, x = leaf(3.0), leaf(4.0)
    with ops_registry.use({torch.atan2: {"other": ten_times}}):
        angle = torch.atan2(y, x)
    (alone,) = torch.autograd.grad(angle.sum(), y, retain_graph=True)
    angle.sum().backward()
    assert alone.item() == y.grad.item() == pytest.approx(4 / 25)
    assert x.grad.tolist() == [10.0]
