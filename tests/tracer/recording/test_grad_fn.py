"""``grad_fn``: torch's names, what a node saved, and what hangs on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf, native_leaf
from support.memory import no_collector
from torch.autograd.graph import Node

import tracer

ENGINES = [leaf, native_leaf]
Make = Callable[..., torch.Tensor]

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "MulBackward0": lambda x: x * x,
    "AddBackward0": lambda x: x + 1,
    "ExpBackward0": torch.exp,
    "LogSoftmaxBackward0": lambda x: torch.log_softmax(x, 0),
    "UnbindBackward0": lambda x: x.unbind()[0],
    "CloneBackward0": lambda x: x.clone(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("make", ENGINES)
def test_a_node_has_torchs_name_in_every_place(make: Make, name: str) -> None:
    y = CALLS[name](make(1.0, 2.0))
    node = y.grad_fn
    assert type(node).__name__ == node.name() == name and name in repr(node) and f"<{name}>" in repr(y)
    assert isinstance(node, Node) and y.grad_fn is node and {node: 1}[y.grad_fn] == 1


def test_a_custom_function_keeps_its_own_name_and_its_ctx() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            assert type(ctx.next_functions[0][0]).__name__ == "AccumulateGrad"
            return grad * ctx.factor

    for make in ENGINES:
        x = make(1.0)
        y = Twice.apply(x)
        assert type(y.grad_fn).__name__ == y.grad_fn.name() == "TwiceBackward" and y.grad_fn.factor == 2
        y.sum().backward()
        assert x.grad.tolist() == [2.0]


def test_the_way_on_names_inputs_that_want_no_gradient_too() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        y = x.exp()
        z = torch.full_like(x, 3.0).detach() * y
        (nothing, zero), (node, number) = z.grad_fn.next_functions
        assert nothing is None and zero == number == 0 and node is y.grad_fn
        ((end, _),) = node.next_functions
        assert type(end).__name__ == "AccumulateGrad" and end.variable is x and end.next_functions == ()
        assert end.name() == "torch::autograd::AccumulateGrad" and isinstance(end, Node)


def test_the_number_of_a_result_stands_beside_its_node() -> None:
    for make in ENGINES:
        a, b = make(1.0, 2.0).unbind()
        node, number = (b * 2).grad_fn.next_functions[0]
        assert node is a.grad_fn and number == b.output_nr == 1


def test_a_gradient_of_a_node_that_was_looked_at_is_the_same() -> None:
    found = []
    for look in (False, True):
        x = leaf(1.0, 2.0)
        y = (x * x).exp().sum()
        nodes = [y.grad_fn] if look else []
        while nodes:
            nodes += [node for node, _ in nodes.pop().next_functions if node is not None]
        y.backward()
        found.append(x.grad.tolist())
    assert found[0] == found[1]


def test_notes_stay_on_the_node() -> None:
    for make in ENGINES:
        y = make(1.0) * 2
        assert y.grad_fn.metadata == {}
        y.grad_fn.metadata["where"] = "here"
        assert y.grad_fn.metadata == {"where": "here"}


def test_sequence_numbers_follow_the_order_of_calls() -> None:
    for make in ENGINES:
        x = make(1.0)
        y = x * 2
        z = y * 2
        leaf_node = y.grad_fn.next_functions[0][0]
        assert y.grad_fn._sequence_nr() < z.grad_fn._sequence_nr() < leaf_node._sequence_nr() == 2**64 - 1


def test_what_gradients_of_a_node_are_like_can_be_asked() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        (meta,) = (x * x).grad_fn._input_metadata
        assert (tuple(meta.shape), meta.dtype, meta.device.type) == ((2,), torch.float64, "cpu")
        a, b = x.unbind()
        metas = (a.grad_fn, b.grad_fn)[0]._input_metadata
        assert [tuple(m.shape) for m in metas] == [(), ()] and not metas[0].is_nested_tensor


def test_saved_tensors_have_torchs_names_and_their_history() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        y = x * x
        z = y.exp()
        assert y.grad_fn._saved_self is x and y.grad_fn._saved_other is x
        assert z.grad_fn._saved_result.tolist() == z.tolist() and z.grad_fn._saved_result.grad_fn is z.grad_fn
        names = {name for name in dir(y.grad_fn) if name.startswith(("_saved_", "_raw_saved_"))}
        assert names == {"_saved_self", "_saved_other", "_raw_saved_self", "_raw_saved_other"}
        assert x.sum(0, keepdim=True).grad_fn._saved_keepdim is True


def test_a_saved_tensor_that_was_released_or_overwritten_raises() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        y = x.exp()
        y.sum().backward()
        with pytest.raises(RuntimeError, match=r"second time|released"):
            _ = y.grad_fn._saved_result
        z = x.exp()
        z.detach().zero_()
        with pytest.raises(RuntimeError, match="version"):
            _ = z.grad_fn._saved_result


def test_hooks_pack_and_unpack_a_single_saved_tensor() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        y = x * x
        raw = y.grad_fn._raw_saved_self
        raw.register_hooks(lambda t: ("packed", t * 2), lambda packed: packed[1])
        assert raw.data[0] == "packed" and y.grad_fn._saved_self.tolist() == [2.0, 4.0]
        with pytest.raises(RuntimeError, match="hooks"):
            raw.register_hooks(lambda t: t, lambda t: t)
        y.sum().backward()
        assert x.grad.tolist() == [3.0, 6.0]
        with pytest.raises(RuntimeError, match=r"freed|released"):
            raw.register_hooks(lambda t: t, lambda t: t)


def test_what_is_not_packed_beside_a_packed_tensor_is_still_checked() -> None:
    x, w = leaf(1.0), leaf(2.0)
    a, b = x * 1, w * 1
    y = a * b
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
    b.detach().zero_()
    with pytest.raises(tracer.OverwrittenError, match="'other'"):
        y.sum().backward()


def test_looking_makes_no_cycle() -> None:
    x = leaf(1.0, 2.0)
    a, b = x.unbind()
    y = (a * b).exp()
    assert y.grad_fn.next_functions[0][0].next_functions[1][0]._input_metadata
    y.grad_fn.metadata["note"] = 1
    alive = weakref.ref(y.grad_fn)
    with no_collector():
        del a, b, y
        assert alive() is None


def test_saved_tensors_may_be_overwritten_inside_torchs_context() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            y = x.clone()
            loss = (y**2).sum() + (y.view(2, 1) * 3).pow(2).sum()
            y.sin_()
            y.view(2, 1).mul_(5)
            loss.backward()
        assert x.grad.tolist() == [20.0, 40.0]


def test_hooks_on_saved_tensors_can_be_forbidden_and_versions_moved_on() -> None:
    for make in ENGINES:
        x = make(1.0, 2.0)
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            (x * x).sum().backward()
            with (
                pytest.raises(RuntimeError, match="not here"),
                torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
            ):
                pass
        y = x.exp()
        torch.autograd.graph.increment_version(y)
        with pytest.raises(RuntimeError, match="version"):
            y.sum().backward()
