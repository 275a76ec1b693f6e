"""TorchScript, whose calls never reach interception: compiled functions and methods, tracing, and copies of scripted modules.

A call of compiled code is recorded as one opaque call: torch's own autograd runs it, and our sweep asks it for the gradients of the
arguments and of the state that the code reads, tracked or not. ``tracer.install`` puts these in the place of torch's own.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import TABLE
from ops_registry.scopes import replaced, replaced_here
from ops_registry.torch_private import (
    BufferDict,
    DisableTorchFunctionSubclass,
    ModuleDict,
    ParameterDict,
    ScriptClass,
    ScriptFuture,
    ScriptObject,
    tree_flatten,
    tree_unflatten,
)
from tracer.errors import InPlaceError, UnsupportedError
from tracer.naming import qualified
from tracer.recording.fallback import record_with_torch
from tracer.recording.native import as_native
from tracer.recording.parents import holds_tracked
from tracer.tracked_tensor import Tensor, is_parameter, mark_as_parameter, plain_alias, track_in_place

#: An op of torch's in the text of a compiled graph; the in-place one counts for the other.
_CALLED = re.compile(r"aten::(\w+?)_?\(")


class Held(NamedTuple):
    """A tensor that a scripted module holds, and where; ``name`` is empty for one inside a list, a dict or an object."""

    module: Any
    name: str
    tensor: torch.Tensor


_MAY_HOLD_TENSORS = (torch.Tensor, list, tuple, dict, type(None))
#: Types of attributes that hold none, however nested; and those that hold another only once it is set.
_NO_TENSORS = re.compile(r"(\b(bool|float|int|str|List|Tuple|Optional)\b|[\[\], ])+")
_ONE_TENSOR = frozenset({"Tensor", "Optional[Tensor]"})


def state_of(module: Any) -> Iterator[Held]:
    """The parameters and buffers of a scripted module and its submodules."""
    for kind in (ParameterDict, BufferDict):
        for name, tensor in kind(module).items():
            yield Held(module, name, tensor)
    for _, submodule in ModuleDict(module).items():
        yield from state_of(submodule)


def _tensors_inside(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists and dicts, and in the attributes of objects of compiled classes."""
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__"):
            yield from _tensors_inside(list(vars(leaf).values()))


class _Layout(NamedTuple):
    """Where a scripted module may hold tensors, by name: the type of an attribute never changes."""

    registered: tuple[str, ...]
    attributes: tuple[str, ...]
    submodules: tuple[tuple[str, _Layout], ...]

    def state_of(self, module: Any) -> Iterator[Held]:
        """What ``module`` holds there now."""
        for name in self.registered:
            yield Held(module, name, module.getattr(name))
        for name in self.attributes:
            value = module.getattr(name)
            if isinstance(value, torch.Tensor):
                yield Held(module, name, value)
            elif value is not None:
                yield from (Held(module, "", t) for t in _tensors_inside(value))
        for name, layout in self.submodules:
            yield from layout.state_of(module.getattr(name))


#: The type of a module or an object, and the name of what it holds.
_Place = tuple[str, str]


class _Reads(NamedTuple):
    """Where a compiled method may read tensors, and write into them."""

    #: Where it leaves the tensors that it finds.
    kept: _Layout
    #: Where it may leave others.
    changed: _Layout


#: What ``_reads_of`` has found.
_reads: MutableMapping[Any, _Reads] = weakref.WeakKeyDictionary()


def _reads_of(method: Any) -> _Reads:
    """Where the module of a compiled method, and its submodules, may hold tensors that the method reads or writes."""
    found = _reads.get(method)
    if found is None:
        graph = method.inlined_graph  # held: its nodes do not hold it
        setting = [(_place(node), node.inputsAt(1)) for node in graph.findAllNodes("prim::SetAttr")]
        getting = [(_place(node), node.output()) for node in graph.findAllNodes("prim::GetAttr")]
        kinds = {(place, value.type().annotation_str) for place, value in (*setting, *getting)}
        places = {place for place, kind in kinds if not _NO_TENSORS.fullmatch(kind)}
        changed = {place for place, _ in setting} | {place for place, kind in kinds if kind not in _ONE_TENSOR}
        # By an interface: another module may stand there at the next call. What that sets is not seen here, nor what a fork sets.
        by_interface = bool(graph.findAllNodes("prim::CallMethod"))
        hidden = by_interface or bool(graph.findAllNodes("prim::fork"))
        found = _Reads(
            _layout_of(method.owner, places, lambda place: not hidden and place not in changed),
            _layout_of(method.owner, places, lambda place: hidden or place in changed),
        )
        if not by_interface:
            _reads[method] = found
    return found


def _place(node: Any) -> _Place:
    """What a node of a compiled graph gets or sets."""
    return node.inputsAt(0).type().annotation_str, node.s("name")


def _layout_of(module: Any, places: set[_Place], wanted: Callable[[_Place], bool]) -> _Layout:
    """Where ``module`` holds parameters and buffers, and attributes that are among ``places``, as far as ``wanted``."""
    kind = module.qualified_name
    registered = [name for state in (ParameterDict, BufferDict) for name, _ in state(module).items()]
    submodules = dict(ModuleDict(module).items())
    attributes = [
        name
        for owner, name in places
        if owner == kind
        and not (name in registered or name in submodules)
        and (isinstance(value := module.getattr(name), _MAY_HOLD_TENSORS) or hasattr(value, "__dict__"))
    ]
    inner = [(name, _layout_of(submodule, places, wanted)) for name, submodule in submodules.items()]
    return _Layout(
        tuple([name for name in registered if wanted((kind, name))]),
        tuple([name for name in attributes if wanted((kind, name))]),
        tuple([(name, layout) for name, layout in inner if any(layout)]),
    )


#: What ``ops_in`` has found.
_ops: MutableMapping[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def ops_in(compiled: Any) -> frozenset[str]:
    """The ops with a rule that compiled code runs."""
    found = _ops.get(compiled)
    if found is None:
        names = set(_CALLED.findall(str(compiled.inlined_graph)))
        called = [TABLE.get(getattr(torch.ops.aten, name)) for name in names if hasattr(torch.ops.aten, name)]
        found = _ops[compiled] = frozenset(spelling.rule.name for spelling in called if spelling is not None)
    return found


def _refuse_replaced(compiled: Any) -> None:
    """Raise ``UnsupportedCallError`` where a ``use`` block has a rule for an op inside, which it cannot reach."""
    op = replaced_here(ops_in(compiled)) if replaced() else None
    if op is not None:
        raise UnsupportedCallError(
            f"use() has a rule for {op}, which runs inside the compiled code of {compiled.name}: it does not reach there, and torch's own "
            f"derivative would be taken. Call the code as it was before torch.jit compiled it, or keep this call out of the block."
        )


def recording_script(call: Callable[..., Any]) -> Callable[..., Any]:
    """The ``__call__`` of compiled code, which records a call with tracked tensors, given or held, as one opaque call."""

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(self, *args, **kwargs)
        module = getattr(self, "owner", None)  # a function has none
        reads = None if module is None else _reads_of(self)
        kept = [] if reads is None else list(reads.kept.state_of(module))
        held = [h.tensor for h in kept]
        if reads is not None:
            held += [h.tensor for h in reads.changed.state_of(module)]
        given = list(args)
        if kwargs or not all(isinstance(v, torch.Tensor) for v in args):
            given = tree_flatten((args, kwargs))[0]
            held += [t for v in given if not isinstance(v, torch.Tensor | torch.nn.Module) for t in _tensors_inside(v)]
        if not holds_tracked((*held, *given)):
            return call(self, *args, **kwargs)
        _refuse_replaced(self)
        before = {id(tensor) for tensor in held if tensor.requires_grad}

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = call(self, *args, **kwargs)
            except RuntimeError as error:
                if "leaf Variable that requires grad" not in str(error):
                    raise
                raise InPlaceError(
                    f"the compiled code of {self.name} writes in place into what requires grad, an argument or a tensor of its module: "
                    f"that cannot be recorded. Let it write into a clone."
                ) from error
            _check_results(self.name, result)
            return result

        written: list[Held] = []

        def new_state() -> list[torch.Tensor]:
            if reads is not None:
                left = (*kept, *reads.changed.state_of(module))
                written.extend(h for h in left if _has_new_history(h.tensor, before))
                _check_places(self.name, written)
            return [h.tensor for h in written]

        result, tracked = record_with_torch(run, args, kwargs, self.name, held, new_state)
        for place, tensor in zip(written, tracked, strict=True):
            place.module.setattr(place.name, tensor)
        return result

    return recorded


def _has_new_history(tensor: torch.Tensor, before: set[int]) -> bool:
    return type(tensor) is not Tensor and tensor.requires_grad and not tensor.is_leaf and id(tensor) not in before


def _check_results(name: str, result: Any) -> None:
    """Raise ``UnsupportedError`` for a result that may hold tensors where no gradient can be followed."""
    for item in () if isinstance(result, torch.Tensor) else tree_flatten(result)[0]:
        opaque = isinstance(item, ScriptObject | ScriptClass | ScriptFuture)
        holding = not isinstance(item, torch.Tensor) and any(t.requires_grad for t in _tensors_inside(item))
        if opaque or holding:
            raise UnsupportedError(
                f"the compiled code of {name} returned a {type(item).__name__}, into which a gradient cannot be followed. Return its "
                f"tensors (of a Future: torch.jit.wait(it))."
            )


def _check_places(name: str, written: list[Held]) -> None:
    if not all(place.name for place in written):
        raise UnsupportedError(
            f"the compiled code of {name} kept a tensor that requires grad in a list, a dict or an object of its module, where its "
            f"history cannot be followed. Keep it as an attribute of its own, or detach it."
        )


# ------------------------------------------------------------------ tracing


class _RefuseConstants(TorchFunctionMode):
    """Refuses tracked tensors that require grad while torch traces: it would take them for constants."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, structure = tree_flatten((args, kwargs))
        if holds_tracked(leaves):
            raise UnsupportedError(
                f"torch.jit.trace came to {qualified(func)} with a tracked tensor that requires grad and is neither an example input nor a "
                f"parameter of the traced module: it would become a constant. Make it one of these, or detach it."
            )
        if any(type(leaf) is Tensor for leaf in leaves):
            with DisableTorchFunctionSubclass():
                args, kwargs = tree_unflatten([plain_alias(v) if type(v) is Tensor else v for v in leaves], structure)
        return func(*args, **kwargs)


def tracing(trace: Callable[..., Any]) -> Callable[..., Any]:
    """One of TorchScript's functions that trace: it sees tracked example inputs and parameters as torch's own."""

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with _RefuseConstants():
            return trace(*args, **kwargs)

    return exporting(traced)


def exporting(export: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's that reads a module and example inputs: it sees tracked ones, and tracked parameters, as torch's own."""

    @functools.wraps(export)
    def exported(*args: Any, **kwargs: Any) -> Any:
        given, structure = tree_flatten((args, kwargs))
        modules = [m for v in given if isinstance(m := getattr(v, "__self__", v), torch.nn.Module)]
        held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        args, kwargs = tree_unflatten([_example(v) if type(v) is Tensor else v for v in given], structure)
        with as_native(held):
            return export(*args, **kwargs)

    return exported


def _example(tensor: Tensor) -> torch.Tensor:
    """A tracked example input as a tensor of torch's own."""
    wanted = tensor._node is not None
    with DisableTorchFunctionSubclass():
        return plain_alias(tensor).requires_grad_(wanted)


# ------------------------------------------------------------------ copies


def saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """A method of scripted modules that writes them to a file, where tracked parameters are noted as requiring grad."""

    @functools.wraps(save)
    def saved(self: Any, *args: Any, **kwargs: Any) -> Any:
        with as_native(held.tensor for held in state_of(self._c)):
            return save(self, *args, **kwargs)

    return saved


def copying(deepcopy: Callable[..., Any]) -> Callable[..., Any]:
    """``__deepcopy__`` of scripted modules, in whose copies tracked tensors are tracked too."""

    @functools.wraps(deepcopy)
    def copied(self: Any, memo: dict[int, Any] | None = None) -> Any:
        twin = deepcopy(self, memo)
        for original, copy in zip(state_of(self._c), state_of(twin._c), strict=True):
            if type(original.tensor) is Tensor:
                tracked = track_in_place(copy.tensor)
                tracked.requires_grad_(original.tensor._node is not None)
                if is_parameter(original.tensor):
                    mark_as_parameter(tracked)
        return twin

    return copied
