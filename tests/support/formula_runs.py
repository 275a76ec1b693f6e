"""Which formulas a backward pass runs, for which inputs, and what they return for inputs that need nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.registry import TABLE
from ops_registry.rule import Step
from tracer.node import CallNode, Node, Output
from tracer.tracked_tensor import Tensor


@dataclass(frozen=True)
class FormulaRun:
    """One formula that was run."""

    node: Node
    step: Step
    grad: Any
    result: Any

    @property
    def wasted(self) -> list[str]:
        """What it computed for inputs that need no gradient; parts of a list's gradient that are views of it cost nothing."""
        if self.step.joint:
            results = self.result or (None,) * len(self.step.needs)
            pairs = zip(self.step.formula.wrt, self.step.needs, results, strict=True)
            return [name for name, needed, result in pairs if not needed and isinstance(result, torch.Tensor)]
        parents = self.node.parents[self.step.parent]
        if not isinstance(parents, tuple) or self.result is None:
            return []
        memory = self.grad.untyped_storage()._cdata
        return [
            f"{self.step.formula.wrt[0]}[{i}]"
            for i, (parent, part) in enumerate(zip(parents, self.result, strict=True))
            if parent is None and part is not None and part.numel() and part.untyped_storage()._cdata != memory
        ]


def watch(nodes: Sequence[Node]) -> list[FormulaRun]:
    """A list that fills with the formulas of these nodes as backward runs them."""
    runs: list[FormulaRun] = []

    def watched(node: Node, step: Step) -> Step:
        def call(grad: Any, kept: tuple[Any, ...], needs: tuple[bool, ...] | None) -> Any:
            result = step.call(grad, kept, needs)
            runs.append(FormulaRun(node, step, grad, result))
            return result

        return replace(step, call=call)

    for node in nodes:
        if isinstance(node, CallNode):
            node.plan = replace(node.plan, steps=tuple(watched(node, step) for step in node.plan.steps))
    return runs


class WantedInputs(TorchFunctionMode):
    """Notes for each call under it that has a rule which of its arguments require grad, read off the arguments themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Node, set[str]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        spelling = TABLE.get(func)
        if spelling is None or spelling.choose is not None or not spelling.rule.formulas:
            return func(*args, **kwargs)
        bound = spelling.bind(args, kwargs)
        wanted = {name for position, name in spelling.rule.inputs if _requires_grad(bound[position])}
        result = func(*args, **kwargs)
        first = next((r for r in (result if isinstance(result, tuple | list) else [result])), None)
        if isinstance(first, Tensor) and first._node is not None:
            node = first._node.parents[0] if isinstance(first._node, Output) else first._node
            if node.op == spelling.rule.name:  # not an argument that was handed back
                self.found[node] = wanted
        return result


def _requires_grad(value: Any) -> bool:
    return (
        any(_requires_grad(v) for v in value)
        if isinstance(value, tuple | list)
        else (isinstance(value, torch.Tensor) and value.requires_grad)
    )


def covered(node: CallNode) -> set[str]:
    """The inputs of a call that its formulas are run for."""
    return {
        name
        for step in node.plan.steps
        for name, parent in zip(step.formula.wrt, step.parents, strict=True)
        if parent is not None
    }
