"""``fingerprint``: what a run computed, call by call, in a few numbers, to be saved and compared with another run in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.sites import Site, short_line
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import ReportError
from tracer.graph import Graph
from tracer.node import Node, tensors_in
from tracer.notes.calls import Call
from tracer.reports.known_values import known_values
from tracer.reports.subjects import check_graph

#: What is told of a tensor: dtype, shape, and numbers no larger than its largest element.
Numbers = list[Any]


@dataclass(frozen=True)
class Print:
    """One call of a run: the op, the path of the module, ``file.py:12``, and the numbers of its values by name, ``"result"`` among them."""

    op: str
    module: str
    line: str | None
    values: Mapping[str, list[Numbers]]
    #: Smallest and largest element of the result, where these alone are known.
    extremes: tuple[float, float] | None = None
    #: The result's, as far as it is known.
    dtype: str = "float32"

    @property
    def place(self) -> str:
        """``model.py:12 in layer4.1``."""
        line = self.line or "an unknown line"
        return f"{line} in {self.module}" if self.module else line


class Run:
    """The calls of a graph, or those of a fingerprint that was saved."""

    def __init__(self, source: Graph | Mapping[str, Any]) -> None:
        self._calls: list[Call] = []
        self._nodes: dict[int, Node] = {}
        self._saved: list[list[Any]] = []
        if isinstance(source, Graph):
            self._calls = source.calls()
            self._nodes = {node.serial: node for node in source.nodes()}
            self.dropped, self.version = source.dropped()[0], torch.__version__
        elif isinstance(source, Mapping) and {"calls", "dropped", "torch"} <= source.keys():
            self._saved = list(source["calls"])
            self.dropped, self.version = source["dropped"], source["torch"]
        else:
            raise ReportError(
                f"compare() was given a {type(source).__name__}: it takes graphs, and what tracer.fingerprint(graph) returned"
            )

    def __len__(self) -> int:
        return len(self._calls) + len(self._saved)  # one of them is empty

    def tensors(self, i: int) -> dict[str, Any]:
        """The values of a call themselves, as far as the graph kept them."""
        node = self._nodes.get(self._calls[i].serial) if self._calls else None
        return known_values(node) if node is not None and node.values is not None else {}

    def name(self, i: int) -> tuple[str, str, str | None]:
        """Op, module, and line of a call."""
        if self._saved:
            op, module, line = self._saved[i][:3]
            return op, module, line
        site: Site = self._calls[i].site
        return self._calls[i].op, site.module, None if site.line is None else short_line(site.line)

    def print(self, i: int) -> Print:
        """All that is to be told of a call in numbers."""
        if self._saved:
            op, module, line, values, extremes, dtype = self._saved[i]
            return Print(op, module, line, values, None if extremes is None else (extremes[0], extremes[1]), dtype)
        values = {name: numbers for name, value in self.tensors(i).items() if (numbers := numbers_of(value))}
        node = self._nodes.get(self._calls[i].serial)
        dtype = "float32" if node is None or node.dtype is None else str(node.dtype).removeprefix("torch.")
        return Print(*self.name(i), values, self._calls[i].extremes, dtype)


def fingerprint(graph: Graph) -> dict[str, Any]:
    """What ``graph`` has recorded, call by call, as plain values for ``json`` or ``torch.save``: ``tracer.compare`` takes it for a graph.

    Of each call: the op, the path of its module, the user's line, and, where the graph kept ``values``, dtype, shape and five numbers of
    each argument and of the result; with ``finite`` alone the smallest and largest element of the result. So runs can be compared that
    took place in two processes, under two versions of torch, on two machines.

    Raises ``NotNotedError`` for a graph without ``sites``.
    """
    check_graph("fingerprint", graph)
    run = Run(graph)
    prints = [run.print(i) for i in range(len(run))]
    return {
        "torch": str(run.version),
        "dropped": run.dropped,
        "calls": [
            [p.op, p.module, p.line, dict(p.values), None if p.extremes is None else list(p.extremes), p.dtype]
            for p in prints
        ],
    }


def numbers_of(value: Any) -> list[Numbers]:
    """For each tensor in a value: dtype, shape, smallest and largest element, mean, root of the mean square, and mean times a wave.

    The wave tells elements that changed places apart. Empty for what holds no tensor that can be looked at.
    """
    found = []
    with DisableTorchFunctionSubclass(), torch.no_grad():
        for tensor in tensors_in(value):
            dense = dense_on_cpu(tensor)
            if dense is None:
                continue
            flat = (torch.view_as_real(dense) if dense.is_complex() else dense).flatten()
            told: Numbers = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            if flat.numel():
                wave = torch.cos(torch.arange(flat.numel(), dtype=torch.float64))
                five = (flat.min(), flat.max(), flat.mean(), flat.square().mean().sqrt(), (flat * wave).mean())
                told += [float(n) for n in five]
            found.append(told)
    return found


def dense_on_cpu(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of any layout and device in double precision; None where it has no numbers."""
    if tensor.is_meta or tensor.is_nested:
        return None
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return dense.to("cpu").to(torch.complex128 if tensor.is_complex() else torch.float64)
