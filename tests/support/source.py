"""What source files say, read from their syntax trees: imports, lengths, nesting, changes to torch."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import rustworkx as rx

ROOT = Path(__file__).parents[2]
PACKAGES = ("ops_registry", "tracer", "nn")

#: Statements that hold a block of others.
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One file, under the name by which it is imported."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """The name of the package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), str(self.path))

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name


@dataclass(frozen=True)
class Import:
    """``import origin``, or ``from origin import name``, at a line of a file."""

    origin: str
    name: str | None
    line: int

    def module(self, modules: Mapping[str, Module]) -> str | None:
        """Which of ``modules`` it imports: the submodule where there is one, else ``origin``; None for a foreign one."""
        submodule = f"{self.origin}.{self.name}"
        return submodule if submodule in modules else self.origin if self.origin in modules else None


def modules_in(base: Path, *folders: str) -> dict[str, Module]:
    """Every Python file in ``folders`` of ``base``, where ``base`` is on the path of imports."""
    found = {}
    for path in sorted(p for folder in folders for p in (base / folder).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def imports(module: Module) -> Iterator[Import]:
    """Every import of a file, in any form and at any depth: in functions, under ``TYPE_CHECKING``, by a literal name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            for alias in node.names:
                yield Import(origin, alias.name, node.lineno)
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            literal = node.args[0] if node.args else None
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield Import(literal.value, None, node.lineno)


def _origin(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what a ``from`` import reads."""
    if not node.level:
        return node.module or ""
    parents = module.package.split(".")
    return ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def circles(modules: Mapping[str, Module]) -> list[str]:
    """One circle of imports for each group of files that import one another, written out."""
    graph: rx.PyDiGraph[str, int] = rx.PyDiGraph()
    places = {name: graph.add_node(name) for name in modules}
    for name, module in modules.items():
        for found in imports(module):
            target = found.module(modules)
            if target is not None:
                graph.add_edge(places[name], places[target], found.line)
    written = []
    for group in rx.strongly_connected_components(graph):
        if len(group) == 1 and not graph.has_edge(group[0], group[0]):
            continue
        within = graph.subgraph(group)
        steps = rx.digraph_find_cycle(within, min(within.node_indices()))
        shown = [f"{modules[within[a]]}:{within.get_edge_data(a, b)}" for a, b in steps]
        written.append(" -> ".join([*shown, shown[0].partition(":")[0]]) + f" ({len(group)} files in all)")
    return written


@dataclass(frozen=True)
class Function:
    """A function or method, by its name within its file."""

    name: str
    line: int
    lines: int
    depth: int


def functions(module: Module) -> Iterator[Function]:
    """Every function of a file, nested ones too."""
    yield from _functions(module.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield Function(prefix + child.name, child.lineno, _lines(child), _depth(child.body))
        named = isinstance(child, (*_FUNCTIONS, ast.ClassDef))
        yield from _functions(child, f"{prefix}{child.name}." if named else prefix)  # type: ignore[attr-defined]


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the line of ``def`` to the end, the docstring not counted."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def _depth(body: list[ast.stmt]) -> int:
    """How deeply compound statements are nested; functions within count for themselves, an ``elif`` as its ``if``."""
    return max((_depth_of(statement) for statement in body), default=0)


def _depth_of(statement: ast.stmt) -> int:
    if not isinstance(statement, _BLOCKS):
        return 0
    within = 0
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, [])
        elif_ = field == "orelse" and len(block) == 1 and isinstance(block[0], ast.If) and isinstance(statement, ast.If)
        if elif_ and block[0].col_offset == statement.col_offset:
            within = max(within, _depth_of(block[0]) - 1)
        else:
            within = max(within, _depth(block))
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        within = max(within, _depth(part.body))
    return within + 1


def torch_assignments(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of each change to an attribute or item of something imported from torch or ``torch_private``."""
    theirs = _torch_names(module.tree)
    for node in ast.walk(module.tree):
        if any(_root(changed) in theirs for changed in _changed(node)):
            yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]


def _changed(node: ast.AST) -> list[ast.expr]:
    """The things that a statement, or a call of ``setattr``, gives or takes an attribute or an item."""
    if isinstance(node, ast.Call):
        return node.args[:1] if _name_of(node.func) in ("setattr", "delattr") else []
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    flat = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    return [part.value for part in flat if isinstance(part, ast.Attribute | ast.Subscript)]


def _torch_names(tree: ast.Module) -> set[str]:
    """The names that a file binds to torch, its modules and what it imports from them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.partition(".")[0] for a in node.names if a.name.partition(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            if node.module.partition(".")[0] == "torch" or node.module == "ops_registry.torch_private":
                names |= {alias.asname or alias.name for alias in node.names}
            if node.module == "ops_registry":
                names |= {alias.asname or alias.name for alias in node.names if alias.name == "torch_private"}
    return names


def _root(expression: ast.expr) -> str:
    """The name that a chain of attributes and items starts from."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""
