"""A call of a compiled module is one node in the user's graph, and backward goes through it as through any other."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.compiled_modules import Called, assert_same_call, assert_same_gradients, loss_of, twins

import tracer
from tracer.errors import FreedGraphError, InferenceTensorError, OverwrittenError, SecondDerivativeError

torch.manual_seed(0)
X = torch.randn(4, 3)


def gelu(module: Any, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(module.linear(x)).tanh()


def test_a_call_leaves_one_node_whose_memory_is_counted() -> None:
    compiled, _ = twins(Called(gelu))
    with tracer.Graph(sites=True) as graph:
        result = compiled(X)
    assert graph.counts() == {"CompiledCalled": 1}
    assert result.grad_fn.name() == "CompiledCalledBackward"
    kept = sum(tensor.untyped_storage().nbytes() for tensor, _ in result.grad_fn.saved_versions)
    assert graph.kept_bytes() == kept > 0


def test_backward_goes_through_it_again_where_the_graph_is_retained() -> None:
    compiled, eager = twins(Called(gelu))
    losses = [loss_of(module(X)) for module in (compiled, eager)]
    for loss in losses:
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_gradients(compiled, eager)
    with pytest.raises(FreedGraphError):
        losses[0].backward()


def test_a_detached_result_has_no_history_beside_the_result() -> None:
    compiled, eager = twins(
        Called(lambda module, x: [[h, h.detach(), h, h.data, h[0].detach()] for h in [gelu(module, x)]])
    )
    weigh = torch.ones(3, requires_grad=True)
    assert_same_call(compiled, eager, [X], lambda results: sum((r * weigh).square().sum() for r in results[0]))
    hidden, detached, same, *_ = compiled(X)[0]
    assert hidden is same and hidden is not detached and hidden.data_ptr() == detached.data_ptr()


def test_several_calls_before_one_backward() -> None:
    compiled, eager = twins(Called(gelu))
    for module in (compiled, eager):
        loss_of(module(X) * module(X + 1) * module(module(X))).backward()
    assert_same_gradients(compiled, eager)


def test_gradients_add_up_over_backward_passes() -> None:
    compiled, eager = twins(Called(gelu))
    for scale in range(3):
        assert_same_call(compiled, eager, [X * scale])


def test_gradients_are_asked_for() -> None:
    compiled, eager = twins(Called(gelu))
    found = []
    for module in (compiled, eager):
        x = tracer.tensor(X, requires_grad=True)
        found.append(torch.autograd.grad(loss_of(module(x)), [x, module.linear.weight]))
        assert module.linear.weight.grad is None
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_batches_of_cotangents_go_row_by_row() -> None:
    compiled, eager = twins(Called(gelu))
    x, rows = tracer.tensor(X, requires_grad=True), torch.eye(12).reshape(12, 4, 3)
    ours, theirs = (torch.autograd.grad(m(x), x, rows, is_grads_batched=True)[0] for m in (compiled, eager))
    torch.testing.assert_close(ours, theirs)


def test_cotangents_of_any_strides() -> None:
    compiled, eager = twins(Called(gelu))
    for weight in (torch.ones(()).expand(4, 3), torch.randn(3, 4).t(), torch.randn(8, 6)[::2, ::2]):
        for module in (compiled, eager):
            module(X).backward(weight)
        assert_same_gradients(compiled, eager)


def test_gradients_can_be_had_with_create_graph_and_raise_when_differentiated() -> None:
    compiled, eager = twins(Called(gelu))
    x = tracer.tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(eager(x).sum(), x)
    torch.testing.assert_close(gradient.detach(), expected)
    with pytest.raises(SecondDerivativeError, match=r"_orig_mod.*compile the whole step"):
        (gradient.sum() + 0 * x.sum()).backward()
    assert x.grad is None


def test_saved_tensors_go_through_the_hooks_around_the_call() -> None:
    compiled, eager = twins(Called(gelu))
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i]):
            loss = loss_of(compiled(X))
        loss.backward()
        loss_of(eager(X)).backward()
        assert_same_gradients(compiled, eager)
    assert packed
    assert len(compiled.explain().rows) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_call(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    compiled, eager = twins(Called(lambda m, x: F.dropout(gelu(m, x), 0.5)))
    for _ in range(2):
        for module in (compiled, eager):
            torch.manual_seed(1)
            x = tracer.tensor(X, requires_grad=True) * 1
            checkpoint(module, x, use_reentrant=reentrant).sum().backward()
        assert_same_gradients(compiled, eager)


def test_what_was_saved_and_then_written_raises() -> None:
    compiled, _ = twins(Called(gelu))
    loss = loss_of(compiled(tracer.tensor(X, requires_grad=True)))
    with torch.no_grad():
        compiled.linear.weight.add_(1)
    argument = torch.randn(4, 3)
    second = loss_of(compiled(argument))
    argument.add_(1)
    for wrong, name in ((loss, "self.linear.weight"), (second, "args")):
        with pytest.raises(OverwrittenError, match="CompiledCalled") as raised:
            wrong.backward()
        assert name in str(raised.value) or "intermediate" in str(raised.value)
    assert compiled.linear.weight.grad is None


def test_an_inference_tensor_cannot_be_saved() -> None:
    compiled, _ = twins(Called(gelu))
    with torch.inference_mode():
        x = torch.randn(4, 3)
    with pytest.raises(InferenceTensorError):
        compiled(x)


def test_a_result_frees_all_without_the_garbage_collector() -> None:
    compiled, _ = twins(Called(gelu))
    loss_of(compiled(X)).backward()
    gc.disable()
    try:
        result = compiled(X)
        node = weakref.ref(result.grad_fn)
        del result
        assert node() is None
    finally:
        gc.enable()


def test_autocast_is_that_of_the_call() -> None:
    compiled, eager = twins(Called(lambda m, x: gelu(m, x).softmax(1)))
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert_same_call(compiled, eager, [X], lambda r: r.sum() * 0)
            ours, theirs = compiled(X), eager(X)
        assert ours.dtype is theirs.dtype
        for result in (ours, theirs):
            loss_of(result.float()).backward()
        torch.testing.assert_close(compiled.linear.weight.grad, eager.linear.weight.grad)
        assert_same_call(compiled, eager, [X])


def test_frozen_parameters_get_no_gradient() -> None:
    compiled, eager = twins(Called(gelu))
    for wanted in (False, True):
        for module in (compiled, eager):
            module.linear.weight.requires_grad_(wanted)
        assert_same_call(compiled, eager, [X])
    compiled.requires_grad_(False)
    assert not compiled(X).requires_grad


def test_tied_weights_get_the_sum() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).tanh())

    compiled, eager = twins(Tied(), check=True)
    assert_same_call(compiled, eager, [X])


def test_an_untracked_module_gets_its_gradients_from_our_rules() -> None:
    module = torch.nn.Linear(3, 3)
    compiled = tracer.compile(module, backend="replay")
    result = compiled(X)
    assert isinstance(result, tracer.Tensor)
    result.sum().backward()
    torch.testing.assert_close(module.bias.grad, torch.full((3,), 4.0))


def test_no_grad_and_inference_mode_record_nothing() -> None:
    compiled, eager = twins(Called(gelu))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            ours, theirs = compiled(X), eager(X)
        torch.testing.assert_close(ours, theirs)
        assert not ours.requires_grad
