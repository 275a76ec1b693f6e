"""Forward mode: tangents go through each call as it is made.

A call is pushed through while its arguments are at hand, and not afterwards through the graph: a node holds what the way back needs, and that
is seldom what the op itself needs (``reshape`` saves the old shape, not the new one). Where a rule says that its op is linear in an input
(``linear``), the op runs once more, on the tangent; where it says that the Jacobian is symmetric (``symmetric``), its formula is given the
tangent in place of the gradient.

Whatever says neither leaves a node without a tangent: other ops, in-place writes, custom Functions, what ``torch.vmap`` makes of a
level. Its tangent is found when it is asked for, by transposing the piece of the graph between it and the nearest known tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import TracebackType
from typing import Any

import torch

from ops_registry.binding import Kind, Spelling
from ops_registry.errors import GlassgradError, RuleResultError
from ops_registry.registry import active
from ops_registry.rule import Push
from ops_registry.torch_private import DisableTorchFunctionSubclass, tree_flatten, tree_unflatten
from tracer.backprop.batched import refused_by_vmap
from tracer.backprop.sweep import Sweep
from tracer.errors import TransformError
from tracer.func.reverse import (
    Taped,
    checked_tangents,
    detached,
    fresh,
    output_tensors,
    sliced,
    split_aux,
    with_replaced,
)
from tracer.node import CallNode, Node, Output, flat, next_serial
from tracer.recording.intercept import run_in_lane
from tracer.recording.levels import levels
from tracer.recording.observed import ObservedTable
from tracer.recording.parents import any_node
from tracer.recording.saved import reattach, saved_values
from tracer.tracked_tensor import Tensor, plain_alias, tracked_alias

Tangent = torch.Tensor | None


class Forward:
    """Tangents on their way through the calls made inside ``with forward:``, from the inputs that ``start`` names."""

    def __init__(self) -> None:
        self._before = next_serial()
        self._level = _innermost()
        #: Whether tangents may be asked for their own derivatives.
        self._recording = torch.is_grad_enabled()
        #: The tangent of what each node made; None where that does not depend on the inputs, or not differentiably.
        self._tangents: dict[Node, Tangent] = {}
        #: The nodes whose value depends on something besides the inputs that wants a gradient.
        self._beyond: set[Node] = set()
        self._paused = False

    def __enter__(self) -> Forward:
        self._table = active.table
        active.table = ObservedTable(self._table, self._observe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active.table = self._table

    def start(self, primals: Sequence[torch.Tensor], inputs: Sequence[Tensor], tangents: Sequence[torch.Tensor]) -> None:
        """Let ``inputs``, fresh aliases of ``primals``, carry ``tangents``."""
        for primal, x, tangent in zip(primals, inputs, tangents, strict=True):
            assert x._node is not None
            history = any_node(tangent) if self._recording else None
            self._tangents[x._node] = _kept(plain_alias(tangent) if history is None else tracked_alias(tangent, history))
            if any_node(primal) is not None:
                self._beyond.add(x._node)

    def tangents_of(self, tensors: Sequence[Any]) -> list[Tangent]:
        """The tangents of what the function returned; None for one that does not depend on the inputs."""
        nodes = [any_node(t) if isinstance(t, torch.Tensor) else None for t in tensors]
        self._find([(n, t) for n, t in zip(nodes, tensors, strict=True) if n is not None])
        return [None if n is None else self._tangents[n] for n in nodes]

    # ------------------------------------------------------------------ one call
    def _observe(self, spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._paused or _innermost() is not self._level:
            return run_in_lane(spelling, func, args, kwargs)
        before = next_serial()
        result = run_in_lane(spelling, func, args, kwargs)
        made = _made(result, before)
        if made:
            called = getattr(spelling, "bottom", spelling)
            if called.pick_overload is not None:
                called = called.pick_overload(args, kwargs)
            self._push_through(called, func, args, kwargs, made)
        return result

    def _push_through(
        self,
        spelling: Spelling,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: list[tuple[int, Tensor]],
    ) -> None:
        """Give the results of a call their tangents, where its rule says how."""
        call = _call_of(made[0][1])
        if type(call) is not CallNode or spelling.kind is not Kind.RULE or call.plan.rule is not spelling.rule:
            return
        with DisableTorchFunctionSubclass():
            bound = spelling.bind(args, kwargs)
        names, parents = call.plan.names, call.parents
        values = dict(zip(spelling.rule.signature.names, bound, strict=True))
        given = [values[name] for name in names]
        if not all(map(_is_made_by, given, parents)):
            return  # autocast has cast it first
        try:
            self._find([pair for parent, value in zip(parents, given, strict=True) for pair in _pairs(parent, value)])
        except GlassgradError:
            return  # it is raised again where the result is asked for
        if any(p in self._beyond for p in flat(parents)):
            self._beyond.update([r._node for _, r in made if r._node is not None])
        tangents = [self._tangent_at(parent) for parent in parents]
        carrying = tuple([t is not None for t in tangents])
        if not any(carrying):
            self._tangents.update([(r._node, None) for _, r in made if r._node is not None])
            return
        pushes = call.plan.pushes_for(carrying)
        if pushes is None or not all(p.symmetric is None or _goes_both_ways(given[p.parent], call) for p in pushes):
            return
        recorded = self._recording and self._is_recorded(parents, tangents)
        by_name = dict(zip(names, tangents, strict=True))
        try:
            with self._apart(recorded):
                found = []
                for push in pushes:
                    if push.symmetric is not None:
                        found.append(_through_formula(call, push, tangents[push.parent], recorded))
                        continue
                    placed = {
                        name: _in_place_of(
                            values[name],
                            by_name[name] if name in push.carried else None,
                            spelling.defaults.get(name, 0),
                            spelling.rule.may_alias,
                        )
                        for name in push.linear
                    }
                    found.append(_through_op(spelling, func, args, kwargs, placed, recorded))
                for index, result in made:
                    parts = [part if push.symmetric is not None else _at(part, index) for push, part in zip(pushes, found, strict=True)]
                    assert result._node is not None
                    self._tangents[result._node] = _total(parts, result._node, call.op)
        except RuntimeError as error:
            if not levels.open or not refused_by_vmap(error):
                raise

    def _tangent_at(self, parent: Any) -> Any:
        """The tangent of an input; a list of them for a list of tensors, None where none of it carries one."""
        if type(parent) is not tuple:
            return self._tangents[parent]
        found = [None if p is None else self._tangents[p] for p in parent]
        return None if all(t is None for t in found) else found

    def _is_recorded(self, parents: tuple[Any, ...], tangents: Sequence[Any]) -> bool:
        return any(p in self._beyond for p in flat(parents)) or any(
            type(t) is Tensor for tangent in tangents for t in (tangent if isinstance(tangent, list) else [tangent])
        )

    @contextmanager
    def _apart(self, recorded: bool) -> Iterator[None]:
        """For calls on tangents: no tangents are carried through those. ``recorded`` in the graph, or on plain storage."""
        paused, self._paused = self._paused, True
        try:
            if recorded:
                with torch.enable_grad():
                    yield
            else:
                with DisableTorchFunctionSubclass(), torch.no_grad():
                    yield
        finally:
            self._paused = paused

    # ------------------------------------------------------------------ what no word is said of
    def _find(self, asked: Sequence[tuple[Node, torch.Tensor]]) -> None:
        """Know the tangents of tensors, each given with its node."""
        unknown = {node: tensor for node, tensor in asked if node not in self._tangents}
        if not unknown:
            return
        inside, limits = self._between(list(unknown))
        roots = [node for node in unknown if node not in self._tangents]
        if not roots:
            return
        tangents = [self._tangents[limit] for limit in limits]
        recorded = self._recording and self._is_recorded(tuple(roots), tangents)
        paused, self._paused = self._paused, True
        try:
            pushed = _transposed(roots, [unknown[r] for r in roots], inside, limits, tangents, recorded)
        finally:
            self._paused = paused
        self._tangents.update(zip(roots, map(_kept, pushed), strict=True))

    def _between(self, roots: list[Node]) -> tuple[list[Node], list[Node]]:
        """The nodes through which tangents come to ``roots``, newest first, and those with known tangents that they come from.

        What depends on no input is noted as such, and what depends on something beyond them.
        """
        met: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in met or node in self._tangents:
                continue
            if node.serial < self._before or not node.parents:
                self._tangents[node] = None
                self._beyond.add(node)
                continue
            met.add(node)
            stack.extend(flat(node.parents))
        inside: list[Node] = []
        limits: dict[Node, None] = {}
        leading: set[Node] = set()
        for node in sorted(met, key=attrgetter("serial")):
            parents = flat(node.parents)
            if any(p in self._beyond for p in parents):
                self._beyond.add(node)
            known = [p for p in parents if self._tangents.get(p) is not None]
            if known or not leading.isdisjoint(parents):
                inside.append(node)
                leading.add(node)
                limits.update(dict.fromkeys(known))
            else:
                self._tangents[node] = None
        return inside[::-1], list(limits)


def _innermost() -> Any:
    return levels.open[-1] if levels.open else None


def _made(result: Any, before: int) -> list[tuple[int, Tensor]]:
    """The results of a call that have a node of it, each with its position."""
    listed = result if isinstance(result, tuple | list) else (result,)
    return [
        (i, r)
        for i, r in enumerate(listed)
        if type(r) is Tensor and r._node is not None and _call_of(r).serial > before
    ]


def _call_of(result: Tensor) -> Node:
    node = result._node
    assert node is not None
    return node.parents[0] if isinstance(node, Output) and node.parents else node


def _is_made_by(value: Any, parent: Any) -> bool:
    if type(parent) is tuple:
        return len(value) == len(parent) and all(map(_is_made_by, value, parent))
    return type(value) is not Tensor or value._node is parent


def _pairs(parent: Any, value: Any) -> list[tuple[Node, torch.Tensor]]:
    if type(parent) is tuple:
        return [(p, v) for p, v in zip(parent, value, strict=True) if p is not None]
    return [(parent, value)]


def _goes_both_ways(value: Any, call: CallNode) -> bool:
    """Whether a symmetric Jacobian is one of complex numbers too: a real function of them has none."""
    with DisableTorchFunctionSubclass():
        return call.dtype is not None and (call.dtype.is_complex or not value.is_complex())


def _through_formula(call: CallNode, push: Push, tangent: torch.Tensor, recorded: bool) -> Tangent:
    """A formula gives ``conj(J)' g``: with ``J`` symmetric, the conjugate of what it makes of ``conj(t)`` is ``J t``."""
    step = push.symmetric
    assert step is not None and call.shape is not None and call.dtype is not None
    saved = saved_values(call)
    if recorded:
        saved = reattach(call, saved)
    if tangent.shape != call.shape:
        tangent = tangent.expand(call.shape)
    if tangent.dtype != call.dtype:
        tangent = tangent.to(call.dtype)
    if not call.dtype.is_complex:
        found = step.call(tangent, saved, step.needs)
    else:
        found = step.call(tangent.conj(), saved, step.needs)
    if step.joint and found is not None:
        found = found[step.needs.index(True)]
    return found.conj() if call.dtype.is_complex and found is not None else found


def _through_op(
    spelling: Spelling,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: dict[str, Any],
    recorded: bool,
) -> Any:
    """The op with tangents, or zeros, in the places of some inputs."""
    if recorded:  # where all others are torch's own, torch would follow the call
        values = {name: tracked_alias(v) if type(v) is torch.Tensor else v for name, v in values.items()}
    args, kwargs = spelling.replaced(args, kwargs, values)
    return func(*args, **kwargs)


def _in_place_of(value: Any, tangent: Any, default: Any, in_layout: bool) -> Any:
    """What stands for an input where the op is to be linear: its tangent, or zero. One that can be left out is left out.

    ``in_layout``: a view is taken of it, which asks for its layout in memory.
    """
    if isinstance(value, list | tuple):
        tangents = [None] * len(value) if tangent is None else tangent
        return [_in_place_of(v, t, v, in_layout) for v, t in zip(value, tangents, strict=True)]
    if tangent is not None:
        return tangent.contiguous() if in_layout and tangent.stride() != value.stride() else tangent
    if value is None:
        return None
    if default is None:
        return None
    return value.new_zeros(()).expand(value.shape) if isinstance(value, torch.Tensor) else 0


def _at(found: Any, index: int) -> Any:
    return found[index] if isinstance(found, tuple | list) else found


def _total(parts: list[Tangent], node: Node, op: str) -> Tangent:
    """The tangent of a result: the sum of what has come through its inputs."""
    total: Tangent = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    if total is None:
        return None
    if total.dtype != node.dtype:
        total = total.to(node.dtype)
    if total.shape != node.shape:
        raise RuleResultError(
            f"{op}: a tangent of shape {tuple(total.shape)} came through a call whose result has shape {tuple(node.shape or ())}. What "
            f"its rule declares, linear or symmetric, does not hold here: leave it out."
        )
    return _kept(total)


def _kept(tangent: torch.Tensor) -> Tangent:
    """A tangent without elements carries nothing on: a mean over it is zero, and not nan."""
    return tangent if tangent.numel() else None


def _transposed(
    roots: list[Node],
    tensors: list[torch.Tensor],
    inside: list[Node],
    limits: list[Node],
    tangents: list[Any],
    recorded: bool,
) -> list[torch.Tensor]:
    """The tangents of ``roots``: the gradients of ``limits`` are linear in the cotangents, and are differentiated along ``tangents``."""
    with torch.enable_grad():
        cotangents = [tracked_alias(torch.zeros_like(plain_alias(t))).requires_grad_() for t in tensors]
        with Sweep(keep_graph=True, create_graph=True) as sweep:
            found = sweep.run_inside(zip(roots, cotangents, strict=True), inside, limits)
        reached = [(found[limit], t) for limit, t in zip(limits, tangents, strict=True) if limit in found]
        gradients, along = [g for g, _ in reached], [t for _, t in reached]
        return Taped(cotangents).pull(gradients, along, keep=recorded, recorded=recorded)


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    argnums: Any = None,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """The outputs of ``func`` and their derivative along ``tangents`` (and aux): ``torch.func.jvp``."""
    title = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple):
        raise TransformError(f"{title}: primals has to be a tuple, so that f(*primals) can be called")
    differentiated = sliced(primals, argnums)
    given = checked_tangents(differentiated, tangents, title)
    recording = torch.is_grad_enabled()
    forward = Forward()
    with torch.enable_grad(), forward:
        listed, spec = tree_flatten(differentiated)
        tape = Taped([fresh(x, title) for x in listed])
        forward.start(listed, tape.inputs, given)
        returned = func(*with_replaced(primals, argnums, tree_unflatten(tape.inputs, spec)))
    with torch.enable_grad():
        output, aux = split_aux(returned, has_aux, title)
        outputs, out_spec = output_tensors(output, title)
        if strict and any(any_node(o) is None for o in outputs):
            raise TransformError(f"{title}: strict=True, and an output does not depend on the primals")
        found = forward.tangents_of(outputs)
    pushed = [torch.zeros_like(plain_alias(o)) if t is None else t for o, t in zip(outputs, found, strict=True)]
    value = tree_unflatten(outputs, out_spec)
    if not (recording and tape.reaches_beyond([*outputs, *tree_flatten(aux)[0]])):
        value, aux = detached((value, aux))
        if not (recording and any(any_node(t) is not None for t in given)):
            pushed = [plain_alias(t) for t in pushed]
    derivative = tree_unflatten(pushed, out_spec)
    return (value, derivative, aux) if has_aux else (value, derivative)
