"""Numbers that a graph computes from values, as tensors without dimensions: compilers know those better.

Replayed, such numbers are Python's. They come of learning rates and step counts.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from tracer.errors import CaptureError

_aten = torch.ops.aten
_OPERATORS: dict[Any, str] = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div"}
Node = torch.fx.Node


def as_tensors(graph: torch.fx.Graph) -> None:
    """Make tensors of float64 of the numbers in ``graph``, in place. Raises ``CaptureError`` for what takes such a number otherwise."""
    tensors: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "output":
            break
        with graph.inserting_before(node):
            if node.target is _aten._local_scalar_dense.default and isinstance(node.meta["val"], torch.SymFloat):
                tensors[node] = graph.call_function(_aten._to_copy.default, node.args, {"dtype": torch.float64})
            elif node.target in (*_OPERATORS, operator.pow, operator.neg) and any(
                a in tensors for a in node.all_input_nodes
            ):
                tensors[node] = _arithmetic(graph, node, tensors)
            elif any(argument in tensors for argument in node.all_input_nodes):
                new = _call(graph, node, tensors)
                new.meta = dict(node.meta)
                node.replace_all_uses_with(new)
    for node in reversed(tensors):
        if not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _arithmetic(graph: torch.fx.Graph, node: Node, tensors: dict[Node, Node]) -> Node:
    left, *right = (
        tensors.get(argument, argument) if isinstance(argument, Node) else argument for argument in node.args
    )
    if node.target is operator.neg:
        return graph.call_function(_aten.neg.default, (left,))
    if node.target is operator.pow:
        kinds = isinstance(left, Node), isinstance(right[0], Node)
        op = {
            (True, False): _aten.pow.Tensor_Scalar,
            (False, True): _aten.pow.Scalar,
            (True, True): _aten.pow.Tensor_Tensor,
        }[kinds]
        return graph.call_function(op, (left, *right))
    if not isinstance(left, Node):
        left = graph.call_function(_aten.full.default, ([], left), {"dtype": torch.float64})
    return graph.call_function(getattr(_aten, _OPERATORS[node.target]).Tensor, (left, *right))


def _call(graph: torch.fx.Graph, node: Node, tensors: dict[Node, Node]) -> Node:
    """``node`` with tensors in the place of numbers, which are rounded to the dtype of its result as torch's kernels do it."""
    dtype = node.meta["val"].dtype

    def of(value: Any) -> Any:
        if not isinstance(value, Node) or value not in tensors:
            return value
        return graph.call_function(_aten._to_copy.default, (tensors[value],), {"dtype": dtype})

    def times(value: Any, number: Any) -> Node:
        return graph.call_function(_aten.mul.Tensor, (value, of(number)))

    args, kwargs, op = node.args, node.kwargs, node.target
    if op in (_aten.add.Tensor, _aten.sub.Tensor):
        return graph.call_function(op, (of(args[0]), times(of(args[1]), kwargs.get("alpha", 1))))
    if op in (_aten.mul.Tensor, _aten.div.Tensor):
        return graph.call_function(op, tuple(map(of, args)))
    if op is _aten.lerp.Scalar:
        return graph.call_function(_aten.lerp.Tensor, (args[0], args[1], of(args[2])))
    if op in (_aten.addcmul.default, _aten.addcdiv.default):
        part = _aten.mul.Tensor if op is _aten.addcmul.default else _aten.div.Tensor
        value = graph.call_function(part, (times(args[1], kwargs["value"]), args[2]))
        return graph.call_function(_aten.add.Tensor, (args[0], value))
    raise CaptureError(
        f"{op} takes a number that is computed from a learning rate or a step count, and no compiler is told how. The same graph runs "
        f"without one: backend='replay'."
    )
