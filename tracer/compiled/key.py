"""What a graph was made for, beside what the step reaches: its arguments, and the state of this thread that changes what calls do."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ops_registry.registry import changes
from ops_registry.scopes import rules_in_force
from ops_registry.torch_private import (
    SWITCHES,
    DisableTorchFunctionSubclass,
    asks_of_switches,
    attention_order,
    precision_of,
    saved_tensors_hooks,
    storage_key,
    transform_level,
)
from tracer.compiled.aside import default_devices
from tracer.compiled.layouts import check_layouts
from tracer.errors import CaptureError
from tracer.recording.fallback import fallback_active
from tracer.tracked_tensor import Tensor, users_attributes

#: Values that are equal where they are the same, and those that are told apart by how they are written.
_BY_VALUE = frozenset(
    {
        type(None),
        bool,
        int,
        str,
        bytes,
        type(Ellipsis),
        torch.dtype,
        torch.device,
        torch.Size,
        torch.memory_format,
        torch.layout,
    }
)
_BY_TEXT = frozenset({float, complex, range, slice})
#: Modules whose objects do not change.
_VALUES = frozenset({"decimal", "fractions", "pathlib", "datetime", "uuid"})

#: The names of what ``key_of_thread`` gives. A compiler has the number of threads in its code.
THREAD = (
    "rules of use blocks", "rules registered so far", "grad mode", "inference mode", "autocast on the CPU", "autocast on CUDA",
    "autocast's cache", "default dtype", "deterministic algorithms", "hooks on saved tensors", "default device", "anomaly mode", "fallback",
    "number of threads", f"switches of backends ({', '.join(SWITCHES)})", "precision of float32 products on CUDA, and on the CPU",
)  # fmt: skip

#: The names of what is known of an argument without its values.
ASPECTS = (
    "class", "shape", "strides", "dtype", "device", "conjugation", "negation", "requires_grad", "hooks", "identity", "memory",
    "attributes",
)  # fmt: skip


def key_of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What the code of a step may ask of a tensor without reading its values. Called with interception off."""
    try:
        return (
            type(tensor),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )
    except RuntimeError:  # one that is not dense has no strides, or no shape
        check_layouts([tensor], ["an argument"])
        raise


def key_of_thread() -> tuple[Any, ...]:
    """Rules in force, modes, default dtypes, switches of backends. Raises ``CaptureError`` inside of a transform."""
    if transform_level() is not None:
        raise CaptureError(
            "a compiled step was called inside of torch.vmap, or of another transform: it fills .grad, which stands for no batch. Call the "
            "step itself there, or put the transform inside of the step."
        )
    return (
        rules_in_force(),
        changes.version,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        saved_tensors_hooks(True),
        default_devices(),
        torch.is_anomaly_enabled(),
        fallback_active(),
        torch.get_num_threads(),
        (*[ask() for ask in asks_of_switches], *attention_order()),
        (precision_of("cuda", "matmul"), precision_of("mkldnn", "matmul")),
    )


def named_thread(thread: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """What ``key_of_thread`` gave, by name, each switch of a backend by its own."""
    for name, value in zip(THREAD, thread, strict=True):
        if name.startswith("switches"):
            yield from zip(SWITCHES, value, strict=False)
            yield "order of attention's kernels", value[len(SWITCHES) :]
        else:
            yield name, value


#: What puts back what a step has left changed.
_PUT_BACK: dict[str, Callable[[Any], Any]] = {
    "grad mode": torch.set_grad_enabled,
    "default dtype": torch.set_default_dtype,
    "deterministic algorithms": torch.use_deterministic_algorithms,
}


@contextmanager
def same_thread() -> Iterator[None]:
    """Raise ``CaptureError`` where the block leaves the state of this thread another one; what can be put back is put back."""
    before = key_of_thread()
    changed: list[str] = []
    try:
        yield
    finally:
        for name, old, new in zip(THREAD, before, key_of_thread(), strict=True):
            if old != new:
                changed.append(name)
                _PUT_BACK.get(name, bool)(old)
    if changed:
        raise CaptureError(
            f"the step leaves another state behind ({', '.join(changed)}), and a graph would not. Set it outside of the step, or for a "
            f"block in it (with torch.no_grad(): ...)."
        )


def key_of_arguments(leaves: Sequence[Any], spec: Any, places: dict[int, int]) -> tuple[Any, ...]:
    """Structure and leaves: tensors by what is known without values and by which others share their memory, the rest by value.

    ``places``: by id, the positions of the tensors that the step reaches, which may be given as arguments too.
    """
    objects: dict[int, int] = {}
    memory: dict[int, int] = {}
    parts: list[Any] = [spec]
    with DisableTorchFunctionSubclass():
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                same = objects.setdefault(id(leaf), position), places.get(id(leaf))
                shared = memory.setdefault(storage_key(leaf), position) if leaf.layout is torch.strided else None
                wanted = leaf.requires_grad
                given = _key_of_attributes(leaf) if leaf.__dict__ else ()
                parts.append((*key_of_tensor(leaf), wanted, wanted and hooks_of(leaf), same, shared, given))
            else:
                parts.append(key_of_value(leaf))
    return tuple(parts)


def is_plain(value: Any) -> bool:
    """Whether all there is of a value is in ``key_of_value``; anything else is walked."""
    kind = type(value)
    return (
        kind in _BY_VALUE
        or kind in _BY_TEXT
        or isinstance(value, enum.Enum | types.BuiltinFunctionType)
        or kind.__module__ in _VALUES
        or _is_numpy_scalar(value)
    )


def key_of_value(value: Any) -> tuple[Any, ...]:
    """What stands for an argument that is no tensor: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind in _BY_VALUE or isinstance(value, enum.Enum | types.BuiltinFunctionType):
        return kind, value
    if kind in _BY_TEXT or kind.__module__ in _VALUES:
        return kind, repr(value)
    return (kind, value.tobytes()) if _is_numpy_scalar(value) else (kind, "walked")


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes") and not hasattr(value, "__setitem__")


def _key_of_attributes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The attributes that somebody has given to a tensor that is an argument; torch.compile's notes on its sizes are none."""
    found = {name: value for name, value in users_attributes(tensor).items() if not name.startswith("_dynamo_")}
    for name, value in found.items():
        if not is_plain(value):
            raise CaptureError(
                f"an argument of a compiled step, of shape {tuple(tensor.shape)}, has an attribute {name!r}, a {type(value).__qualname__}, "
                f"which the step may read: pass it as an argument of its own, or give the step x.detach()."
            )
    return tuple([(name, key_of_value(value)) for name, value in found.items()])


def hooks_of(tensor: Any) -> tuple[Any, ...]:
    """The hooks on an argument, which run when it is captured and are part of the graph."""
    if type(tensor) is not Tensor:
        found = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    elif tensor._node is None or tensor._node.extras is None:
        return ()
    else:
        found = (tensor._node.extras.hooks, tensor._node.extras.accumulate_hooks)
    return tuple([hook for hooks in found if hooks for hook in hooks.values()])
