"""What a picture of a graph shows: boxes, arrows between them, and the modules that they stand in.

A graph of a few calls is drawn call by call. A larger one is drawn in less detail: in the most of those below that makes few enough boxes
and arrows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ops_registry.sites import Site, short_line
from tracer.reports.blocks import Part, Tree, fold
from tracer.reports.recorded import Recorded, RecordedCall, RecordedCut

#: A picture of more boxes or arrows is hardly read any more; Mermaid refuses one of more than 500 arrows.
MOST_BOXES, MOST_ARROWS = 100, 250

#: So many leaves, and so many cuts, are drawn one by one.
FEW = 20


@dataclass
class Box:
    """One box of a picture: a call or several, a whole module, a leaf or several, or a cut."""

    #: ``call``, ``module``, ``leaf`` or ``cut``.
    kind: str
    name: str
    #: The module in which it is drawn.
    part: Part = field(repr=False)
    #: The calls that it stands for.
    ops: Counter[str] = field(default_factory=Counter)
    #: Shape of the result of the last of them.
    shape: tuple[int, ...] | None = None
    #: Of all of them, as are the parameters that they use.
    kept_bytes: int = 0
    parameters: int = 0
    #: ``file.py:12``, of the first of them.
    line: str | None = None
    #: Whether a gradient is zero here: the rule of a call says so, or ``.grad`` of a parameter or leaf is zero throughout.
    zero: bool = False

    @property
    def calls(self) -> int:
        """How many calls it stands for."""
        return sum(self.ops.values())


@dataclass(frozen=True)
class Drawing:
    """Boxes, and arrows between their positions, from an input to its use."""

    boxes: list[Box]
    arrows: list[tuple[int, int]]
    #: The modules in which boxes stand, each after the one that holds it; the whole graph first.
    parts: list[Part]
    #: What one box stands for, in words.
    detail: str

    def is_loop(self, start: int, end: int) -> bool:
        """Whether an arrow leads back, from one repetition to the next."""
        return start >= end and self.boxes[start].kind != "leaf"


#: By which the calls of a graph are put together in one box: those with the same key are one.
Key = Callable[[Tree, int, RecordedCall], Hashable]


def each_call(tree: Tree, position: int, call: RecordedCall) -> Hashable:
    """Each call is a box, once for all repetitions of a block."""
    return tree.shown_as[position]


def each_place(tree: Tree, position: int, call: RecordedCall) -> Hashable:
    """All calls of one op that one place in the code makes in one module are a box: a loop is drawn as one."""
    return tree.parts[position], call.op, None if call.site is None else call.site.instruction


@dataclass(frozen=True)
class Whole:
    """A module, or a list of modules, that is one box."""

    name: str
    #: The module that it stands in.
    holder: Part


def each_module(depth: int, lists: bool, tree: Tree, position: int, call: RecordedCall) -> Hashable:
    """All calls of a module ``depth`` levels down are a box, with those inside of it; those of a list of modules, where ``lists``."""
    part = tree.parts[position]
    if part.level < depth:
        return each_place(tree, position, call)
    part = part.at_level(depth)
    assert part.parent is not None
    return Whole((lists and part.list_name) or part.title, part.parent)


def each_op(tree: Tree, position: int, call: RecordedCall) -> Hashable:
    """All calls of one op are a box."""
    return call.op


def arrange(recorded: Recorded) -> Drawing:
    """The boxes and arrows of a graph."""
    for detail in _details(recorded):
        keys = [detail.key(detail.tree, position, call) for position, call in enumerate(recorded.calls)]
        arrows = {(keys[parent], keys[i]) for i, call in enumerate(recorded.calls) for parent in call.parents}
        if len(set(keys)) <= MOST_BOXES and len(arrows) <= MOST_ARROWS:
            break
    return _Arrangement(recorded, detail, keys).drawing()


@dataclass(frozen=True)
class _Detail:
    """How much of a graph is shown: the folded modules, the key of a box, and what a box is, in words."""

    words: str
    tree: Tree
    key: Key


def _details(recorded: Recorded) -> Iterator[_Detail]:
    """From the most to the least."""
    yield _Detail("a call", fold(recorded), each_call)
    tree = fold(recorded, smallest=1)
    yield _Detail("a call", tree, each_call)
    if recorded.sites:
        yield _Detail("all calls of an op at one place in the code", tree, each_place)
        for depth in range(max(part.level for part in tree.root), 0, -1):
            down = f"{depth} {'level' if depth == 1 else 'levels'} down"
            yield _Detail(f"a module {down}", tree, partial(each_module, depth, False))
            yield _Detail(f"a module, or a list of modules, {down}", tree, partial(each_module, depth, True))
    yield _Detail("all calls of an op", tree, each_op)


class _Arrangement:
    """Fills boxes and arrows, call by call."""

    def __init__(self, recorded: Recorded, detail: _Detail, keys: list[Hashable]) -> None:
        self._recorded = recorded
        self._detail = detail
        self._tree = detail.tree
        self._keys = keys
        self._boxes: dict[Hashable, Box] = {}
        self._places: dict[Hashable, int] = {}
        self._arrows: dict[tuple[int, int], None] = {}
        #: The parameters that some box has already.
        self._counted: set[int] = set()
        self._few_leaves = sum(leaf.parameter is False for leaf in recorded.leaves) <= FEW
        self._few_cuts = len(recorded.cuts) <= FEW

    def drawing(self) -> Drawing:
        for position in range(len(self._recorded.calls)):
            self._add_call(position)
        for cut in self._recorded.cuts:
            self._add_cut(cut)
        self._name_lone_boxes()
        return Drawing(list(self._boxes.values()), list(self._arrows), self._drawn_parts(), self._detail.words)

    def _name_lone_boxes(self) -> None:
        """A module that is one box is named in it, and has no frame of its own."""
        frames = Counter(box.part for box in self._boxes.values())
        for box in self._boxes.values():
            part = box.part
            if box.kind == "call" and frames[part] == 1 and not part.children and part.parent and len(part.names) == 1:
                box.name = f"{part.name}: {box.name}"
                box.part = part.parent

    def _drawn_parts(self) -> list[Part]:
        drawn = {self._tree.root}
        for box in self._boxes.values():
            part: Part | None = box.part
            while part is not None and part not in drawn:
                drawn.add(part)
                part = part.parent
        return [part for part in self._tree.root if part in drawn]

    def _box(self, key: Hashable, kind: str, name: str, part: Part) -> Box:
        box = self._boxes.get(key)
        if box is None:
            box = self._boxes[key] = Box(kind, name, part)
            self._places[key] = len(self._places)
        return box

    def _add_arrow(self, start: Hashable, end: Hashable) -> None:
        self._arrows[self._places[start], self._places[end]] = None

    def _add_call(self, position: int) -> None:
        call, key = self._recorded.calls[position], self._keys[position]
        if isinstance(key, Whole):
            box = self._box(key, "module", key.name, key.holder)
        else:
            box = self._box(
                key, "call", call.op, self._tree.root if isinstance(key, str) else self._tree.parts[position]
            )
        box.ops[call.op] += 1
        box.kept_bytes += call.kept_bytes
        box.shape = call.shape
        box.zero = box.zero or call.zero
        if box.line is None:
            box.line = _line(call.site)
        for parent in call.parents:
            if self._keys[parent] != key or not isinstance(key, Whole):  # what goes on inside of a module is not drawn
                self._add_arrow(self._keys[parent], key)
        for leaf in call.leaves:
            self._add_leaf(leaf, box, key)

    def _add_leaf(self, position: int, used_by: Box, key: Hashable) -> None:
        """A parameter, or what may have been one, belongs to the box that uses it first. Another leaf has its own, where there are few."""
        leaf = self._recorded.leaves[position]
        if leaf.parameter is not False:
            if position not in self._counted:
                self._counted.add(position)
                used_by.parameters += leaf.elements
                used_by.zero = used_by.zero or leaf.zero_grad
            return
        leaf_key = ("leaf", position if self._few_leaves else key)
        box = self._box(leaf_key, "leaf", "leaf", self._tree.root)
        box.shape = leaf.shape
        box.zero = box.zero or leaf.zero_grad
        self._add_arrow(leaf_key, key)

    def _add_cut(self, cut: RecordedCut) -> None:
        """A cut is drawn at the calls whose history ended. Where these are gone, it says what they were."""
        key = ("cut", cut.what, cut.site.instruction if self._few_cuts else None)
        if not cut.calls and not cut.gone:
            return  # it was a leaf's
        name = cut.what if cut.calls else f"{cut.what} of {', '.join(cut.gone[:3])}"
        self._box(key, "cut", name, self._tree.part_of(cut.site.module)).line = _line(cut.site)
        for call in cut.calls:
            self._add_arrow(self._keys[call], key)


def _line(site: Site | None) -> str | None:
    return None if site is None or site.line is None else short_line(site.line)
