"""Ops that others define, recorded as one call: where nobody looks into the call, and with what the parts would give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import cotangents, plain

import ops_registry
import tracer
from ops_registry.registry import RULES, changes
from tracer.recording import call as lanes

T = torch.Tensor

CLASSES = torch.tensor([0, 2, 1, -100])
CELLS = {torch.rnn_tanh_cell: 1, torch.rnn_relu_cell: 1, torch.gru_cell: 3, torch.lstm_cell: 4}


def logits(*shape: int) -> T:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


def entropy(**options: Any) -> Callable[[T], Any]:
    return lambda x: F.cross_entropy(x, CLASSES, **options)


def step(cell: Callable[..., Any], biases: bool) -> tuple[Callable[..., Any], list[T]]:
    """A step of a cell as a function of tensors alone, and the tensors."""
    gates, states = CELLS[cell], 2 if cell is torch.lstm_cell else 1
    data = [logits(2, 3), *(logits(2, 4) for _ in range(states)), logits(4 * gates, 3), logits(4 * gates, 4)]
    data += [logits(4 * gates), logits(4 * gates) / 2] if biases else []

    def run(x: T, *others: T) -> Any:
        return cell(x, others[:2], *others[2:]) if states == 2 else cell(x, *others)

    return run, data


def weight_norm(v: T, g: T, dim: int) -> T:
    if isinstance(v, tracer.Tensor):
        return torch._weight_norm(v, g, dim)
    norm = torch.norm_except_dim(v, 2, dim)  # in parts: the second derivative of torch's one call is wrong
    return v * (g.reshape(norm.shape) / norm)


CALLS: dict[str, tuple[Callable[..., Any], list[T]]] = {
    "classes": (entropy(), [logits(4, 3)]),
    "weights": (entropy(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)), [logits(4, 3)]),
    "ignored class": (lambda x: F.cross_entropy(x, CLASSES.clamp_min(0), ignore_index=2), [logits(4, 3)]),
    "sum": (entropy(reduction="sum"), [logits(4, 3)]),
    "none": (entropy(reduction="none"), [logits(4, 3)]),
    "one sample": (lambda x: F.cross_entropy(x, torch.tensor(1)), [logits(3)]),
    "images": (lambda x: F.cross_entropy(x, torch.ones(2, 4, 5, dtype=torch.long)), [logits(2, 3, 4, 5)]),
    "sequences": (
        lambda x: F.cross_entropy(x, torch.ones(2, 4, dtype=torch.long), reduction="none"),
        [logits(2, 3, 4)],
    ),
    "weight norm, first": (lambda v, g: weight_norm(v, g, 0), [logits(2, 3, 4), logits(2, 1, 1)]),
    "weight norm, last": (lambda v, g: weight_norm(v.mT, g, 2), [logits(2, 3, 4), logits(1, 1, 3)]),
    "weight norm, lengths in a row": (lambda v, g: weight_norm(v, g, 0), [logits(3, 3), logits(1, 3)]),
    **{f"{cell.__name__}, biases {b}": step(cell, b) for cell in CELLS for b in (True, False)},
}


@pytest.fixture
def by_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Calling it lets every call go by its parts."""
    yield lambda: monkeypatch.setattr(lanes, "looked_into", lambda: True)


def outputs_of(found: Any) -> list[T]:
    return list(found) if isinstance(found, tuple | list) else [found]


def both_orders(call: Callable[..., Any], leaves: list[T]) -> list[T | None]:
    """The results of a call, its gradients, and those of the gradients."""
    results = outputs_of(call(*leaves))
    first = torch.autograd.grad(results, leaves, cotangents(results), create_graph=True)
    again = [g for g in first if g.requires_grad]
    second = torch.autograd.grad(again, leaves, cotangents(again, 2), allow_unused=True)
    return [None if t is None else plain(t) for t in (*results, *first, *second)]


@pytest.mark.parametrize("name", CALLS)
def test_as_one_is_what_the_parts_give_and_what_torch_gives(name: str, by_parts: Callable[[], None]) -> None:
    call, data = CALLS[name]
    tracked = [tracer.track(d.clone(), True) for d in data]
    as_one = both_orders(call, tracked)
    torchs = both_orders(call, [d.clone().requires_grad_() for d in data])
    by_parts()
    parts = both_orders(call, [tracer.track(d.clone(), True) for d in data])
    for one, part, native in zip(as_one, parts, torchs, strict=True):
        for other in (part, native):
            if one is None or other is None:
                assert all(t is None or not t.any() for t in (one, other))
            else:
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def ops_behind(result: T) -> set[str]:
    """The ops of all recorded calls that a result was made by."""
    return set(tracer.graph_of(result).counts())


def test_a_call_that_nobody_looks_into_is_one_node() -> None:
    x = tracer.track(logits(4, 3), True)
    assert ops_behind(F.cross_entropy(x, CLASSES)) == {"cross_entropy_loss"}


def test_a_graph_shows_the_parts() -> None:
    x = tracer.track(logits(4, 3), True)
    with tracer.Graph() as graph:
        loss = F.cross_entropy(x, CLASSES)
    assert set(graph.counts()) == {"log_softmax", "nll_loss_nd"} and loss.requires_grad


def test_a_rule_replaced_in_a_block_reaches_the_part() -> None:
    x = tracer.track(logits(4, 3), True)
    with ops_registry.use({torch.log_softmax: lambda grad: grad * 0 + 7}):
        loss = F.cross_entropy(x, CLASSES)
    loss.backward()
    assert plain(x.grad).eq(7).all()


@pytest.mark.usefixtures("clean_registry")
def test_a_rule_replaced_for_good_reaches_the_part() -> None:
    @ops_registry.backward(torch.log_softmax, replace=True)
    def sevens(grad: T) -> T:
        return grad * 0 + 7

    x = tracer.track(logits(4, 3), True)
    F.cross_entropy(x, CLASSES).backward()
    assert plain(x.grad).eq(7).all()


@pytest.mark.usefixtures("clean_registry")
def test_a_rule_replaced_for_good_takes_the_place_of_the_whole_call() -> None:
    @ops_registry.backward(torch._C._nn.cross_entropy_loss, replace=True)
    def sevens(grad: T, input: T) -> T:
        return torch.full_like(input, 7)

    x = tracer.track(logits(4, 3), True)
    F.cross_entropy(x, CLASSES).backward()
    assert plain(x.grad).eq(7).all() and RULES["cross_entropy_loss"].as_one is None


def test_the_mark_of_replaced_rules_is_off() -> None:
    assert not changes.replaced


def test_a_transform_sees_the_parts() -> None:
    x, t = logits(4, 3), logits(4, 3) + 1
    _, ours = tracer.func.jvp(lambda x: F.cross_entropy(x, CLASSES), (x,), (t,))
    _, torchs = torch.func.jvp(lambda x: F.cross_entropy(x, CLASSES), (x,), (t,))
    torch.testing.assert_close(plain(ours), torchs)


@pytest.mark.parametrize("open_graph", [True, False])
def test_a_checkpointed_call_is_made_again_as_it_was_made(open_graph: bool) -> None:
    x = tracer.track(logits(4, 3), True)

    def run() -> T:
        return torch.utils.checkpoint.checkpoint(F.cross_entropy, x, CLASSES, use_reentrant=False)

    if open_graph:
        with tracer.Graph():
            loss = run()
    else:
        loss = run()
    loss.backward()
    native = logits(4, 3).requires_grad_()
    F.cross_entropy(native, CLASSES).backward()
    torch.testing.assert_close(plain(x.grad), native.grad)


def test_all_classes_ignored_give_nan_as_in_torch() -> None:
    ours, native = tracer.track(logits(2, 3), True), logits(2, 3).requires_grad_()
    for x in (ours, native):
        F.cross_entropy(x, torch.tensor([-100, -100])).backward()
    torch.testing.assert_close(plain(ours.grad), native.grad, equal_nan=True)


def test_the_input_of_cross_entropy_is_not_kept() -> None:
    x = tracer.track(logits(4, 3), True) * 1
    node = F.cross_entropy(x, CLASSES)._node
    assert all(t.data_ptr() != x.data_ptr() for t, _ in node.saved_versions)


def test_weights_that_require_grad_are_refused_by_the_part() -> None:
    weight = tracer.track(torch.ones(3, dtype=torch.float64), True)
    with pytest.raises(ops_registry.errors.UnsupportedCallError, match="weight"):
        F.cross_entropy(tracer.track(logits(4, 3), True), CLASSES, weight=weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", [torch.gru_cell, torch.lstm_cell], ids=lambda cell: cell.__name__)
def test_the_state_that_a_cell_returns_can_be_written_into_also_where_a_graph_is_open(cell: Any, dtype: Any) -> None:
    run, data = step(cell, True)
    grads = []
    for recording in (contextlib.nullcontext(), tracer.Graph()):
        tensors = [tracer.track(part.to(dtype), True) for part in data]
        with recording:
            for state in outputs_of(run(*tensors)):
                state.mul_(2)
                state.sin().sum().backward(retain_graph=True)
        grads.append([plain(tensor.grad) for tensor in tensors])
    torch.testing.assert_close(*grads)
