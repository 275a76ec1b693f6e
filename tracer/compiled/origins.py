"""Where each node of a captured graph comes from: the module, the user's line, and in backward the rule; and names made of that."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ops_registry.sites import find_place, line_number, run_as_at, short_line
from ops_registry.torch_private import TorchDispatchMode, rename_node
from tracer.backprop.progress import innermost
from tracer.functions.function_node import FunctionNode
from tracer.node import CallNode, Node, Output

#: The frames of a backward pass.
_SWEEP = "tracer.backprop.sweep"


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
    #: ``file.py:12``: the formula of that rule, or the ``backward`` of a custom Function. None for what is done with what it gave, such as
    #: sums over broadcast axes and of several gradients.
    formula: str | None = None
    #: Whether it is a call of the forward pass that a checkpoint makes again in backward.
    again: bool = False

    @property
    def stack_trace(self) -> str:
        """As ``print_readable`` wants it."""
        text = "" if self.file is None else linecache.getline(self.file, self.line).strip()
        backward = self.rule and f"backward of {self.rule}" + (f" ({self.formula})" if self.formula else "")
        whose = " of ".join(part for part in (backward, self.module) if part) or self.function
        return f'  File "{self.file}", line {self.line}, in {whose}{", again" * self.again}\n    {text}\n'


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
    if node is None:
        return _of(*find_place(2))
    if isinstance(node, Output) and node.parents:
        node = node.parents[0]
    formula, again = _running_in(node)
    if again:
        return _of(*find_place(2), again=True)
    place = find_place(2) if node.site is None else (node.site.modules, *node.site.code)
    return _of(*place, rule=node.op, formula=formula)


def _running_in(node: Node) -> tuple[str | None, bool]:
    """While ``node`` is visited: where the formula is written that runs, and whether a stretch of the forward pass runs again."""
    formulas = _formulas(node)
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _SWEEP:
        if frame.f_code is run_as_at.__code__ and not isinstance(node, FunctionNode):  # whose backward may run so
            return None, True
        if id(frame.f_code) in formulas:
            return formulas[id(frame.f_code)], False
        frame = frame.f_back
    return None, False


def _formulas(node: Node) -> dict[int, str]:
    """Where the functions are written that give the gradients of a call, by the ids of their code."""
    if isinstance(node, FunctionNode):
        code = inspect.unwrap(node.backward).__code__
        return {id(code): short_line(f"{code.co_filename}:{code.co_firstlineno}")}
    if not isinstance(node, CallNode):
        return {}
    return {id(inspect.unwrap(f.function).__code__): short_line(f.location) for f in node.plan.formulas()}


def _of(modules: tuple[str, ...], code: CodeType | None, at: int, **of_backward: Any) -> Origin:
    if code is None:
        return Origin(modules[0], None, 0, "", **of_backward)
    return Origin(modules[0], code.co_filename, line_number(code, at), code.co_name, **of_backward)


def name_nodes(graph: torch.fx.Graph, inputs: Sequence[str]) -> None:
    """Name inputs after what they are, calls after module and op, and backward calls after the rule."""
    _give_rest_origins(graph)
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
        made = "again" if origin.again else origin.rule and f"grad_{origin.rule}"
        rename_node(node, _identifier("_".join(part for part in (origin.module, made, op) if part)))


def _give_rest_origins(graph: torch.fx.Graph) -> None:
    """What no call of the step stands for: numbers made of sizes belong to who first reads them, writes at the end to what they write."""
    for node in reversed(graph.nodes):
        if node.op != "call_function" or "origin" in node.meta:
            continue
        near = node.args[1:2] if node.target is torch.ops.aten.copy_.default else node.users
        origins = [
            other.meta["origin"] for other in near if isinstance(other, torch.fx.Node) and "origin" in other.meta
        ]
        if origins:
            node.meta["origin"] = origins[0]


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() else name
