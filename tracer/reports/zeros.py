"""Why a call passed zeros on where a gradient came, and what to change: by its op, and by what it was given as far as that is known."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.sites import Site
from tracer.functions.function_node import FunctionNode
from tracer.node import Leaf, Node, OpaqueNode, Output, flat
from tracer.reports.badness import ZERO, state_of
from tracer.reports.causes import FIX_ZERO, PRODUCTS, REENTRANT_FIX, STEPS, WHY_ZERO, is_reentrant, name_of
from tracer.reports.evidence import Evidence, call_of
from tracer.reports.known_values import known_values
from tracer.reports.recorded import is_zero

#: A factor of 0 is mostly meant: a term that is switched off, or one that keeps all parameters in the loss.
TIMES_ZERO = "it is multiplied with the number 0"
#: Of a softmax whose largest element is below this, no element takes all.
_ALL = 0.999


#: Ops that give another dtype.
_CONVERSIONS = frozenset(("_to_copy", "double", "float", "to", "type", "type_as"))
_HALF = (torch.float16, torch.bfloat16)


def why_nothing_comes(node: Node, parent: Node) -> tuple[str, Site | None, str, str] | None:
    """Where ``node`` passes zeros on to ``parent`` whatever it computes: the op, its site, why, and what to change."""
    empty: Node | None = parent if _is_empty(parent) else None
    if empty is not None:
        while empty is not None and not isinstance(empty, Leaf):  # to the first call whose result is empty
            node = call_of(empty)
            empty = next(filter(_is_empty, flat(node.parents)), None)
        told = "is given" if empty is not None else "returned"
        return (
            node.op,
            node.site,
            f"what it {told} has no elements",
            "Look at what selects them: a filter, an index, an empty batch",
        )
    if name_of(node.op) in _CONVERSIONS and parent.dtype in _HALF and node.dtype not in _HALF:
        return (
            node.op,
            node.site,
            "its input is of half precision, for which the gradient that came is too small",
            "Scale the loss up (torch.amp.GradScaler)",
        )
    return None


def _is_empty(node: Node) -> bool:
    return node.shape is not None and not node.shape.numel()


def why_zero(node: Node, given: str) -> tuple[str, str]:
    """What makes the gradient zero that ``node`` passes on to its input ``given``, and what to change."""
    reason, fix = _reason(node, given)
    if node.dtype in _HALF:
        return f"{reason}, or too small for half precision", f"{fix}; or scale the loss up (torch.amp.GradScaler)"
    return reason, fix


def _reason(node: Node, given: str) -> tuple[str, str]:
    name = name_of(node.op)
    values = known_values(node)
    is_step = is_zero(node) and name not in WHY_ZERO
    if name in STEPS or is_step or values.get("rounding_mode") is not None:
        return "its derivative is 0 everywhere", "Give it a rule that lets the gradient through (ops_registry.use)"
    if name in ("softmax", "log_softmax") and _spread_out(values.get("result"), name):
        return _OF_ALIKE[name]
    if name in PRODUCTS and _is_number_zero(values.get("other")):
        return TIMES_ZERO, "Look at that weight. Where it is 0 on purpose, nothing is wrong"
    if name in WHY_ZERO:
        return WHY_ZERO[name], FIX_ZERO[name]
    if is_reentrant(node):
        return "so the stretch that it runs sends it back", REENTRANT_FIX
    if isinstance(node, FunctionNode):
        return f"its own backward returns zeros for input {given}", f"Look at {node.origin}"
    if isinstance(node, OpaqueNode):
        inside = "Look at what runs inside of it: a relu, a clamp, a mask, a factor of 0"
        return f"the gradient of its input {given} is 0 throughout", inside
    return (
        f"what it passes on to '{given}' is 0 throughout",
        f"Look at what {name} is given: its derivative is 0 there, or it leaves these elements out",
    )


def why_rounded(node: Node, evidence: Evidence) -> tuple[Node, str, str]:
    """Of a call that passed on what is rounding alone: the call that undoes what the tensor would change, why, and what to change."""
    if name_of(node.op) in _OF_ALIKE:
        return node, *_OF_ALIKE[name_of(node.op)]
    way = [one for one in (node, *evidence.way_to_loss(node.serial)) if not isinstance(one, Output)][:_FAR]
    for one in way:
        name = name_of(one.op)
        for ops, reason in _UNDOING:
            if name in ops and (name != "div" or len(one.parents) > 1):  # by a constant it undoes nothing
                return one, reason, _IDLE
        if name in _BENDING and not (name == "relu" and name_of(node.op) in ("mul", "div")):
            break
    return node, "the parts of its gradient cancel", "Look for terms of opposite sign, as in x - x or x - x.mean()"


#: So far towards the loss a call is looked for that undoes.
_FAR = 20
#: What comes after these undoes no shift before them; a relu lets a scale through.
_BENDING = frozenset(
    (
        "celu",
        "elu",
        "exp",
        "gelu",
        "hardswish",
        "leaky_relu",
        "mish",
        "relu",
        "selu",
        "sigmoid",
        "silu",
        "softplus",
        "tanh",
    )
)
#: What some ops undo.
_UNDOING = (
    (
        ("softmax", "log_softmax", "scaled_dot_product_attention"),
        "a shift that all elements share changes nothing in a softmax",
    ),
    (
        ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"),
        "a norm undoes what shifts, or scales, all that it normalises alike",
    ),
    (("std", "var"), "a spread does not change with a shift"),
    (("div",), "the quotient does not change where both of its sides are scaled alike"),
)
_IDLE = "It cannot learn there: leave it out (bias=False before a norm), or let it act after that call"

#: Of a softmax that is not saturated.
_OF_ALIKE = {
    "softmax": (
        "the same gradient came for all of its elements, and these add up to 1 whatever it is given",
        "Weight its elements, or compare them with a target: their sum says nothing",
    ),
    "log_softmax": (
        "what came is in proportion to its probabilities: they are those of the target",
        "Nothing is left to learn. If there should be: look at whether the target was made of the prediction itself",
    ),
}


def _spread_out(result: Any, name: str) -> bool:
    """Whether a softmax is known to have no element that takes all."""
    if not isinstance(result, torch.Tensor) or not result.numel():
        return False
    largest = float(result.detach().max())
    return largest < (_ALL if name == "softmax" else _ALL - 1)


def _is_number_zero(factor: Any) -> bool:
    if isinstance(factor, torch.Tensor):
        return factor.dim() == 0 and state_of(factor) <= ZERO and not factor.requires_grad
    return isinstance(factor, int | float) and factor == 0
