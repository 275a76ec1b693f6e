"""How calls are named in errors and graphs: the function as a user would write it, its arguments, the user's line."""

from __future__ import annotations

import keyword
import types
from collections.abc import Callable
from typing import Any

import torch

from ops_registry.signatures import property_name
from ops_registry.torch_private import NAMED_C_NAMESPACES
from tracer.node import Bridge, Leaf, Node, Output


def qualified(func: Callable[..., Any]) -> str:
    """How a user would write the function, in valid Python: ``torch.cdist``, ``torch.Tensor.mvlgamma``, ``torch.linalg.eig``."""
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _dotted("torch.ops", str(func).split("."))
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__", "__delete__"):
        return f"torch.Tensor.{property_name(func)}.{name}"
    if getattr(torch.Tensor, name, None) is func:
        return f"torch.Tensor.{name}"
    for prefix, module in (
        ("torch", torch),
        ("torch.nn.functional", torch.nn.functional),
        ("torch.linalg", torch.linalg),
        ("torch.special", torch.special),
        ("torch.fft", torch.fft),
    ):
        short = name.removeprefix(f"{prefix.rpartition('.')[2]}_")
        if getattr(module, short, None) == func:
            return f"{prefix}.{short}"
    for prefix, module in (
        ("torch", torch),  # torch._VF's function beneath a Python one of the same name: a rule for either covers both
        ("torch.Tensor", torch.Tensor),
        *NAMED_C_NAMESPACES.items(),
    ):
        if hasattr(module, name):
            return f"{prefix}.{name}"
    home = f"{getattr(func, '__module__', None)}.{getattr(func, '__qualname__', name)}"
    return home if isinstance(func, types.FunctionType) and "<" not in home else name


def _dotted(start: str, names: list[str]) -> str:
    """``start.a.b``; a name that cannot stand after a dot, as the overload ``from``, is asked for by ``getattr``."""
    for name in names:
        legal = name.isidentifier() and not keyword.iskeyword(name)
        start = f"{start}.{name}" if legal else f'getattr({start}, "{name}")'
    return start


def describe(values: tuple[Any, ...]) -> str:
    """Arguments as text: shapes and dtypes of tensors, other values as they are."""
    parts = []
    for value in values:
        if isinstance(value, torch.Tensor):
            parts.append(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
            parts.append(f"[{describe(tuple(value))}]")
        else:
            text = repr(value)
            parts.append(text if len(text) < 60 else f"{text[:57]}...")
    return ", ".join(parts)


def describe_node(node: Node) -> str:
    """The op of a node, with the shape of its result, and where it was called."""
    told = [] if node.shape is None else [f"result of shape {tuple(node.shape)}"]
    place = called_at(node)
    if place is None and not isinstance(node, Leaf | Bridge):
        told.append(HOW_TO_KNOW)
    details = f" ({'; '.join(told)})" if told else ""
    return f"{node.op}{details}" if place is None else f"{node.op}{details}, {place},"


#: What errors say about a call whose place nobody has noted.
HOW_TO_KNOW = "tracer.Graph(sites=True) would tell where it was called"


def called_at(node: Node) -> str | None:
    """Where the call of ``node`` was made, the user's line and the module; None where no graph has noted it."""
    site = node.parents[0].site if isinstance(node, Output) and node.parents else node.site
    if site is None:
        return None
    return f"called at {site.line or 'an unknown line'}" + (f" in {site.module}" if site.module else "")


def say_where(error: Exception, node: Node) -> None:
    """Let an error that does not say so itself name the call whose gradient was being computed."""
    said = "\n".join((str(error), *getattr(error, "__notes__", ())))
    if (called_at(node) or HOW_TO_KNOW) not in said and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"raised by the backward rule of {describe_node(node)}")
