"""Step 4 of a sweep: each gradient is brought onto its input, and one that does not fit raises and names the formula that gave it."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.errors import RuleResultError
from ops_registry.projection import project
from ops_registry.rule import Step
from tracer.naming import describe_node
from tracer.node import Node, OpaqueNode


def project_onto(node: Node, step: Step | None, parent: Node, result: torch.Tensor) -> torch.Tensor:
    """A gradient of ``node`` as a gradient of ``parent``. ``step`` is the formula that gave it."""
    if parent.shape is None or parent.dtype is None:  # a call without a rule: the sweep ends there with an error
        return result
    return project(result, parent.shape, parent.dtype, lambda: origin_of(node, step))


def project_list(node: Node, step: Step | None, parents: tuple[Any, ...], results: Any) -> list[Any]:
    """The gradients of a list of tensors."""
    if isinstance(results, torch.Tensor) or len(results) != len(parents):
        raise RuleResultError(
            f"{origin_of(node, step)} returned {'one gradient' if isinstance(results, torch.Tensor) else len(results)} for a list of "
            f"{len(parents)} tensors. Return a list of as many gradients."
        )
    projected = []
    for parent, result in zip(parents, results, strict=True):
        if parent is not None and result is not None:
            check_tensor(node, step, result)
            result = project_onto(node, step, parent, result)
        projected.append(result)
    return projected


def all_of(node: Node, step: Step, results: Any) -> Any:
    """What a joint formula gave, None being a gradient of zero for each input; raises ``RuleResultError`` for too many or too few."""
    if results is None:
        return (None,) * len(step.parents)
    if len(results) != len(step.parents):
        raise RuleResultError(
            f"{origin_of(node, step)} returned {len(results)} gradients for {len(step.parents)} inputs "
            f"({', '.join(step.formula.wrt)}). Return one for each, None for a gradient of zero."
        )
    return results


def check_tensor(node: Node, step: Step | None, result: Any) -> None:
    """Raise ``RuleResultError`` for a gradient that is no tensor."""
    if not isinstance(result, torch.Tensor):
        wanted = "an input" if step is None else ", ".join(step.formula.wrt)
        raise RuleResultError(
            f"{origin_of(node, step)} returned {type(result).__name__} as the gradient of {wanted}. "
            f"Return a tensor, or None for a gradient of zero."
        )


def origin_of(node: Node, step: Step | None) -> str:
    """The formula that gave a gradient, or what stands in its place, as errors name it."""
    if step is None:
        assert isinstance(node, OpaqueNode)
        return node.origin
    name = getattr(step.formula.function, "__name__", "?")
    return f"the rule '{name}' ({step.formula.location}) of {describe_node(node)}"
