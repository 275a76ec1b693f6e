"""``tracer.memory``: what is kept for backward, and why."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer
from tracer.errors import GradientArgumentError, NotNotedError
from tracer.reports.memory import MemoryRow


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape), requires_grad=True)


class Double(tracer.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[0].mul_(3)
    return y.tanh_().exp()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shared": lambda x: x.sin() * x.exp() * x,
    "in place": in_place,
    "several results": lambda x: x.max(dim=0).values * x.chunk(2)[0],
    "a Function": lambda x: Double.apply(x).sin(),
    "a checkpoint": lambda x: tracer.checkpoint(lambda t: t.tanh().exp(), x).sin(),
    "vmap": lambda x: torch.vmap(lambda row: (row * x[0]).tanh())(x),
    "sparse": lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x).sin(),
    "a view": lambda x: x.expand(8, 4, 6).sin() * x.t().reshape(4, 6),
    "modules": nn.track(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5))),
}


@pytest.mark.parametrize("by", ["op", "line", "module"])
@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_rows_add_up_to_what_the_graph_keeps(program: Callable[..., torch.Tensor], values: bool, by: str) -> None:
    with tracer.Graph(sites=True, values=values) as graph:
        result = program(leaf(4, 6))
    report = tracer.memory(graph, by=by)
    assert sum(row.bytes for row in report) == graph.kept_bytes() == report.bytes > 0
    assert all(sum(k.bytes for k in row.keeps) == row.bytes for row in report)
    assert [row.bytes for row in report] == sorted((row.bytes for row in report), reverse=True)
    del result


def rows(report: Any) -> dict[str, MemoryRow]:
    return {row.what: row for row in report}


def test_each_row_says_which_rule_asks_for_what() -> None:
    x, w = leaf(8, 4), leaf(3, 4)
    with tracer.Graph() as graph:
        y = F.linear(x * 2, w).softmax(-1)
    found = rows(tracer.memory(graph))
    (result,) = found["softmax"].keeps
    assert (result.name, result.bytes, result.rule.partition(":")[0]) == ("result", 8 * 3 * 4, "softmax.py")
    assert {k.name: k.bytes for k in found["linear"].keeps} == {"input": 8 * 4 * 4, "weight": 3 * 4 * 4}
    assert "softmax keeps its result: 96" in str(tracer.memory(graph))
    del y


def test_bytes_are_shown_as_whole_numbers_with_separators_and_in_mebibytes() -> None:
    with tracer.Graph() as graph:
        y = leaf(1024, 1024).sin()
    row = tracer.memory(graph).rows[0]
    assert row.cells()[2:4] == ["4,194,304", "4.0 MiB"] and "4,194,304" in str(tracer.memory(graph))
    del y


def test_a_row_on_its_own_shows_the_op_and_plain_numbers() -> None:
    with tracer.Graph() as graph:
        y = leaf(1024, 1024).sin()
    assert str(tracer.memory(graph).rows[0]).startswith("what sin  calls 1  bytes 4194304  size 4.0 MiB")
    del y


def test_memory_that_several_calls_keep_counts_for_the_first_and_says_so() -> None:
    x = leaf(5)
    with tracer.Graph() as graph:
        y = x * 1
        z = y.sin() + y.cos()
    report = tracer.memory(graph)
    found = rows(report)
    assert (found["sin"].bytes, found["sin"].shared) == (20, 0)
    assert (found["cos"].bytes, found["cos"].shared) == (0, 20)
    assert "20 shared" in str(report) and "a call before keeps this memory too" in str(report)
    del z


def test_memory_that_one_op_keeps_twice_is_not_shared_with_another_row() -> None:
    with tracer.Graph() as graph:
        y = leaf(5) * 1
        z = y * y
    assert rows(tracer.memory(graph))["mul"].shared == 0
    del z


def test_parameters_and_buffers_stand_apart() -> None:
    layer = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3).eval()))
    layer[1].weight.requires_grad_(False)
    with tracer.Graph() as graph:
        y = layer(leaf(2, 4) * 1)
    found = rows(tracer.memory(graph))
    assert found["linear"].parameters == 4 * 3 * 4 and found["linear"].bytes == 4 * 3 * 4 + 2 * 4 * 4
    norm = found["batch_norm"]
    assert {k.name: k.bytes for k in norm.keeps} == {"running": 2 * 3 * 4, "weight": 3 * 4, "input": 2 * 3 * 4}
    assert norm.parameters == 3 * 3 * 4
    del y


def test_a_view_keeps_the_whole_memory_that_it_shows() -> None:
    with tracer.Graph() as graph:
        y = (leaf(100, 4) * 1)[0].sin()
    assert rows(tracer.memory(graph))["sin"].bytes == 1600
    del y


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = torch.nn.LayerNorm(8), torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.back(F.gelu(self.wide(self.norm(x))))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.drop = torch.nn.Linear(8, 24), torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.drop(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)


class Seen(torch.nn.Module):
    """The first call inside looks at a view of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).sin().exp().transpose(0, 1)


class Net(torch.nn.Module):
    def __init__(self, block: type[torch.nn.Module], around: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.around = torch.nn.Linear(8, 8), around
        self.block, self.last = block(), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.around(self.block, self.first(x)).tanh()).sum()


def kept_after(block: type[torch.nn.Module], around: Callable[..., torch.Tensor]) -> tuple[int, tracer.Graph, Any]:
    """The bytes of all tensors that a forward pass leaves, its graph, and the loss."""
    gc.collect()
    gc.freeze()  # what was there before is not looked through
    try:
        net, x = nn.track(Net(block, around)), torch.randn(16, 8)
        before = live_bytes()
        with tracer.Graph(sites=True) as graph:
            loss = net(x)
        return live_bytes() - before, graph, (loss, net)
    finally:
        gc.unfreeze()


def live_bytes() -> int:
    storages = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("block", [Block, Attention, Seen])
def test_a_checkpoint_gives_back_what_the_report_says(block: type[torch.nn.Module]) -> None:
    kept, graph, alive = kept_after(block, lambda module, x: module(x))
    report = tracer.memory(graph, by="module")
    row = rows(report)["block"]
    assert f"block: {row.checkpoint:,}" in report.advice[-1] and "tracer.checkpoint(module, x)" in report.advice[-1]
    del alive
    with_checkpoint, _, alive = kept_after(block, partial(tracer.checkpoint, preserve_rng_state=False))
    assert row.checkpoint == kept - with_checkpoint > 0
    del alive


def test_a_module_whose_input_nobody_keeps_would_keep_more_under_a_checkpoint() -> None:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten(), torch.nn.Dropout(0.5)))
    with tracer.Graph(sites=True) as graph:
        loss = net(torch.randn(2, 4)).sum()
    row = rows(tracer.memory(graph, by="module"))["2"]
    mask = row.bytes
    assert row.checkpoint == mask - 2 * 4 * 4
    del loss


def test_each_call_of_a_module_is_a_stretch_of_its_own() -> None:
    act = torch.nn.Sequential(torch.nn.Softmax(-1), torch.nn.Tanh())
    net = nn.track(torch.nn.ModuleDict({"act": act}))
    x = leaf(4, 8)
    with tracer.Graph(sites=True) as graph:
        loss = (net["act"](net["act"](x * 1) * 1) * 1).sum()
    # Each call keeps two results, less its input, which nobody else keeps.
    assert rows(tracer.memory(graph, by="module"))["act"].checkpoint == 2 * (2 - 1) * 4 * 8 * 4
    del loss


def test_a_checkpoint_that_gives_back_next_to_nothing_is_not_advised() -> None:
    block = torch.nn.Sequential(
        torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
    )
    net = nn.track(torch.nn.Sequential(block))
    with tracer.Graph(sites=True) as graph:
        loss = net(torch.randn(32, 64)).sum()
    report = tracer.memory(graph, by="module")
    assert rows(report)["0.0"].checkpoint == 256 < rows(report)["0"].checkpoint
    assert report.advice[-1].endswith(f"in bytes: 0: {rows(report)['0'].checkpoint:,}.")
    del loss


def test_modules_that_only_hold_others_are_shown_with_what_is_within() -> None:
    net = nn.track(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softmax(-1)), torch.nn.Tanh()))
    with tracer.Graph(sites=True) as graph:
        loss = net(leaf(4, 8)).sum()
    found = rows(tracer.memory(graph, by="module"))
    assert (found["0"].bytes, found["0"].calls, found["0"].within) == (0, 0, 256) and found["0.1"].bytes == 128
    del loss


@pytest.mark.parametrize("by", ["line", "module"])
def test_lines_and_modules_need_sites(by: str) -> None:
    with tracer.Graph() as graph:
        y = leaf(3).sin()
    with pytest.raises(NotNotedError, match=r"tracer\.Graph\(sites=True\)"):
        tracer.memory(graph, by=by)
    del y


def test_lines_are_the_users() -> None:
    with tracer.Graph(sites=True) as graph:
        y = leaf(3).sin()
        z = y.exp()
    here = test_lines_are_the_users.__code__.co_firstlineno
    found = rows(tracer.memory(graph, by="line"))
    assert list(found) == [f"{__file__}:{here + 2}", f"{__file__}:{here + 3}"]
    assert found[f"{__file__}:{here + 2}"].cells()[0] == f"test_memory.py:{here + 2}"
    del z


def test_another_by_is_refused() -> None:
    with pytest.raises(GradientArgumentError, match="'op', 'line', 'module'"):
        tracer.memory(tracer.Graph(), by="layer")


def test_what_is_packed_and_what_was_released_is_told() -> None:
    x = leaf(3)
    with tracer.Graph() as graph:
        y = tracer.checkpoint(lambda t: t.sin(), x * 1)
        z = x.exp()
    z.sum().backward()
    text = str(tracer.memory(graph))
    assert "saved-tensor hooks" in text and "released" in text
    del y


def test_an_empty_graph_has_an_answer() -> None:
    report = tracer.memory(tracer.Graph(), by="module")
    assert not report.rows and report.verdict.startswith("0 bytes")


def test_a_report_can_be_written_as_json() -> None:
    with tracer.Graph(sites=True) as graph:
        y = leaf(3).sin().exp()
    told = json.loads(json.dumps(tracer.memory(graph, by="module").to_dict()))
    assert told["rows"][0]["keeps"][0]["name"] in ("input", "result") and told["rows"][0]["bytes"] == 24
    del y
