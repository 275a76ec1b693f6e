"""Claim: transforms on our rules cost about what ``torch.func`` costs.

The Jacobian of a 64-64-64-64 network by 64 rows in one sweep, per-sample gradients of a small CNN (batch 32), a Hessian-vector product
and the Hessian of the same network, each beside the ways that torch offers. Processor time, single-threaded.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
import torch.autograd.functional as AF
from interleaved import compare, report

import nn
import tracer


def network() -> torch.nn.Sequential:
    """64-64-64-64 with tanh between, the same at every call."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


class SmallCNN(torch.nn.Module):
    """Two convolutions with pooling, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3)
        self.second = torch.nn.Conv2d(8, 16, 3)
        self.last = torch.nn.Linear(16 * 25, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        return self.last(torch.relu(self.second(x)).flatten(1))


def batched_rows() -> dict[str, Callable[[], object]]:
    """64 cotangents in one sweep over a graph that is there."""
    x, rows = torch.randn(64), torch.eye(64)
    contestants = {}
    for name, model, leaf in (
        ("torch, is_grads_batched", network(), x.clone().requires_grad_()),
        ("glassgrad, is_grads_batched", nn.track(network()), tracer.tensor(x, requires_grad=True)),
    ):
        y = model(leaf)
        contestants[name] = lambda y=y, leaf=leaf: torch.autograd.grad(
            y, leaf, rows, retain_graph=True, is_grads_batched=True
        )
    return contestants


def jacobian() -> dict[str, Callable[[], object]]:
    """Forward and 64 rows."""
    x, native, tracked = torch.randn(64), network(), nn.track(network())
    return {
        "torch.func.jacrev": lambda: torch.func.jacrev(native)(x),
        "tracer.func.jacrev": lambda: tracer.func.jacrev(tracked)(x),
    }


def frozen(model: torch.nn.Module) -> torch.nn.Module:
    """Parameters that want no gradient."""
    return model.requires_grad_(False)


def hessian_vector_product() -> dict[str, Callable[[], object]]:
    """Of the squared length of the network's output, by its input."""
    x, v = torch.randn(64), torch.randn(64)
    native, tracked = frozen(network()), frozen(nn.track(network()))
    of_torch = lambda z: native(z).pow(2).sum()  # noqa: E731
    ours = lambda z: tracked(z).pow(2).sum()  # noqa: E731
    return {
        "torch.autograd.functional.vhp": lambda: AF.vhp(of_torch, x, v),
        "torch.autograd.functional.hvp": lambda: AF.hvp(of_torch, x, v),
        "torch.func.jvp of grad": lambda: torch.func.jvp(torch.func.grad(of_torch), (x,), (v,)),
        "tracer.func.hvp": lambda: tracer.func.hvp(ours, x, v),
    }


def hessian() -> dict[str, Callable[[], object]]:
    """Of the same function."""
    x, native, tracked = torch.randn(64), frozen(network()), frozen(nn.track(network()))
    of_torch = lambda z: native(z).pow(2).sum()  # noqa: E731
    ours = lambda z: tracked(z).pow(2).sum()  # noqa: E731
    return {
        "torch.autograd.functional, vectorize": lambda: AF.hessian(of_torch, x, vectorize=True),
        "torch.func.hessian": lambda: torch.func.hessian(of_torch)(x),
        "torch.func.jacrev of jacrev": lambda: torch.func.jacrev(torch.func.jacrev(of_torch))(x),
        "tracer.func.hessian": lambda: tracer.func.hessian(ours)(x),
    }


def per_sample() -> dict[str, Callable[[], object]]:
    """32 samples of the CNN."""
    model = SmallCNN()
    params = {name: p.detach() for name, p in model.named_parameters()}
    images, labels = torch.randn(32, 1, 16, 16), torch.randint(10, (32,))

    def loss(params: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, params, (image[None],)), label[None])

    by_torch = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    return {
        "torch.func.vmap of grad": lambda: by_torch(params, images, labels),
        "tracer.func.per_sample_grad": lambda: tracer.func.per_sample_grad(loss, params, images, labels),
    }


def chain(x: torch.Tensor) -> torch.Tensor:
    """75 pointwise ops."""
    for _ in range(25):
        x = (x * 1.01).sin() + 0.1
    return x


def tangent_of_a_network() -> dict[str, Callable[[], object]]:
    """``jvp``, and the same by transposing the whole function."""
    x, v = torch.randn(64), torch.randn(64)
    native, tracked = frozen(network()), frozen(nn.track(network()))
    return {
        "torch.func.jvp": lambda: torch.func.jvp(native, (x,), (v,)),
        "tracer.func.linearize": lambda: tracer.func.linearize(tracked, x)[1](v),
        "tracer.func.jvp": lambda: tracer.func.jvp(tracked, (x,), (v,)),
    }


def tangent_of_a_chain() -> dict[str, Callable[[], object]]:
    """The same for small pointwise ops."""
    x, v = torch.randn(64), torch.randn(64)
    return {
        "torch.func.jvp": lambda: torch.func.jvp(chain, (x,), (v,)),
        "tracer.func.linearize": lambda: tracer.func.linearize(chain, x)[1](v),
        "tracer.func.jvp": lambda: tracer.func.jvp(chain, (x,), (v,)),
    }


def jacobian_by_columns() -> dict[str, Callable[[], object]]:
    """64 tangents, batched."""
    x, columns = torch.randn(64), torch.eye(64)
    native, tracked = frozen(network()), frozen(nn.track(network()))

    def transposed() -> object:
        return torch.vmap(lambda v: tracer.func.linearize(tracked, x)[1](v))(columns)

    return {
        "torch.func.jacfwd": lambda: torch.func.jacfwd(native)(x),
        "tracer.func.linearize, vmapped": transposed,
        "tracer.func.jacfwd": lambda: tracer.func.jacfwd(tracked)(x),
    }


def forward_over_reverse() -> dict[str, Callable[[], object]]:
    """``jvp`` of ``grad``."""
    x, v = torch.randn(64), torch.randn(64)
    native, tracked = frozen(network()), frozen(nn.track(network()))
    of_torch = torch.func.grad(lambda z: native(z).pow(2).sum())
    ours = tracer.func.grad(lambda z: tracked(z).pow(2).sum())
    return {
        "torch.func.jvp of grad": lambda: torch.func.jvp(of_torch, (x,), (v,)),
        "tracer.func.linearize of grad": lambda: tracer.func.linearize(ours, x)[1](v),
        "tracer.func.jvp of grad": lambda: tracer.func.jvp(ours, (x,), (v,)),
    }


TASKS = {
    "64 cotangents, one sweep": batched_rows,
    "Jacobian, 64 rows": jacobian,
    "Hessian-vector product": hessian_vector_product,
    "Hessian, 64 x 64": hessian,
    "per-sample gradients, 32 samples": per_sample,
    "tangent of a network": tangent_of_a_network,
    "tangent of 75 pointwise ops": tangent_of_a_chain,
    "Jacobian, 64 columns": jacobian_by_columns,
    "forward over reverse": forward_over_reverse,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for title, contestants in TASKS.items():
        report(title, compare(contestants(), 40, 5, time.process_time), 1e-3, "ms")
