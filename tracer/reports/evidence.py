"""What a graph and one backward pass tell about a loss: where histories end, where gradients vanish, where they stop being finite.

A gradient is looked at when it passes and remembered as one of five states, so that nothing of the size of a tensor is kept. The reasons
of a state go from call to call along with it, newest call first, so that all of them are found in one walk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch

from ops_registry.errors import GlassgradError
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.errors import FreedGraphError, NotNotedError
from tracer.graph import Graph, backward_order
from tracer.node import Leaf, Node, OpaqueNode, Output, flat
from tracer.notes.cuts import Cut
from tracer.recording.parents import any_node
from tracer.reports.badness import ABSENT, FINE, ZERO, size_of, state_of, state_of_size
from tracer.reports.births import Forward
from tracer.reports.gradient_births import Backward, has_hooks
from tracer.reports.not_finite import Places
from tracer.reports.report import norm
from tracer.reports.rounding import Doubts, Seen, doubts_of, made_by
from tracer.reports.steps import Step, pairs, steps
from tracer.tracked_tensor import Tensor

#: So many reasons are told at most.
SHOWN_REASONS = 4

#: Cuts that are mostly meant, a number for a log or a check, and those that are often meant, a choice or a mask.
NUMBERS = frozenset(("item", "tolist", "float()", "int()", "bool()", "index()", "complex()"))
CHOICES = frozenset(("integer result", "no gradient", "numpy", "grad", "sample", "marked"))

#: The size of so many elements has all digits that are told.
_FEW = 1 << 16


@dataclass(frozen=True)
class Origin:
    """A call that made a gradient what it is, or the place where that happened."""

    node: Node
    #: ``"rule"``: what the call passed on; ``"hook"``: a hook there; ``"sum"``: the sum of what had come there.
    how: str
    #: The parent that the gradient was for; of ``"rule"`` alone.
    parent: Node | None = None


@dataclass(frozen=True, eq=False)
class End:
    """How the way of a value ended: in a cut, or with the last call that took it."""

    #: The lower, the likelier it is to be the reason for a missing gradient.
    rank: tuple[int, int]
    serial: int
    cut: Cut | None


class Evidence:
    """What is known of ``loss``. ``subject``: a result whose gradient is wanted, besides those of leaves."""

    def __init__(self, loss: Any, graph: Graph, subject: Node | None = None) -> None:
        self.root = loss._node if type(loss) is Tensor else None
        self.device = loss.device if isinstance(loss, torch.Tensor) else torch.device("cpu")
        self.loss_is_finite = self.root is not None and state_of(loss) in (ZERO, FINE)
        self.cuts = graph.cuts()
        self.calls = {call.serial: call for call in graph.calls()}
        #: The calls, results and leaves that the loss came from, newest first.
        self.order = [] if self.root is None else backward_order([self.root])
        self.reached = {node.serial: node for node in self.order}
        #: By serial number: the calls that took what has this number.
        self.users: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, tuple[End, ...]] | None = None
        #: By serial number: the state of the gradient that came, after hooks.
        self.came: dict[int, int] = {}
        #: By the numbers of a call and of one of its parents: the state of what went on to it, and how many parts of it were not zero.
        self._went: dict[tuple[int, int], tuple[int, int]] = {}
        self.norms: dict[int, float] = {}
        #: By serial number: how large the one part is that has been sent there so far; None where there are several.
        self._alone: dict[int, float | None] = {}
        #: What gradients filled that a nested backward pass found, of a checkpoint with ``use_reentrant=True``: by the leaf's number.
        self.nested: dict[int, tuple[int, float]] = {}
        #: What the backward pass raised, and where.
        self.error: GlassgradError | None = None
        self.failed_at: Node | None = None
        self._subject = subject
        self._following: dict[int, Node] | None = None
        #: What ``vanishing`` has found out already: many parameters share a way.
        self.vanished: dict[tuple[int, int], tuple[Node, Node]] = {}
        self.origins: dict[int, tuple[Origin, ...]] = {}
        #: Of what is not finite in it.
        self.backward = Backward()
        #: Of what may be rounding in it; None where that is not looked for.
        self._doubts: Doubts | None = None
        self._notes, self._loss = graph, loss
        self._find_users()
        if self.root is not None:
            self._sweep(loss)
            self._find_origins()

    # ------------------------------------------------------------------ who feeds whom
    def _find_users(self) -> None:
        for call in self.calls.values():
            for parent in set(call.parents):
                self.users[parent].append(call.serial)
        for node in self.order:
            if node.serial not in self.calls and not isinstance(node, Output):
                for parent in {call_of(p).serial for p in flat(node.parents)}:
                    self.users[parent].append(node.serial)

    def ends(self, serial: int) -> tuple[End, ...]:
        """Where the ways of what has this number ended before they came to the loss, the likeliest reason first."""
        if self._ends is None:
            self._ends = self._find_ends()
        return self._ends.get(serial, ())

    def _find_ends(self) -> dict[int, tuple[End, ...]]:
        """All ends in one walk, newest call first: a call has those of its users, and its own."""
        cuts: dict[int, list[Cut]] = defaultdict(list)
        for cut in self.cuts:
            for serial in cut.parents:
                cuts[serial].append(cut)
        chosen = {cut.site.instruction for cut in self.cuts if cut.what in ("integer result", "marked")}
        found: dict[int, tuple[End, ...]] = {}
        for serial in sorted({*self.calls, *self.users, *cuts, *self.reached}, reverse=True):
            lists = [found[user] for user in self.users.get(serial, ()) if found.get(user)]
            own = [End((self._rank_of(cut), -cut.serial), serial, cut) for cut in cuts.get(serial, ())]
            if not own and serial not in self.users and serial not in self.reached and serial in self.calls:
                call = self.calls[serial]
                # A call that gave integers too is the likelier to have been made for those.
                meant = call.alive and call.site.instruction not in chosen
                own = [End((1 if meant else 3, -serial), serial, None)]
            if not own and len(lists) == 1:
                found[serial] = lists[0]
            elif own or lists:
                merged = {id(end): end for ends in (own, *lists) for end in ends}
                found[serial] = tuple(sorted(merged.values(), key=attrgetter("rank"))[:SHOWN_REASONS])
        return found

    def _rank_of(self, cut: Cut) -> int:
        if self.root is not None and cut.serial > self.root.serial:
            return 5  # the loss was there before: a metric, a log
        return 4 if cut.what in NUMBERS else 2 if cut.what in CHOICES else 0

    def shapes(self) -> dict[int, torch.Size | None]:
        """By serial number: the shapes of what the calls have returned that are alive, and of their leaves."""
        nodes = [*self._notes.nodes(), *self.order]
        return {one.serial: one.shape for node in nodes for one in (node, *flat(node.parents))}

    def _find_ways(self) -> dict[int, Node]:
        """By serial number: the next node on a shortest way to the loss. Newest first, so that each knows its users' distance."""
        distance: dict[int, int] = defaultdict(int)
        following: dict[int, Node] = {}
        for node in self.order:
            further = distance[node.serial] + 1
            for parent in flat(node.parents):
                if parent.serial not in following or distance[parent.serial] > further:
                    distance[parent.serial], following[parent.serial] = further, node
        return following

    def way_to_loss(self, serial: int) -> list[Node]:
        """The calls, and results, of a shortest way from what has this number to the loss."""
        if self._following is None:
            self._following = self._find_ways()
        way = []
        while serial in self._following:
            way.append(self._following[serial])
            serial = way[-1].serial
        return way

    # ------------------------------------------------------------------ one backward pass
    def _sweep(self, loss: torch.Tensor) -> None:
        """Look at every gradient of one backward pass, which leaves ``.grad`` and the graph as they are."""
        with DisableTorchFunctionSubclass():
            weight = torch.ones_like(loss, requires_grad=False).as_subclass(torch.Tensor)
        self._doubts = doubts_of(self.order)
        passing = steps(loss, weight)
        last = None
        try:
            # What runs again in backward is noted in a graph that nobody looks at.
            with Graph(), leaving_grad_alone() as nested:
                for step in passing:
                    last = step.node
                    self._look_at(step)
        except GlassgradError as error:
            # Of a call that was released, the values that a graph keeps are not all that was saved.
            if isinstance(error, NotNotedError):
                error = FreedGraphError(str(error))
            self.backward.error = error
            self.error = error.with_traceback(None)
            self.failed_at = self._next_after(last)
        for tensor, grad in nested.items():
            node = any_node(tensor)
            if node is not None:
                self.nested[node.serial] = state_of(grad), norm(grad)

    def _look_at(self, step: Step) -> None:
        node, grad = step.node, step.grad
        came: list[Seen] = []
        if isinstance(grad, tuple):
            hooked = has_hooks(node)
            parts = [(node.at(index), part) for index, part in enumerate(grad) if part is not None]
            came = [
                Seen(one, part, self._arrive(one, part, hooked or one is None or has_hooks(one))) for one, part in parts
            ]
            self.came[node.serial] = max((state_of_size(part.size) for part in came), default=ZERO)
        else:
            size = self._arrive(node, grad, has_hooks(node))
            came = [] if grad is None else [Seen(node, grad, size)]
        worst = self.came[node.serial]
        none_is_zero = not isinstance(node, OpaqueNode) or node.none_is_zero or grad is None
        went: list[Seen] = []
        for position, passed_on in enumerate(step.inputs):
            for parent, part in pairs(node.parents[position], passed_on):
                state = ZERO if none_is_zero else ABSENT
                if part is not None:
                    size = size_of(part)
                    state = state_of_size(size)
                    went.append(Seen(parent, part, size))
                    self._alone[parent.serial] = size if parent.serial not in self._alone else None
                key = node.serial, parent.serial
                before, count = self._went.get(key, (ABSENT, 0))
                self._went[key] = max(before, state), count + (state > ZERO)
                worst = max(worst, state)
        if worst > FINE:
            self.backward.look_at(step)
        if self._doubts is not None:
            self._doubts.look_at(node, came, went)

    def _arrive(self, node: Node | None, grad: Any, hooked: bool) -> float:
        """Take note of what came to a node, and return its size: that of what was sent, where it was one part and no hook saw it."""
        size = None if node is None else self._alone.pop(node.serial, None)
        if size is None or hooked:
            size = 0.0 if grad is None else size_of(grad)
        if node is not None:
            self.came[node.serial] = state_of_size(size)
        if isinstance(node, Leaf) or (node is not None and node is self._subject):
            self.norms[node.serial] = size if grad is None or _is_exact(grad) else norm(grad)
        return size

    def _next_after(self, last: Node | None) -> Node | None:
        """The call at which the pass failed: the next one that a gradient had come to."""
        awaited = {parent for _, parent in self._went}
        for node in self.order:
            if isinstance(node, Output):
                if node.serial in awaited:
                    awaited.add(node.parents[0].serial)
            elif node.serial not in self.came and (node.serial in awaited or last is None):
                return node
        return None

    @cached_property
    def places(self) -> Places:
        """Where what is not finite came up."""
        return Places(Forward(self._notes, self._loss), self.backward)

    @cached_property
    def _rounding(self) -> dict[int, Node]:
        if self._doubts is None:
            return {}
        asked = self.order if self._subject is None else [self._subject]
        return made_by(self._loss, self.order, self._doubts, self._doubts.suspects(asked, self.norms))

    def rounded_by(self, node: Node) -> Node | None:
        """Of a gradient that is rounding and nothing else: the call that made it so."""
        return self._rounding.get(node.serial) if node.serial in self.norms else None

    # ------------------------------------------------------------------ what made it so
    def _find_origins(self) -> None:
        """For every node whose gradient is not fine: the calls that made it so. Newest first, so that each knows its users' already."""
        sent: dict[int, _Sent] = defaultdict(_Sent)
        for node in self.order:
            serial = node.serial
            state = self.came.get(serial, ABSENT)
            into = sent.pop(serial, None)
            if into is not None and state != FINE:
                self.origins[serial] = self._origins_at(node, state, into)
            for parent in flat(node.parents):
                if isinstance(node, Output):
                    went, parts = state, int(state > ZERO)
                else:
                    went, parts = self._went.get((serial, parent.serial), (ABSENT, 0))
                same = kind_of(went) == kind_of(state) and serial in self.origins
                origins = self.origins[serial] if same else (Origin(node, "rule", parent),)
                sent[parent.serial].add(node, went, parts, origins if went != FINE else ())

    def _origins_at(self, node: Node, state: int, into: _Sent) -> tuple[Origin, ...]:
        if kind_of(state) == kind_of(into.state):
            return tuple(into.origins[kind_of(state)].values())[:SHOWN_REASONS]
        if isinstance(node, Output) and state == ABSENT:  # a hook of a result that nothing came for
            return ()
        return (Origin(node, "sum" if into.parts > 1 and not has_hooks(node) else "hook"),)


class _Sent:
    """What had been sent to a node."""

    def __init__(self) -> None:
        self.state = ABSENT
        self.parts = 0
        self._senders: set[int] = set()
        #: By the kind of state: those to blame, each once.
        self.origins: dict[str, dict[tuple[int, str], Origin]] = defaultdict(dict)

    def add(self, node: Node, state: int, parts: int, origins: Iterable[Origin]) -> None:
        if node.serial in self._senders:
            return  # a node stands among the parents as often as it is an input
        self._senders.add(node.serial)
        self.state = max(self.state, state)
        self.parts += parts
        at = self.origins[kind_of(state)]
        for origin in origins:
            at.setdefault((origin.node.serial, origin.how), origin)


def kind_of(state: int) -> str:
    """``absent``, ``zero``, ``fine`` or ``not finite``."""
    return ("absent", "zero", "fine", "not finite", "not finite")[state]


def _is_exact(grad: torch.Tensor) -> bool:
    """Whether its size is its norm to all digits that are told."""
    return grad.numel() <= _FEW and grad.dtype in (torch.float32, torch.float64) and grad.layout is torch.strided


def call_of(node: Node) -> Node:
    """The call of one of several results, or the node itself."""
    return node.parents[0] if isinstance(node, Output) and node.parents else node
