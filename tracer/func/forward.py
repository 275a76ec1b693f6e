"""Forward mode: tangents on their way through the calls of a function.

Where a rule says that the Jacobian of its op is symmetric (``symmetric``: every pointwise op), its formula is given the tangent in place
of the gradient. The node of the call holds all that this needs, so it is done when the tangent is asked for. Where it says that the op
is linear in an input (``linear``), the op runs once more, on the tangent. That needs the arguments, which a node does not hold
(``reshape`` saves the old shape, not the new one): such calls are observed, and the tangent goes through as they are made.

Whatever says neither leaves a node without a tangent: other ops, in-place writes, custom Functions, what becomes of a level of
``torch.vmap``. The piece of the graph between it and the nearest known tangents is transposed: its gradient is linear in the cotangent,
and is differentiated along those tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any

import torch

from ops_registry.binding import ObservedSpelling, Spelling
from ops_registry.errors import GlassgradError, RuleResultError
from ops_registry.registry import active
from ops_registry.rule import Push
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    is_any_autocast_enabled,
    set_grad_enabled,
    tree_flatten,
    tree_unflatten,
)
from tracer.backprop.batched import refused_by_vmap
from tracer.backprop.sweep import Sweep
from tracer.errors import TransformError
from tracer.func.reverse import (
    Taped,
    checked_tangents,
    detached,
    fresh,
    laid_out_as,
    output_tensors,
    refuse_followed_by_torch,
    refuse_writes,
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
    """The tangents of one run of a function: of the calls made inside ``with forward:``, from the inputs that ``start`` names."""

    def __init__(self) -> None:
        self._before = next_serial()
        self._level = levels.open[-1] if levels.open else None
        #: Whether tangents may be asked for their own derivatives.
        self._recording = torch.is_grad_enabled()
        #: The tangent of what each node made; None where it is zero.
        self._tangents: dict[Node, Tangent] = {}
        #: The nodes whose value depends on something besides the inputs that wants a gradient.
        self._beyond: set[Node] = set()
        #: Tangents are being computed: no others are carried through that.
        self._paused = False
        #: The ops through which tangents came by transposition.
        self.transposed: set[str] = set()

    def __enter__(self) -> Forward:
        self._table = active.table
        active.table = ObservedTable(self._table, _may_be_linear, self._observe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active.table = self._table

    def start(
        self, primals: Sequence[torch.Tensor], inputs: Sequence[Tensor], tangents: Sequence[torch.Tensor]
    ) -> None:
        """Let ``inputs``, fresh aliases of ``primals``, carry ``tangents``."""
        for primal, x, tangent in zip(primals, inputs, tangents, strict=True):
            assert x._node is not None
            history = any_node(tangent) if self._recording else None
            own = plain_alias(tangent) if history is None else tracked_alias(tangent, history)
            self._tangents[x._node] = _unless_empty(own)
            if any_node(primal) is not None:
                self._beyond.add(x._node)

    def tangents_of(self, tensors: Sequence[Any]) -> list[Tangent]:
        """The tangents of what the function returned; None for one of zero."""
        nodes = [any_node(t) if isinstance(t, torch.Tensor) else None for t in tensors]
        self._find([n for n in nodes if n is not None])
        return [None if n is None else self._tangents[n] for n in nodes]

    # ------------------------------------------------------------------ through the op, as the call is made
    def _observe(
        self, spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before = next_serial()
        result = run_in_lane(spelling, func, args, kwargs)
        if not self._paused and (levels.open[-1] if levels.open else None) is self._level:
            made = _made(result, before)
            if made:
                called = spelling.bottom if isinstance(spelling, ObservedSpelling) else spelling
                chosen = called if called.choose is None else called.choose(args, kwargs)
                if chosen is not None:
                    self._push_through(chosen, func, args, kwargs, made)
        return result

    def _push_through(
        self,
        spelling: Spelling,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: list[tuple[int, Node]],
    ) -> None:
        """Give the results of a call of a linear op their tangents. ``made`` are their nodes, each with its position."""
        call = _call_of(made[0][1])
        if type(call) is not CallNode or call.plan.rule is not spelling.rule or not spelling.rule.linear:
            return
        if is_any_autocast_enabled():
            return  # the arguments may have been cast before the call was recorded
        parents = call.parents
        try:
            tangents = [self._tangent_at(parent) for parent in parents]
        except GlassgradError:
            return  # raised again where the result is asked for
        pushes = call.plan.pushes_for(tuple([t is not None for t in tangents]))
        if not pushes or not _any_linear(pushes) or not _go_both_ways(call, pushes):
            return
        recorded = self._is_recorded(parents, tangents)
        by_name = dict(zip(call.plan.names, tangents, strict=True))
        found = self._apart(
            recorded,
            lambda: [
                _through_op(spelling, func, args, kwargs, push, by_name, recorded)
                if push.linear
                else _through_formula(call, push, tangents[push.parent], recorded)
                for push in pushes
            ],
        )
        if found is None:
            return
        for index, node in made:
            self._tangents[node] = _total([_at(part, index) for part in found], node, call.op)
        if self._beyond and not self._beyond.isdisjoint(flat(parents)):
            self._beyond.update([node for _, node in made])

    def _tangent_at(self, parent: Any) -> Any:
        """The tangent of an input; a list of them for a list of tensors, None where none of it carries one."""
        if type(parent) is not tuple:
            if parent not in self._tangents:
                self._find([parent])
            return self._tangents[parent]
        self._find(flat(parent))
        found = [None if p is None else self._tangents[p] for p in parent]
        return None if all(t is None for t in found) else found

    def _is_recorded(self, parents: tuple[Any, ...], tangents: Sequence[Any]) -> bool:
        """Whether what becomes of ``tangents`` may be asked for its own derivative."""
        if not self._recording:
            return False
        if self._beyond and not self._beyond.isdisjoint(flat(parents)):
            return True
        return any(
            type(t) is Tensor for tangent in tangents for t in (tangent if type(tangent) is list else (tangent,))
        )

    def _apart(self, recorded: bool, compute: Callable[[], list[Any]]) -> list[Any] | None:
        """What ``compute`` makes of tangents: ``recorded`` in the graph, or on plain storage; None where ``torch.vmap`` refuses it."""
        paused, self._paused = self._paused, True
        mode = torch.is_grad_enabled()
        set_grad_enabled(recorded)
        try:
            if recorded:
                return compute()
            with DisableTorchFunctionSubclass():
                return compute()
        except RuntimeError as error:
            if not levels.open or not refused_by_vmap(error):
                raise
            return None
        finally:
            set_grad_enabled(mode)
            self._paused = paused

    # ------------------------------------------------------------------ through formulas and by transposition, when asked
    def _find(self, asked: list[Node]) -> None:
        """Know the tangents of what the ``asked`` nodes made."""
        known = self._tangents
        unknown = [node for node in asked if node not in known]
        if not unknown:
            return
        #: Nodes with a tangent that only transposing gives.
        pending: set[Node] = set()
        for node in self._unknown_before(unknown):
            parents = flat(node.parents)
            if self._beyond and not self._beyond.isdisjoint(parents):
                self._beyond.add(node)
            waiting = pending.intersection(parents)
            if waiting and type(node) is CallNode and node.plan.rule.symmetric.issuperset(node.plan.names):
                self._transpose(list(waiting))
                pending -= waiting
                waiting = set()
            if waiting:
                pending.add(node)
            elif all(known[p] is None for p in parents):
                known[node] = None
            elif not self._push_by_formulas(node):
                pending.add(node)
        roots = [node for node in unknown if node in pending]
        if roots:
            self._transpose(roots)

    def _unknown_before(self, asked: list[Node]) -> list[Node]:
        """Those nodes that ``asked`` reach whose tangents are not known, oldest first; what depends on no input is known to be constant."""
        met: set[Node] = set()
        stack = list(asked)
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
        return sorted(met, key=attrgetter("serial"))

    def _push_by_formulas(self, node: Node) -> bool:
        """Give ``node`` the tangent that the formulas of its rule make of those of its parents; False where they do not serve."""
        if type(node) is not CallNode:
            return False
        tangents: list[Any] = [None if type(p) is tuple else self._tangents[p] for p in node.parents]
        pushes = node.plan.pushes_for(tuple([t is not None for t in tangents]))
        if not pushes or _any_linear(pushes) or not _go_both_ways(node, pushes):
            return False
        recorded = self._is_recorded(node.parents, tangents)
        parts = self._apart(
            recorded, lambda: [_through_formula(node, push, tangents[push.parent], recorded) for push in pushes]
        )
        if parts is None:
            return False
        self._tangents[node] = _total(parts, node, node.op)
        return True

    def _transpose(self, roots: list[Node]) -> None:
        """Give ``roots`` their tangents from the nearest known ones."""
        inside: set[Node] = set()
        limits: dict[Node, torch.Tensor] = {}
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in inside or node in limits:
                continue
            if node not in self._tangents:
                inside.add(node)
                stack.extend(flat(node.parents))
            elif (tangent := self._tangents[node]) is not None:
                limits[node] = tangent
        recorded = self._is_recorded(tuple(roots), list(limits.values()))
        newest_first = sorted(inside, key=attrgetter("serial"), reverse=True)
        self.transposed.update([node.op for node in newest_first])
        paused, self._paused = self._paused, True
        try:
            pushed = _transposed(roots, newest_first, limits, recorded)
        finally:
            self._paused = paused
        self._tangents.update(zip(roots, map(_unless_empty, pushed), strict=True))


def _may_be_linear(spelling: Spelling) -> bool:
    return bool(spelling.rule.linear) or spelling.choose is not None


def _made(result: Any, before: int) -> list[tuple[int, Node]]:
    """The nodes of the results of a call that was made after ``before``, each with its position."""
    listed = result if isinstance(result, tuple | list) else (result,)
    nodes = [(i, r._node) for i, r in enumerate(listed) if type(r) is Tensor]
    return [(i, node) for i, node in nodes if node is not None and _call_of(node).serial > before]


def _call_of(node: Node) -> Node:
    return node.parents[0] if isinstance(node, Output) and node.parents else node


def _any_linear(pushes: tuple[Push, ...]) -> bool:
    return any(push.linear for push in pushes)


def _go_both_ways(call: CallNode, pushes: tuple[Push, ...]) -> bool:
    """Whether the symmetric Jacobians are so over complex numbers too: those of functions that are not holomorphic are none."""
    for push in pushes:
        if push.symmetric is None:
            continue
        parent = call.parents[push.parent]
        if call.dtype is None or type(parent) is tuple:
            return False
        if parent.dtype.is_complex and (
            not call.dtype.is_complex or not call.plan.rule.holomorphic.issuperset(push.symmetric.formula.wrt)
        ):
            return False
    return True


def _through_formula(call: CallNode, push: Push, tangent: torch.Tensor, recorded: bool) -> Tangent:
    """A formula gives ``conj(J)' g``: with ``J`` symmetric, the conjugate of what it makes of ``conj(t)`` is ``J t``."""
    step = push.symmetric
    assert step is not None and call.shape is not None and call.dtype is not None
    saved = saved_values(call)
    if recorded:
        saved = reattach(call, saved)
    with DisableTorchFunctionSubclass():
        spread, cast = tangent.shape != call.shape, tangent.dtype is not call.dtype
    if spread:
        try:
            tangent = tangent.expand(call.shape)
        except RuntimeError:
            raise _does_not_hold(call.op, tangent, call.shape) from None
    if cast:
        tangent = tangent.to(call.dtype)
    is_complex = call.dtype.is_complex
    found = step.call(tangent.conj() if is_complex else tangent, saved, step.needs)
    if step.joint and found is not None:
        found = found[step.needs.index(True)]
    return found.conj() if is_complex and found is not None else found


def _tangent_in_place(value: Any, tangent: Any, in_layout: bool) -> Any:
    """``in_layout``: a view is taken of it, which asks for its layout in memory and reads past the marks of a lazy conjugate."""
    if type(tangent) is list:
        return [_zero_in_place(v, 0) if t is None else t for v, t in zip(value, tangent, strict=True)]
    if not in_layout:
        return tangent
    if tangent.is_conj() or tangent.is_neg():
        tangent = tangent.resolve_conj().resolve_neg()
    return tangent if tangent.stride() == value.stride() else tangent.contiguous()


def _zero_in_place(value: Any, default: Any) -> Any:
    if value is None or default is None:
        return None  # what can be left out is left out
    if isinstance(value, list | tuple):
        return [_zero_in_place(v, 0) for v in value]
    return value.new_zeros(()).expand(value.shape) if isinstance(value, torch.Tensor) else 0


def _through_op(
    spelling: Spelling,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    push: Push,
    tangents: dict[str, Any],
    recorded: bool,
) -> Any:
    """The op with tangents in the places of the inputs that it is linear in, and zeros for those of them that carry none."""

    def place(name: str, value: Any) -> Any:
        if name not in push.linear:
            return value
        if name in push.carried:
            placed = _tangent_in_place(value, tangents[name], spelling.rule.may_alias)
        else:
            placed = _zero_in_place(value, spelling.defaults.get(name, 0))
        # Where all others are torch's own, torch would follow the call.
        return tracked_alias(placed) if recorded and type(placed) is torch.Tensor else placed

    args, kwargs = spelling.mapped(args, kwargs, place)
    return func(*args, **kwargs)


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
    with DisableTorchFunctionSubclass():
        shape, cast = total.shape, total.dtype is not node.dtype
    if shape != node.shape:
        raise _does_not_hold(op, total, node.shape)
    return _unless_empty(total.to(node.dtype) if cast else total)


def _does_not_hold(op: str, tangent: torch.Tensor, shape: Any) -> RuleResultError:
    return RuleResultError(
        f"{op}: a tangent of shape {tuple(tangent.shape)} does not fit a result of shape {tuple(shape)}. What the rule declares, linear or "
        f"symmetric, does not hold for this call: leave the word out."
    )


def _unless_empty(tangent: torch.Tensor) -> Tangent:
    """A tangent without elements carries nothing on: a mean over it is zero, and not nan."""
    with DisableTorchFunctionSubclass():
        return tangent if tangent.numel() else None


def _transposed(
    roots: list[Node], inside: list[Node], limits: dict[Node, torch.Tensor], recorded: bool
) -> list[torch.Tensor]:
    """The tangents of ``roots``: the gradients of ``limits`` are linear in the cotangents, and are differentiated along their tangents."""
    device = next(iter(limits.values())).device
    with torch.enable_grad():
        zeros = [torch.zeros(root.shape or (), dtype=root.dtype, device=device) for root in roots]
        cotangents = [tracked_alias(z).requires_grad_() for z in zeros]
        with Sweep(keep_graph=True, create_graph=True) as sweep:
            found = sweep.run_inside(zip(roots, cotangents, strict=True), inside, list(limits))
        reached = [limit for limit in limits if limit in found]
        gradients, along = [found[limit] for limit in reached], [limits[limit] for limit in reached]
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
        refuse_writes(tape.inputs, tape.nodes, title)
    with torch.enable_grad():
        output, aux = split_aux(returned, has_aux, title)
        outputs, out_spec = output_tensors(output, title)
        refuse_followed_by_torch(outputs)
        if strict and not all(tape.leads_to(o) for o in outputs):
            raise TransformError(f"{title}: strict=True, and an output does not depend on the primals")
        found = forward.tangents_of(outputs)
    pushed = [
        torch.zeros_like(plain_alias(o)) if t is None else laid_out_as(o, t)
        for o, t in zip(outputs, found, strict=True)
    ]
    value = tree_unflatten(outputs, out_spec)
    if not (recording and tape.reaches_beyond([*outputs, *tree_flatten(aux)[0]])):
        value, aux = detached((value, aux))
        if not (recording and any(any_node(t) is not None for t in given)):
            pushed = [plain_alias(t) for t in pushed]
    derivative = tree_unflatten(pushed, out_spec)
    return (value, derivative, aux) if has_aux else (value, derivative)
