"""``find_nan``: where nan and inf come from, in the forward pass or in the backward pass, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ops_registry.sites import Site
from tracer.errors import FreedGraphError, NotNotedError
from tracer.functions.function_node import FunctionNode
from tracer.graph import Graph
from tracer.node import Leaf, Node, OpaqueNode
from tracer.notes.calls import Call, serials
from tracer.reports import repairs
from tracer.reports.badness import INF, TOLD, around, at, bad_elements, between, element, is_bad, span, state_of
from tracer.reports.births import Birth, Forward
from tracer.reports.causes import REENTRANT_FIX, is_reentrant
from tracer.reports.gradient_births import Backward, GradientBirth, hooked, hooks_told, inside
from tracer.reports.known_values import bad_buffers, known_values, title_of, title_of_memory
from tracer.reports.report import Report, Row, calls, place
from tracer.reports.steps import input_names
from tracer.reports.subjects import check_graph, check_loss

#: Of so many rows the values around are told.
_TOLD = 50


@dataclass(frozen=True)
class NotFinite(Row):
    """One place at which nan or inf came up."""

    #: ``forward`` or ``backward``; ``parameter``, ``leaf`` (another tensor that requires grad), ``data`` or ``constant`` where it was there
    #: from the start; ``before`` the graph was opened, or ``dropped`` with the notes of that.
    born: str
    op: str
    #: ``nan`` or ``inf``.
    what: str
    site: Site | None
    #: Where it comes to; ``harmless`` where that is neither the loss nor a gradient of a leaf.
    effect: str
    #: The values around it, as far as they are known.
    values: str
    #: How many calls did so at this place, in a loop.
    calls: int
    #: What is usually done about it.
    repair: str = field(repr=False)
    #: The number of the call.
    serial: int = field(repr=False)
    #: What held it from the start: ``parameter layer.weight``.
    holder: str = field(default="", repr=False)
    #: Whether it comes neither to the loss nor to a gradient of a leaf.
    harmless: bool = field(default=False, repr=False)

    def origin(self) -> str:
        """``nan is born in forward``, or where else it came from."""
        return {
            "parameter": f"{self.holder} has {_a(self.what)}",
            "leaf": f"{self.holder} has {_a(self.what)}",
            "data": f"the data has {_a(self.what)}",
            "constant": f"the program puts in {_a(self.what)}",
            "before": f"{self.what} was there before the graph was opened",
            "dropped": f"{self.what} was there before the oldest call of which a note is left",
        }.get(self.born, f"{self.what} is born in {self.born}")


class NotFinitePlaces(Report[NotFinite]):
    """What ``find_nan`` returns."""

    title = "Where nan and inf were born"

    def __str__(self) -> str:
        first = self.rows[0] if len(self.rows) == 1 else None
        if first is not None and first.calls == 1 and first.effect in self.verdict:
            return "\n".join([self.verdict, *self.advice])  # which has told all of the row
        return super().__str__()

    __repr__ = __str__


def find_nan(graph: Graph, loss: torch.Tensor | None = None) -> NotFinitePlaces:
    """Where nan and inf were born: the calls that made them of finite inputs, the steps of backward that made them of finite gradients.

    One row for each place, the cause of a loss that is not finite first, harmless ones last. ``graph`` has recorded the forward pass as
    ``tracer.Graph(finite=True)``; with ``values=True`` the elements are named too, and all constants are looked at. What was not finite
    from the start is called ``data``, ``leaf`` or ``parameter``. With ``loss`` its backward pass is gone through: the graph is retained,
    and no ``.grad`` is touched; a loss of several elements is weighted with ones. Without it, what comes to a result that no call took
    is not harmless.

    Raises ``NotNotedError`` for a graph without ``finite``, ``UnrecordedError`` for a loss that no recorded call has made. Where the
    backward pass itself raises (its graph was freed, a rule is missing), the advice says so.
    """
    check_graph("find_nan", graph)
    if loss is not None:
        check_loss("find_nan", loss, native=False)
    if not graph.notes_finite:
        raise NotNotedError(
            "find_nan() was asked of a graph that does not note whether results are finite: open it as "
            "tracer.Graph(sites=True, finite=True)"
        )
    backward = None if loss is None else Backward()
    if loss is not None and backward is not None:
        backward.go_through(loss)
    return Places(Forward(graph, loss), backward).report()


class Places:
    """Where what is not finite came up in forward and backward, as rows."""

    def __init__(self, forward: Forward, backward: Backward | None) -> None:
        self.forward = forward
        self.backward = backward
        #: What the backward pass makes of what forward gave it.
        self.led_to: dict[Birth, GradientBirth] = {}
        self.own: list[GradientBirth] = []
        if backward is None:
            return
        backward.follow()
        for birth in backward.births.values():
            cause = self._behind(birth)
            if cause is None:
                self.own.append(birth)
            elif cause not in self.led_to or (birth.reaches and not self.led_to[cause].reaches):
                self.led_to[cause] = birth

    def _behind(self, birth: GradientBirth) -> Birth | None:
        """What came up in forward already, and is the reason for it."""
        cause = self.forward.origin_of_gradient(birth.node)
        return None if cause is None or cause.told else cause

    def of_gradient(self, node: Node) -> NotFinite:
        """The place behind the bad gradient that the backward pass made at ``node``."""
        assert self.backward is not None
        birth = self.backward.births[node]
        cause = self._behind(birth)
        return self._backward_row(birth) if cause is None else self._forward_row(cause, True)

    def of_result(self, node: Node) -> NotFinite | None:
        """The place behind a result that is not finite."""
        birth = next((self.forward.origin[s] for s in serials((node,)) if s in self.forward.origin), None)
        return None if birth is None else self._forward_row(birth, True)

    def report(self) -> NotFinitePlaces:
        """Verdict, rows, advice."""
        births = [b for b in self.forward.births if not b.told]
        ranked: list[tuple[float, NotFinite]] = []
        for birth in births:
            ranked.append((self._rank(birth), self._forward_row(birth, len(ranked) < _TOLD)))
        ranked += [(1 if b.reaches else 4, self._backward_row(b)) for b in self.own]
        ranked.sort(key=lambda pair: pair[0])
        alike: dict[Any, list[NotFinite]] = {}
        for rank, row in ranked:
            alike.setdefault((rank, row.born, row.op, row.what, row.holder, place(row.site)), []).append(row)
        rows = [replace(group[0], calls=len(group)) for group in alike.values()]
        advice = list(dict.fromkeys(row.repair for rank, row in ranked if rank < 3 and row.repair))
        advice += self._notes()
        return NotFinitePlaces(self._verdict(rows), rows, advice)

    def _rank(self, birth: Birth) -> float:
        led = self.led_to.get(birth)
        if birth.reaches:
            return 0.5 if birth.source == "dropped" else 0  # it says less than any other
        return 2 if led is not None and led.reaches else 3

    def _verdict(self, rows: list[NotFinite]) -> str:
        count = calls(len(self.forward.calls))
        if not rows:
            gradients = "" if self.backward is None or self.backward.error is not None else ", and so are all gradients"
            return (
                f"all finite: {count}{gradients}" if count.startswith("1 ") else f"all finite: all {count}{gradients}"
            )
        first = rows[0]
        where = f"{first.op} at {place(first.site)}" if first.site is not None else first.op
        if first.harmless:
            harmless = "1 place makes" if len(rows) == 1 else f"{len(rows)} places make"
            end = "the loss or to a gradient" if self.backward is not None else "a result"
            return f"nothing that is not finite comes to {end}: {harmless} such numbers in vain, {where}"
        values = f": {first.values}" if first.values and first.born not in ("parameter",) else ""
        did = "" if first.born in ("forward", "backward") else " took it"
        comma = ", in " if first.born in ("forward", "backward") else ": "
        return f"{first.origin()}{comma}{where}{did}{values}; {first.effect}"

    def _notes(self) -> list[str]:
        notes = []
        if self.forward.dropped:
            notes.append(
                f"The notes of {calls(self.forward.dropped)} that are gone have been dropped: what was born there is not seen. Open the "
                f"graph around one step of the loop, or ask in the first step whose loss is not finite."
            )
        error = None if self.backward is None else self.backward.error
        if isinstance(error, FreedGraphError):
            notes.append(
                "The backward pass was not looked at: it has run already. Ask before it, or run it with retain_graph=True."
            )
        elif error is not None:
            notes.append(f"The backward pass raised, and was looked at up to there: {error}")
        return notes

    # ------------------------------------------------------------------ forward
    def _forward_row(self, birth: Birth, with_values: bool) -> NotFinite:
        call = birth.within or birth.call
        node = self.forward.nodes.get(call.serial)
        told: list[str] = []
        if birth.source == "forward" and with_values:
            told.append(_held(birth, node) if birth.arguments else _values_around(call, node, self.forward))
        elif birth.source in ("data", "constant", "before") or birth.leaf is not None:
            told.append(_held(birth, node))
        if birth.infinities is not None:
            told.append(f"of the infinities of {birth.infinities.op} at {place(birth.infinities.site)}")
        led = self.led_to.get(birth)
        if led is not None and not birth.reaches and led.reaches:
            told.append(led.gradient)
        holder = "a parameter, or another leaf, that is gone by now," if birth.source == "parameter" else ""
        if birth.leaf is not None:
            holder = title_of(birth.leaf)
        born = (
            "leaf"
            if birth.source == "parameter" and not holder.startswith(("parameter", "the parameter", "a parameter"))
            else birth.source
        )
        return NotFinite(
            born,
            call.op,
            TOLD[birth.state],
            call.site,
            self._effect(birth),
            ", ".join(filter(None, told)),
            1,
            self._repair(birth, born, node),
            call.serial,
            holder,
            not birth.reaches and not (led is not None and led.reaches),
        )

    def _effect(self, birth: Birth) -> str:
        told = []
        fine = next((self.forward.was_fine[s] for s in birth.call.parents if s in self.forward.was_fine), None)
        if birth.leaf is not None and fine is not None and fine.serial < birth.call.serial:
            told.append(f"written after {fine.op} at {place(fine.site)} had taken it")
        if birth.unsure:
            told.append("unless what it was given, which was not kept, was so before: a graph with finite=True tells")
        if birth.turned is not None:
            told.append(f"nan from {birth.turned.op} at {place(birth.turned.site)} on")
        led = self.led_to.get(birth)
        stopped = None if birth.stopped is None else f"{birth.stopped.op} at {place(birth.stopped.site)}"
        if birth.reaches:
            told.append("comes to the loss" if self.backward is not None else "comes to a result")
        elif led is not None and led.reaches:
            if stopped is not None:
                told.append(f"{stopped} keeps it from the loss")
            told.append(f"{'but ' if told else ''}its gradient becomes {TOLD[led.state]} in {led.node.op}")
            told += ["as 0 * inf"] if led.zero_gradient else []
        else:
            told.append(
                "harmless: " + (f"{stopped} keeps it away" if stopped else "nothing that leads to the loss takes it")
            )
        return ", ".join(told)

    def _repair(self, birth: Birth, born: str, node: Node | None) -> str:
        op, what = (birth.within or birth.call).op, TOLD[birth.state]
        if born == "parameter":
            return (
                f"Look at the backward pass of the step before with find_nan(graph, loss): {what} in a gradient goes into the parameter "
                f"with the optimiser's step. Where it was there from the start, mend its initialisation or the file it was loaded from."
            )
        if born in ("data", "leaf"):
            return f"Look at where the data comes from, and drop or fill what is {what} (torch.nan_to_num, a mask)."
        if birth.source == "constant":
            return "An infinity that the program puts in: use a large finite number (torch.finfo(dtype).min) where it is no mask."
        if birth.source in ("before", "dropped"):
            return "Open the graph earlier, around all that leads to this call."
        led = self.led_to.get(birth)
        if not birth.reaches and led is not None and birth.stopped is not None and repairs.drops(birth.stopped.op):
            return repairs.DOUBLE_WHERE
        if is_reentrant(node):
            return f"{REENTRANT_FIX}."
        if isinstance(node, OpaqueNode) and not inside(node):
            return f"Look at what {node.title if isinstance(node, FunctionNode) else op} computes in its forward."
        if birth.infinities is not None or birth.arguments:
            return repairs.of_infinities(op)
        base = known_values(node).get("input")
        overflows = birth.state == INF and isinstance(base, torch.Tensor) and bool(base.detach().ne(0).all())
        return repairs.in_forward(op, None if node is None else node.dtype, overflows)

    # ------------------------------------------------------------------ backward
    def _backward_row(self, birth: GradientBirth) -> NotFinite:
        node = birth.node
        op, site, values = node.op, node.site, ", ".join(filter(None, (birth.gradient, birth.given)))
        suspects = [n for n in inside(node) if repairs.makes_gradients(n.op)]
        if suspects and birth.source == "rule":
            # One step stands for all of a level of torch.vmap: what it is made of is told by what can do it.
            op, site = suspects[0].op, suspects[0].site or site
            others = "".join(f", or in {n.op} at {place(n.site)}" for n in suspects[1:4])
            values = f"inside {node.op}{others}; {birth.gradient}"
        if birth.source == "hook":
            op = f"a hook on {hooked(node)}"
            values = ", ".join(filter(None, (hooks_told(node), values)))
            told = f"A hook on {hooked(node)} or on its result makes it"
            repair = f"{told}: look at what it returns, and divide and take roots there with eps."
        elif birth.source == "sum":
            repair = repairs.of_sum(birth.dtype)
            values = f"where gradients are added up; {values}" if values else "where gradients are added up"
        elif is_reentrant(node):
            repair = f"{REENTRANT_FIX}."
        elif isinstance(node, OpaqueNode) and not suspects:
            repair = f"Look at {node.origin}: it divides, or takes a root or a log, where it may be 0."
        else:
            repair = repairs.in_backward(op, birth.dtype, birth.zero_gradient)
        if isinstance(node, Leaf) and node.variable is not None:
            values = f"of {title_of(node.variable)}, {values}"
            uses = [call.site for call in self.forward.calls.values() if node.serial in call.parents]
            site = uses[-1] if uses else None
        effect = "comes to the gradient of a leaf" if birth.reaches else "harmless: it comes to no leaf"
        if birth.reaches and self.backward is not None and self.backward.leaves:
            effect = f"comes to the gradient of {_some(self.backward.leaves)}"
        if birth.turned is not None and birth.reaches:
            effect = f"nan from {birth.turned.op} at {place(birth.turned.site)} on, {effect}"
        what, harmless = TOLD[birth.state], not birth.reaches
        return NotFinite("backward", op, what, site, effect, values, 1, repair, node.serial, harmless=harmless)


def _some(leaves: list[torch.Tensor]) -> str:
    titles = list(dict.fromkeys(title_of(leaf) for leaf in leaves[:2]))
    return ", ".join(titles) + (f" and {len(leaves) - len(titles)} more" if len(leaves) > len(titles) else "")


def _a(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def _held(birth: Birth, node: Node | None) -> str:
    """Which argument held it before the call, and where in it."""
    what = TOLD[birth.state]
    if not birth.arguments:
        if birth.source == "parameter":
            return ""
        buffers = bad_buffers(birth.state)
        known = f" ({' and '.join(buffers[:2])} {'does' if len(buffers) == 1 else 'do'})" if buffers else ""
        return f"an argument that was not kept holds {what}{known}"
    name = birth.arguments[0]
    value = known_values(node).get(name)
    if isinstance(value, float):
        return f"{name} = {value}"
    where, count = bad_elements(value) if isinstance(value, torch.Tensor) else ([], 0)
    if not isinstance(value, torch.Tensor) or not where:
        return f"its argument {name} holds {TOLD[state_of(value)]}"
    told = f"{at(name, where[0])} = {element(value, where[0], value.shape)}"
    title = title_of_memory(value)
    told += f" in {title}" if title else ""
    return told + (f" ({count} of {value.numel()} elements)" if count > 1 else "")


def _values_around(call: Call, node: Node | None, forward: Forward) -> str:
    """The elements that are bad, and what was given there; else between what it lay."""
    values: dict[str, Any] = {_told_name(name): value for name, value in known_values(node).items()}
    result = values.pop("result", None)
    told: list[str] = []
    if isinstance(result, torch.Tensor) and is_bad(result):
        where, count = bad_elements(result)
        if where:
            more = f" ({count} of {result.numel()} elements)" if count > 1 else ""
            told.append(f"{at('result', where[0])} = {element(result, where[0], result.shape)}{more}")
            told.append(around(where[0], result.shape, values))
    told = told or list(_spans(values))
    return ", ".join([*filter(None, told), *_noted(call, node, forward, values)])


def _told_name(name: str) -> str:
    """The name of an input; of one that no rule names, its number."""
    name = name.lstrip("_")
    return f"input {name}" if name.isdigit() else name


def _spans(values: dict[str, Any]) -> Iterable[str]:
    for name, value in values.items():
        text = span(value) if isinstance(value, torch.Tensor) else None
        if text is not None:
            yield f"{name} {text}"


def _noted(call: Call, node: Node | None, forward: Forward, values: dict[str, Any]) -> Iterable[str]:
    """Between what the inputs lay that other calls made: that is noted of calls that are gone too."""
    names = input_names(node) if node is not None else ()
    for i, serial in enumerate(call.parents):
        made = forward.calls.get(serial)
        name = _told_name(names[i]) if len(names) == len(call.parents) else f"input {i}"
        if made is not None and made.extremes is not None and name not in values:
            yield f"{name} {between(made.extremes)}"
