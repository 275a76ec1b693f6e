"""A drawing as Mermaid text, which GitHub, GitLab and JupyterLab draw without any package."""

from __future__ import annotations

import json

from tracer.reports.blocks import Part
from tracer.reports.boxes import Box, Drawing
from tracer.reports.style import COLOURS, look_of, sizes, text_of

#: Width in pixels of the border of the box that keeps most: Mermaid has no sizes of boxes.
WIDEST_BORDER = 8

#: Before the name of a class of boxes: ``call`` is a word of Mermaid's own.
PREFIX = "box_"


def write_mermaid(drawing: Drawing, title: str) -> str:
    """The flowchart of ``drawing``: modules are sub-graphs, the border of a box grows with what it keeps."""
    lines = ["---", f"title: {json.dumps(title)}", "---", "flowchart TD"]
    boxes: dict[Part, list[int]] = {part: [] for part in drawing.parts}
    for i, box in enumerate(drawing.boxes):
        boxes[box.part].append(i)
    open_parts = 0
    for number, part in enumerate(drawing.parts):
        lines += ["end"] * (open_parts - max(part.level - 1, 0))
        if part.level:
            lines.append(f"subgraph m{number}[{_quoted(part.title)}]")
        open_parts = part.level
        lines += [_box(i, drawing.boxes[i]) for i in boxes[part]]
    lines += ["end"] * open_parts
    lines += [f"b{start} {'-.->' if drawing.is_loop(start, end) else '-->'} b{end}" for start, end in drawing.arrows]
    lines += [f"classDef {PREFIX}{look} fill:{c.fill},stroke:{c.border},color:#000" for look, c in COLOURS.items()]
    lines += [
        f"style b{i} stroke-width:{1 + size * (WIDEST_BORDER - 1):.1f}px"
        for i, size in enumerate(sizes(drawing))
        if size
    ]
    return "\n".join(lines) + "\n"


def _box(number: int, box: Box) -> str:
    text = _quoted(*text_of(box))
    shape = f"([{text}])" if box.kind == "leaf" else f"({text})"
    return f"b{number}{shape}:::{PREFIX}{look_of(box)}"


def _quoted(*lines: str) -> str:
    """Text as it stands, in the quotes inside which Mermaid reads none of it."""
    escaped = [
        line.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;") for line in lines
    ]
    return f'"{"<br/>".join(escaped)}"'
