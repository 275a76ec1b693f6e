"""All the ways to write one op: function, method, operator, in-place form, alias, ``torch.ops`` overload.

A rule is registered once and reaches every one of them. They are gathered when the rule is registered, never per call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ops_registry.signatures import base_name, is_custom
from ops_registry.torch_private import C_NAMESPACES, overload_schema

#: Names under which torch offers the same op again (with the same argument order).
ALIASES: dict[str, tuple[str, ...]] = {
    "abs": ("absolute",),
    "acos": ("arccos",),
    "acosh": ("arccosh",),
    "asin": ("arcsin",),
    "asinh": ("arcsinh",),
    "atan": ("arctan",),
    "atan2": ("arctan2",),
    "atanh": ("arctanh",),
    "cat": ("concat", "concatenate"),
    "clamp": ("clip",),
    "conj": ("_conj",),
    "conj_physical": ("_conj_physical",),
    "digamma": ("special_digamma", "special_psi"),
    "div": ("divide", "true_divide"),
    "erf": ("special_erf",),
    "erfc": ("special_erfc",),
    "erfinv": ("special_erfinv",),
    "exp2": ("special_exp2",),
    "expm1": ("special_expm1",),
    "ge": ("greater_equal",),
    "gt": ("greater",),
    "i0": ("special_i0", "special_modified_bessel_i0"),
    "index": ("_unsafe_index",),
    "index_put": ("_unsafe_index_put",),
    "le": ("less_equal",),
    "lgamma": ("special_gammaln",),
    "linalg_matrix_exp": ("matrix_exp",),
    "linalg_matrix_power": ("matrix_power",),
    "log1p": ("special_log1p",),
    "log_softmax": ("special_log_softmax",),
    "logit": ("special_logit",),
    "logsumexp": ("special_logsumexp",),
    "lt": ("less",),
    "matmul": ("linalg_matmul",),
    "mm": ("dsmm", "spmm"),
    "mul": ("multiply",),
    "mvlgamma": ("special_multigammaln",),
    "ne": ("not_equal",),
    "neg": ("negative",),
    "outer": ("ger",),
    "polygamma": ("special_polygamma",),
    "round": ("special_round",),
    "sigmoid": ("special_expit",),
    "sinc": ("special_sinc",),
    "softmax": ("special_softmax",),
    "special_i1": ("special_modified_bessel_i1",),
    "sub": ("subtract",),
    "movedim": ("moveaxis",),
    "xlogy": ("special_xlogy",),
    "H": ("matrix_H",),
    "T": ("numpy_T",),
    "_reshape_alias": ("_reshape_alias_copy",),
    "alias": ("alias_copy",),
    "expand": ("expand_copy",),
    "lift_fresh": ("lift_fresh_copy",),
    "permute": ("permute_copy",),
    "reshape": ("_reshape_copy",),
    "select": ("select_copy",),
    "slice": ("slice_copy",),
    "split": ("split_copy",),
    "split_with_sizes": ("split_with_sizes_copy",),
    "squeeze": ("squeeze_copy",),
    "t": ("t_copy",),
    "transpose": ("transpose_copy",),
    "unbind": ("unbind_copy",),
    "unsqueeze": ("unsqueeze_copy",),
    "view_as_complex": ("view_as_complex_copy",),
    "view_as_real": ("view_as_real_copy",),
    "vstack": ("row_stack",),
    "trunc": ("fix",),
    "igamma": ("special_gammainc",),
    "igammac": ("special_gammaincc",),
    "sparse_coo_tensor": ("_sparse_coo_tensor_unsafe",),
    "sparse_compressed_tensor": ("_sparse_compressed_tensor_unsafe",),
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
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_or": ("__or__", "__ror__"),
    "bitwise_xor": ("__xor__", "__rxor__"),
    "bitwise_left_shift": ("__lshift__",),
    "bitwise_right_shift": ("__rshift__",),
}

IN_PLACE_OPERATORS: dict[str, tuple[str, ...]] = {
    "add": ("__iadd__",),
    "div": ("__idiv__", "__itruediv__"),
    "mul": ("__imul__",),
    "pow": ("__ipow__",),
    "remainder": ("__imod__",),
    "sub": ("__isub__",),
    "floor_divide": ("__ifloordiv__",),
    "bitwise_and": ("__iand__",),
    "bitwise_or": ("__ior__",),
    "bitwise_xor": ("__ixor__",),
    "bitwise_left_shift": ("__ilshift__",),
    "bitwise_right_shift": ("__irshift__",),
}


_CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def canonical(name: str) -> str:
    """The name under which an op is filed: ``mul`` for ``multiply``."""
    return _CANONICAL.get(name, name)


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
            if (
                (only is None or overload == only)
                and "out" not in overload
                and "Dimname" not in str(overload_schema(getattr(packet, overload)))
            ):
                yield getattr(packet, overload)


def spellings(func: Callable[..., Any]) -> dict[Callable[..., Any], bool]:
    """Every function that means the op of ``func``, with whether it writes into its first argument.

    A ``torch.ops`` overload stands for itself alone: the functions that it belongs to are shared by its siblings and
    are sent to the right one by ``ops_registry.overloaded``.
    """
    if isinstance(func, torch._ops.OpOverload):
        return {func: False}
    if is_custom(func):
        return dict.fromkeys((func, *(getattr(func, o) for o in func.overloads())), False)  # type: ignore[attr-defined]
    name = base_name(func)
    if name.startswith("__"):
        return {func: name == "__setitem__"}
    if name.endswith("_") and not hasattr(torch.Tensor, name[:-1]):
        # zero_, normal_: in place only
        return dict.fromkeys((*_attributes((name,)), *_overloads((name,), None), func), True)
    name = name.rstrip("_") if name.endswith("_") else name
    name = canonical(name)
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
