"""Functions that torch composes of others (``F.normalize``, ``F.multi_head_attention_forward``), with a rule of their own inside ``use``.

The rule stands for the call as a whole. What it does not cover, and what it calls ``default``, comes from the function's body, which then
runs under the rules outside the block: nothing inside it is replaced a second time.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Mapping
from dataclasses import replace as copy_with
from typing import Any

import torch

from ops_registry.formula import Formula
from ops_registry.rule import BODY, Rule


def is_composed(rule: Rule, func: Callable[..., Any]) -> bool:
    """Whether the op has no rule of its own, and is made of others: by torch, in Python, or by a decomposition here."""
    if rule.composed is not None or rule.decomposition is not None:
        return True
    return not rule.formulas and not rule.no_gradient and isinstance(func, types.FunctionType)


def as_composed(rule: Rule, outer: Mapping[Any, Any]) -> Rule:
    """The rule whose gradients, of all arguments that can be tensors, come from the body, run under the rules ``outer``."""
    if rule.composed is not None:
        return rule
    names = tuple(n for n in rule.signature.names if n not in rule.signature.constant)
    from_body = Formula(_from_body, names, True, ("grad", "needs", BODY))
    return copy_with(rule, formulas=(from_body,), decomposition=None, as_one=None, composed=outer)


def _from_body(grad: Any, needs: tuple[bool, ...], body: Any) -> Any:
    return body.gradients(grad, needs)


def parts_of(function: Callable[..., Any], ops: Container[str]) -> list[str]:
    """Those of ``ops`` that ``function`` calls by name, in itself or in the functions of torch that it calls."""
    found: dict[str, None] = {}
    seen: set[Callable[..., Any]] = set()
    waiting = [function]
    while waiting:
        caller = waiting.pop()
        if caller in seen or not isinstance(caller, types.FunctionType):
            continue
        seen.add(caller)
        for name in caller.__code__.co_names:
            found |= {op: None for op in (name, f"linalg_{name}", f"special_{name}", f"fft_{name}") if op in ops}
            for place in (torch, torch.nn.functional, torch.Tensor):
                waiting.append(getattr(place, name, None))  # type: ignore[arg-type]
    return list(found)
