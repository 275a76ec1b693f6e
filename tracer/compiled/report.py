"""``step.explain()``: the graphs of a compiled step, what they cost, how often they ran, and why each was captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracer.compiled.graphs import StepGraph


class CompiledStepReport:
    """The graphs of a compiled step. ``str()`` is plain text; ``rows`` and ``to_dict()`` are for programs."""

    def __init__(self, name: str, backend: str, graphs: Sequence[StepGraph], let_go: int) -> None:
        self.name = name
        self.backend = backend
        #: How many graphs there were before, which were let go since there were too many.
        self.let_go = let_go
        #: One a graph, in the order of their capture.
        self.rows: list[dict[str, Any]] = [
            {
                "graph": number,
                "calls": graph.calls,
                "nodes": len(graph.captured.graph.graph.nodes),
                "capture_seconds": graph.capture_seconds,
                "build_seconds": graph.build_seconds,
                "key": dict(graph.key),
                "differed": list(graph.differed),
                "symbolic": graph.conditions is not None,
                "conditions": [] if graph.conditions is None else graph.conditions.told,
                "fixed_since": graph.fixed_since,
            }
            for number, graph in enumerate(graphs)
        ]

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain containers."""
        return {"step": self.name, "backend": self.backend, "graphs": self.rows, "let_go": self.let_go}

    def __str__(self) -> str:
        lines = [f"{self.name}, backend {self.backend}: {len(self.rows)} graph{'s' * (len(self.rows) != 1)}"]
        if self.let_go:
            lines.append(f"  {self.let_go} graphs that were captured before were let go, since there were too many")
        for row in self.rows:
            lines.append(
                f"  graph {row['graph']}: {row['nodes']} nodes, {row['calls']} calls, captured in {row['capture_seconds']:.2f} s, "
                f"built in {row['build_seconds']:.2f} s"
            )
            if row["differed"]:
                lines.append("    captured since these differed: " + "; ".join(row["differed"][:6]))
            if row["symbolic"]:
                lines.append("    symbolic sizes, where " + " and ".join(row["conditions"][:12]))
            if row["fixed_since"]:
                lines.append(f"    fixed sizes, since with symbolic ones: {row['fixed_since']}")
        return "\n".join(lines)

    __repr__ = __str__
