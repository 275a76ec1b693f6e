"""Claim: the calls that models make most cost at most three times torch's, as a geometric mean.

Ten calls on small tensors, forward alone; a loop of LSTM cells and one of GRU cells, forward and backward. These twelve make the mean. Then
training steps of an MLP, a small CNN and a tiny transformer, optimiser included, and with ``--views`` every kind of view and the properties
that code reads all the time. Processor time, single-threaded, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from interleaved import Timing, compare, console
from rich.markup import escape
from rich.table import Table
from training import ENGINES, training_step

import nn
import tracer

Run = Callable[[], object]

CELLS, BATCH, HIDDEN = 40, 4, 16


def leaf_of(engine: str) -> Callable[..., torch.Tensor]:
    """Makes leaves of one engine that require grad."""

    def make(*shape: int) -> torch.Tensor:
        data = torch.randn(shape)
        return tracer.tensor(data, requires_grad=True) if engine == "glassgrad" else data.requires_grad_()

    return make


def calls(make: Callable[..., torch.Tensor]) -> dict[str, Run]:
    """The ten calls."""
    x, other = make(8, 32) * 1, make(8, 32) * 1
    weight, scale, bias = make(32, 32), make(32), make(32)
    target, gradient = torch.randint(32, (8,)), torch.randn(32, 32)

    def add_to_parameter() -> None:
        with torch.no_grad():
            for _ in range(10):
                weight.add_(gradient, alpha=-1e-6)

    return {
        "x.view(4, 64)": lambda: x.view(4, 64),
        "x[:, 0]": lambda: x[:, 0],
        "x.transpose(0, 1)": lambda: x.transpose(0, 1),
        "x.chunk(4)": lambda: x.chunk(4),
        "torch.cat": lambda: torch.cat([x, other], 1),
        "F.cross_entropy": lambda: F.cross_entropy(x, target),
        "F.layer_norm": lambda: F.layer_norm(x, (32,), scale, bias),
        "F.dropout": lambda: F.dropout(x, 0.1),
        "F.linear": lambda: F.linear(x, weight, bias),
        "ten p.add_ under no_grad": add_to_parameter,
    }


def views(make: Callable[..., torch.Tensor]) -> dict[str, Run]:
    """Every kind of view, lists of tensors, and what is asked of a tensor all the time."""
    x, other, leaf = make(8, 32) * 1, make(8, 32) * 1, make(8, 32)
    lengths = make(8, 1)
    plain, rows = torch.randn(8, 32), torch.tensor([0, 3, 5])
    constant = tracer.tensor(plain) if type(x) is tracer.Tensor else plain

    def without_grad() -> None:
        with torch.no_grad():
            for _ in range(10):
                x.view(4, 64)

    return {
        "x.view((4, 64))": lambda: x.view((4, 64)),
        "x.reshape(4, 64)": lambda: x.reshape(4, 64),
        "leaf.view(4, 64)": lambda: leaf.view(4, 64),
        "x.t()": lambda: x.t(),
        "x.permute(1, 0)": lambda: x.permute(1, 0),
        "x.T": lambda: x.T,
        "x.mT": lambda: x.mT,
        "x[0]": lambda: x[0],
        "x[..., 1:3]": lambda: x[..., 1:3],
        "x[None]": lambda: x[None],
        "x[rows]": lambda: x[rows],
        "x.squeeze(0)": lambda: x.squeeze(0),
        "x.unsqueeze(0)": lambda: x.unsqueeze(0),
        "x.expand(2, 8, 32)": lambda: x.expand(2, 8, 32),
        "x.select(1, 0)": lambda: x.select(1, 0),
        "x.narrow(1, 0, 4)": lambda: x.narrow(1, 0, 4),
        "x.flatten()": lambda: x.flatten(),
        "x.split(2)": lambda: x.split(2),
        "x.chunk(4, dim=1)": lambda: x.chunk(4, dim=1),
        "x.unbind(0)": lambda: x.unbind(0),
        "x.transpose(dim0=0, dim1=1)": lambda: x.transpose(dim0=0, dim1=1),
        "torch.stack": lambda: torch.stack([x, other]),
        "torch.cat(dim=1)": lambda: torch.cat([x, other], dim=1),
        "cat with a plain tensor": lambda: torch.cat([x, plain]),
        "x.detach()": lambda: x.detach(),
        "constant.view(4, 64)": lambda: constant.view(4, 64),
        "ten x.view under no_grad": without_grad,
        "x.shape": lambda: x.shape,
        "x.size()": lambda: x.size(),
        "x.size(0)": lambda: x.size(0),
        "x.dim()": lambda: x.dim(),
        "x.dtype": lambda: x.dtype,
        "x.device": lambda: x.device,
        "x.ndim": lambda: x.ndim,
        "x.numel()": lambda: x.numel(),
        "len(x)": lambda: len(x),
        "x.requires_grad": lambda: x.requires_grad,
        "x.is_contiguous()": lambda: x.is_contiguous(),
        "x.is_nested": lambda: x.is_nested,
        "x.is_complex()": lambda: x.is_complex(),
        "x.to(torch.float32)": lambda: x.to(torch.float32),
        "x.to(torch.float64)": lambda: x.to(torch.float64),
        "x.type_as(other)": lambda: x.type_as(other),
        "x.contiguous()": lambda: x.contiguous(),
        "weight_norm": lambda: torch._weight_norm(leaf, lengths, 0),
        "view, transpose, [0], sum, backward": lambda: leaf.view(4, 64).transpose(0, 1)[0].sum().backward(),
        "chunk, cat, sum, backward": lambda: torch.cat(leaf.chunk(4), 1).sum().backward(),
    }


def cell_loop(cell: torch.nn.RNNCellBase, engine: str) -> Run:
    """Forward and backward of a loop of cells."""
    if engine == "glassgrad":
        nn.track(cell)
    x = torch.randn(CELLS, BATCH, HIDDEN)

    def step() -> None:
        state = None
        for t in range(CELLS):
            state = cell(x[t], state)
        (state[0] if isinstance(state, tuple) else state).sum().backward()
        cell.zero_grad()

    return step


def loops(engine: str) -> dict[str, Run]:
    """The two loops of cells."""
    torch.manual_seed(0)
    return {
        "LSTMCell loop": cell_loop(torch.nn.LSTMCell(HIDDEN, HIDDEN), engine),
        "GRUCell loop": cell_loop(torch.nn.GRUCell(HIDDEN, HIDDEN), engine),
    }


def steps(engine: str) -> dict[str, Run]:
    """The training steps."""
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
    )
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    transformer = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 10)
    )
    return {
        "MLP 16-32-32-4, batch 32": training_step(mlp, engine, torch.randn(32, 16), torch.randint(4, (32,))),
        "CNN on 8x8 digits, batch 32": training_step(cnn, engine, torch.randn(32, 1, 8, 8), torch.randint(10, (32,))),
        "transformer, 2 layers of 64, 8x32": training_step(
            transformer, engine, torch.randn(8, 32, 64), torch.randint(10, (8 * 32,))
        ),
    }


def table(title: str, unit: str, scale: float, rows: dict[str, dict[str, Timing]], mean: bool = False) -> None:
    """Print ours and torch's of each row, with the ratio and its quartiles."""
    shown = Table("what", f"torch {unit}", f"ours {unit}", "ratio", "quartiles", title=title)
    for name, found in rows.items():
        ours = found["glassgrad"]
        times = [f"{found[engine].seconds / scale:.2f}" for engine in ENGINES]
        shown.add_row(escape(name), *times, f"{ours.ratio:.2f}", f"{ours.low:.2f} - {ours.high:.2f}")
    console.print(shown)
    if mean:
        console.print(f"geometric mean {statistics.geometric_mean([r['glassgrad'].ratio for r in rows.values()]):.2f}")


def time_all(theirs: dict[str, Run], ours: dict[str, Run], rounds: int, times: int) -> dict[str, dict[str, Timing]]:
    """Each of ours beside torch's of the same name, ``times`` calls a round."""
    return {
        name: compare(
            {"torch": theirs[name], "glassgrad": ours[name]},
            rounds,
            max(1, times // 10) if name.startswith("ten ") else times,
            time.process_time,
        )
        for name in theirs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--views", action="store_true", help="every kind of view and property in place of the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.views:
        theirs, ours = (views(leaf_of(engine)) for engine in ENGINES)
        table("Views, lists and properties", "us", 1e-6, time_all(theirs, ours, options.rounds, 200))
        return
    theirs, ours = (calls(leaf_of(engine)) for engine in ENGINES)
    rows = time_all(theirs, ours, options.rounds, 300)
    theirs, ours = (loops(engine) for engine in ENGINES)
    rows |= time_all(theirs, ours, options.rounds, 3)
    table("The twelve: calls forward, loops forward and backward", "us", 1e-6, rows, mean=True)
    theirs, ours = (steps(engine) for engine in ENGINES)
    table("Training steps", "ms", 1e-3, time_all(theirs, ours, options.rounds, 10))


if __name__ == "__main__":
    main()
