"""By what the tables of a graph are grouped: op, rule, line or module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ops_registry.sites import Site, short_line
from tracer.errors import GradientArgumentError, NotNotedError
from tracer.node import CallNode, Node

#: The rows of calls outside of any submodule, and of those whose line or module nobody has noted.
TOP, UNKNOWN = "(no submodule)", "(unknown)"


def check_by(report: str, by: str, known: Sequence[str]) -> None:
    """Raise ``GradientArgumentError`` for a ``by`` that the report does not know."""
    if by not in known:
        raise GradientArgumentError(f"{report}(by={by!r}): it is one of {', '.join(map(repr, known))}")


def check_sites(report: str, by: str, nodes: Iterable[Node]) -> None:
    """Raise ``NotNotedError`` where lines or modules are asked for, and no call has noted any."""
    nodes = list(nodes)
    if by in ("line", "module") and nodes and all(node.place is None for node in nodes):
        raise NotNotedError(
            f"{report}(by={by!r}) needs to know where the calls were made, which nobody has noted: record the forward pass inside "
            f"`with tracer.Graph(sites=True) as graph:`"
        )


def group_of(node: Node, by: str) -> str:
    """The row that a call belongs to."""
    if by == "op":
        return node.op
    return rule_of(node) if by == "rule" else group_of_site(node.site, by)


def group_of_site(site: Site | None, by: str) -> str:
    """The row of a call that was made at ``site``; a line with its full path, for two files may have one name."""
    if site is None:
        return UNKNOWN
    return (site.module or TOP) if by == "module" else site.line or UNKNOWN


def rule_of(node: Node) -> str:
    """The op, and where the formulas are written that its gradients come from."""
    if not isinstance(node, CallNode):
        return f"{node.op}: its own backward"
    places = dict.fromkeys(short_line(step.formula.location) for step in node.plan.steps)
    return f"{node.op}: {', '.join(places)}"


def whole(amount: int) -> str:
    """``1,048,576``."""
    return f"{amount:,}"
