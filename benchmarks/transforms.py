"""Claim: transforms on our rules cost about what ``torch.func`` costs, in time and in memory.

64 cotangents in one sweep and the Jacobian of a 64-64-64-64 network; a vector times the Hessian of such a network, by its input and by its
parameters; that Hessian by the input; per-sample gradients of a small CNN (batch 32). Each beside the ways that torch offers. Processor
time, single-threaded. Then the peak memory of the same calls at larger sizes (``LARGE``), each in a process of its own.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.autograd.functional as AF
from interleaved import compare, console, report
from peak_memory import peak, print_peak
from rich.table import Table

import nn
import tracer

Contestants = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Sizes:
    """How wide the network is, how many rows its batch has, and how many images the CNN gets."""

    width: int
    batch: int
    images: int


SMALL = Sizes(width=64, batch=256, images=32)
LARGE = Sizes(width=512, batch=2048, images=256)


def network(width: int = 64) -> torch.nn.Sequential:
    """Three linear layers with tanh between, the same at every call."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
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


def batched_rows(sizes: Sizes) -> Contestants:
    """A cotangent for each output in one sweep over a graph that is there."""
    x, rows = torch.randn(sizes.width), torch.eye(sizes.width)
    contestants = {}
    for name, model, leaf in (
        ("torch, is_grads_batched", network(sizes.width), x.clone().requires_grad_()),
        ("glassgrad, is_grads_batched", nn.track(network(sizes.width)), tracer.tensor(x, requires_grad=True)),
    ):
        y = model(leaf)
        contestants[name] = lambda y=y, leaf=leaf: torch.autograd.grad(
            y, leaf, rows, retain_graph=True, is_grads_batched=True
        )
    return contestants


def jacobian(sizes: Sizes) -> Contestants:
    """Forward and a row for each output."""
    x, native, tracked = torch.randn(sizes.width), network(sizes.width), nn.track(network(sizes.width))
    return {
        "torch.func.jacrev": lambda: torch.func.jacrev(native)(x),
        "tracer.func.jacrev": lambda: tracer.func.jacrev(tracked)(x),
    }


def of_input(sizes: Sizes) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """The squared length of the network's output by its input, native and tracked; the parameters want no gradient."""
    native, tracked = (m.requires_grad_(False) for m in (network(sizes.width), nn.track(network(sizes.width))))
    return lambda z: native(z).pow(2).sum(), lambda z: tracked(z).pow(2).sum()


def product_by_input(sizes: Sizes) -> Contestants:
    """The Hessian by the input, times a vector."""
    x, v = torch.randn(sizes.width), torch.randn(sizes.width)
    of_torch, ours = of_input(sizes)
    return {
        "torch.autograd.functional.vhp": lambda: AF.vhp(of_torch, x, v),
        "torch.autograd.functional.hvp": lambda: AF.hvp(of_torch, x, v),
        "torch.func.jvp of grad": lambda: torch.func.jvp(torch.func.grad(of_torch), (x,), (v,)),
        "tracer.func.hvp": lambda: tracer.func.hvp(ours, x, v),
    }


def product_by_parameters(sizes: Sizes) -> Contestants:
    """The Hessian of a mean squared error by the parameters, times a vector."""
    model = network(sizes.width)
    x, y = torch.randn(sizes.batch, sizes.width), torch.randn(sizes.batch, sizes.width)
    params = {name: p.detach() for name, p in model.named_parameters()}
    v = {name: torch.randn_like(p) for name, p in params.items()}

    def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return (torch.func.functional_call(model, params, (x,)) - y).pow(2).mean()

    def of_list(*values: torch.Tensor) -> torch.Tensor:
        return loss(dict(zip(params, values, strict=True)))

    listed, along = tuple(params.values()), tuple(v.values())
    return {
        "torch.autograd.functional.vhp": lambda: AF.vhp(of_list, listed, along),
        "torch.autograd.functional.hvp": lambda: AF.hvp(of_list, listed, along),
        "torch.func.jvp of grad": lambda: torch.func.jvp(torch.func.grad(loss), (params,), (v,)),
        "tracer.func.hvp": lambda: tracer.func.hvp(loss, params, v),
    }


def hessian(sizes: Sizes) -> Contestants:
    """The Hessian by the input."""
    x = torch.randn(sizes.width)
    of_torch, ours = of_input(sizes)
    return {
        "torch.autograd.functional, vectorize": lambda: AF.hessian(of_torch, x, vectorize=True),
        "torch.func.hessian": lambda: torch.func.hessian(of_torch)(x),
        "torch.func.jacrev of jacrev": lambda: torch.func.jacrev(torch.func.jacrev(of_torch))(x),
        "tracer.func.hessian": lambda: tracer.func.hessian(ours)(x),
    }


def per_sample(sizes: Sizes) -> Contestants:
    """A gradient of the CNN for each image."""
    torch.manual_seed(0)
    model = SmallCNN()
    params = {name: p.detach() for name, p in model.named_parameters()}
    images, labels = torch.randn(sizes.images, 1, 16, 16), torch.randint(10, (sizes.images,))

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


def tangent_of_a_network(sizes: Sizes) -> Contestants:
    """``jvp``, and the same by transposing the whole function."""
    x, v = torch.randn(sizes.width), torch.randn(sizes.width)
    native, tracked = network(sizes.width).requires_grad_(False), nn.track(network(sizes.width)).requires_grad_(False)
    return {
        "torch.func.jvp": lambda: torch.func.jvp(native, (x,), (v,)),
        "tracer.func.linearize": lambda: tracer.func.linearize(tracked, x)[1](v),
        "tracer.func.jvp": lambda: tracer.func.jvp(tracked, (x,), (v,)),
    }


def tangent_of_a_chain(sizes: Sizes) -> Contestants:
    """The same for small pointwise ops."""
    x, v = torch.randn(sizes.width), torch.randn(sizes.width)
    return {
        "torch.func.jvp": lambda: torch.func.jvp(chain, (x,), (v,)),
        "tracer.func.linearize": lambda: tracer.func.linearize(chain, x)[1](v),
        "tracer.func.jvp": lambda: tracer.func.jvp(chain, (x,), (v,)),
    }


def jacobian_by_columns(sizes: Sizes) -> Contestants:
    """A tangent for each input, batched."""
    x, columns = torch.randn(sizes.width), torch.eye(sizes.width)
    native, tracked = network(sizes.width).requires_grad_(False), nn.track(network(sizes.width)).requires_grad_(False)

    def transposed() -> object:
        return torch.vmap(lambda v: tracer.func.linearize(tracked, x)[1](v))(columns)

    return {
        "torch.func.jacfwd": lambda: torch.func.jacfwd(native)(x),
        "tracer.func.linearize, vmapped": transposed,
        "tracer.func.jacfwd": lambda: tracer.func.jacfwd(tracked)(x),
    }


def forward_over_reverse(sizes: Sizes) -> Contestants:
    """``jvp`` of ``grad``."""
    x, v = torch.randn(sizes.width), torch.randn(sizes.width)
    native, tracked = network(sizes.width).requires_grad_(False), nn.track(network(sizes.width)).requires_grad_(False)
    of_torch = torch.func.grad(lambda z: native(z).pow(2).sum())
    ours = tracer.func.grad(lambda z: tracked(z).pow(2).sum())
    return {
        "torch.func.jvp of grad": lambda: torch.func.jvp(of_torch, (x,), (v,)),
        "tracer.func.linearize of grad": lambda: tracer.func.linearize(ours, x)[1](v),
        "tracer.func.jvp of grad": lambda: tracer.func.jvp(ours, (x,), (v,)),
    }


TASKS = {
    "a cotangent for each output, one sweep": batched_rows,
    "Jacobian of the network": jacobian,
    "Hessian-vector product, by the input": product_by_input,
    "Hessian-vector product, by the parameters": product_by_parameters,
    "Hessian, by the input": hessian,
    "per-sample gradients": per_sample,
    "tangent of the network": tangent_of_a_network,
    "tangent of 75 pointwise ops": tangent_of_a_chain,
    "Jacobian of the network by columns": jacobian_by_columns,
    "forward over reverse": forward_over_reverse,
}


def report_memory(title: str, engines: list[str]) -> None:
    """Print the peak memory of each engine's call beside that of the first."""
    found = {engine: peak(__file__, [title, engine], 3) for engine in engines}
    table = Table("engine", "MiB", f"ratio to {engines[0]}", title=f"peak memory: {title}")
    for engine, size in found.items():
        table.add_row(engine, f"{size / 2**20:.1f}", f"{size / found[engines[0]]:.3f}")
    console.print(table)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--peak"]:
        _, _, task, engine = sys.argv
        print_peak(TASKS[task](LARGE)[engine])
        sys.exit()
    torch.set_num_threads(1)
    for title, contestants in TASKS.items():
        report(title, compare(contestants(SMALL), 30, 20, time.process_time), 1e-3, "ms")
    for title, contestants in TASKS.items():
        if contestants is not product_by_input:  # vectors alone
            report_memory(title, list(contestants(SMALL)))
