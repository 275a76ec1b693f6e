"""One graph of a compiled step: how it is made, and how it runs on the real tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.scopes import note_applied, rules_applied
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    in_data_parallel_forward,
    set_grad_enabled,
)
from tracer.backprop.accumulate import accumulate, check_writable
from tracer.compiled.backends import Backend, Run, build
from tracer.compiled.capture import Captured, Handed, LooksAtGrad, Region, Returned, capture_step
from tracer.compiled.key import same_thread
from tracer.compiled.layouts import check_layouts
from tracer.compiled.observed import Observer, Seen
from tracer.compiled.python_writes import PythonWrites, find_writes, give_memory, refusal
from tracer.compiled.random_numbers import draws
from tracer.compiled.reached import ARGUMENT, Reached
from tracer.compiled.replay import Replay
from tracer.compiled.shared_memory import refuse_shared_memory
from tracer.compiled.symbolic import Conditions, Dims
from tracer.errors import CaptureError, SecondDerivativeError
from tracer.node import RaisingNode
from tracer.recording.parents import any_node
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias

_GRAD: Any = torch.Tensor.grad
#: Of a tensor with a history that stands in a module.
_HOOKED = (
    " Hooks that make a weight at each call leave one (torch.nn.utils.weight_norm, prune): torch.nn.utils.parametrizations has the same "
    "without hooks."
)
_KINDS = frozenset({torch.Tensor, Tensor, torch.nn.Parameter, torch.nn.Buffer})


@dataclass
class StepGraph:
    """A captured graph, what runs it, and how often it did."""

    captured: Captured
    run: Run
    names: list[str]
    #: Tensors that the step gets from somewhere beyond what was walked: inputs as well, behind all others.
    strangers: list[torch.Tensor]
    #: For each ``use`` block around the call, the ops whose rule was taken in the capture.
    applied: tuple[set[str], ...]
    capture_seconds: float
    build_seconds: float
    #: Whether it draws random numbers.
    draws: bool
    #: Of a graph with symbolic sizes: those that it is for.
    conditions: Conditions | None
    calls: int = 0
    #: What it was made for, by name.
    key: list[tuple[str, Any]] = field(default_factory=list)
    #: What was not as in the graph before, in words.
    differed: list[str] = field(default_factory=list)
    #: Why its sizes are fixed where they were to be symbolic.
    fixed_since: str = ""

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        """Run on the tensors that the step reaches and its arguments: fill ``.grad``, write what it writes, return what it returns."""
        captured = self.captured
        if not captured.looks_at_grad:
            with DisableTorchFunctionSubclass():
                check_writable([tensors[position] for position, _ in captured.grads])
        self.calls += 1
        for prepare in captured.around.prepare:
            prepare()
        values = self._values(tensors)
        if captured.handed:
            values = list(values)
            for handed in captured.handed:
                _hand_over(handed, captured, tensors, values)
        with DisableTorchFunctionSubclass(), torch.no_grad():
            _fill(captured, captured.looks_at_grad, tensors, values)
        leaves = list[Any]()
        with DisableTorchFunctionSubclass():
            for leaf in captured.returned:
                leaves.append(leaves[leaf.at] if leaf.kind == "again" else _returned(captured, leaf, tensors, values))
            return captured.rebuild(leaves)

    def _values(self, tensors: list[torch.Tensor]) -> Any:
        """The results of the graph."""
        captured = self.captured
        if self.applied:
            note_applied(self.applied)
        mode = torch.is_grad_enabled()
        with DisableTorchFunctionSubclass():
            set_grad_enabled(False)
            try:
                offered = tensors
                if self.strangers or captured.given:
                    offered = captured.offered(tensors, self.strangers)
                inputs = [offered[i] for i in captured.used]
                # Compilers look for aliases then, and refuse other classes.
                if self.calls == 1 and not isinstance(self.run, Replay):
                    inputs = [plain_alias(tensor) for tensor in inputs]
                if captured.written:
                    refuse_shared_memory(captured, offered, self.names)
                values = self.run(*inputs)
                for position, wanted in captured.turned:
                    tensors[position].requires_grad_(wanted)
                if captured.writes is not None:
                    captured.writes.do()
                    for tensor, at, _ in captured.kept:
                        tensor.copy_(values[at])
                return values
            finally:
                set_grad_enabled(mode)


def _fill(found: Captured | Handed, replaces: bool, tensors: list[torch.Tensor], values: Any) -> None:
    """Fill ``.grad``; what is there is another's where ``replaces`` is false, or somebody has filled it since the graph began."""
    entries = []
    for position, at in found.grads:
        tensor = tensors[position]
        if (replaces and position not in found.filled) or _GRAD.__get__(tensor) is None:
            _GRAD.__set__(tensor, values[at])
        else:
            entries.append((tensor, [values[at]]))
    if entries:
        accumulate(entries)
    for position in found.cleared:
        _GRAD.__set__(tensors[position], None)


def _hand_over(handed: Handed, captured: Captured, tensors: list[torch.Tensor], values: list[Any]) -> None:
    """Give away the gradients of one backward pass: nobody else knows their memory any more."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        _fill(handed, captured.looks_at_grad, tensors, values)
    gradients: list[list[Any]] = []
    for at in handed.taken:
        gradients.append([] if at is None else [values[at]])
        if at is not None:
            values[at] = None
    handed.give(gradients)


def _returned(captured: Captured, leaf: Returned, tensors: list[torch.Tensor], values: Any) -> Any:
    if leaf.kind == "value":
        return leaf.at
    if leaf.kind == "input":
        return tensors[leaf.at]
    if leaf.kind == "kept":
        return captured.kept[leaf.at][0]
    if leaf.kind == "grad":
        return _GRAD.__get__(tensors[leaf.at])
    value = values[leaf.at]
    if leaf.region is not None:
        value = _seen_in(tensors[leaf.region.position], leaf.region, value)
    elif leaf.at in captured.passed_on:  # x.detach(), or h and h.detach(): another object in the same memory
        value = plain_alias(value)
    if leaf.grad is not None:
        _GRAD.__set__(value, values[leaf.grad])
    if not leaf.tracked:
        return value
    return become_tracked(value, _end_of_history(captured, tensors, value) if leaf.history else None)


def _seen_in(given: torch.Tensor, region: Region, value: torch.Tensor) -> torch.Tensor:
    """A part of what was given, or of its ``.grad``, as a view of that: who writes into it writes there. It shows ``value``."""
    base = _GRAD.__get__(given) if region.of_grad else given
    if base is None or base.stride() != region.whole or base.dtype is not value.dtype:
        return plain_alias(value)
    return plain_alias(base).as_strided(region.size, region.strides, base.storage_offset() + region.offset)


def _end_of_history(captured: Captured, tensors: list[torch.Tensor], value: torch.Tensor) -> RaisingNode:
    """Behind a result: leads to all that the step was given, so that a sweep to any of that meets it."""
    given = [tensors[i] for i in captured.used if i < len(tensors)]
    wanted = [t for t in given if type(t) is Tensor or (t.requires_grad and not in_data_parallel_forward(t))]
    parents = tuple([node for node in map(any_node, wanted) if node is not None])
    return RaisingNode("compiled_step", _ended, parents, value.shape, value.dtype)


def _ended() -> Exception:
    return SecondDerivativeError(
        "backward came to a result of a compiled step, whose history ended with the step: its gradients were taken inside. Call backward "
        "inside of the step, or use x.detach()."
    )


# ---------------------------------------------------------------------- making
class MetMore(Exception):
    """A capture met more than the walk before it had found: the step has to be walked with that, and captured again."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen


def make_graph(
    call: Callable[[], Any],
    reached: Reached,
    tensors: list[torch.Tensor],
    names: list[str],
    backend: Backend,
    dims: Dims,
) -> StepGraph:
    """Capture what ``call`` does to ``tensors``, those that the step reaches and its arguments, and build what runs it.

    ``dims``: which sizes of which tensors are symbolic. Raises ``CaptureError`` for what no graph can hold, and ``MetMore``; whatever is
    raised, nothing has changed.
    """
    started = time.perf_counter()
    captured, strangers = checked_capture(call, reached, tensors, names, dims)
    built = time.perf_counter()
    offered = captured.offered(tensors, strangers)
    with DisableTorchFunctionSubclass():
        examples = captured.examples if dims else [plain_alias(offered[i]) for i in captured.used]
    # A step that writes Python's state runs so once, as a rule: a compiler would not be worth its time.
    run = build(backend if captured.writes is None else "replay", captured.graph, examples)
    seconds = built - started, time.perf_counter() - built
    conditions = captured.stage.conditions() if dims else None  # a compiler adds some
    return StepGraph(captured, run, names, strangers, rules_applied(), *seconds, draws(captured.graph), conditions)


def checked_capture(
    call: Callable[[], Any], reached: Reached, tensors: list[torch.Tensor], names: list[str], dims: Dims
) -> tuple[Captured, list[torch.Tensor]]:
    """Capture what ``call`` does to ``tensors``; also the tensors that it takes from places that nobody could see.

    Raises ``CaptureError`` for what no graph can hold, and ``MetMore``; whatever is raised, nothing has changed.
    """
    check_layouts(tensors, names)
    for tensor, name in zip(tensors, names, strict=True):
        _check_kind(tensor, name, id(tensor) in reached.in_modules)
    if reached.opaque:
        name, kind = reached.opaque[0]
        if kind == "a file":
            raise CaptureError(
                f"{name}, a file, is reached by the step: a graph would neither read nor write there. Read what the step needs outside of "
                f"it, and pass that as an argument; return what is to be written."
            )
        raise CaptureError(
            f"{name}, {kind}, is reached by the step: what it gives would stay as it is now. Make a tensor of it outside of the step "
            f"(torch.as_tensor), or call next(...) there, and pass that as an argument."
        )
    captured, strangers, writes = _observed_capture(call, reached, tensors, names, dims)
    if writes is not None and writes.made:
        captured, strangers, writes = _observed_capture(
            call, reached, tensors, names, dims, lambda: reached.again().made
        )
    captured.writes = writes
    return captured, strangers


def _observed_capture(
    call: Callable[[], Any],
    reached: Reached,
    tensors: list[torch.Tensor],
    names: list[str],
    dims: Dims,
    keep: Callable[[], list[torch.Tensor]] = list,
) -> tuple[Captured, list[torch.Tensor], PythonWrites | None]:
    """One capture, and what else the step did meanwhile. All is put back."""
    try:
        with same_thread():
            captured, strangers = _capture(call, reached, tensors, names, dims, keep)
        try:
            _refuse_homeless(captured, reached, tensors)
            if dims and captured.looks_at_offset and any(tensors[position].storage_offset() for position in dims):
                raise CaptureError(
                    "the step asks where in its memory an argument begins (as_strided, storage_offset), and it does not begin at the "
                    "start: a graph with symbolic sizes does not know that. Give it a copy (x.clone())."
                )
            offered = captured.offered(tensors, strangers)
            refuse_shared_memory(captured, offered, names)
            _refuse_observed(captured.observer, reached)
            for position in captured.written:
                if position < len(tensors) and id(tensors[position]) in captured.around.kept:
                    raise captured.around.kept[id(tensors[position])]()
            with DisableTorchFunctionSubclass():
                writes = find_writes(reached, tensors[len(reached.tensors) :], bool(dims))
        finally:
            elsewhere = captured.observer.changed()
    finally:
        reached.put_back()
    with DisableTorchFunctionSubclass():
        seen = reached.extend(captured.observer.seen())
        captured.observer.forget()
    if seen is not None:
        raise MetMore(seen)
    if writes is not None and not reached.unchanged():
        raise writes.refusal()
    unknown = [name for name, held, key in elsewhere if not reached.guards.covers(held, key)]
    if unknown:
        raise refusal(unknown[0])
    if writes is not None and captured.kept:
        if set(map(id, writes.made)) != {id(tensor) for tensor, *_ in captured.kept}:
            raise writes.refusal()
        writes.shares = next((tuple(tensor.shape) for tensor, _, shares in captured.kept if shares), None)
        give_memory(writes.made)
    return captured, strangers, writes


def _refuse_observed(observer: Observer, reached: Reached) -> None:
    """What the step did beside calls of torch's."""
    if observer.stopped is not None:
        raise observer.stopped
    if observer.refused:
        raise observer.refusal()
    drawn = reached.draws()
    if drawn:
        raise CaptureError(
            f"the step draws random numbers from {drawn}, a generator of Python's or NumPy's: a graph would have the same ones for ever. "
            f"Draw them outside and pass them as tensors, or use torch's."
        )


def _capture(
    call: Callable[[], Any],
    reached: Reached,
    tensors: list[torch.Tensor],
    names: list[str],
    dims: Dims,
    keep: Callable[[], list[torch.Tensor]],
) -> tuple[Captured, list[torch.Tensor]]:
    """The graph, and the tensors that the step takes from places that nobody could see: these are inputs of the graph too."""
    strangers: list[torch.Tensor] = []
    grads: list[torch.Tensor | None] = [None] * len(tensors)
    while True:
        offered = [*tensors, *strangers]
        all_names = names + ["a tensor from elsewhere"] * len(strangers)
        given = grads + [None] * len(strangers)
        captured, failure = None, None
        try:
            captured = capture_step(call, offered, all_names, given, dims, keep, reached.stepping)
        except LooksAtGrad as error:  # it found none there, which it may take badly
            failure = error.raised
        if (captured is None or captured.looks_at_grad) and all(grad is None for grad in grads):
            grads = [_GRAD.__get__(tensor) if tensor.is_leaf else None for tensor in tensors]
            if any(grad is not None for grad in grads):
                if captured is not None:
                    captured.observer.changed()
                reached.put_back()
                continue
        if captured is None:
            assert failure is not None
            raise failure
        if not captured.strangers:
            return captured, strangers
        known = set(map(id, strangers))
        found = {id(tensor): tensor for tensor in captured.strangers if id(tensor) not in known}
        if strangers:
            raise CaptureError(
                f"a tensor of shape {tuple(captured.strangers[0].shape)} comes into the step from outside of torch's calls (NumPy, a data "
                f"loader, a file, another thread, a parameter that is made there): it would be that of the first call for ever. Make it "
                f"outside, and pass it as an argument."
            )
        strangers += found.values()
        captured.observer.changed()
        reached.put_back()


def _check_kind(tensor: torch.Tensor, name: str, in_module: bool) -> None:
    if type(tensor) not in _KINDS:
        raise CaptureError(
            f"{name} is a {type(tensor).__qualname__}: a captured step takes dense tensors of torch's own class and tracked ones. Convert "
            f"it, or run the step eagerly."
        )
    if not tensor.is_leaf:
        raise CaptureError(
            f"{name}, a tensor of shape {tuple(tensor.shape)}, has a history, which leads out of the step: make it inside of the step, or "
            f"pass x.detach().{_HOOKED if in_module else ''}"
        )


def _refuse_homeless(captured: Captured, reached: Reached, tensors: list[torch.Tensor]) -> None:
    """Tensors that require grad belong to a module, or are arguments: others may be exchanged without anybody's notice."""
    grads = [*captured.grads, *(pair for handed in captured.handed for pair in handed.grads)]
    taken = {*captured.used, *(position for position, _ in grads)}
    for position in sorted(taken):
        if position < len(reached.tensors) and id(tensors[position]) not in reached.in_modules:
            tensor = tensors[position]
            given = id(tensor) in reached.arguments or reached.names[position].startswith(ARGUMENT)
            if tensor.requires_grad and not given:
                raise CaptureError(
                    f"{reached.names[position]}, a tensor of shape {tuple(tensor.shape)} that requires grad, is closed over and in no "
                    f"module that the step reaches. Pass it as an argument, make it a parameter of a module, or name its module "
                    f"(modules=[...])."
                )
