"""Where each node of a captured graph comes from: the module, the user's line, and in backward the rule; and names made of that."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ops_registry.sites import find_place, line_number
from ops_registry.torch_private import TorchDispatchMode, rename_node
from tracer.backprop.progress import innermost
from tracer.node import Output


@dataclass(frozen=True)
class Origin:
    """Where a node of a captured graph comes from; ``node.meta["origin"]``."""

    #: The path of the user's module, "" outside of any.
    module: str
    file: str | None
    line: int
    function: str
    #: The op whose rule computed it in backward; None for a call of the forward pass.
    rule: str | None = None

    @property
    def stack_trace(self) -> str:
        """As ``print_readable`` wants it."""
        text = "" if self.file is None else linecache.getline(self.file, self.line).strip()
        whose = " of ".join(part for part in (self.rule and f"backward of {self.rule}", self.module) if part)
        return f'  File "{self.file}", line {self.line}, in {whose or self.function}\n    {text}\n'


class Origins(TorchDispatchMode):
    """Notes the origin of every call of the step in the graph that is made of it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **(kwargs or {}))
        graph = mode.tracer.graph
        last = next(iter(reversed(graph.nodes)), None)
        result = func(*args, **(kwargs or {}))
        origin = None
        for node in reversed(graph.nodes):
            if node is last:
                break
            if "origin" not in node.meta and node.op == "call_function":
                origin = origin or _origin()
                node.meta["origin"] = origin
        return result


def _origin() -> Origin:
    sweep = innermost()
    node = None if sweep is None else sweep.node
    if isinstance(node, Output) and node.parents:
        node = node.parents[0]
    if node is not None and node.site is not None:
        return _of(node.site.modules, *node.site.code, rule=node.op)
    return _of(*find_place(2), rule=None if node is None else node.op)


def _of(modules: tuple[str, ...], code: CodeType | None, at: int, rule: str | None) -> Origin:
    if code is None:
        return Origin(modules[0], None, 0, "", rule)
    return Origin(modules[0], code.co_filename, line_number(code, at), code.co_name, rule)


def name_nodes(graph: torch.fx.Graph, inputs: Sequence[str]) -> None:
    """Name inputs after what they are, calls after module and op, and backward calls after the rule."""
    given = iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            rename_node(node, _identifier(next(given)))
            node.target = node.name
        origin = node.meta.get("origin")
        if origin is None:
            continue
        node.meta["stack_trace"] = origin.stack_trace
        op = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", str(node.target))
        parts = (origin.module, op if origin.rule is None else f"grad_{origin.rule}_{op}")
        rename_node(node, _identifier("_".join(part for part in parts if part)))


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() else name
