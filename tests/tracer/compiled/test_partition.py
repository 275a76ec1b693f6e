"""The two halves of a module's graph: what is saved, what is computed again, what is written, and that no number is drawn twice."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.compiled_modules import Called, assert_same_call, assert_same_gradients, loss_of, twins

import tracer
from tracer.compiled.backends import default_backend
from tracer.errors import CaptureError

torch.manual_seed(0)
X = torch.randn(4, 3)
IMAGES = torch.randn(2, 3, 8, 8)
TOKENS = torch.randn(2, 5, 8)


class TwoNorms(torch.nn.Module):
    """One batch norm, gone through twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(self.norm(x)))


class Checkpointed(torch.nn.Linear):
    """A stretch with dropout that runs again in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tracer.checkpoint(lambda v: F.dropout(super(Checkpointed, self).forward(v).tanh()), x)


def cnn() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
        torch.nn.Dropout2d(0.3), torch.nn.GroupNorm(2, 4), torch.nn.Flatten(), torch.nn.Linear(36, 2),
    )  # fmt: skip


def dropouts() -> torch.nn.Module:
    """Dropouts of one shape and probability, whose calls look the same."""
    return torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.Dropout(), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Tanh()
    )


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], torch.Tensor]] = {
    "cnn": (cnn, IMAGES),
    "channels last": (cnn, IMAGES.to(memory_format=torch.channels_last)),
    "dropouts": (dropouts, X),
    "transformer": (encoder, TOKENS),
    "gru": (lambda: torch.nn.GRU(8, 4, 2, dropout=0.2), TOKENS),
    "lstm": (lambda: torch.nn.LSTM(8, 4), TOKENS),
    "two norms": (TwoNorms, X),
    "embedding": (lambda: torch.nn.Embedding(5, 3, padding_idx=1), torch.tensor([1, 2, 1])),
    "checkpoint inside": (lambda: Checkpointed(3, 3), X),
    "spectral norm": (lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3)), X),
    "bfloat16": (lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3)).bfloat16(), X.bfloat16()),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_eagerly_by_replay(name: str) -> None:
    make, data = NETWORKS[name]
    torch.manual_seed(0)
    compiled, eager = twins(make, check=True)
    for step in range(3):
        losses = []
        for module in (compiled, eager):
            torch.manual_seed(step)
            losses.append(loss_of(module(data)))
            losses[-1].backward()
        torch.testing.assert_close(losses[0].detach(), losses[1].detach())
        assert_same_gradients(compiled, eager)
        with torch.no_grad():
            for module in (compiled, eager):
                for p in module.parameters():
                    p.sub_(p.grad.to_dense(), alpha=0.1)
                    p.grad = None
    assert len(compiled.explain().rows) == 1


def test_dropouts_that_look_the_same_draw_numbers_of_their_own() -> None:
    compiled, _ = twins(Called(lambda m, x: (F.dropout(x * 0 + 1), F.dropout(x * 0 + 1))))
    first, second = compiled(torch.ones(100, 3))
    assert not torch.equal(first, second)


def test_less_is_saved_than_eagerly() -> None:
    compiled, eager = twins(Called(lambda m, x: F.gelu(m.linear(x).sin() * 2).tanh() * x))
    x, kept = tracer.tensor(torch.randn(100, 3), requires_grad=True), []
    for module in (compiled, eager):
        with tracer.Graph() as graph:
            result = module(x)
        kept.append(graph.kept_bytes())
        assert result.requires_grad
    assert kept[0] < 0.6 * kept[1]


def test_saved_tensors_go_while_backward_runs() -> None:
    gone: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward

    module = Called(lambda m, x: F.dropout(m.linear(x).sin(), 0.5) @ m.linear.weight)
    compiled, _ = twins(module)
    result = compiled(tracer.tensor(X, requires_grad=True))
    node = result.grad_fn
    saved = [weakref.ref(t) for t in node.saved if t.untyped_storage().data_ptr() != compiled.linear.weight.data_ptr()]
    node.register_hook(lambda grads, outputs: gone.append(all(ref() is None for ref in saved)))
    loss_of(result).backward()
    assert gone == [True]
    assert saved


def test_what_backward_wants_of_a_buffer_is_what_it_was_before_the_write() -> None:
    def writes_late(module: Any, x: torch.Tensor) -> torch.Tensor:
        y = (module.linear(x) * module.buffer.clone()).sin()
        module.buffer.mul_(3)
        return y

    compiled, eager = twins(Called(writes_late), check=True)
    x = torch.randn(4, 3, requires_grad=True)
    for _ in range(2):
        assert_same_call(compiled, eager, [x])


needs_compiler = pytest.mark.skipif(default_backend() != "inductor", reason="needs a C++ compiler")


@pytest.mark.slow
@needs_compiler
def test_networks_train_as_eagerly_by_inductor() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )
    compiled, eager = twins(network, backend="inductor", check=True)
    for scale in (1, 2):
        assert_same_call(compiled, eager, [(IMAGES * scale).requires_grad_()])
    assert len(compiled.explain().rows) == 1


@pytest.mark.inductor
@needs_compiler
def test_inductors_masks_are_those_of_the_forward_pass_in_backward() -> None:
    compiled, _ = twins(Called(lambda m, x: F.dropout(F.dropout(x.sin().exp(), 0.5), 0.2)), backend="inductor")
    leaves = [tracer.tensor(torch.randn(50, 3) + 3, requires_grad=True) for _ in range(2)]
    results = [compiled(leaf) for leaf in leaves]
    sum(results).sum().backward()
    for leaf, result in zip(leaves, results, strict=True):
        assert torch.equal(leaf.grad != 0, result.detach() != 0)
    assert not torch.equal(results[0].detach() != 0, results[1].detach() != 0)
    assert 0.3 < (results[0].detach() != 0).double().mean() < 0.7


def test_where_inductor_fails_the_error_names_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(*_: Any) -> Any:
        raise TypeError("an error from its inside")

    monkeypatch.setattr("tracer.compiled.partition.split_for_inductor", split)
    compiled, _ = twins(Called(lambda m, x: m.linear(x)), backend="inductor")
    with pytest.raises(
        CaptureError, match=r"graph of the module \(TypeError: an error from its inside\).*backend='replay'"
    ):
        compiled(torch.randn(4, 3))


@pytest.mark.inductor
@needs_compiler
def test_inductor_writes_and_returns_what_the_module_does() -> None:
    def forward(module: Any, x: torch.Tensor) -> Any:
        y = (module.linear(x) * module.buffer.clone()).sin()
        module.buffer.mul_(3)
        return y, x.t(), y.chunk(3, 1)[1], None, module.buffer * 2

    compiled, eager = twins(Called(forward), backend="inductor", check=True)
    for _ in range(2):
        assert_same_call(compiled, eager, [torch.randn(4, 3, requires_grad=True)])
