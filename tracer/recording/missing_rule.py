"""The node of a call that no rule covers: backward raises there, and says what to write. And what such a call writes in place."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry import registry
from ops_registry.errors import RuleError
from ops_registry.signatures import base_name, is_custom, signature_of
from ops_registry.torch_private import overload_schema
from tracer.errors import MissingRuleError
from tracer.graph import enter
from tracer.naming import HOW_TO_KNOW, called_at, describe, qualified
from tracer.node import Node, OpaqueNode
from tracer.recording.inplace import is_in_place, write_recorded


class MissingRule(OpaqueNode):
    """A call of a function without a rule: backward raises there."""

    __slots__ = ("arguments", "function")

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], parents: tuple[Any, ...]
    ) -> None:
        super().__init__(name_of(func), parents, None, None)
        self.function = func
        #: The arguments of the call as text.
        self.arguments = describe((*args, *kwargs.values()))

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        place = called_at(self)
        where = f" ({HOW_TO_KNOW})" if place is None else f", {place}"
        raise MissingRuleError(
            f"{qualified(self.function)}({self.arguments}) has no backward rule{where}.\n"
            f"Write one:\n\n{_indented(rule_to_write(self.function))}\n\n"
            f"{_other_way(self.function)}"
        )


def name_of(func: Callable[..., Any]) -> str:
    """The name of the op, or the text of what has none."""
    return registry.op_name(func) if hasattr(func, "__name__") else str(func)


def rule_to_write(func: Callable[..., Any]) -> str:
    """The beginning of a rule for ``func``, as Python code."""
    name = re.sub(r"\W", "_", base_name(func).strip("_") if hasattr(func, "__name__") else str(func))
    if keyword.iskeyword(name) or not name.isidentifier():
        name = f"rule_of_{name}"
    arguments = [a for a in _argument_names(func) if a.isidentifier() and not keyword.iskeyword(a)]
    parameters = ", ".join(dict.fromkeys(("grad", *arguments, "result")))
    return (
        f"@ops_registry.backward({qualified(func)})\n"
        f"def {name}({parameters}):  # leave out the arguments that the formula does not need\n"
        f"    return ..."
    )


def _argument_names(func: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return signature_of(func).names
    except (RuleError, ValueError, TypeError):  # torch does not say
        return ()


def _other_way(func: Callable[..., Any]) -> str:
    """What else can be done: torch has a derivative of its own ops, and none of somebody's that brings none."""
    if not is_custom(func):
        return 'or take this derivative from torch\'s own autograd: with tracer.fallback("torch"): ...'
    overload = isinstance(func, torch._ops.OpOverload)
    name = func.name() if overload else func._qualified_op_name  # type: ignore[attr-defined]
    return f'or register one with torch: torch.library.register_autograd("{name}", backward, setup_context=...)'


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def written_arguments(
    func: Callable[..., Any], overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """The tensors that a call writes into: an op's schema says it (``overload``, None where there is none), or the function's name."""
    if overload is None:
        return _tensors(args[0]) if args and is_in_place(func) else []
    arguments = overload_schema(overload).arguments
    given = dict(zip([a.name for a in arguments], args, strict=False)) | kwargs
    return [
        tensor
        for a in arguments
        if a.alias_info is not None and a.alias_info.is_write
        for tensor in _tensors(given.get(a.name))
    ]


def _tensors(value: Any) -> list[torch.Tensor]:
    listed = value if isinstance(value, tuple | list) else (value,)
    return [t for t in listed if isinstance(t, torch.Tensor)]


def record_write(
    func: Callable[..., Any], target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], parents: list[Node]
) -> None:
    """What ``func`` has written into ``target`` has a history that raises in backward."""
    node = enter(MissingRule(func, args, kwargs, tuple(parents)))
    write_recorded(target, node, node.op.rstrip("_"))
