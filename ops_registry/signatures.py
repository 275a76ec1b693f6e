"""What a torch function calls its arguments, in which order, with which defaults.

A rule names what it saves by these names, so they have to be exact. torch's schemas are the source; Python-level
functions are read with ``inspect``. ``self`` is called ``input`` here, as in torch's documentation, unless the op has another ``input``.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from ops_registry.errors import RuleError
from ops_registry.torch_private import C_NAMESPACES, overload_schema, schemas

#: NumPy's names, which torch's argument parser accepts as keywords.
NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


@dataclass(frozen=True)
class Signature:
    """Argument names in order, the defaults of those that may be left out, and what the op returns."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    #: Names of the results where the op returns a fixed structure of several (``values``, ``indices``).
    outputs: tuple[str, ...] = ()
    #: The op returns a list of tensors whose length depends on the call (``split``, ``unbind``).
    returns_list: bool = False
    #: Its only argument after ``input`` is a list of integers of any length, which a method also takes as ``*args``.
    varargs: bool = False
    #: Position of ``self`` in the op's own order: a method takes it first (``Tensor.where``).
    self_position: int = 0
    #: Arguments that are never a tensor or a list: there is nothing to alias or copy when one is saved.
    plain: frozenset[str] = frozenset()
    #: Arguments that no overload takes a tensor for (not even one that stands for a number): none can carry a gradient.
    constant: frozenset[str] = frozenset()
    #: Arguments that can be given by name only.
    keyword_only: frozenset[str] = frozenset()
    #: How many arguments some overload takes by position; None where torch does not say.
    positional: int | None = None
    #: The result may be a view of an argument, or an argument itself.
    may_alias: bool = True


def is_custom(func: Callable[..., Any]) -> bool:
    """Whether it is an op of somebody's own library (``torch.ops.mylib.op``), which shares its name with nothing of torch."""
    return isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket) and not str(func).startswith("aten.")


def base_name(func: Callable[..., Any]) -> str:
    """The op's name without namespace, overload or the underscores of an operator method."""
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(func).split(".")[1]
    name = getattr(func, "__name__", None)
    if name is None:
        raise RuleError(f"{func!r} is not a torch function: it has no name")
    if name == "__get__":  # a property, Tensor.T.__get__
        return property_name(func)
    return str(name)


def property_name(accessor: Any) -> str:
    """The name of the property that ``__get__``, ``__set__`` or ``__delete__`` belongs to."""
    owner = accessor.__self__
    named: Any = owner.fget if isinstance(owner, property) else owner
    return str(named.__name__)


def _is_intercepted(func: Callable[..., Any]) -> bool:
    if func in get_testing_overrides():
        return True
    if isinstance(func, types.FunctionType) and "handle_torch_function" in func.__code__.co_names:
        return True  # a function of somebody else's that asks subclasses first, as torch's own Python functions do
    name = base_name(func)
    if name.startswith("__get") or getattr(func, "__name__", "") == "__get__":
        return True
    return any(getattr(namespace, name, None) == func for namespace in (torch.Tensor, torch, *C_NAMESPACES))


def _from_schema(schema: Any) -> Signature:
    arguments = [
        a for a in schema.arguments if not (a.kwarg_only and a.alias_info is not None and a.alias_info.is_write)
    ]
    own = [a.name for a in arguments]
    names = tuple("input" if n == "self" and "input" not in own else n for n in own)
    defaults = {n: a.default_value for n, a in zip(names, arguments, strict=True) if a.has_default_value()}
    positional = [a for a in arguments if not a.kwarg_only]
    varargs = len(positional) == 2 and str(positional[1].type) == "List[int]" and positional[1].N is None
    outputs = tuple(r.name for r in schema.returns) if len(schema.returns) > 1 else ()
    returns_list = len(schema.returns) == 1 and str(schema.returns[0].type) == "List[Tensor]"
    self_position = own.index("self") if "self" in own else 0
    plain = frozenset(n for n, a in zip(names, arguments, strict=True) if _is_plain(str(a.type)))
    constant = frozenset(
        n for n, a in zip(names, arguments, strict=True) if not re.search("Tensor|number", str(a.type))
    )
    keyword_only = frozenset(n for n, a in zip(names, arguments, strict=True) if a.kwarg_only)
    may_alias = any(r.alias_info is not None for r in schema.returns)
    return Signature(
        names,
        defaults,
        outputs,
        returns_list,
        varargs,
        self_position,
        plain,
        constant,
        keyword_only,
        len(positional),
        may_alias,
    )


def _is_plain(kind: str) -> bool:
    return not any(part in kind for part in ("Tensor", "List", "number", "Scalar", "Any"))


def _usable(overload: str, schema: Any) -> bool:
    """Leave out the variants that write into ``out=`` and those for named dimensions: they share the names of others."""
    writes = any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not writes and "Dimname" not in str(schema) and overload not in ("out", "names")


def _from_schemas(found: dict[str, Any]) -> Signature:
    """One signature that serves all overloads: the longest, with what the shorter ones leave out made optional."""
    signatures = {o: _from_schema(s) for o, s in found.items()}
    longest = max(signatures.values(), key=lambda s: len(s.names))
    defaults = dict(longest.defaults)
    for signature in signatures.values():
        for name in longest.names:
            if name not in signature.names:
                defaults.setdefault(name, None)
    return replace(
        longest,
        defaults=defaults,
        plain=frozenset(n for n in longest.names if all(n in s.plain for s in signatures.values() if n in s.names)),
        keyword_only=frozenset(
            n for n in longest.names if all(n in s.keyword_only for s in signatures.values() if n in s.names)
        ),
        positional=max(s.positional or 0 for s in signatures.values()),
        constant=frozenset(
            n for n in longest.names if all(n in s.constant for s in signatures.values() if n in s.names)
        ),
        may_alias=any(s.may_alias for s in signatures.values()),
    )


#: What is no number and yet can be a tensor, of whole numbers or bools alone: nobody wants a gradient there.
_INDICES = {"__getitem__": frozenset({"idx"}), "__setitem__": frozenset({"k"})}


def _from_python(func: Callable[..., Any]) -> Signature:
    parameters = [
        p
        for p in inspect.signature(func).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "out"
    ]
    names = tuple("input" if p.name == "self" else p.name for p in parameters)
    defaults = {n: p.default for n, p in zip(names, parameters, strict=True) if p.default is not p.empty}
    return Signature(names, defaults)


def signature_of(func: Callable[..., Any]) -> Signature:
    """The signature under which a rule for ``func`` is written.

    Raises ``RuleError`` for something that is not a function torch lets us intercept.
    """
    if isinstance(func, torch._ops.OpOverload):
        return _from_schema(overload_schema(func))
    if isinstance(func, torch._ops.OpOverloadPacket):
        return _from_schemas({o: s for o, s in schemas(func).items() if _usable(o, s)})
    if not _is_intercepted(func):
        raise RuleError(f"{func!r} is not a function that torch lets a tensor subclass intercept")
    if isinstance(func, types.FunctionType) and not hasattr(torch.ops.aten, base_name(func).strip("_")):
        return _from_python(func)
    name = base_name(func)
    # A slot (Tensor.__getitem__) has no schema; an in-place spelling shares that of the op it belongs to.
    for candidate in (name, name.strip("_"), name.rstrip("_")):
        packet = getattr(torch.ops.aten, candidate, None)
        is_op = isinstance(packet, torch._ops.OpOverloadPacket)  # ``torch.ops.aten.__format__`` is a method
        usable = {o: s for o, s in schemas(packet).items() if _usable(o, s)} if is_op else {}
        if usable and not name.startswith("__"):
            return _from_schemas(usable)
    stand_in = get_testing_overrides().get(func)
    if stand_in is not None:
        return replace(_from_python(stand_in), constant=_INDICES.get(name, frozenset()))
    if isinstance(func, types.FunctionType):
        return _from_python(func)
    return Signature((), {})  # a method that torch describes nowhere (Tensor.new_tensor): nothing to write a rule with
