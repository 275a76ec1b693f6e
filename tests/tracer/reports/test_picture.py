"""``draw``: a picture of a graph, in DOT and Mermaid on any machine, in SVG where Graphviz is installed."""

from __future__ import annotations

import builtins
import importlib.util
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import language_graph

import nn
import tracer
from tracer.reports.boxes import MOST_ARROWS, MOST_BOXES
from tracer.reports.picture import BoxRow, Picture

needs_graphviz = pytest.mark.skipif(
    importlib.util.find_spec("graphviz") is None,
    reason="the package graphviz is not installed",
)
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz is not installed")


def box(picture: Picture, name: str) -> BoxRow:
    found = [row for row in picture.rows if row.name == name]
    assert len(found) == 1, [row.name for row in picture.rows]
    return found[0]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package one that is not installed."""

    def hide(package: str) -> None:
        real = builtins.__import__

        def imported(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.partition(".")[0] == package:
                raise ImportError(f"No module named {package!r}", name=package)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", imported)

    return hide


# ---------------------------------------------------------------------- boxes
def test_repeated_blocks_are_drawn_once() -> None:
    graph, loss = language_graph(*[False] * 12)
    picture = tracer.draw(graph)
    assert box(picture, "mlp.1: gelu").calls == 12
    assert "layers.0 .. layers.11: 12 times" in picture.to_mermaid()
    assert len(picture.rows) < 40 < len(graph)
    del loss


def test_the_boxes_keep_what_the_graph_keeps() -> None:
    graph, loss = language_graph(False, True, False)
    assert sum(row.kept_bytes for row in tracer.draw(graph).rows) == graph.kept_bytes() > 0
    del loss


def test_every_call_is_in_a_box_and_every_input_is_an_arrow() -> None:
    x = tracer.tensor(torch.ones(3), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = x.exp()
        z = (y * y + y.sin()).sum()
    picture = tracer.draw(graph)
    assert [row.name for row in picture.rows] == ["exp", "leaf", "mul", "sin", "add", "sum"]
    arrows = re.findall(r"^b(\d+) --> b(\d+)$", picture.to_mermaid(), re.M)
    assert {(int(a), int(b)) for a, b in arrows} == {(1, 0), (0, 2), (0, 3), (2, 4), (3, 4), (4, 5)}
    del z


def test_a_cut_is_drawn_at_the_call_whose_history_ends() -> None:
    x = tracer.tensor(torch.ones(3), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = x.exp()
        z = y.detach() * x
    picture = tracer.draw(graph)
    cut = box(picture, "detach")
    assert cut.kind == "cut" and cut.line is not None and cut.line.startswith("test_picture.py:")
    names = [row.name for row in picture.rows]
    text = picture.to_mermaid()
    assert f"b{names.index('exp')} --> b{names.index('detach')}" in text
    assert re.search(rf"^b{names.index('detach')}\(.*\):::box_cut$", text, re.M) and "detach at test_picture.py" in str(
        picture
    )
    del y, z


def test_a_cut_whose_call_is_gone_is_drawn_by_itself() -> None:
    x = tracer.tensor(torch.ones(3), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        z = x.exp().detach() * x.detach() * x
    picture = tracer.draw(graph)
    cuts = [row for row in picture.rows if row.kind == "cut"]
    assert [row.name for row in cuts] == ["detach of exp"]  # that of the leaf costs the calls nothing
    assert cuts[0].line in str(picture) and "detach of exp" in picture.to_mermaid()
    del z


@pytest.mark.parametrize("kind", ["rule", "grad"])
def test_a_zero_gradient_is_marked(kind: str) -> None:
    layer = nn.track(torch.nn.Linear(3, 3))
    with tracer.Graph(sites=True) as graph:
        y = layer(torch.ones(1, 3)).sum()
        if kind == "rule":
            y = y.round()
    if kind == "grad":
        (y * 0).backward(retain_graph=True)
    picture = tracer.draw(graph)
    assert {row.name for row in picture.rows if row.zero} == {"round" if kind == "rule" else "linear"}
    assert ":::box_zero" in picture.to_mermaid() and "Amber" in str(picture)


def test_a_loop_over_one_module_is_one_block() -> None:
    cell = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
    with tracer.Graph(sites=True) as graph:
        h = torch.zeros(1, 4)
        for _ in range(2 * MOST_BOXES):
            h = cell(h)
    picture = tracer.draw(graph)
    assert {row.name: row.calls for row in picture.rows} == {"0: linear": 2 * MOST_BOXES, "1: tanh": 2 * MOST_BOXES}
    assert "place in the code" in str(picture)
    del h


def test_a_large_model_without_repetition_is_drawn_by_module() -> None:
    model = torch.nn.Sequential()
    for i in range(60):
        part = torch.nn.Sequential(torch.nn.Linear(i + 1, i + 2), torch.nn.Tanh(), torch.nn.Softmax(-1))
        model.add_module(f"part{i}", part)
    nn.track(model)
    with tracer.Graph(sites=True) as graph:
        y = model(torch.ones(2, 1))
    picture = tracer.draw(graph)
    assert [row.name for row in picture.rows] == [f"part{i}" for i in range(60)]
    assert {row.kind for row in picture.rows} == {"module"} and "1 level down" in str(picture)
    del y


def test_what_has_too_many_arrows_is_drawn_in_less_detail() -> None:
    class Dense(torch.nn.Module):
        """Each layer takes the results of all before it."""

        def __init__(self, layers: int) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(i + 1, 1) for i in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = [x]
            for layer in self.layers:
                found.append(layer(torch.cat(found, -1)))
            return torch.cat(found, -1)

    model = nn.track(torch.nn.Sequential(OrderedDict(dense=Dense(35))))
    with tracer.Graph(sites=True) as graph:
        y = model(torch.ones(2, 1))
    assert len(graph) < MOST_BOXES < MOST_ARROWS < sum(len(call.parents) for call in graph.calls())
    picture = tracer.draw(graph)
    assert picture.to_mermaid().count("-->") <= MOST_ARROWS and "A box is a call." not in str(picture)
    del y


def test_a_large_graph_without_sites_is_drawn_by_op() -> None:
    y = x = tracer.tensor(torch.ones(1), requires_grad=True)
    with tracer.Graph() as graph:
        for _ in range(MOST_BOXES):
            y = y.exp().log()
    picture = tracer.draw(graph)
    assert {row.name: row.calls for row in picture.rows if row.kind == "call"} == {"exp": MOST_BOXES, "log": MOST_BOXES}
    assert "tracer.Graph(sites=True)" in str(picture)
    del x


def test_what_a_frozen_world_of_calls_was_is_drawn_from_its_notes() -> None:
    graph, loss = language_graph(False)
    alive = [row.name for row in tracer.draw(graph).rows]
    del loss
    picture = tracer.draw(graph)
    assert [row.name for row in picture.rows] == alive and "all of them gone" in str(picture)


# ---------------------------------------------------------------------- Mermaid
def test_mermaid_text_needs_no_package(without: Callable[[str], None]) -> None:
    graph, loss = language_graph(False, False)
    without("graphviz")
    picture = tracer.draw(graph)
    text = picture.to_mermaid()
    assert text.count("subgraph ") == text.count("\nend") and "flowchart TD" in text
    assert picture._repr_svg_() is None and picture._repr_mimebundle_() == {"text/vnd.mermaid": text}
    assert "<svg" not in picture.to_html() and "flowchart TD" in picture.to_html()
    del loss


def test_mermaid_text_has_no_word_of_mermaid_for_a_name() -> None:
    x = tracer.tensor(torch.ones(3), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = x.exp()
        z = y.detach() + y.round()
    bare = re.sub(r'"[^"]*"', "", tracer.draw(graph).to_mermaid())
    names = set(re.findall(r"(?::::|classDef |^)(\w+)", bare, re.M)) - {"title", "flowchart", "classDef", "style"}
    assert names >= {"b0", "box_call", "box_leaf", "box_cut", "box_zero"} and all(n.startswith("b") for n in names)
    del z


def test_mermaid_reads_nothing_in_a_name() -> None:
    model = torch.nn.Sequential()
    model.add_module('a"b<br/>#', torch.nn.Tanh())
    nn.track(model)
    x = tracer.tensor(torch.ones(1), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = model(x)
    assert 'b0("a#quot;b#lt;br/#gt;#35;: tanh<br/>' in tracer.draw(graph).to_mermaid()
    del y


# ---------------------------------------------------------------------- DOT and SVG
def test_dot_without_its_package_says_what_to_install(without: Callable[[str], None]) -> None:
    picture = tracer.draw(tracer.Graph())
    without("graphviz")
    with pytest.raises(tracer.MissingPackageError, match=r"pip install glassgrad\[pictures\]"):
        _ = picture.source
    with pytest.raises(tracer.MissingPackageError, match="to_mermaid"):
        picture.to_svg()


@needs_graphviz
def test_svg_without_the_program_dot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    picture = tracer.draw(tracer.Graph())
    assert "digraph" in picture.source
    with pytest.raises(tracer.MissingPackageError, match="apt-get install graphviz"):
        picture.to_svg()
    assert picture._repr_svg_() is None and "text/vnd.mermaid" in picture._repr_mimebundle_()


@needs_graphviz
def test_dot_source_has_modules_as_clusters_and_bytes_as_size() -> None:
    graph, loss = language_graph(False, False)
    picture = tracer.draw(graph)
    source = picture.source
    assert 'label="layers.0 .. layers.1: 2 times"' in source and source.count("subgraph cluster_") == 2
    widths = [float(found) for found in re.findall(r"\bwidth=([\d.]+)", source)]
    kept = [row.kept_bytes for row in picture.rows]
    by_box = dict(zip(re.findall(r"^\s*b(\d+) \[", source, re.M), widths, strict=True))
    order = sorted(range(len(kept)), key=lambda i: kept[i])
    assert [by_box[str(i)] for i in order] == sorted(widths) and max(widths) > 2 * min(widths)
    del loss


@needs_graphviz
@needs_dot
def test_svg_has_a_group_for_every_box_and_arrow() -> None:
    graph, loss = language_graph(False, True)
    picture = tracer.draw(graph)
    svg = picture.to_svg()
    tree = ElementTree.fromstring(svg)
    groups = [element.get("class") for element in tree.iter("{http://www.w3.org/2000/svg}g")]
    assert groups.count("node") == len(picture.rows)
    assert groups.count("edge") == picture.source.count("->")
    assert picture._repr_svg_() == svg and picture._repr_mimebundle_() == {}
    del loss


@needs_graphviz
@needs_dot
def test_names_stand_in_the_svg_as_they_are() -> None:
    model = torch.nn.Sequential()
    model.add_module('<a> & "b" \\n', torch.nn.Tanh())
    nn.track(model)
    x = tracer.tensor(torch.ones(1), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        y = model(x)
    texts = [element.text for element in ElementTree.fromstring(tracer.draw(graph).to_svg()).iter() if element.text]
    assert '<a> & "b" \\n: tanh' in texts
    del y


@needs_graphviz
@needs_dot
@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.svg", b"<svg"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.gv", b"digraph"), ("a.DOT", b"digraph"),
     ("a.mmd", b"---\ntitle"), ("a.html", b"<!DOCTYPE html>")],
)  # fmt: skip
def test_save_writes_what_the_ending_asks_for(tmp_path: Path, name: str, begins: bytes) -> None:
    graph, loss = language_graph(False)
    tracer.draw(graph).save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    del loss


def test_save_refuses_another_ending(tmp_path: Path) -> None:
    with pytest.raises(tracer.ReportError, match=r"a\.docx.*\.svg"):
        tracer.draw(tracer.Graph()).save(tmp_path / "a.docx")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- what is loaded
def test_pictures_load_no_optional_package_before_they_need_it() -> None:
    code = (
        "import sys, tracer; g = tracer.Graph(); str(tracer.draw(g)), str(tracer.explain(g)), tracer.draw(g).to_mermaid();"
        "print([m for m in ('graphviz', 'rich') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
