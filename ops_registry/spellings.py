"""All the ways to write one op: function, method, operator, in-place form, alias, ``torch.ops`` overload.

A rule is registered once and reaches every one of them. They are gathered when the rule is registered, never per call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ops_registry.signatures import base_name
from ops_registry.torch_private import C_NAMESPACES

#: Names under which torch offers the same op again (with the same argument order).
ALIASES: dict[str, tuple[str, ...]] = {
    "abs": ("absolute",),
    "acos": ("arccos",),
    "acosh": ("arccosh",),
    "addcdiv": (),
    "asin": ("arcsin",),
    "asinh": ("arcsinh",),
    "atan": ("arctan",),
    "atan2": ("arctan2",),
    "atanh": ("arctanh",),
    "cat": ("concat", "concatenate"),
    "clamp": ("clip",),
    "det": ("linalg_det",),
    "digamma": ("special_digamma", "special_psi"),
    "div": ("divide", "true_divide"),
    "erf": ("special_erf",),
    "erfc": ("special_erfc",),
    "erfinv": ("special_erfinv",),
    "exp2": ("special_exp2",),
    "expm1": ("special_expm1",),
    "fix": ("trunc",),
    "ge": ("greater_equal",),
    "gt": ("greater",),
    "i0": ("special_i0",),
    "inverse": ("linalg_inv",),
    "le": ("less_equal",),
    "lgamma": ("special_gammaln",),
    "linalg_matrix_power": ("matrix_power",),
    "log1p": ("special_log1p",),
    "log_softmax": ("special_log_softmax",),
    "logit": ("special_logit",),
    "logsumexp": ("special_logsumexp",),
    "lt": ("less",),
    "matmul": ("linalg_matmul",),
    "mul": ("multiply",),
    "mvlgamma": ("special_multigammaln",),
    "ne": ("not_equal",),
    "neg": ("negative",),
    "outer": ("ger",),
    "polygamma": ("special_polygamma",),
    "pow": (),
    "round": ("special_round",),
    "select": (),
    "sgn": (),
    "sigmoid": ("special_expit",),
    "sinc": ("special_sinc",),
    "slogdet": ("linalg_slogdet",),
    "softmax": ("special_softmax",),
    "sub": ("subtract",),
    "swapaxes": ("swapdims",),
    "movedim": ("moveaxis",),
    "vdot": (),
    "xlogy": ("special_xlogy",),
}

#: Operator methods. Reflected ones that swap their sides (``__rsub__``) are Python functions with a body of their own.
OPERATORS: dict[str, tuple[str, ...]] = {
    "abs": ("__abs__",),
    "add": ("__add__", "__radd__"),
    "bitwise_not": ("__invert__",),
    "div": ("__div__", "__truediv__"),
    "eq": ("__eq__",),
    "ge": ("__ge__",),
    "gt": ("__gt__",),
    "le": ("__le__",),
    "lt": ("__lt__",),
    "matmul": ("__matmul__",),
    "mul": ("__mul__", "__rmul__"),
    "ne": ("__ne__",),
    "neg": ("__neg__",),
    "pos": ("__pos__",),
    "positive": ("__pos__",),
    "pow": ("__pow__",),
    "remainder": ("__mod__",),
    "rsub": ("__rsub__",),
    "sub": ("__sub__",),
}

IN_PLACE_OPERATORS: dict[str, tuple[str, ...]] = {
    "add": ("__iadd__",),
    "div": ("__idiv__", "__itruediv__"),
    "mul": ("__imul__",),
    "pow": ("__ipow__",),
    "remainder": ("__imod__",),
    "sub": ("__isub__",),
}


def names_of(name: str) -> tuple[str, ...]:
    """The op's own name, then its aliases."""
    return (name, *ALIASES.get(name, ()))


def _attributes(names: tuple[str, ...]) -> Iterator[Callable[..., Any]]:
    for name in names:
        for namespace in (torch, *C_NAMESPACES, torch.Tensor):
            found = getattr(namespace, name, None)
            if callable(found) and not isinstance(found, type):
                yield found
            elif found is not None and namespace is torch.Tensor and hasattr(found, "__get__"):
                yield found.__get__  # a property: Tensor.T


def _overloads(names: tuple[str, ...], only: str | None) -> Iterator[Callable[..., Any]]:
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        if only is None:
            yield packet
        for overload in packet.overloads():
            if (only is None or overload == only) and "out" not in overload and "Dimname" not in str(getattr(packet, overload)._schema):
                yield getattr(packet, overload)


def spellings(func: Callable[..., Any]) -> dict[Callable[..., Any], bool]:
    """Every function that means the op of ``func``, with whether it writes into its first argument.

    A ``torch.ops`` overload stands for itself alone: the functions that it belongs to are shared by its siblings and
    are sent to the right one by ``ops_registry.overloads``.
    """
    if isinstance(func, torch._ops.OpOverload):
        return {func: False}
    name = base_name(func)
    if name.startswith("__"):
        return {func: False}
    if name.endswith("_") and not hasattr(torch.Tensor, name[:-1]):
        return {func: True}  # zero_, fill_: in-place only
    name = name.rstrip("_") if name.endswith("_") else name
    names = names_of(name)
    found: dict[Callable[..., Any], bool] = {}
    for spelled in _attributes(names):
        found[spelled] = False
    for operator in OPERATORS.get(name, ()):
        if hasattr(torch.Tensor, operator):
            found[getattr(torch.Tensor, operator)] = False
    for spelled in _overloads(names, None):
        found[spelled] = False
    in_place = tuple(f"{n}_" for n in names)
    for spelled in _attributes(in_place):
        found[spelled] = True
    for operator in IN_PLACE_OPERATORS.get(name, ()):
        if hasattr(torch.Tensor, operator):
            found[getattr(torch.Tensor, operator)] = True
    for spelled in _overloads(in_place, None):
        found[spelled] = True
    found.setdefault(func, False)
    return found
