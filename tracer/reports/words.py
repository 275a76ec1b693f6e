"""What reports say in the same words."""

from __future__ import annotations

from collections.abc import Mapping

#: What reports say that would know more.
SITES_OFF = (
    "This graph does not know where its calls were made. `with tracer.Graph(sites=True) as graph:` around the forward pass notes the "
    "module and the line of each."
)

#: What is said of a graph that ``backward`` has gone through.
RELEASED = "Backward has been here and has let go of what it used. Ask before it, or retain the graph (retain_graph=True), to see it all."

#: So many ops are named; the others are counted.
NAMED_OPS = 4


def told_bytes(count: int) -> str:
    """``312 B``, ``1.5 KiB``, ``96.0 MiB``."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:,.1f} {unit}"


def told_ops(ops: Mapping[str, int], times: int = 1) -> str:
    """``linear 4, add 2, gelu``, most frequent first, each count divided by ``times``."""
    by_count = sorted(ops.items(), key=lambda item: -item[1])
    told = [op if count == times else f"{op} {count // times}" for op, count in by_count]
    if len(told) > NAMED_OPS + 1:
        others = len(told) - NAMED_OPS
        told = [*told[:NAMED_OPS], f"{others} other ops"]
    return ", ".join(told)
