"""The house: imports only go down, in no circle; no name hides a module; what is long is split; one file changes torch.

``docs/architecture.md`` tells the floors and the rooms; this test holds them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.source import (
    PACKAGES,
    ROOT,
    Module,
    circles,
    functions,
    imports,
    modules_in,
    torch_assignments,
)

#: What a package never imports.
ABOVE = {"ops_registry": ("tracer", "nn"), "tracer": ("nn",)}

#: The floors of each package, upper ones first. A file imports what stands on a lower floor, or in its own room.
FLOORS = {
    "tracer": (
        ("__main__",),
        ("commands",),
        ("__init__",),
        ("checks",),
        ("reports",),
        ("compiled",),
        ("install",),
        ("func",),
        ("backprop",),
        ("functions",),
        ("recording",),
        ("anomaly",),
        ("graph",),
        ("tracked_tensor", "naming"),
        ("notes", "earlier_uses"),
        ("node", "errors", "importing", "changes"),
        ("asking",),
    ),
    "ops_registry": (
        ("catalogue",),
        ("__init__",),
        ("packs",),
        ("kinks",),
        ("rules",),
        ("scopes", "declare"),
        ("registry", "unused"),
        ("binding", "composed", "matching"),
        ("rule", "spellings"),
        ("formula", "sites"),
        ("projection",),
        ("signatures", "shared", "strided"),
        ("errors", "torch_private"),
    ),
}

#: The two functions that may be long and deep: each is an inlined copy of the general lane below it, for speed.
FAST_LANES = {
    "tracer/recording/intercept.py": "intercept",
    "tracer/backprop/sweep.py": "Sweep._visit",
}

LONGEST_FILE, LONGEST_FUNCTION, DEEPEST_NESTING = 500, 60, 5

#: The one file that changes torch.
INSTALL = "tracer/install.py"
#: The one file that imports what torch keeps private.
PRIVATE = "ops_registry/torch_private.py"

HOUSE = modules_in(ROOT, *PACKAGES)
BENCHMARKS = modules_in(ROOT / "benchmarks", ".")
EXAMPLES = modules_in(ROOT / "examples", ".")
TESTS = modules_in(ROOT / "tests", ".")


def all_of(*groups: Mapping[str, Module]) -> Iterator[Module]:
    for group in groups:
        yield from group.values()


def run_python(code: str) -> str:
    """What a fresh interpreter prints in the root of the repository."""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def room_of(name: str) -> tuple[str, str]:
    """Package and room of a module: its folder in the package, or itself."""
    package, _, rest = name.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def floor_of(name: str) -> int | None:
    package, room = room_of(name)
    return next((i for i, rooms in enumerate(FLOORS[package]) if room in rooms), None)


# ---------------------------------------------------------------------- imports
@pytest.mark.parametrize("package", ABOVE)
def test_a_package_imports_nothing_of_those_above_it(package: str) -> None:
    found = [
        f"{module}:{i.line} imports {i.origin}"
        for name, module in HOUSE.items()
        if name.partition(".")[0] == package
        for i in imports(module)
        if i.origin.partition(".")[0] in ABOVE[package]
    ]
    assert not found, f"{package} never knows {' or '.join(ABOVE[package])}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "group", [HOUSE, BENCHMARKS, EXAMPLES, TESTS], ids=["packages", "benchmarks", "examples", "tests"]
)
def test_no_files_import_one_another_in_a_circle(group: dict[str, Module]) -> None:
    found = circles(group)
    assert not found, "give what they share a file of its own:\n" + "\n".join(found)


@pytest.mark.parametrize("package", FLOORS)
def test_every_file_stands_on_a_floor(package: str) -> None:
    homeless = [f"{m}" for name, m in HOUSE.items() if room_of(name)[0] == package and floor_of(name) is None]
    assert not homeless, (
        f"{', '.join(homeless)}: in no room. Move it into the folder whose subject it belongs to, or name it in FLOORS "
        f"of this test, below all that import it and above all that it imports. Then give it its line in "
        f"docs/architecture.md."
    )


@pytest.mark.parametrize("package", FLOORS)
def test_imports_go_down_the_floors_of_a_package(package: str) -> None:
    found = []
    for name, module in HOUSE.items():
        for i in imports(module) if room_of(name)[0] == package else ():
            target = i.module(HOUSE)
            if target is None or room_of(target)[0] != package or room_of(target) == room_of(name):
                continue
            here, there = floor_of(name), floor_of(target)
            if here is not None and there is not None and there <= here:
                found.append(
                    f"{module}:{i.line} imports {target}, and {room_of(target)[1]} is not below {room_of(name)[1]}"
                )
    assert not found, "\n".join(found)


def test_no_name_hides_a_module() -> None:
    """``import a.b.c as m`` gives the module: no function or class of a package has the name of one of its modules."""
    names = sorted(HOUSE)
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
for name in {names}:
    for public in getattr(sys.modules[name], "__all__", ()):
        getattr(sys.modules[name], public)  # what is loaded lazily may hide one too
for name in {names}:
    namespace = {{}}
    try:
        exec(f"import {{name}} as module", namespace)
        found = namespace["module"]
    except ImportError as error:
        found = error
    if found is not sys.modules[name]:
        print(f"import {{name}} gives {{found!r}}")
"""
    found = run_python(code)
    assert not found, f"a name hides its module:\n{found}"


def test_importing_tracer_loads_no_checking_code() -> None:
    code = "import sys, tracer; print([name for name in sys.modules if name.startswith('tracer.checks')])"
    assert run_python(code).strip() == "[]"


# ---------------------------------------------------------------------- sizes
def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {m: len(m.path.read_text().splitlines()) for m in all_of(HOUSE, BENCHMARKS, EXAMPLES, TESTS)}
    found = [f"{module}: {lines} lines" for module, lines in lengths.items() if lines > LONGEST_FILE]
    assert not found, "two subjects make two files:\n" + "\n".join(found)


def test_no_function_but_the_fast_lanes_is_long_or_deep() -> None:
    found = [
        f"{module}:{f.line} {f.name}: {f.lines} lines, {f.depth} deep"
        for module in all_of(HOUSE, BENCHMARKS, EXAMPLES)
        for f in functions(module)
        if (f.lines > LONGEST_FUNCTION or f.depth > DEEPEST_NESTING) and FAST_LANES.get(str(module)) != f.name
    ]
    assert not found, f"at most {LONGEST_FUNCTION} lines and {DEEPEST_NESTING} blocks deep:\n" + "\n".join(found)


def test_no_function_but_the_fast_lanes_is_excepted_from_the_linters_complexity() -> None:
    found = {
        f"{module}:{number} {line.strip()}"
        for module in all_of(HOUSE, BENCHMARKS, EXAMPLES)
        for number, line in enumerate(module.path.read_text().splitlines(), 1)
        if re.search(r"# noqa:.*(C901|PLR09)", line)
        and f"def {FAST_LANES.get(str(module), '').rpartition('.')[2]}(" not in line
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("path", FAST_LANES)
def test_the_fast_lanes_are_where_they_are_said_to_be(path: str) -> None:
    assert FAST_LANES[path] in {f.name for f in functions(Module("", ROOT / path))}


# ---------------------------------------------------------------------- docstrings
def test_every_public_method_says_what_it_does() -> None:
    """An override has the docstring of what it overrides. Functions and classes are ruff's to check."""
    code = f"""
import importlib, inspect
for name in {sorted(HOUSE)}:
    module = importlib.import_module(name)
    for cls in vars(module).values():
        if not inspect.isclass(cls) or cls.__module__ != name or cls.__name__.startswith("_"):
            continue
        for method, value in vars(cls).items():
            called = inspect.isroutine(value) or isinstance(value, property)
            if called and not method.startswith("_") and not inspect.getdoc(getattr(cls, method)):
                print(f"{{name}}.{{cls.__qualname__}}.{{method}}")
"""
    found = run_python(code)
    assert not found, f"no docstring, their own or an inherited one:\n{found}"


# ---------------------------------------------------------------------- torch
def test_torch_is_changed_in_one_file_only() -> None:
    found = [
        f"{module}:{line} {text}"
        for module in HOUSE.values()
        if str(module) != INSTALL
        for line, text in torch_assignments(module)
    ]
    assert not found, f"what glassgrad changes in torch stands in {INSTALL}, each with its reason:\n" + "\n".join(found)


def test_private_modules_of_torch_are_imported_in_one_file_only() -> None:
    found = [
        f"{module}:{i.line} {i.origin}.{i.name}"
        for module in HOUSE.values()
        if str(module) != PRIVATE
        for i in imports(module)
        if i.origin.split(".")[0] == "torch" and re.search(r"\._(?!_)", f"{i.origin}.{i.name or ''}")
    ]
    assert not found, f"private names of torch stand in {PRIVATE}, each with its reason:\n" + "\n".join(found)


# ---------------------------------------------------------------------- the page
def test_the_page_names_every_file_and_no_other() -> None:
    """Of the rules, and what they share, there are too many: one of them is found by its topic."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+\.py)`", page))
    there = {str(m) for n, m in HOUSE.items() if not n.startswith(("ops_registry.rules.", "ops_registry.shared."))}
    there = {path for path in there if not path.endswith(("__init__.py", "__main__.py"))}
    assert not there - named, f"docs/architecture.md does not tell what is in {', '.join(sorted(there - named))}"
    gone = {path for path in named if not (ROOT / path).exists()}
    assert not gone, f"docs/architecture.md tells of what is not there: {', '.join(sorted(gone))}"


# ---------------------------------------------------------------------- the reader of this test
def written(folder: Path, **texts: str) -> dict[str, Module]:
    """Modules with these texts; ``a__b`` is ``a/b.py``."""
    for name, text in texts.items():
        path = folder / (name.replace("__", "/", 1) + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return modules_in(folder, ".")


@pytest.mark.parametrize(
    "text",
    [
        "import p.b",
        "import p.b as other",
        "from p import b",
        "from p.b import thing",
        "from . import b",
        "from .b import thing",
        "def f():\n    from p import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import thing",
        "import importlib\nimportlib.import_module('p.b')",
        "from importlib import import_module\nm = import_module('p.b')",
    ],
)
def test_every_form_of_import_is_read(tmp_path: Path, text: str) -> None:
    modules = written(tmp_path, p____init__="", p__a=text, p__b="import p.a")
    assert "p.b" in [i.module(modules) for i in imports(modules["p.a"])]
    (circle,) = circles(modules)
    assert "a.py" in circle and "b.py" in circle


def test_importing_a_neighbour_is_not_importing_the_package(tmp_path: Path) -> None:
    modules = written(tmp_path, p____init__="from p.a import f", p__a="from p import b", p__b="f = 1")
    assert circles(modules) == []
    modules = written(tmp_path, p__b="from p import f")
    assert len(circles(modules)) == 1


def test_lines_and_depth_are_counted(tmp_path: Path) -> None:
    text = '''
class C:
    def f(self):
        """A docstring
        of two lines."""
        if a:
            for b in c:
                pass
        elif d:
            pass
        elif e:
            try:
                pass
            except E:
                with g:
                    h()

        def inner():
            while True:
                pass
'''
    (module,) = written(tmp_path, m=text).values()
    found = {f.name: (f.lines, f.depth) for f in functions(module)}
    assert found == {"C.f": (16, 3), "C.f.inner": (3, 1)}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.add = 1",
        "import torch.nn as n\nn.Module.f = 1",
        "from torch import Tensor\nTensor.f = Tensor.g = 1",
        "from ops_registry.torch_private import ScriptFunction as S\nS.__call__ = 1",
        "import torch\ndef f():\n    setattr(torch.Tensor, 'f', 1)",
        "import torch\na, torch.add = 1, 2",
        "import torch\ndel torch.Tensor.f",
        "from ops_registry import torch_private\ntorch_private.NestedTensor.f = 1",
    ],
)
def test_assignments_to_torch_are_seen(tmp_path: Path, text: str) -> None:
    (module,) = written(tmp_path, m=text).values()
    assert len(list(torch_assignments(module))) >= 1


def test_other_assignments_are_nobodys_business(tmp_path: Path) -> None:
    (module,) = written(tmp_path, m="import torch, tracer\nx = torch.add\nx.f = 1\ntracer.f = 1\ntorch = 2").values()
    assert list(torch_assignments(module)) == []
