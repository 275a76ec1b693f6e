"""Claim: a replaced rule costs what its own formula costs, and hardly more.

One step, forward and backward, of an MLP of 40 tiny calls and of a small transformer, beside the same step without a block: inside a block
whose rule is the shipped formula itself, so that the work is the same; with a rule that wraps the shipped one (``default``); with a scope
by module that half of the calls are in, for the activation alone and for the linear layers too. At last what entering a block costs.
Processor time, single-threaded, interleaved in one process.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from interleaved import compare, console, report

import nn
import ops_registry
import tracer


def mlp() -> tuple[torch.nn.Module, torch.Tensor, str]:
    """20 linear layers and 20 tanh of 16 features; the glob names the first half."""
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
    halves = torch.nn.Sequential(torch.nn.Sequential(*layers[:20]), torch.nn.Sequential(*layers[20:]))
    return nn.track(halves), torch.randn(8, 16), "0.*"


def transformer() -> tuple[torch.nn.Module, torch.Tensor, str]:
    """Two encoder layers of 64 features on 8 sequences of 16; the glob names the first layer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, activation="gelu", batch_first=True)
    return (
        nn.track(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)),
        torch.randn(8, 16, 64),
        "layers.0",
    )


def shipped(func: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The op's own formulas as a replacement, input by input; of a joint one that of the first input."""
    rule = ops_registry.lookup(func)
    assert rule is not None
    return {f.wrt[0]: f.function for f in rule.formulas if not f.joint}


def contestants(
    model: torch.nn.Module, x: torch.Tensor, half: str, activation: Callable[..., Any]
) -> dict[str, Callable[[], object]]:
    """A step without a block, and inside blocks that are made once."""

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    def inside(replaced: Any) -> Callable[[], object]:
        def run() -> None:
            with replaced:
                step()

        return run

    wrapped = {activation: lambda grad, default: default(grad)}
    linear = {F.linear: {"input": lambda grad, default: default(grad)}}
    return {
        "no block": step,
        "the shipped rule": inside(ops_registry.use({activation: shipped(activation)})),
        "a wrapped rule": inside(ops_registry.use(wrapped)),
        "the shipped rule, half the modules": inside(ops_registry.use({activation: shipped(activation)}, where=half)),
        "wrapped, half the modules": inside(ops_registry.use(wrapped, where=half)),
        "wrapped, linear too": inside(ops_registry.use({**wrapped, **linear})),
        "wrapped, linear too, half the modules": inside(ops_registry.use({**wrapped, **linear}, where=half)),
    }


def entering() -> None:
    """Microseconds a block, made beforehand or on the spot."""
    x = tracer.tensor([1.0], requires_grad=True)
    made = ops_registry.use({torch.tanh: shipped(torch.tanh), F.relu: lambda grad: grad}, expect=None)
    with made:
        x.tanh().relu()

    def enter() -> None:
        with made:
            pass

    def make() -> None:
        with ops_registry.use({torch.tanh: shipped(torch.tanh)}, expect=None):
            pass

    for name, run in (("entering a block that was made", enter), ("making one and entering it", make)):
        best = min(timeit.repeat(run, number=2000, repeat=5)) / 2000
        console.print(f"{name}: {best * 1e6:.1f} us")


def main() -> None:
    torch.set_num_threads(1)
    for title, network, activation in (
        ("MLP, 40 tiny calls", mlp, torch.tanh),
        ("small transformer", transformer, F.gelu),
    ):
        model, x, half = network()
        found = compare(contestants(model, x, half, activation), rounds=21, calls=20, clock=time.process_time)
        report(title, found, 1e-6, "us a step")
    entering()


if __name__ == "__main__":
    main()
