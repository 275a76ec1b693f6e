"""Stock networks trained by compiled steps, beside the same networks trained eagerly: the losses are the same.

    pip install -c constraints.txt -e ".[examples]"
    python examples/compiled_training.py --backend inductor --networks vit gpt2

A compiled step is captured once, forward and our backward in one graph of ATen ops, and runs without interception from
then on. The optimiser stays outside. Replayed, it draws the random numbers of the eager step (dropout of BERT and GPT-2);
inductor draws others, so with ``--backend inductor`` the networks run without dropout.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from stock_models import bert, gpt2, resnet18, vit

import nn
import tracer

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def images(size: int, classes: int) -> Batch:
    """Four random images and a class for each."""
    return torch.randn(4, 3, size, size), torch.randint(classes, (4,))


def tokens() -> Batch:
    """Four sequences of tokens, and the same again: what a language model learns to go on with."""
    drawn = torch.randint(100, (4, 16))
    return drawn, drawn


def classifier(model: torch.nn.Module) -> Loss:
    """Cross-entropy of the scores."""
    return lambda x, y: F.cross_entropy(model(x), y)


def language_model(model: torch.nn.Module) -> Loss:
    """What transformers computes of its own scores."""
    return lambda x, y: model(input_ids=x, labels=y).loss


def encoder(model: torch.nn.Module) -> Loss:
    """Hidden states that are to say which token stands there, by the embeddings that they came from."""
    return lambda x, y: F.cross_entropy(
        (model(input_ids=x).last_hidden_state @ model.embeddings.word_embeddings.weight.t()).flatten(0, 1), y.flatten()
    )


@dataclass(frozen=True)
class Task:
    """A network, its batches and its loss. ``without_dropout`` are options of its configuration."""

    make: Callable[..., torch.nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[torch.nn.Module], Loss]
    without_dropout: dict[str, float] = field(default_factory=dict)


TASKS = {
    "resnet": Task(resnet18, lambda: images(32, 1000), classifier),
    "vit": Task(vit, lambda: images(32, 10), classifier),
    "bert": Task(bert, tokens, encoder, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "gpt2": Task(gpt2, tokens, language_model, {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
}


def losses(task: Task, model: torch.nn.Module, compile: Callable[[Any], Any], steps: int) -> list[float]:
    """The losses of ``steps`` training steps on five batches in turn."""
    torch.manual_seed(0)
    batches = [task.batch() for _ in range(5)]
    nn.track(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = task.loss(model)

    @compile
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, y)
        loss.backward()
        return loss

    found = []
    for i in range(steps):
        found.append(step(*batches[i % 5]).item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return found


def train(name: str, backend: str, steps: int = 50) -> tuple[list[float], list[float]]:
    """The losses of one network, eagerly and compiled."""
    task = TASKS[name]
    model = task.make(**(task.without_dropout if backend == "inductor" else {}))
    twin = copy.deepcopy(model)
    eager = losses(task, model, lambda step: step, steps)
    return eager, losses(task, twin, lambda step: tracer.compile(step, backend=backend), steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--backend", choices=("replay", "inductor"), default="replay")
    options = parser.parse_args()
    for name in options.networks:
        started = time.perf_counter()
        eager, compiled = train(name, options.backend)
        apart = max(abs(a - b) / abs(a) for a, b in zip(eager, compiled, strict=True))
        print(
            f"{name}: losses {eager[0]:.4f} ... {eager[-1]:.4f} eagerly, {compiled[0]:.4f} ... {compiled[-1]:.4f} by {options.backend}, "
            f"at most {apart:.0e} apart ({time.perf_counter() - started:.0f} s)"
        )


if __name__ == "__main__":
    main()
