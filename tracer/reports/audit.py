"""``audit``: which rule each recorded call will use in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import ops_registry
from ops_registry.registry import RULES, find, op_name
from ops_registry.sites import Site, short_line
from ops_registry.unused import why_unused
from tracer.graph import Graph
from tracer.node import CallNode, Node, OpaqueNode, RaisingNode
from tracer.recording.missing_rule import MissingRule
from tracer.reports.report import Report, Row, place

_SHIPPED = str(Path(ops_registry.__file__).parent / "rules")

#: How many places of one rule stand in the text.
_SHOWN = 3


@dataclass
class Audited(Row):
    """The calls of one op that use one rule."""

    columns: ClassVar[tuple[str, ...]] = ("op", "count", "kind", "rule", "sites")
    op: str
    #: ``shipped``, ``registered`` by ``@backward``, ``replaced`` in a ``use`` block, ``replaced, wraps default``, ``its own`` (a custom
    #: Function, a transform), or ``none``.
    kind: str
    #: ``file:line`` of each formula.
    rule: str
    nodes: list[Node] = field(default_factory=list, repr=False)

    @property
    def count(self) -> int:
        """How many calls."""
        return len(self.nodes)

    @property
    def sites(self) -> list[Site]:
        """Where they were made, each place once, if a graph with sites was open."""
        return list({(s.modules, s.line): s for node in self.nodes if (s := node.site) is not None}.values())

    def cells(self) -> tuple[str, ...]:
        places = list(dict.fromkeys(map(place, self.sites)))
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        rule = ", ".join(dict.fromkeys(short_line(part) for part in self.rule.split(", ")))
        return self.op, str(self.count), self.kind, rule, ", ".join(places[:_SHOWN]) + more


class Audit(Report):
    """What ``audit`` found: a row for each op and rule, in the order of their first calls."""

    columns = Audited.columns

    def missing(self, op: str | Callable[..., Any]) -> list[Site | None]:
        """The calls of ``op``, a name or a function, that kept their own rule: those that a scope left out.

        None stands for a call without a site.
        """
        name = _name(op)
        return [
            node.site
            for row in self.rows
            if _same(name, row.op) and not row.kind.startswith("replaced")
            for node in row.nodes
        ]


def audit(graph: Graph, ops: str | Callable[..., Any] | Iterable[str | Callable[..., Any]] | None = None) -> Audit:
    """Which rule each call alive in ``graph`` will use: its file and line, shipped or replaced, how often, where.

    ``ops``: these alone, names or functions in any spelling. One that never ran is named, with the ops in which it hides.
    """
    given = None if ops is None else [ops] if isinstance(ops, str) or callable(ops) else list(ops)
    names = None if given is None else [_name(op) for op in given]
    rows: dict[Any, Audited] = {}
    for node in graph.nodes():
        if names is None or any(_same(name, node.op) for name in names):
            kind, rule = _rule_of(node)
            row = rows.setdefault((node.op, kind, rule), Audited(node.op, kind, rule))
            row.nodes.append(node)
    found = list(rows.values())
    counts = graph.counts()
    absent = [name for name in names or () if not any(_same(name, op) for op in counts)]
    return Audit(_verdict(found), found, " ".join(why_unused(name, set(counts), counts) for name in absent))


def _verdict(rows: list[Audited]) -> str:
    calls = Counter[str]()
    for row in rows:
        calls["replaced" if row.kind.startswith("replaced") else row.kind] += row.count
    told = ", ".join(f"{count} {kind}" for kind, count in calls.items()) or "none"
    return f"{sum(calls.values())} calls by the kind of their rule: {told}."


def _rule_of(node: Node) -> tuple[str, str]:
    """The kind of a call's rule, and where it is written."""
    if not isinstance(node, CallNode):
        if isinstance(node, MissingRule | RaisingNode):
            return "none", "backward raises there"
        return "its own", node.origin if isinstance(node, OpaqueNode) else node.name()
    rule, used = node.plan.rule, [step.formula for step in node.plan.steps]
    filed = _filed(rule.name)
    replaced = [formula for formula in used if formula.function not in filed]
    if replaced:
        kind = "replaced, wraps default" if any(formula.wraps for formula in replaced) else "replaced"
    else:
        kind = "shipped" if all(formula.location.startswith(_SHIPPED) for formula in used) else "registered"
    return kind, rule.location


def _filed(name: str) -> list[Any]:
    """The formulas that are registered for an op, in place too."""
    rule = RULES.get(name)
    rules = () if rule is None else (rule, rule.in_place_rule)
    return [formula.function for filed in rules if filed is not None for formula in filed.formulas]


def _name(op: str | Callable[..., Any]) -> str:
    if isinstance(op, str):
        return op
    spelling = find(op)
    return op_name(op) if spelling is None else spelling.rule.name


def _same(name: str, op: str) -> bool:
    """Whether a node's ``op`` is the op ``name``, or an overload of it."""
    return op == name or op.startswith(f"{name}.")
