"""``torch.autograd.Function`` on tracked tensors: the user's ``forward`` runs once, the user's ``backward`` is the rule of the call.

torch's own machinery never reaches interception. The one class method that every ``apply`` ends in is replaced: where an argument is
tracked, the call is recorded here, by the contract that torch documents for Functions; otherwise torch goes on as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ops_registry.torch_private import DisableTorchFunctionSubclass, SingleLevelFunction, TensorBase
from tracer.errors import FunctionError, InPlaceError, SecondDerivativeError
from tracer.functions.context import FunctionContext, SavedTensor
from tracer.functions.dependencies import Following
from tracer.graph import enter
from tracer.node import Node, joint_plan
from tracer.recording.inplace import check_write
from tracer.recording.parents import DIFFERENTIABLE, any_node
from tracer.recording.raising import refusing_alias
from tracer.recording.saved import note_write
from tracer.recording.saved_hooks import PACKED
from tracer.recording.views import CUSTOM, note_view, prepare, rewrite
from tracer.tracked_tensor import Tensor, plain_alias


class Function(torch.autograd.Function):
    """``torch.autograd.Function``, documented there: ``forward``, ``backward``, ``setup_context``, and all that ``ctx`` offers.

    Subclasses of torch's class work on tracked tensors just as well. One of this class is held to one more rule: its ``backward`` never
    writes into the gradient that it is given. (One of torch's may where nobody else holds that memory.) On plain tensors it is torch's.
    """


_HAS_HISTORY: Any = TensorBase.requires_grad

#: Marks a ``backward`` that torch's decorator has wrapped.
_ONCE = once_differentiable(lambda ctx: None).__code__


class FunctionNode(Node):
    """One call of a custom Function. Attributes of its ``ctx`` can be read from it, as from torch's ``grad_fn``."""

    __slots__ = ("cls", "ctx", "results")

    def __init__(self, cls: Any, ctx: FunctionContext, parents: tuple[Any, ...], results: list[Any]) -> None:
        super().__init__(joint_plan(cls.__name__, _user_backward(cls), len(parents)), parents, None, None)
        self.cls = cls
        self.ctx = ctx
        #: Shape, dtype and device of each result, None for one that is no tensor.
        self.results = results

    @property
    def title(self) -> str:
        """How errors name the Function."""
        return _title(self.cls)

    def name(self) -> str:
        return f"{self.cls.__name__}Backward"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def node_of_output(self, position: int, like: torch.Tensor) -> Node:
        """The node of result ``position``."""
        return self if self.outputs is None else self.output(position, like.shape, like.dtype)

    def reveal(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """An alias of a hidden value, which raises when a gradient comes to it."""
        return refusing_alias(tensor, f"hidden:{self.op}", lambda: self._hidden(what, tensor.shape), self.parents)

    def _hidden(self, what: str, shape: torch.Size) -> Exception:
        return SecondDerivativeError(
            f"second derivative through {self.title}: {what}, of shape {tuple(shape)}, depends on an input in a way that was not recorded, "
            f"so its part in the second derivative would be lost. In backward, compute it from saved inputs or outputs, with gradients "
            f"enabled; or return it from forward as one more output."
        )

    def differentiate(
        self, grad: Any, recorded: bool, on_their_way: Callable[[], Iterable[torch.Tensor]]
    ) -> tuple[Any, ...]:
        """The gradients of the arguments that want one, in the order of ``parents``, as the user's ``backward`` gives them.

        ``on_their_way()`` are the other gradients of the sweep, asked for where ``backward`` writes into the one it is given.
        """
        ctx = self.ctx
        grads = grad if isinstance(grad, tuple) else self._alone(grad)
        if ctx.materialize_grads:
            grads = tuple(
                [
                    torch.zeros(meta[0], dtype=meta[1], device=meta[2]) if g is None and meta is not None else g
                    for g, meta in zip(grads, self.results, strict=True)
                ]
            )
        versions = [(g, g._version) for g in grads if g is not None]
        backward = self.plan.steps[0].formula.function
        if not recorded:
            results = backward(ctx, *grads)
        elif getattr(backward, "__code__", None) is _ONCE:
            with torch.no_grad():
                results = self._refusing(backward.__wrapped__(ctx, *grads), grads)  # type: ignore[attr-defined]
        else:
            results = self._followed(backward, grads)
        for g, version in versions:
            if g._version != version and (issubclass(self.cls, Function) or _shares_memory(g, on_their_way())):
                raise InPlaceError(
                    f"backward of {self.title} wrote in place into the gradient it was given, of shape {tuple(g.shape)}: others may hold "
                    f"the same memory. Write into a clone."
                )
        return self._checked(results)

    def _alone(self, grad: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of all results where one alone is differentiable."""
        position = next(i for i, meta in enumerate(self.results) if meta is not None and meta[3])
        return tuple([grad if i == position else None for i in range(len(self.results))])

    def _followed(self, backward: Callable[..., Any], grads: tuple[Any, ...]) -> Any:
        """The user's ``backward``, recorded: what is computed there without a record cannot pass for a constant."""
        with Following(
            (), lambda t: self.reveal(t, "a value that backward computes under no_grad or detached")
        ) as following:
            results = backward(self.ctx, *grads)
        listed = results if isinstance(results, tuple | list) else (results,)
        return tuple(
            [
                self.reveal(r, "a gradient that backward computes under no_grad or detached")
                if following.depends(r) and getattr(r, "_node", None) is None
                else r
                for r in listed
            ]
        )

    def _refusing(self, results: Any, grads: tuple[Any, ...]) -> Any:
        """The gradients of a ``backward`` that may be differentiated once."""
        parents = [*self.parents, *(g._node for g in grads if type(g) is Tensor and g._node is not None)]

        def error() -> Exception:
            return SecondDerivativeError(
                f"second derivative through {self.title}, whose backward is marked with @once_differentiable"
            )

        listed = results if isinstance(results, tuple | list) else (results,)
        return tuple([None if r is None else refusing_alias(r, f"once:{self.op}", error, parents) for r in listed])

    def _checked(self, results: Any) -> tuple[Any, ...]:
        """What ``backward`` returned, held against the arguments of ``forward``."""
        needs = self.ctx.needs_input_grad
        given = tuple(results) if isinstance(results, tuple | list) else (results,)
        if len(given) > len(needs) and all(r is None for r in given[len(needs) :]):
            given = given[: len(needs)]  # as torch does
        if len(given) != len(needs):
            raise FunctionError(
                f"backward of {self.title} returned {len(given)} gradients, and its forward took {len(needs)} arguments. Return one for "
                f"each, None for those that want none."
            )
        wanted = []
        for position, (result, is_tensor) in enumerate(zip(given, self.ctx._is_tensor, strict=True)):
            if result is not None and not is_tensor:
                raise FunctionError(
                    f"backward of {self.title} returned a gradient for argument {position}, which is no tensor. Return None there."
                )
            if result is not None and not isinstance(result, torch.Tensor):
                raise FunctionError(
                    f"backward of {self.title} returned {type(result).__name__} as the gradient of argument {position}. Return a tensor "
                    f"or None."
                )
            if needs[position]:
                wanted.append(result)
        return tuple(wanted)


def _title(cls: Any) -> str:
    return f"the Function {cls.__qualname__}"


def _user_backward(cls: Any) -> Callable[..., Any]:
    """``backward``, or ``vjp``, which is another name for it."""
    has_backward, has_vjp = cls.backward is not SingleLevelFunction.backward, cls.vjp is not SingleLevelFunction.vjp
    if has_backward and has_vjp:
        raise FunctionError(f"{_title(cls)} defines both backward and vjp, which are two names for one thing")
    return cls.vjp if has_vjp else cls.backward


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``Function.apply``: recorded here where an argument is tracked and one wants a gradient, else as torch runs it."""
    if not kwargs and torch.is_grad_enabled() and any(type(a) is Tensor for a in args):
        nodes = [any_node(a) if isinstance(a, torch.Tensor) else None for a in args]
        if any(n is not None for n in nodes):
            return _record(cls, args, nodes)
    return super(SingleLevelFunction, cls).apply(*args, **kwargs)


def _record(cls: Any, args: tuple[Any, ...], nodes: list[Node | None]) -> Any:
    title = _title(cls)
    ctx = FunctionContext(tuple([n is not None for n in nodes]), tuple([isinstance(a, torch.Tensor) for a in args]))
    wanting = [a for a, n in zip(args, nodes, strict=True) if n is not None]
    versions = [_version(a) for a in wanting]
    with torch.no_grad(), Following(wanting) as following:
        if cls.setup_context is not SingleLevelFunction.setup_context:
            output = cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
    given = vars(ctx)
    dirty = _given(given, "dirty_tensors")
    constant = {id(t) for t in _given(given, "non_differentiable")}
    to_save = _given(given, "to_save")
    outputs = output if isinstance(output, tuple) else (output,)
    _check_dirty(title, dirty, args, outputs)
    for argument, version in zip(wanting, versions, strict=True):
        if _version(argument) != version and all(argument is not d for d in dirty):
            raise InPlaceError(
                f"forward of {title} wrote in place into an argument of shape {tuple(argument.shape)} that requires grad, without "
                f"ctx.mark_dirty(): what else uses that tensor would not know. Mark it and return it, or write into a clone."
            )
    with DisableTorchFunctionSubclass():
        results = [_meta(o, constant) for o in outputs]
        node = FunctionNode(cls, ctx, tuple([n for n in nodes if n is not None]), results)
        ctx._owner = weakref.ref(node)
        differentiable = [i for i, meta in enumerate(results) if meta is not None and meta[3]]
        if len(differentiable) == 1:
            node.shape, node.dtype = results[differentiable[0]][:2]
        else:
            node.extra().outputs = [None] * len(outputs)
        enter(node)
        marked = _mark_outputs(node, args, outputs, dirty, constant)
    node.kept = tuple([_save(t, i, node, args, nodes, outputs, following) for i, t in enumerate(to_save)])
    entries = [e for e in node.kept if e is not None]
    node.saved = PACKED if any(e.packed is not None for e in entries) else [(e.alias, e.version) for e in entries]
    for name, value in list(given.items()):
        if isinstance(value, torch.Tensor) and all(value is not a for a in args):
            position = next((i for i, o in enumerate(outputs) if o is value), None)
            hidden = position is None and following.depends(value)
            if hidden or (position is not None and results[position][3]):
                ctx._moved[name] = SavedTensor(
                    given.pop(name), f"ctx.{name}", node=None, position=position, hidden=hidden, keep=hidden
                )
    return tuple(marked) if isinstance(output, tuple) else marked[0]


def _shares_memory(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    with DisableTorchFunctionSubclass():
        address = tensor.untyped_storage().data_ptr()
        return any(other.untyped_storage().data_ptr() == address for other in others)


def _version(tensor: torch.Tensor) -> int:
    with DisableTorchFunctionSubclass():
        return tensor._version


def _given(attributes: dict[str, Any], name: str) -> tuple[Any, ...]:
    """What one of the methods of ``ctx`` was given; taken out of its attributes."""
    value = attributes.pop(name, None)
    return () if value is None else tuple(value) if isinstance(value, tuple | list) else (value,)


def _check_dirty(title: str, dirty: Sequence[Any], args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    for tensor in dirty:
        if all(tensor is not a for a in args):
            raise FunctionError(f"{title} marked as dirty what is not one of its arguments")
        if all(tensor is not o for o in outputs):
            raise FunctionError(
                f"{title} marked an argument of shape {tuple(tensor.shape)} as dirty and did not return it. What is written in place "
                f"has to be an output."
            )


def _meta(output: Any, constant: set[int]) -> Any:
    """Shape, dtype, device of a result, and whether a gradient comes for it; None for what is no tensor."""
    if not isinstance(output, torch.Tensor):
        return None
    return output.shape, output.dtype, output.device, output.dtype in DIFFERENTIABLE and id(output) not in constant


def _mark_outputs(
    node: FunctionNode, args: tuple[Any, ...], outputs: tuple[Any, ...], dirty: Sequence[Any], constant: set[int]
) -> list[Any]:
    """The results as the caller gets them, each with the Function as its history."""
    marked: list[Any] = []
    for position, out in enumerate(outputs):
        meta = node.results[position]
        came_in = any(out is a for a in args)
        written = any(out is d for d in dirty)
        if meta is None:
            marked.append(out)
        elif not meta[3]:
            if written and type(out) is Tensor:
                out._node = None  # its history was that of the value before
            # What is somebody else's keeps its history.
            theirs = not written and (came_in or getattr(out, "_node", None) is not None)
            marked.append(plain_alias(out) if theirs else out)
        elif written:
            check_write(out, node.op)
            prepare(out, node.op)
            rewrite(out, node.node_of_output(position, out))
            note_write(out, node.op)
            marked.append(out)
        else:
            if came_in:  # returned as it was: as in torch, a view of it
                out = _view_of(out)
            elif any(out is m for m in marked) or getattr(out, "_node", None) is not None or _HAS_HISTORY.__get__(out):
                out = plain_alias(out)
            out.__class__ = Tensor
            out._node = node.node_of_output(position, out)
            if out._base is not None:
                note_view(out, None)
                out._refused = CUSTOM
            marked.append(out)
    return marked


def _view_of(tensor: torch.Tensor) -> Any:
    with torch.no_grad():
        return TensorBase.view_as(tensor, tensor)


def _save(
    tensor: Any,
    index: int,
    node: FunctionNode,
    args: tuple[Any, ...],
    nodes: list[Node | None],
    outputs: tuple[Any, ...],
    following: Following,
) -> SavedTensor | None:
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor):
        raise FunctionError(
            f"ctx.save_for_backward of {node.title} takes tensors and None, and argument {index} is {type(tensor).__name__}. Set other "
            f"values as attributes of ctx."
        )
    name = f"saved tensor {index}"
    position = next((i for i, o in enumerate(outputs) if o is tensor), None)
    if position is not None and not node.results[position][3]:  # declared a constant
        return SavedTensor(tensor, name, node=None, position=None, hidden=False, keep=True)
    source = next((i for i, a in enumerate(args) if a is tensor), None)
    if source is not None:
        if position is not None and getattr(tensor, "_node", None) is not nodes[source]:
            return SavedTensor(tensor, name, node=None, position=position, hidden=False, keep=False)  # written in place
        return SavedTensor(tensor, name, node=nodes[source], position=None, hidden=False, keep=False)
    hidden = position is None and following.depends(tensor) and getattr(tensor, "_node", None) is None
    return SavedTensor(tensor, name, node=None, position=position, hidden=hidden, keep=position is None)


SingleLevelFunction.apply = classmethod(_apply)
