"""Stock networks asked why: what keeps their memory, where a nan was born, which line cut a gradient, what they compute twice.

    python examples/asking_stock_models.py

A ResNet-18 and a vision transformer of torchvision and a GPT-2 of transformers, as they come. Blocks are checkpointed without an edit,
and the faults are planted from outside, as they come up in practice: features of length 0 that are normalised, an image that is compared
with itself, the entropy of a distribution with zeros in it; a hook that hands on what it keeps, an encoder that runs without gradients,
hidden states that went through NumPy.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from stock_models import gpt2, resnet18, vit
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import nn
import tracer

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 2])
TOKENS = torch.arange(64).reshape(2, 32) % 100

#: From a model to its loss.
Step = Callable[[Any], torch.Tensor]


def classified(model: Any) -> torch.Tensor:
    """The loss of a network for images."""
    return F.cross_entropy(model(IMAGES), LABELS)


def continued(model: Any) -> torch.Tensor:
    """The loss of a language model."""
    return next_token_loss(model(TOKENS).logits)


def next_token_loss(scores: torch.Tensor) -> torch.Tensor:
    """Cross entropy of scores ``(N, T, tokens)`` for the tokens that follow."""
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


@dataclass(frozen=True)
class Stock:
    """A network, its loss, and the paths of its blocks."""

    make: Callable[[], Any]
    step: Step
    blocks: tuple[str, ...]


STOCK = {
    "ResNet-18": Stock(resnet18, classified, tuple(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1))),
    "ViT": Stock(vit, classified, ("encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1")),
    "GPT-2": Stock(gpt2, continued, ("transformer.h.0", "transformer.h.1")),
}


def recorded(model: Any, step: Step) -> tuple[torch.Tensor, tracer.Graph]:
    """The loss of a step, and the graph that was open."""
    with tracer.Graph(sites=True, finite=True) as graph:
        loss = step(nn.track(model))
    return loss, graph


# ---------------------------------------------------------------- what keeps the memory
@dataclass(frozen=True)
class Saving:
    """What is kept for backward, by module, in bytes; parameters and buffers are left out of the sums."""

    before: Any
    #: With every block checkpointed.
    after: Any
    #: What the checkpoints hold themselves: the inputs of the blocks.
    held: int
    #: What ``tracer.memory`` said before that it would give back.
    foretold: int

    def given_back(self) -> int:
        """The bytes that are kept no more."""
        return of_activations(self.before) - of_activations(self.after) - self.held


def save_memory(stock: Stock) -> Saving:
    """Checkpoint the blocks of a network, and tell what it comes to beside what was foretold."""
    model = stock.make()
    before = memory_of(model, stock.step)
    inputs = checkpoint_each([model.get_submodule(path) for path in stock.blocks])
    after = memory_of(model, stock.step)
    held = sum(tensor.untyped_storage().nbytes() for tensor in inputs)
    return Saving(before, after, held, sum(row.checkpoint for row in before if row.what in stock.blocks))


def memory_of(model: Any, step: Step) -> Any:
    """What each module keeps, while the loss is there."""
    loss, graph = recorded(model, step)
    report = tracer.memory(graph, by="module")
    del loss
    return report


def of_activations(report: Any) -> int:
    """The bytes of a report that are no parameters and no buffers."""
    return sum(row.bytes - row.parameters for row in report)


def checkpoint_each(blocks: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Each block keeps its inputs alone from now on, and runs again in backward. Returns the list that gets the inputs as they come."""
    inputs: list[torch.Tensor] = []
    for block in blocks:
        forward = block.forward

        def run(x: torch.Tensor, *args: Any, forward: Callable[..., Any] = forward, **kwargs: Any) -> Any:
            inputs.append(x)
            return tracer.checkpoint(forward, x, *args, **kwargs)

        block.forward = functools.wraps(forward)(run)
    return inputs


# ---------------------------------------------------------------- where a nan was born
class OnASphere(torch.nn.Module):
    """Features divided by their length, before the scores are taken."""

    def __init__(self, scores: torch.nn.Module) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.scores(features / features.norm(dim=1, keepdim=True))  # planted: they may all be 0


def resnet_with_nan() -> tuple[Any, Step]:
    """A ResNet that compares directions, the relus of whose last stage are dead."""
    model = resnet18()
    model.fc = OnASphere(model.fc)
    for block in model.layer4:
        torch.nn.init.constant_(block.bn2.bias, -50.0)
    return model, classified


def vit_with_nan() -> tuple[Any, Step]:
    """A vision transformer under a contrastive loss, in whose batch an image stands twice."""

    def contrasted(model: Any) -> torch.Tensor:
        a, b = model(IMAGES), model(IMAGES[[0, 0]])
        distances = (a - b).square().sum(1).sqrt()  # planted: the first one is 0
        return distances.mean()

    return vit(), contrasted


def gpt2_with_nan() -> tuple[Any, Step]:
    """A GPT-2 with a bonus on the entropy of what it says, which is sure of some tokens."""

    def with_entropy(model: Any) -> torch.Tensor:
        scores = 1000 * model(TOKENS).logits
        p = scores.softmax(-1)
        entropy = -(p * p.log()).sum(-1)  # planted: 0 * log(0)
        return next_token_loss(scores) - 0.01 * entropy.mean()

    return gpt2(), with_entropy


WITH_NAN = {"ResNet-18": resnet_with_nan, "ViT": vit_with_nan, "GPT-2": gpt2_with_nan}


def find_nan(make: Callable[[], tuple[Any, Step]]) -> Any:
    """The report on where nan is born in a step."""
    loss, graph = recorded(*make())
    return tracer.find_nan(graph, loss)


# ---------------------------------------------------------------- why parameters have no gradient
def resnet_with_cut() -> tuple[Any, Step]:
    """A ResNet with a hook that keeps features for a picture, and hands on what it keeps."""
    model = resnet18()
    pictures = []

    def keep(module: torch.nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        pictures.append(result.detach())  # planted
        return pictures[-1]

    model.layer2.register_forward_hook(keep)
    return model, classified


def vit_with_cut() -> tuple[Any, Step]:
    """A vision transformer whose encoder runs without gradients, the class token and the positions with it."""
    model = vit()
    model.encoder.forward = torch.no_grad()(model.encoder.forward)  # planted
    return model, classified


def gpt2_with_cut() -> tuple[Any, Step]:
    """A GPT-2 whose hidden states are steered after the first block, in NumPy."""
    model = gpt2()

    def steer(module: torch.nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(1.1 * result.detach().numpy())  # planted

    model.transformer.h[0].register_forward_hook(steer)
    return model, continued


WITH_CUT = {"ResNet-18": resnet_with_cut, "ViT": vit_with_cut, "GPT-2": gpt2_with_cut}


def find_cut(make: Callable[[], tuple[Any, Step]]) -> Any:
    """The report on each parameter of a model."""
    model, step = make()
    loss, graph = recorded(model, step)
    return tracer.why(model, loss, graph)


# ---------------------------------------------------------------- what is computed twice
def resnet_called_twice() -> tuple[Any, Step]:
    """A ResNet with normalised weights, as a discriminator that is shown two batches in one step: its weights are normalised twice."""
    model = resnet18()
    for module in list(model.modules()):
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            weight_norm(module)
    return model, lambda m: F.softplus(m(IMAGES)).mean() + F.softplus(-m(-IMAGES)).mean()


def gpt2_called_twice() -> tuple[Any, Step]:
    """A GPT-2 whose two answers to one text, under two masks of dropout, are to agree."""
    return gpt2().train(), lambda m: (m(TOKENS).logits - m(TOKENS).logits).square().mean()


class Recurrent(torch.nn.Module):
    """A recurrent cell with normalised weights, called step by step: they are normalised at each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inputs, self.hidden = weight_norm(torch.nn.Linear(16, 32)), weight_norm(torch.nn.Linear(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            h = torch.tanh(self.inputs(x[:, t]) + self.hidden(h))
        return h


def recurrent_cell() -> tuple[Any, Step]:
    """The cell over twenty steps."""
    x = torch.randn(8, 20, 16, generator=torch.Generator().manual_seed(0))
    return Recurrent(), lambda m: m(x).square().mean()


def recurrent_cell_cached() -> tuple[Any, Step]:
    """The cell where torch normalises each weight once."""
    model, step = recurrent_cell()

    def once(model: Any) -> torch.Tensor:
        with parametrize.cached():
            return step(model)

    return model, once


#: A step of each network as it stands, and steps that call a part more than once.
STEPS: dict[str, Callable[[], tuple[Any, Step]]] = {
    **{f"{name}, one step": lambda stock=stock: (stock.make(), stock.step) for name, stock in STOCK.items()},
    "GPT-2, the same text twice under dropout": gpt2_called_twice,
    "ResNet-18 with weight norm, two batches": resnet_called_twice,
    "a recurrent cell with weight norm, 20 steps": recurrent_cell,
    "the same inside torch's parametrize.cached()": recurrent_cell_cached,
}


@dataclass(frozen=True)
class Shared:
    """What computing each repeated expression once would save."""

    report: Any
    #: Bytes kept for backward, and milliseconds of a step, forward and backward.
    kept: int
    took: float

    def __str__(self) -> str:
        amount = sum(row.bytes for row in self.report)
        time = sum(row.saves_ms for row in self.report)
        again = sum(row.redundant for row in self.report)
        return (
            f"{again:,} calls, {amount / 2**20:.2f} of {self.kept / 2**20:.2f} MiB ({amount / self.kept:.0%}), "
            f"{time:.1f} of {self.took:.1f} ms ({time / self.took:.0%})"
        )


def find_repeats(make: Callable[[], tuple[Any, Step]]) -> Shared:
    """What a step computes more than once, and what that costs."""
    model, step = make()
    loss, graph = recorded(model, step)
    kept = graph.kept_bytes()
    with tracer.Graph(sites=True, values=True) as graph:
        loss = step(model)
    times = tracer.timings(lambda: step(model))
    report = tracer.repeats(graph, times)
    del loss
    return Shared(report, kept, sum(row.total_ms for row in times))


# ---------------------------------------------------------------- all of it
def show(report: Any, rows: int = 4) -> None:
    """The text of a report, long lines broken, with the first rows of its table."""
    tabled = -1
    for line in str(report).splitlines():
        tabled += line.startswith("  ")
        if not line.startswith("  "):
            print(textwrap.fill(line, 116, initial_indent="    ", subsequent_indent="        "))
        elif tabled <= rows:
            print(f"    {line}")


def main() -> None:
    """Ask all of it."""
    for name, stock in STOCK.items():
        print(f"\n{name}: what its blocks keep for backward, and what a checkpoint around each would give back")
        saving = save_memory(stock)
        for row in saving.before:
            if row.what in stock.blocks:
                print(f"    {row.what:32} {row.within:>12,} {row.checkpoint:>12,} bytes")
        print(f"    each checkpointed, {saving.given_back():,} bytes are given back: {saving.foretold:,} were foretold")
    for name, make in WITH_NAN.items():
        print(f"\n{name} with a planted nan: where was it born?")
        show(find_nan(make))
    for name, make in WITH_CUT.items():
        print(f"\n{name} with a planted cut: why have parameters no gradient?")
        show(find_cut(make))
    print("\nWhat is computed more than once, and what sharing it would save")
    for name, make in STEPS.items():
        print(f"    {name}: {find_repeats(make)}")


if __name__ == "__main__":
    main()
