"""Ops of a library of somebody's own (``torch.library``) that bring a backward: it is the op's rule, where the registry has none.

torch keeps such a backward as an implementation of the op beneath the key Autograd. One in Python runs here, on tracked tensors and with
interception on, past the call that brought us here alone: the ``torch.autograd.Function`` that ``register_autograd`` makes, or one of the
user's, is recorded as every Function is, and an op that is made of others in its parts. One in C++ never comes back to us: torch's own
autograd runs it, and our sweep asks it for the gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.signatures import is_custom
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    has_kernel,
    is_torch_function_enabled,
    library_op_definition,
    overload_schema,
    python_kernels,
    resolve_overload,
    skip_one_hop,
)
from tracer.recording.fallback import record_with_torch
from tracer.recording.missing_rule import record_write, written_arguments
from tracer.recording.parents import any_node, wants_gradient
from tracer.recording.results import mark_constant

#: The dispatch keys under which an op can bring a derivative.
_KEYS = (
    "Autograd",
    "CompositeImplicitAutograd",
    *(f"Autograd{device}" for device in ("CPU", "CUDA", "XPU", "MPS", "HPU", "PrivateUse1", "Other")),
)

#: torch's own libraries whose implementation under Autograd only refuses.
_REFUSING = ("prims", "rngprims")

#: What ``run_library_op`` answers for an op that brings no backward.
NO_BACKWARD = object()


def overload_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The overload of an op that a call through ``torch.ops`` means; None for any other function, and for a call that fits none."""
    if isinstance(func, torch._ops.OpOverload):
        return func
    return resolve_overload(func, args, kwargs) if isinstance(func, torch._ops.OpOverloadPacket) else None


def run_library_op(
    func: Any, overload: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call with the backward that the op brings; ``NO_BACKWARD``, and nothing has run, where it brings none."""
    if not is_custom(overload) or overload.namespace in _REFUSING:
        return NO_BACKWARD
    definition = library_op_definition(overload)
    if definition is not None and definition._backward_fn is None:
        return NO_BACKWARD
    name, schema = overload.name(), overload_schema(overload)
    # An implementation without a key is filed under "": it is for all keys, as a composite one.
    filed = name.replace("::", "/")
    if skip_one_hop is not None and any(f"{filed}/{key}" in python_kernels for key in (*_KEYS, "")):
        return _run_in_python(func, overload, types, args, kwargs)
    nested = len(schema.returns) > 1 and any("List" in str(r.type) for r in schema.returns)
    if schema.is_mutable or nested or not any(has_kernel(name, key) for key in _KEYS):
        return NO_BACKWARD
    if torch.is_grad_enabled() and wants_gradient((args, kwargs)):
        return record_with_torch(func, args, kwargs, str(func))[0]
    return NO_BACKWARD


def _run_in_python(
    func: Any, overload: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    assert skip_one_hop is not None
    with DisableTorchFunctionSubclass():
        written = [(t, t._version, any_node(t)) for t in written_arguments(func, overload, args, kwargs)]
    result = skip_one_hop(func, types, args, kwargs)
    with DisableTorchFunctionSubclass():
        if torch.is_grad_enabled():
            for tensor, version, node in written:
                # Written without a word: what is there now has another history, which nobody knows.
                if node is not None and tensor._version != version and any_node(tensor) is node:
                    record_write(func, tensor, args, kwargs, [node])
        _mark_constant(result, args, kwargs)
    return result


def _mark_constant(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``mark_constant`` for results that have no history in torch's own autograd either."""
    if isinstance(result, tuple | list):
        for item in result:
            _mark_constant(item, args, kwargs)
    elif type(result) is torch.Tensor and not result.requires_grad:
        mark_constant(result, args, kwargs)


def asks_tracked_too(native: Any) -> Any:
    """torch's question whether a call of a library's op is to be recorded, which takes tracked tensors into account.

    Not where interception is off: there the call itself is recorded, or need not be.
    """

    def asked(*args: Any, **kwargs: Any) -> bool:
        return native(*args, **kwargs) or (is_torch_function_enabled() and wants_gradient((args, kwargs)))

    return asked
