"""Repeated blocks are found by their calls: the same graph, in whatever order it ran."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from support.blocks import language_graph

import nn
import tracer
from tracer.reports.blocks import Tree, fold, levels
from tracer.reports.recorded import read_graph


def titles(tree: Tree) -> list[str]:
    """The names of all parts that stand for themselves, outermost first."""
    return [part.title for part in tree.root if part.shown_as is part and part.level]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", []),
        ("fc", ["fc"]),
        ("0", ["0"]),
        ("transformer.h.3.mlp", ["transformer", "h.3", "mlp"]),
        ("layer1.0.conv1", ["layer1.0", "conv1"]),
        ("0.1", ["0", "1"]),
        ("blocks.0.1", ["blocks.0", "1"]),
    ],
)
def test_a_list_and_a_number_in_it_are_one_level(path: str, expected: list[str]) -> None:
    assert levels(path) == expected


def test_equal_blocks_are_one() -> None:
    graph, loss = language_graph(False, False, False)
    tree = fold(read_graph(graph))
    assert [t for t in titles(tree) if "layers" in t] == ["layers.0 .. layers.2: 3 times"]
    del loss


def test_a_block_with_another_call_stands_for_itself() -> None:
    graph, loss = language_graph(False, True, False, True, False)
    tree = fold(read_graph(graph))
    assert [t for t in titles(tree) if "layers" in t] == [
        "layers.0, layers.2, layers.4: 3 times",
        "layers.1, layers.3: 2 times",
    ]
    del loss


def test_every_call_has_its_counterpart_in_the_first_block() -> None:
    graph, loss = language_graph(False, False, False)
    recorded = read_graph(graph)
    tree = fold(recorded)
    for position, shown in enumerate(tree.shown_as):
        call, other = recorded.calls[position], recorded.calls[shown]
        assert (call.op, call.shape) == (other.op, other.shape)
        assert other.module == call.module.replace("layers.1", "layers.0").replace("layers.2", "layers.0")
        if call.module.startswith("layers."):
            # What it took its inputs from inside of its block has the counterpart for one.
            inner = [p for p in call.parents if recorded.calls[p].module.startswith(call.module[:8])]
            assert {tree.shown_as[p] for p in inner} <= set(other.parents)
    del loss


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(lambda size: torch.nn.AvgPool1d(size), id="of results"),
        pytest.param(lambda size: torch.nn.Conv1d(2, 2, 2 * size + 1, padding=size), id="of parameters"),
    ],
)
def test_blocks_of_other_shapes_are_not_equal(layer: Callable[[int], torch.nn.Module]) -> None:
    blocks = [torch.nn.Sequential(torch.nn.Tanh(), layer(size)) for size in (1, 1, 2)]
    model = nn.track(torch.nn.Sequential(*blocks))
    with tracer.Graph(sites=True) as graph:
        y = model(tracer.tensor(torch.ones(1, 2, 8), requires_grad=True))
    assert [t for t in titles(fold(read_graph(graph))) if t.startswith(("0 ..", "2"))] == ["0 .. 1: 2 times", "2"]
    del y


class Branches(torch.nn.Module):
    """Two branches, which run in either order."""

    def __init__(self, first: str, *, meet: bool = True) -> None:
        super().__init__()
        self.first = first
        self.meet = meet

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = {}
        for name in (self.first, "b" if self.first == "a" else "a"):
            branches[name] = x.tanh().exp() if name == "a" else x.exp().tanh()
        return branches["a"] + (branches["b"] if self.meet else branches["a"] * 1)


def test_blocks_that_ran_in_another_order_are_equal() -> None:
    model = nn.track(torch.nn.Sequential(Branches("a"), Branches("b")))
    with tracer.Graph(sites=True) as graph:
        y = model(tracer.tensor(torch.ones(2), requires_grad=True))
    recorded = read_graph(graph)
    tree = fold(recorded)
    assert titles(tree) == ["0 .. 1: 2 times"]
    assert [recorded.calls[shown].op for shown in tree.shown_as] == [call.op for call in recorded.calls]
    first = {call.op: i for i, call in enumerate(recorded.calls[:5]) if len(call.parents) == 0}
    assert first.keys() == {"tanh", "exp"}
    second = [i for i, call in enumerate(recorded.calls) if call.parents == (4,)]
    assert [tree.shown_as[i] for i in second] == [first[recorded.calls[i].op] for i in second]
    del y


def test_blocks_with_the_same_calls_joined_otherwise_are_not_equal() -> None:
    class Joined(torch.nn.Module):
        def __init__(self, cross: bool) -> None:
            super().__init__()
            self.cross = cross

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.tanh(), x.exp()
            a, b = (b.sin(), a.cos()) if self.cross else (a.sin(), b.cos())
            return a + b

    model = nn.track(torch.nn.Sequential(Joined(False), Joined(True)))
    with tracer.Graph(sites=True) as graph:
        y = model(tracer.tensor(torch.ones(2), requires_grad=True))
    assert titles(fold(read_graph(graph))) == ["0", "1"]
    del y


def test_blocks_that_look_alike_everywhere_take_no_longer_than_the_search_is_given() -> None:
    class Rings(torch.nn.Module):
        """Sums of neighbours on rings of so many, which nothing joins."""

        def __init__(self, *sizes: int) -> None:
            super().__init__()
            self.sizes = sizes

        def forward(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
            sums = []
            for size in self.sizes:
                ring = [given[0].tanh() for _ in range(size)]
                sums += [ring[i] + ring[i - 1] for i in range(size)]
            return [*given, *sums]

    few, many = [3] * 12 + [4] * 3, [3] * 8 + [4] * 6
    model = nn.track(torch.nn.Sequential(Rings(*few), Rings(*many), Rings(*reversed(few))))
    with tracer.Graph(sites=True) as graph:
        held = model([tracer.tensor(torch.ones(2), requires_grad=True)])
    recorded = read_graph(graph)
    begin = time.perf_counter()
    assert "1" in titles(fold(recorded))
    assert time.perf_counter() - begin < 30
    del held


def test_blocks_inside_of_blocks_are_folded_too() -> None:
    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([expert(x) for expert in self.experts]).sum(0)

    model = nn.track(torch.nn.Sequential(*[Experts() for _ in range(3)]))
    with tracer.Graph(sites=True) as graph:
        y = model(torch.ones(1, 3))
    tree = fold(read_graph(graph))
    assert titles(tree)[:2] == ["0 .. 2: 3 times", "experts.0 .. experts.3: 4 times"]
    assert len(set(tree.shown_as)) == 4  # linear, tanh, stack, sum
    assert [part.times for part in tree.root if part.name == "experts.0" and part.shown_as is part] == [12]
    del y


def test_what_is_not_numbered_is_not_folded() -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
            self.key = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.query(x) + self.key(x)

    model = nn.track(Pair())
    with tracer.Graph(sites=True) as graph:
        y = model(torch.ones(1, 3))
    assert not [t for t in titles(fold(read_graph(graph))) if "times" in t]
    del y
