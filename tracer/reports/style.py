"""How the boxes of a picture look: their text, their colours, their size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracer.reports.boxes import Box, Drawing
from tracer.reports.words import told_bytes, told_ops


@dataclass(frozen=True)
class Colours:
    """Of a box."""

    fill: str
    border: str


COLOURS = {
    "call": Colours("#eef3fb", "#5b7db1"),
    "module": Colours("#dbe7f8", "#2f5597"),
    "leaf": Colours("#f3f3f3", "#7f7f7f"),
    "cut": Colours("#f8d0d0", "#b00020"),
    "zero": Colours("#ffe3a8", "#b36b00"),
}


def look_of(box: Box) -> str:
    """The key of a box's colours."""
    return "zero" if box.zero else box.kind


def text_of(box: Box) -> list[str]:
    """The lines that stand in a box."""
    times = box.part.times
    lines = [box.name]
    if box.kind == "call" and box.calls > times:
        lines[0] += f", {box.calls // times} times"
    if box.kind == "module":
        lines.append(told_ops(box.ops))
    if box.shape is not None:
        lines.append(f"{tuple(box.shape)}")
    if box.parameters:
        lines.append(f"{box.parameters:,} parameters")
    if box.kept_bytes:
        lines.append(f"keeps {told_bytes(box.kept_bytes)}")
    if box.zero:
        lines.append("zero gradient")
    if box.kind == "cut" and box.line is not None:
        lines.append(box.line)
    return lines


def sizes(drawing: Drawing) -> list[float]:
    """For each box from 0 to 1 how large it is: its area grows with the bytes that it keeps."""
    most = max((box.kept_bytes for box in drawing.boxes), default=0)
    return [math.sqrt(box.kept_bytes / most) if most else 0.0 for box in drawing.boxes]
