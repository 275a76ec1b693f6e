"""A captured graph run without a compiler: its ops, called one after another."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from types import CodeType
from typing import Any

import torch

from ops_registry.torch_private import OpOverload, bare_op
from tracer.compiled.written_again import written_again

#: How a call of an op begins in the code that fx writes.
_CALL = re.compile(r"\btorch\.ops\.([\w.]+)\(")


class Replay:
    """Called with the inputs of the graph, without grad mode; values that nobody reads again are written over."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        graph = written_again(copy.deepcopy(module.graph))
        code = graph.python_code("self")
        # By name alone, an op takes a quarter less time to call than as an attribute of torch.ops.aten.
        ops = {str(node.target): bare_op(node.target) for node in graph.nodes if isinstance(node.target, OpOverload)}
        text = _CALL.sub(lambda found: f"{_name(found[1])}(" if found[1] in ops else found[0], code.src)
        names = {**code.globals, **{_name(op): call for op, call in ops.items()}}
        compiled: CodeType = compile(text, "<a replayed step>", "exec")
        exec(compiled, names)
        self._module = module
        self._forward = names["forward"]

    def __call__(self, *inputs: torch.Tensor) -> Sequence[Any]:
        """The results of the graph."""
        results: Sequence[Any] = self._forward(self._module, *inputs)
        return results


def _name(op: str) -> str:
    return "op_" + op.replace(".", "_")
