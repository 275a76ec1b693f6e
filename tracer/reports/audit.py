"""``audit``: which rule each call of a graph will use, where it is written, and which calls a replacement has left out."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ops_registry.rules
from ops_registry.composed import is_composed
from ops_registry.errors import RuleError
from ops_registry.formula import Formula
from ops_registry.registry import RULES, find, op_name
from ops_registry.rule import BODY, CallPlan, Rule
from ops_registry.signatures import signature_of
from ops_registry.sites import Site, short_line
from ops_registry.spellings import canonical
from ops_registry.unused import why_not_met
from tracer.functions.function_node import FunctionNode
from tracer.graph import Graph, backward_order
from tracer.node import Bridge, CallNode, Leaf, Node, OpaqueNode, Output, RaisingNode, tensors_in
from tracer.recording.missing_rule import MissingRule
from tracer.reports.report import Report, Row, calls
from tracer.reports.subjects import check_graph

#: Where the rules stand that come with glassgrad.
_SHIPPED = str(Path(ops_registry.rules.__file__).parent)

#: An op: its name, or a function in any spelling.
Op = str | Callable[..., Any]


@dataclass(frozen=True)
class AuditRow(Row):
    """Calls of one op that use the same rule."""

    op: str
    count: int
    #: ``"shipped"`` with glassgrad, ``"registered"`` by ``@backward``, ``"replaced"`` by ``use``, ``"own backward"`` of a custom Function
    #: or of what else needs no rule, ``"none"`` where backward will raise.
    status: str
    #: The formulas, each with its file and line.
    rule: str
    #: Whether the rule asks ``default``, what it stands in the place of.
    wraps: bool
    #: Where the calls were made, in their order, as far as a graph with sites knows.
    sites: list[Site] = field(default_factory=list)


@dataclass(frozen=True)
class MissingRow(Row):
    """A call that a replacement has left out."""

    op: str
    site: Site | None
    #: The rule that it will use.
    rule: str


class Audit(Report[AuditRow]):
    """What ``audit`` returns. ``missing`` asks further."""

    def __init__(self, verdict: str, rows: Sequence[AuditRow], advice: Sequence[str], found: list[_Used]) -> None:
        super().__init__(verdict, rows, advice)
        self._found = found

    def missing(self, op: Op | None = None) -> Report[MissingRow]:
        """The calls of ``op`` that use no replaced rule, each with its site. ``op`` is a name, or a function in any spelling.

        Left out: those of every op of which another call uses a replaced rule.
        """
        if op is None:
            ops = {used.op for used in self._found if used.status == "replaced"}
            asked, of = [used for used in self._found if used.op in ops], "ops with a replaced rule"
        else:
            wanted = _Wanted(op)
            asked, of = [used for used in self._found if wanted.covers(used.op)], wanted.name
        rows = [MissingRow(used.op, used.site, used.rule) for used in asked if used.status != "replaced"]
        replaced = len(asked) - len(rows)
        verdict = f"{of}: {len(rows)} of {calls(len(asked))} without a replaced rule"
        advice = []
        if op is not None and not asked:
            counts = Counter(used.op for used in self._found)
            verdict, advice = f"{of}: no call is in the graph", [wanted.reason(counts)]
        elif rows and not replaced:
            advice = [
                "No call of it was made where a rule was replaced: the forward pass belongs inside the use block."
            ]
        elif rows:
            advice = [
                "Widen where= of the use block, or make these calls inside it."
                + ("" if any(row.site for row in rows) else " tracer.Graph(sites=True) notes where they were made.")
            ]
        return Report(verdict, rows, advice)


@dataclass(frozen=True)
class _Used:
    """What one call will use."""

    op: str
    status: str
    rule: str
    wraps: bool
    site: Site | None


def audit(graph: Graph, ops: Op | Iterable[Op] | None = None) -> Audit:
    """Which rule each call of ``graph`` will use in backward: one row for all calls of an op that use the same.

    ``graph`` is one that recorded, or ``tracer.graph_of(loss)``. Calls inside ``torch.vmap``, and inside functions under a rule for the
    whole, count. ``ops`` restricts it to these, by name or by function in any spelling; of one that never ran the advice says where it
    hides. ``str()`` shows replaced rules first; ``missing(op)`` gives the calls that a replacement has left out.

    Raises ``RuleError`` for a member of ``ops`` that is neither a name nor a function.
    """
    check_graph("audit", graph)
    found = [_used_by(node) for node in _calls_of(graph)]
    given = [] if ops is None else [ops] if isinstance(ops, str) or callable(ops) else list(ops)
    wanted = [_Wanted(op) for op in given]
    counts = Counter(used.op for used in found)
    kept = found if ops is None else [used for used in found if any(w.covers(used.op) for w in wanted)]
    grouped: dict[tuple[Any, ...], list[_Used]] = {}
    for used in kept:
        grouped.setdefault((used.op, used.status, used.rule), []).append(used)
    rows = [
        AuditRow(
            group[0].op,
            len(group),
            group[0].status,
            group[0].rule,
            any(used.wraps for used in group),
            [used.site for used in group if used.site is not None],
        )
        for group in grouped.values()
    ]
    rows.sort(key=lambda row: (_ORDER.index(row.status), -row.count, row.op))
    by_status = Counter(used.status for used in kept)
    told = ", ".join(f"{by_status[status]} {status}" for status in _ORDER if by_status[status])
    verdict = f"{calls(len(kept))}, by rule: {told}" if kept else "no calls"
    advice = [w.reason(counts) for w in wanted if not any(w.covers(op) for op in counts)]
    if not found:
        advice = ["No call of the graph is alive: they go with the tensors that they led to. Keep the loss."]
    return Audit(verdict, rows, advice, found)


#: In this order rows are shown: the most surprising first.
_ORDER = ("none", "replaced", "registered", "own backward", "shipped")


class _Wanted:
    """An op that was asked for."""

    def __init__(self, op: Op) -> None:
        if not isinstance(op, str) and not callable(op):
            raise RuleError(f"audit() was asked about {op!r}, which is neither the name of an op nor a function")
        self.op = op
        spelling = None if isinstance(op, str) else find(op)
        if isinstance(op, str):
            self.name = op if op in RULES else canonical(op.rstrip("_"))
        else:
            self.name = op_name(op) if spelling is None else spelling.rule.name

    def covers(self, name: str) -> bool:
        """Whether a call is of the op, or of one of its overloads (``torch.max``)."""
        return name == self.name or name.startswith(f"{self.name}.")

    def reason(self, counts: Counter[str]) -> str:
        """Why no call of it is in the graph."""
        rule = RULES.get(self.name)
        if rule is None and not isinstance(self.op, str):
            rule = Rule(self.name, signature_of(self.op))
        if rule is not None and not isinstance(self.op, str) and is_composed(rule, self.op):
            return (
                f"{self.name} is made of other ops, which stand here under their own names. A rule for it inside ops_registry.use holds "
                f"for the call as a whole."
            )
        return why_not_met(self.name, set(counts), counts)


def _calls_of(graph: Graph) -> list[Node]:
    """The calls of a graph, oldest first, and those recorded inside others."""
    seen: dict[Node, None] = {}
    waiting = list(graph.nodes())
    while waiting:
        node = waiting.pop()
        if node in seen or isinstance(node, Leaf | Output | Bridge):
            continue
        seen[node] = None
        if isinstance(node, OpaqueNode):
            waiting.extend(node.inside)  # of a level of torch.vmap
        if BODY in node.saved_names and node.saved is not None:
            body = node.saved[node.saved_names.index(BODY)]
            roots = [t._node for t in tensors_in(body.results) if t.requires_grad]  # type: ignore[attr-defined]
            waiting.extend(_above(backward_order(roots), node))
    return sorted((n for n in seen if n.op not in ("argument", "batched_input")), key=lambda n: n.serial)


def _above(order: list[Node], call: Node) -> list[Node]:
    """The calls of a body: what was recorded before its arguments is not of it."""
    first = max((n.serial for n in order if n.op == "argument"), default=0)
    return [n for n in order if n.serial > first]


def _used_by(node: Node) -> _Used:
    if isinstance(node, CallNode):
        own = [step.formula for step in node.plan.steps]
        statuses = {_status(node.plan, formula) for formula in own}
        status = next(s for s in ("replaced", "registered", "shipped") if s in statuses or s == "shipped")
        told = own if status == "shipped" else [f for f in own if _status(node.plan, f) == status]
        if status == "shipped":
            told = [f for f in node.plan.rule.formulas if f in told] or told
        rule = ", ".join(dict.fromkeys(f"{_name(f)} ({short_line(f.location)})" for f in told))
        return _Used(node.op, status, rule, any(f.wraps for f in own), node.site)
    if isinstance(node, RaisingNode | MissingRule):
        return _Used(node.op, "none", "backward raises here", False, node.site)
    origin = node.origin if isinstance(node, OpaqueNode) else node.name()
    if isinstance(node, FunctionNode):
        code = inspect.unwrap(node.backward).__code__
        origin = f"{node.backward.__name__} ({short_line(f'{code.co_filename}:{code.co_firstlineno}')}) of {node.title}"
    return _Used(node.op, "own backward", origin, False, node.site)


def _name(formula: Formula) -> str:
    return getattr(formula.function, "__name__", "?")


def _status(plan: CallPlan, formula: Formula) -> str:
    """Where a formula of a call comes from."""
    if formula.location.startswith(_SHIPPED):
        return "shipped"
    registered = RULES.get(plan.rule.name)
    theirs = () if registered is None else (*registered.formulas, *_in_place(registered))
    if any(formula.function is f.function for f in theirs):
        return "registered"
    return "replaced"


def _in_place(rule: Rule) -> tuple[Formula, ...]:
    return () if rule.in_place_rule is None else rule.in_place_rule.formulas
