"""``ops_registry.use``: rules replaced inside a block."""

from __future__ import annotations

import gc
import threading
import weakref

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


def test_one_rule_may_serve_several_functions() -> None:
    x = leaf(1.0)
    with ops_registry.use({(torch.tanh, F.relu): ten_times}, expect="all"):
        y = F.relu(torch.tanh(x))
    y.backward()
    assert x.grad.tolist() == [100.0]


@pytest.mark.parametrize(
    "rules", [{torch.relu: ten_times, F.relu: ten_times}, {(torch.exp, torch.Tensor.exp_): ten_times}]
)
def test_two_spellings_of_one_op_are_refused(rules) -> None:
    with pytest.raises(ops_registry.DuplicateRuleError, match="spellings of one op"):
        ops_registry.use(rules)


def test_an_op_and_one_of_its_overloads_are_refused() -> None:
    with pytest.raises(ops_registry.DuplicateRuleError, match=r"max\.dim"):
        ops_registry.use({torch.max: ten_times, torch.ops.aten.max.dim: ten_times})


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("function", [F.silu, F.mish, F.hardswish, F.relu6, F.elu, F.hardtanh, F.threshold])
def test_use_replaces_an_activation_that_torch_calls_in_python_in_place_too(function, inplace) -> None:
    x = leaf(0.5)
    more = (0.1, 0.0) if function is F.threshold else ()
    with ops_registry.use({function: ten_times}):
        y = function(x * 1, *more, inplace=inplace)
    y.backward()
    assert x.grad.tolist() == [10.0]


def test_a_use_is_made_once_and_entered_often() -> None:
    replaced = ops_registry.use({torch.tanh: ten_times})
    for _ in range(3):
        x = leaf(1.0)
        with replaced:
            y = x.tanh()
        y.backward()
        assert x.grad.tolist() == [10.0]


def test_a_use_entered_inside_itself_ends_one_block_at_a_time() -> None:
    x = leaf(1.0)
    replaced = ops_registry.use({torch.tanh: lambda grad, default: default(grad) * 0 + 3 * grad})
    with replaced:
        with replaced:
            x.tanh()
        y = x.tanh()
    y.backward()
    assert x.grad.tolist() == [3.0]


@pytest.mark.usefixtures("clean_registry")
def test_a_rule_registered_inside_a_block_holds_there() -> None:
    x = leaf(1.0)
    with ops_registry.use({torch.tanh: ten_times}, expect=None):
        mystery(x)
        ops_registry.backward(mystery)(lambda grad: grad * 7)
        y = mystery(x)
    y.backward()
    assert x.grad.tolist() == [7.0]


def test_a_rule_that_asks_for_site_outside_a_graph_is_told_to_open_one() -> None:
    with (
        pytest.raises(ops_registry.SiteError, match=r"with tracer.Graph\(sites=True\)"),
        ops_registry.use({torch.tanh: lambda grad, site: grad}),
    ):
        leaf(1.0).tanh()


def test_a_rule_may_ask_for_its_site() -> None:
    x, seen = leaf(1.0), []

    def noting(grad, site):
        seen.append((site.op, site.module, site.args))
        return grad

    with tracer.Graph(), ops_registry.use({torch.tanh: noting}):
        y = torch.nn.Sequential(torch.nn.Tanh())(x)
    y.backward()
    assert seen == [("tanh", "0", ())]


def replaced_step(where, wraps: bool) -> weakref.ref[torch.Tensor]:
    """One step under a rule that closes over a tensor; a reference to that tensor."""
    held, x = torch.ones(3), leaf(1.0, 2.0, 3.0)
    rule = (lambda grad, default: default(grad) * held) if wraps else (lambda grad: grad * held)
    with ops_registry.use({(torch.max, torch.tanh): rule}, where=where):
        y = torch.nn.Sequential(torch.nn.Tanh())(x)
    y.sum().backward()
    return weakref.ref(held)


@pytest.mark.parametrize("where", [None, "", "*"])
@pytest.mark.parametrize("wraps", [False, True])
def test_what_a_rule_closes_over_goes_by_reference_counts(where, wraps: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        assert replaced_step(where, wraps)() is None
    finally:
        gc.enable()


def test_a_joint_formula_that_lost_an_input_still_asks_needs_by_every_name() -> None:
    y, x = leaf(3.0), leaf(4.0)
    with ops_registry.use({torch.atan2: {"other": ten_times}}):
        angle = torch.atan2(y, x)
    (alone,) = torch.autograd.grad(angle.sum(), y, retain_graph=True)
    angle.sum().backward()
    assert alone.item() == y.grad.item() == pytest.approx(4 / 25)
    assert x.grad.tolist() == [10.0]


def native_history() -> torch.Tensor:
    """A tensor that torch's own autograd made by a round, with a step behind it."""
    return torch.round(torch.tensor([0.3, 1.6], dtype=torch.float64, requires_grad=True)) * 2


def test_a_call_on_torchs_own_tensors_that_a_rule_would_miss_is_refused_where_its_result_is_used() -> None:
    x = leaf(1.0, 2.0)
    with (
        pytest.raises(ops_registry.UnsupportedCallError, match=r"rule for round.*torch's own tensors alone.*nn\.track"),
        ops_registry.use({torch.round: lambda grad: grad}),
    ):
        x.round() * native_history()


def test_what_torchs_own_autograd_recorded_outside_of_a_block_is_nobodys_miss() -> None:
    x, before = leaf(1.0, 2.0), native_history()
    with ops_registry.use({torch.round: lambda grad: grad}):
        y = x.round() * before
    (y + native_history()).sum().backward()
    assert x.grad.tolist() == [0.0, 4.0]


def test_what_torchs_own_autograd_recorded_outside_of_a_scope_is_nobodys_miss() -> None:
    x, layer = leaf(1.0, 2.0), torch.nn.Sequential(torch.nn.Tanh())
    with ops_registry.use({(torch.round, torch.tanh): lambda grad: grad}, where="0"):
        y = layer(x) * native_history()
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 4.0]
