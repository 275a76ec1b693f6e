"""Claim: what glassgrad costs a small op, forward and backward, beside torch, HIPS autograd and MyGrad.

A chain of mul, add, tanh on 4 elements; a loop of LSTM cells; a small MLP. Single-threaded.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import autograd
import autograd.numpy as anp
import mygrad as mg
import numpy as np
import torch
from interleaved import compare, report

import tracer

CHAIN, CELLS, HIDDEN, BATCH = 100, 40, 16, 4


def chain_torch(x: torch.Tensor, w: Any, b: Any) -> None:
    h = x
    for _ in range(CHAIN):
        h = (h * w + b).tanh()
    h.sum().backward()
    for leaf in (x, w, b):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None


def chain_autograd(x: Any, w: Any, b: Any) -> Callable[[], object]:
    def loss(leaves: Any) -> Any:
        h, w, b = leaves
        for _ in range(CHAIN):
            h = anp.tanh(h * w + b)
        return anp.sum(h)

    gradient = autograd.grad(loss if isinstance(w, np.ndarray) else lambda x: loss((x, w, b)))
    return lambda: gradient((x, w, b) if isinstance(w, np.ndarray) else x)


def chain_mygrad(x: Any, w: Any, b: Any) -> Callable[[], object]:
    def run() -> None:
        h, tw, tb = (mg.tensor(a) if isinstance(a, np.ndarray) else a for a in (x, w, b))
        for _ in range(CHAIN):
            h = mg.tanh(h * tw + tb)
        h.sum().backward()

    return run


def lstm_torch(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> None:
    h = c = torch.zeros(BATCH, HIDDEN)
    for _ in range(CELLS):
        i, f, g, o = (x @ w + h @ u + b).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    h.sum().backward()
    w.grad = u.grad = b.grad = None


def lstm_autograd(x: Any, w: Any, u: Any, b: Any) -> Callable[[], object]:
    def sigmoid(z: Any) -> Any:
        return 1 / (1 + anp.exp(-z))

    def loss(weights: Any) -> Any:
        w, u, b = weights
        h = c = anp.zeros((BATCH, HIDDEN))
        for _ in range(CELLS):
            z = x @ w + h @ u + b
            i, f, g, o = (z[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * anp.tanh(g)
            h = sigmoid(o) * anp.tanh(c)
        return anp.sum(h)

    gradient = autograd.grad(loss)
    return lambda: gradient((w, u, b))


def lstm_mygrad(x: Any, w: Any, u: Any, b: Any) -> Callable[[], object]:
    def sigmoid(z: Any) -> Any:
        return 1 / (1 + mg.exp(-z))

    def run() -> None:
        tw, tu, tb = mg.tensor(w), mg.tensor(u), mg.tensor(b)
        h: Any = np.zeros((BATCH, HIDDEN), dtype=np.float32)
        c: Any = h
        for _ in range(CELLS):
            z = x @ tw + h @ tu + tb
            i, f, g, o = (z[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * mg.tanh(g)
            h = sigmoid(o) * mg.tanh(c)
        h.sum().backward()

    return run


def mlp_torch(x: torch.Tensor, y: torch.Tensor, weights: list[torch.Tensor]) -> None:
    h = x
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        h = (h @ w + b).tanh()
    ((h - y) ** 2).mean().backward()
    for weight in weights:
        weight.grad = None


def mlp_autograd(x: Any, y: Any, weights: list[Any]) -> Callable[[], object]:
    def loss(weights: Any) -> Any:
        h = x
        for w, b in zip(weights[::2], weights[1::2], strict=True):
            h = anp.tanh(h @ w + b)
        return anp.mean((h - y) ** 2)

    gradient = autograd.grad(loss)
    return lambda: gradient(weights)


def mlp_mygrad(x: Any, y: Any, weights: list[Any]) -> Callable[[], object]:
    def run() -> None:
        tensors = [mg.tensor(w) for w in weights]
        h = x
        for w, b in zip(tensors[::2], tensors[1::2], strict=True):
            h = mg.tanh(h @ w + b)
        ((h - y) ** 2).mean().backward()

    return run


def native(array: Any) -> torch.Tensor:
    return torch.tensor(array, requires_grad=True)


def tracked(array: Any) -> torch.Tensor:
    return tracer.tensor(array, requires_grad=True)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    start, scale, shift = np.linspace(-1.0, 1.0, 4), np.full(4, 1.01), np.full(4, 0.01)
    for operands, w, b in (("numbers", 1.01, 0.01), ("tensors that want gradients", scale, shift)):
        theirs, ours = [
            [make(a) if isinstance(a, np.ndarray) else a for a in (start, w, b)] for make in (native, tracked)
        ]
        timings = compare(
            {
                "torch": lambda theirs=theirs: chain_torch(*theirs),
                "glassgrad": lambda ours=ours: chain_torch(*ours),
                "HIPS autograd": chain_autograd(start, w, b),
                "MyGrad": chain_mygrad(start, w, b),
            },
            rounds=40,
            calls=5,
        )
        report(
            f"mul, add, tanh on 4 elements, {3 * CHAIN} ops; factors and terms are {operands}",
            timings,
            3e-6 * CHAIN,
            "us per op",
        )

    x, w, u, b = array(BATCH, 8), array(8, 4 * HIDDEN), array(HIDDEN, 4 * HIDDEN), array(4 * HIDDEN)
    xt = torch.from_numpy(x)
    theirs, ours = [native(a) for a in (w, u, b)], [tracked(a) for a in (w, u, b)]
    timings = compare(
        {
            "torch": lambda: lstm_torch(xt, *theirs),
            "glassgrad": lambda: lstm_torch(xt, *ours),
            "HIPS autograd": lstm_autograd(x, w, u, b),
            "MyGrad": lstm_mygrad(x, w, u, b),
        },
        rounds=30,
        calls=3,
    )
    report(f"{CELLS} LSTM cells, batch {BATCH}, hidden {HIDDEN}, forward + backward", timings, 1e-3, "ms")

    sizes = (16, 32, 32, 4)
    weights = [array(*s) for a, b in pairwise(sizes) for s in ((a, b), (b,))]
    x, y = array(32, 16), array(32, 4)
    xt, yt = torch.from_numpy(x), torch.from_numpy(y)
    mlp_theirs, mlp_ours = [native(a) for a in weights], [tracked(a) for a in weights]
    timings = compare(
        {
            "torch": lambda: mlp_torch(xt, yt, mlp_theirs),
            "glassgrad": lambda: mlp_torch(xt, yt, mlp_ours),
            "HIPS autograd": mlp_autograd(x, y, weights),
            "MyGrad": mlp_mygrad(x, y, weights),
        },
        rounds=60,
        calls=10,
    )
    report("MLP 16-32-32-4, batch 32, forward + backward", timings, 1e-3, "ms")


if __name__ == "__main__":
    main()
