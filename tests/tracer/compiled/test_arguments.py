"""What a compiled step is given: objects of many kinds, their gradients, what the step takes from them, and what is kept of them."""

from __future__ import annotations

import dataclasses
import gc
import types
import weakref
from collections import ChainMap, UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import nn
import tracer


@dataclasses.dataclass(frozen=True)
class Record:
    x: torch.Tensor
    y: torch.Tensor


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


class Node(types.SimpleNamespace):
    """One that torch knows as a nest."""


torch.utils._pytree.register_pytree_node(
    Node, lambda node: ([node.x, node.y], None), lambda leaves, _: Node(x=leaves[0], y=leaves[1])
)

by_name: Callable[[Any], Any] = lambda batch: (batch.x, batch.y)  # noqa: E731
by_key: Callable[[Any], Any] = lambda batch: (batch["x"], batch["y"])  # noqa: E731
KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "dataclass": (Record, by_name),
    "namespace": (lambda x, y: types.SimpleNamespace(x=x, y=y), by_name),
    "slots": (Slotted, by_name),
    "nest of torch's": (lambda x, y: Node(x=x, y=y), by_name),
    "mapping": (lambda x, y: UserDict(x=x, y=y), by_key),
    "chain of mappings": (lambda x, y: ChainMap({"x": x}, {"y": y}), by_key),
    "read-only mapping": (lambda x, y: types.MappingProxyType({"x": x, "y": y}), by_key),
    "deque": (lambda x, y: deque([x, y]), lambda batch: (batch[0], batch[1])),
}


def linear(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return nn.track(torch.nn.Linear(4, 3))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_new_tensors_in_objects_take_one_graph_and_get_their_gradients(name: str, grad: bool) -> None:
    make, read = KINDS[name]
    model, twin = linear(), linear()

    def step_of(model: torch.nn.Module) -> Callable[[Any], torch.Tensor]:
        def step(batch: Any) -> torch.Tensor:
            x, y = read(batch)
            loss = (model(x) - y).square().sum()
            loss.backward()
            return loss

        return step

    compiled, eager = tracer.compile(step_of(model), backend="replay"), step_of(twin)
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randn(5, 3)
        ours, theirs = (tracer.tensor(x, requires_grad=grad) for _ in range(2))
        torch.testing.assert_close(compiled(make(ours, y)).detach(), eager(make(theirs, y)).detach())
        torch.testing.assert_close(model.weight.grad, twin.weight.grad)
        if grad:
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(compiled.explain().rows) == 1


@pytest.mark.parametrize("make", [dict, UserDict, lambda **batch: types.SimpleNamespace(held=batch)])
def test_what_a_step_takes_from_its_argument_is_put_back(make: Callable[..., Any]) -> None:
    model = linear()

    def step(batch: Any) -> None:
        y = getattr(batch, "held", batch).pop("y")
        (model(getattr(batch, "held", batch)["x"]) - y).sum().backward()

    batch = make(x=torch.randn(5, 4), y=torch.randn(5, 3))
    compiled = tracer.compile(step, backend="replay")
    for _ in range(2):
        with pytest.raises(tracer.CaptureError, match="the step changes"):
            compiled(batch)
    assert list(getattr(batch, "held", batch)) == ["x", "y"]


def test_models_and_batches_that_were_given_are_let_go() -> None:
    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
        model(batch["rows"]).sum().backward()

    compiled = tracer.compile(step, backend="replay")
    models, batches = [], []
    for seed in range(4):
        model, batch = linear(seed), {"rows": torch.randn(5, 4)}
        compiled(model, batch)
        models.append(weakref.ref(model.weight))
        batches.append(weakref.ref(batch["rows"]))
    del model, batch
    gc.collect()
    assert [reference() is None for reference in models] == [
        True,
        True,
        True,
        False,
    ]  # the last one waits for the next call
    assert all(reference() is None for reference in batches)
    assert len(compiled.explain().rows) == 1


def test_a_step_in_checkpoints_has_one_graph() -> None:
    model, outer, other = linear(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    other.load_state_dict(outer.state_dict())
    nn.track(outer)
    nn.track(other)
    step = lambda hidden: model(hidden).sum().detach()  # noqa: E731
    compiled = tracer.compile(step, backend="replay")
    for run, layer in ((compiled, outer), (step, other)):
        for value in (1.0, 2.0, 3.0):
            x = torch.full((5, 4), value)
            checkpoint(lambda x, run=run, layer=layer: layer(x) * run(x), x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(outer.weight.grad, other.weight.grad)
    assert len(compiled.explain().rows) == 1


def test_a_quantized_argument_is_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.randn(5, 4), 0.1, 0, torch.quint8)
    with pytest.raises(tracer.CaptureError, match=r"not dense \(quantized\)"):
        tracer.compile(lambda x: x.dequantize(), backend="replay")(quantized)


def parts_of_one_buffer(layer: torch.nn.Module) -> None:
    buffer = torch.zeros(15)
    layer.weight.grad, layer.bias.grad = buffer[:12].view(3, 4), buffer[12:]


def the_same_memory(layer: torch.nn.Module) -> None:
    layer.weight.grad = torch.zeros(3, 4)
    layer.bias.grad = layer.weight.grad.view(-1)[:3]


def clipped(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    layer(x).square().sum().backward()
    return torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


def test_gradients_may_lie_beside_one_another_in_one_buffer() -> None:
    layer, twin, x = linear(), linear(), torch.randn(5, 4)
    parts_of_one_buffer(layer)
    parts_of_one_buffer(twin)
    compiled = tracer.compile(lambda x: clipped(layer, x), backend="replay")
    for _ in range(3):
        assert torch.equal(compiled(x), clipped(twin, x))
        assert torch.equal(layer.weight.grad._base, twin.weight.grad._base)


def test_gradients_that_overlap_are_refused_and_copies_are_not() -> None:
    layer, x = linear(), torch.randn(5, 4)
    the_same_memory(layer)
    compiled = tracer.compile(lambda x: clipped(layer, x), backend="replay")
    with pytest.raises(
        tracer.CaptureError, match=r"\.grad of layer\.weight, which shares .* copy there before the call"
    ):
        compiled(x)
    layer.weight.grad = layer.weight.grad.clone()
    compiled(x)
