"""``torch.autograd.Function`` on tracked tensors: the user's ``forward`` runs once, the user's ``backward`` is the rule of the call.

torch's own machinery never reaches interception. The one class method that every ``apply`` ends in is replaced: where an argument is
tracked, the call is recorded here, by the contract that torch documents for Functions; otherwise torch goes on as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ops_registry.rule import LISTS
from ops_registry.shared.descriptors import device_of, dtype_of, shape_of
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    SingleLevelFunction,
    TensorBase,
    custom_function_call,
    set_grad_enabled,
)
from tracer.errors import FunctionError, InPlaceError
from tracer.functions.context import FunctionContext, SavedTensor
from tracer.functions.dependencies import DependencyTracker
from tracer.functions.function_node import FunctionNode, title_of
from tracer.functions.function_vmap import forward_of_batch
from tracer.graph import enter
from tracer.node import Node
from tracer.notes.cuts import asked, covering, note_cut
from tracer.recording.inplace import write_recorded
from tracer.recording.levels import levels
from tracer.recording.parents import DIFFERENTIABLE, any_node
from tracer.recording.results import mark, mark_constant
from tracer.recording.saved import note_write, version_of
from tracer.recording.subclasses import refuse_lost_history
from tracer.recording.views import WriteBan, ban_writes
from tracer.tracked_tensor import Tensor, plain_alias


class Function(torch.autograd.Function):
    """``torch.autograd.Function``, documented there: ``forward``, ``backward``, ``setup_context``, and all that ``ctx`` offers.

    Subclasses of torch's class work on tracked tensors just as well. One of this class is held to one more rule: its ``backward`` never
    writes into the gradient that it is given. (One of torch's may where nobody else holds that memory.) On plain tensors it is torch's.
    """


_HAS_HISTORY: Any = TensorBase.requires_grad


def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``Function.apply``: recorded here where an argument is tracked and one wants a gradient, else as torch runs it."""
    if not kwargs and Tensor in map(type, args) and torch.is_grad_enabled():
        nodes = [any_node(a) if isinstance(a, torch.Tensor) else None for a in args]
        if nodes.count(None) < len(nodes):
            return _record(cls, args, nodes)
    result = super(SingleLevelFunction, cls).apply(*args, **kwargs)
    for output in result if isinstance(result, tuple) else (result,):
        if type(output) is Tensor and output._node is None:
            _leave_to_torch(output)
    return result


def _leave_to_torch(output: Any) -> None:
    """Make a result that torch has recorded, and that ``forward`` computed with tracked tensors, one of torch's own."""
    with DisableTorchFunctionSubclass():
        if _HAS_HISTORY.__get__(output):
            output.__class__ = torch.Tensor


def apply_in_transform(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``Function.apply`` inside a transform of ``torch.func``, which takes another way there."""
    if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and any_node(a) is not None for a in args):
        return apply(cls, *args, **kwargs)
    with DisableTorchFunctionSubclass():
        return mark_constant(custom_function_call(cls, *args, **kwargs), args, kwargs)


def _record(cls: Any, args: tuple[Any, ...], nodes: list[Node | None]) -> Any:
    title = title_of(cls)
    ctx = FunctionContext(tuple([n is not None for n in nodes]), tuple([isinstance(a, torch.Tensor) for a in args]))
    wanting = [a for a, n in zip(args, nodes, strict=True) if n is not None]
    with DisableTorchFunctionSubclass():
        versions = [version_of(tensor) for tensor in wanting]
    tracker = DependencyTracker(wanting)
    with _GradOff(), covering(nodes), tracker:
        if cls.setup_context is not SingleLevelFunction.setup_context:
            output = forward_of_batch(cls, args) if levels.open else cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
    given = vars(ctx)
    dirty = _given(given, "dirty_tensors")
    constant = {id(t) for t in _given(given, "non_differentiable")}
    to_save = _given(given, "to_save")
    outputs = output if isinstance(output, tuple) else (output,)
    _check_dirty(title, dirty, args, outputs)
    with DisableTorchFunctionSubclass():
        _check_written(title, wanting, versions, dirty)
        refuse_lost_history(title, outputs, args)
        results = [_meta(o, constant) for o in outputs]
        parents = tuple([n for n in nodes if n is not None])
        node = FunctionNode(cls, ctx, parents, results, strict=issubclass(cls, Function))
        ctx._owner = weakref.ref(node)
        node.set_results(outputs, [i for i, meta in enumerate(results) if meta is not None and meta[3]])
        enter(node, outputs)
        if asked.graphs and any(meta is not None and not meta[3] for meta in results):
            note_cut("marked", node.op, args)
        marked = _mark_outputs(node, args, outputs, dirty, constant)
    _save(node, to_save, args, nodes, outputs, tracker)
    _move_attributes(node, args, outputs, tracker)
    return tuple(marked) if isinstance(output, tuple) else marked[0]


class _GradOff:
    """``torch.no_grad()`` where gradients are on, in a third of its time."""

    def __enter__(self) -> None:
        set_grad_enabled(False)

    def __exit__(self, *exc: object) -> None:
        set_grad_enabled(True)


def _given(attributes: dict[str, Any], name: str) -> tuple[Any, ...]:
    """What one of the methods of ``ctx`` was given; taken out of its attributes."""
    value = attributes.pop(name, None)
    return () if value is None else tuple(value) if isinstance(value, LISTS) else (value,)


def _check_dirty(title: str, dirty: Sequence[Any], args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    for tensor in dirty:
        if all(tensor is not a for a in args):
            raise FunctionError(f"{title} marked as dirty what is not one of its arguments")
        if all(tensor is not o for o in outputs):
            raise FunctionError(
                f"{title} marked an argument of shape {tuple(tensor.shape)} as dirty and did not return it. What is written in place "
                f"has to be an output."
            )


def _check_written(title: str, wanting: list[torch.Tensor], versions: list[int], dirty: Sequence[Any]) -> None:
    for argument, version in zip(wanting, versions, strict=True):
        if version_of(argument) != version and all(argument is not d for d in dirty):
            raise InPlaceError(
                f"forward of {title} wrote in place into an argument of shape {tuple(argument.shape)} that requires grad, without "
                f"ctx.mark_dirty(): what else uses that tensor would not know. Mark it and return it, or write into a clone."
            )


def _meta(output: Any, constant: set[int]) -> Any:
    """Shape, dtype, device of a result, and whether a gradient comes for it; None for what is no tensor."""
    if not isinstance(output, torch.Tensor):
        return None
    dtype = dtype_of(output)
    return shape_of(output), dtype, device_of(output), dtype in DIFFERENTIABLE and id(output) not in constant


def _mark_outputs(
    node: FunctionNode, args: tuple[Any, ...], outputs: tuple[Any, ...], dirty: Sequence[Any], constant: set[int]
) -> list[Any]:
    """The results as the caller gets them, each with the Function as its history."""
    marked: list[Any] = []
    given = {id(a) for a in args}
    for position, out in enumerate(outputs):
        meta = node.results[position]
        came_in = id(out) in given
        written = bool(dirty) and any(out is d for d in dirty)
        if meta is None:
            marked.append(out)
        elif not meta[3]:
            if written and type(out) is Tensor:
                out._node = None  # its history was that of the value before
            # What is somebody else's keeps its history.
            theirs = not written and (came_in or getattr(out, "_node", None) is not None)
            marked.append(plain_alias(out) if theirs else out)
        elif written:
            write_recorded(out, node.of_result(position, out), node.op)
            note_write(out, node.op)
            marked.append(out)
        else:
            if came_in:  # returned as it was: as in torch, a view of it
                out = _view_of(out)
            elif (
                (marked and any(out is m for m in marked))
                or getattr(out, "_node", None) is not None
                or _HAS_HISTORY.__get__(out)
            ):
                out = plain_alias(out)
            out = mark(out, node.of_result(position, out), None)
            if out._base is not None:
                ban_writes(out, WriteBan.OF_A_FUNCTION)
            marked.append(out)
    return marked


def _view_of(tensor: torch.Tensor) -> Any:
    with _GradOff():
        return TensorBase.view_as(tensor, tensor)


def _save(
    node: FunctionNode,
    to_save: tuple[Any, ...],
    args: tuple[Any, ...],
    nodes: list[Node | None],
    outputs: tuple[Any, ...],
    tracker: DependencyTracker,
) -> None:
    """Save what ``save_for_backward`` was given."""
    saved = [_saved_tensor(t, i, node, args, nodes, outputs, tracker) for i, t in enumerate(to_save)]
    present = [entry for entry in saved if entry is not None]
    node.saved = tuple(saved)
    if any(entry.packed is not None for entry in present):
        node.extra().packed = True
    else:
        node.saved_versions = [(entry.alias, entry.version) for entry in present]


def _saved_tensor(
    tensor: Any,
    index: int,
    node: FunctionNode,
    args: tuple[Any, ...],
    nodes: list[Node | None],
    outputs: tuple[Any, ...],
    tracker: DependencyTracker,
) -> SavedTensor | None:
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor):
        raise FunctionError(
            f"ctx.save_for_backward of {node.title} takes tensors and None, and argument {index} is {type(tensor).__name__}. Set other "
            f"values as attributes of ctx."
        )
    name = f"saved tensor {index}"
    position = _place(tensor, outputs)
    if position is not None and not node.results[position][3]:  # declared a constant
        return SavedTensor(tensor, name, node=None, position=None, unrecorded=False, keep=True)
    source = _place(tensor, args)
    if source is not None:
        if position is not None and getattr(tensor, "_node", None) is not nodes[source]:
            return SavedTensor(tensor, name, node=None, position=position, unrecorded=False, keep=False)  # written
        return SavedTensor(tensor, name, node=nodes[source], position=None, unrecorded=False, keep=False)
    unrecorded = position is None and tracker.depends(tensor) and getattr(tensor, "_node", None) is None
    return SavedTensor(tensor, name, node=None, position=position, unrecorded=unrecorded, keep=position is None)


def _move_attributes(
    node: FunctionNode, args: tuple[Any, ...], outputs: tuple[Any, ...], tracker: DependencyTracker
) -> None:
    """Attributes of ``ctx`` that hold an output (which would be a cycle) or an unrecorded value become saved tensors."""
    given = vars(node.ctx)
    for name, value in list(given.items()):
        if isinstance(value, torch.Tensor) and all(value is not a for a in args):
            position = _place(value, outputs)
            unrecorded = position is None and tracker.depends(value)
            if unrecorded or (position is not None and node.results[position][3]):
                node.ctx._moved[name] = SavedTensor(
                    given.pop(name), f"ctx.{name}", node=None, position=position, unrecorded=unrecorded, keep=unrecorded
                )


def _place(tensor: torch.Tensor, among: tuple[Any, ...]) -> int | None:
    for i, value in enumerate(among):
        if value is tensor:
            return i
    return None
