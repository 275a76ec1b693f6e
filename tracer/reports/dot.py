"""A drawing as DOT source, which the ``graphviz`` package writes, and drawn by the program ``dot``."""

from __future__ import annotations

from typing import Any

from tracer.errors import MissingPackageError
from tracer.reports.boxes import Drawing
from tracer.reports.style import COLOURS, look_of, sizes, text_of

#: Width and height in inches of a box that keeps most; a box is at least as large as its text.
WIDEST, HIGHEST = 4.0, 1.8


def write_dot(drawing: Drawing, title: str) -> Any:
    """The ``graphviz.Digraph`` of ``drawing``: modules are clusters, the area of a box grows with what it keeps.

    Raises ``MissingPackageError`` where ``graphviz`` is not installed.
    """
    try:
        import graphviz
    except ImportError as error:
        raise MissingPackageError(
            "a picture in DOT or SVG needs the package graphviz, which is not installed: `pip install glassgrad[pictures]`. "
            "Without it there is to_mermaid()."
        ) from error
    clusters = {part: graphviz.Digraph(f"cluster_{i}") for i, part in enumerate(drawing.parts)}
    root = clusters[drawing.parts[0]] = graphviz.Digraph("glassgrad")
    root.attr(label=_literal(title), labelloc="t", fontname="sans-serif", rankdir="TB")
    root.attr("node", shape="box", style="filled,rounded", fontname="sans-serif", fontsize="11")
    root.attr("edge", color="#606060", arrowsize="0.7")
    for i, (box, size) in enumerate(zip(drawing.boxes, sizes(drawing), strict=True)):
        colours = COLOURS[look_of(box)]
        clusters[box.part].node(
            f"b{i}",
            label=_literal(*text_of(box)),
            tooltip=_literal(box.line or box.name),
            fillcolor=colours.fill,
            color=colours.border,
            width=f"{size * WIDEST:.2f}",
            height=f"{size * HIGHEST:.2f}",
            **({"shape": "ellipse", "style": "filled"} if box.kind == "leaf" else {}),
        )
    for part in reversed(drawing.parts[1:]):  # what is inside first: a cluster is copied into the one that holds it
        assert part.parent is not None
        cluster = clusters[part]
        cluster.attr(label=_literal(part.title), color="#9aa7b8", style="rounded", fontname="sans-serif", fontsize="12")
        clusters[part.parent].subgraph(cluster)
    for start, end in drawing.arrows:
        loops = {"style": "dashed", "constraint": "false"} if drawing.is_loop(start, end) else {}
        root.edge(f"b{start}", f"b{end}", **loops)
    return root


def _literal(*lines: str) -> Any:
    """Text as it stands: DOT reads backslashes and what begins with ``<`` otherwise."""
    import graphviz

    return graphviz.nohtml("\\n".join(line.replace("\\", "\\\\") for line in lines))


def render(source: Any, form: str) -> bytes:
    """The picture of a ``graphviz.Digraph``, as ``svg``, ``png`` or ``pdf``.

    Raises ``MissingPackageError`` where the program ``dot`` is not installed.
    """
    import graphviz

    try:
        picture: bytes = source.pipe(format=form)
    except graphviz.ExecutableNotFound as error:
        raise MissingPackageError(
            f"a picture in {form.upper()} is drawn by the program dot of Graphviz, which is not installed (`apt-get install graphviz`, "
            f"`brew install graphviz`, or its installer). Without it there are source and to_mermaid()."
        ) from error
    return picture
