"""``python -m ops_registry.catalogue``: writes ``docs/ops.md``, the table of every op that has a rule; ``--check`` only compares.

All of it is read from the registry and from the formulas' source. The exit status of ``--check`` is 1 when the page differs.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ops_registry.catalogue.formula_calls import refuses, returns_none, without_rule
from ops_registry.formula import Formula
from ops_registry.registry import RULES, TABLE, list_rules
from ops_registry.rule import META, Rule
from ops_registry.signatures import base_name
from ops_registry.torch_private import C_NAMESPACES, TensorBase, schemas

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "ops.md"
FOLDER = "ops_registry/rules"

#: Where the functions of torch's C namespaces are found in public, one for each.
C_OWNERS = ("torch", "F", "torch.special", "torch.linalg", "torch.fft", "torch.sparse")

#: How operator methods are written.
SYMBOLS = {
    "__abs__": "abs()",
    "__add__": "+",
    "__invert__": "~",
    "__div__": "/",
    "__truediv__": "/",
    "__eq__": "==",
    "__ge__": ">=",
    "__gt__": ">",
    "__le__": "<=",
    "__lt__": "<",
    "__matmul__": "@",
    "__mul__": "*",
    "__ne__": "!=",
    "__neg__": "-x",
    "__pos__": "+x",
    "__pow__": "**",
    "__rpow__": "2 ** x",
    "__mod__": "%",
    "__rsub__": "2 - x",
    "__sub__": "-",
    "__and__": "&",
    "__or__": "|",
    "__xor__": "^",
    "__lshift__": "<<",
    "__rshift__": ">>",
    "__floordiv__": "//",
    "__getitem__": "x[i]",
    "__setitem__": "x[i] = y",
    "__iadd__": "+=",
    "__idiv__": "/=",
    "__itruediv__": "/=",
    "__imul__": "*=",
    "__ipow__": "**=",
    "__imod__": "%=",
    "__isub__": "-=",
    "__ifloordiv__": "//=",
    "__iand__": "&=",
    "__ior__": "|=",
    "__ixor__": "^=",
    "__ilshift__": "<<=",
    "__irshift__": ">>=",
}

HEAD = """\
# The ops

Written by `python -m ops_registry.catalogue` for torch {torch}; do not edit. `--check` says whether it is up to date.

{counts}

**Spelled**: what torch calls the op. `.name` is a method, `.name_` the in-place form, `F` is `torch.nn.functional`. Each op's
`torch.ops.aten` overloads fall under the same rule; they stand here where an op has no other name. An asterisk marks a function that is
shared by several overloads with a rule each: the arguments decide.

**Gradient of ← what is saved**: the inputs of each formula, and what stays from the forward call until backward if one of these inputs
wants a gradient. What is in *italics* costs no memory: shapes, numbers, flags. By-products of a forward of the rule's own are marked †.

**Second**: whether the formula can be differentiated again. Read from its source at the time of writing, nobody keeps a list: *yes*, each
torch function that the formula and its helpers name has a rule, so that a recorded backward pass is code like any other; *zero*, the
formula answers None; *but `f`*, it names `f`, which has no rule; *refused*, the formula raises `UnsupportedCallError` and nothing else;
*°*, it raises that for some calls. `tests/ops_registry/test_every_rule_is_checked.py` wants a case that compares second
derivatives for every rule.
"""


def all_rules() -> dict[str, Rule]:
    """Every rule, by name."""
    return dict(sorted(RULES.items()))


# ---------------------------------------------------------------- spellings


def spelled_as(rule: Rule, by_rule: dict[str, list[Callable[..., Any]]]) -> str:
    """All ways to write the op but its overloads, which stand there alone where there is no other."""
    own = {_written(f) for f in by_rule[rule.name]}
    shared = {f"{_written(f)}\\*" for f in by_rule[f"{rule.name.split('.')[0]} chosen"]}
    public = {name for name in own | shared if not name.startswith(("`aten.", "`.__"))}
    packets = {name for name in own if name.count(".") == 1}
    return " ".join(sorted(public or packets or own, key=_reading_order)) or f"`{rule.name}`"


def _reading_order(name: str) -> tuple[int, str]:
    """Functions, then methods, then what is written into, then operators."""
    word = name.strip("`*\\")
    if not word.strip(".").replace(".", "").replace("_", "").isalnum():
        return 3, word
    return (2 if word.endswith("_") else 1 if word.startswith(".") else 0), word


def spellings_by_rule() -> dict[str, list[Callable[..., Any]]]:
    """The functions filed under each rule's name; under ``"<name> chosen"`` those whose overloads have rules of that name."""
    found: dict[str, list[Callable[..., Any]]] = defaultdict(list)
    for function, spelling in TABLE.items():
        found[spelling.rule.name + (" chosen" if spelling.choose is not None else "")].append(function)
    return found


def _written(function: Any) -> str:
    """A function as code writes it."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        return f"`{function}`"
    if isinstance(function, torch._ops.OpOverload):
        return f"`{str(function).removesuffix('.default')}`"
    name = base_name(function)
    if name in SYMBOLS:
        return f"`{SYMBOLS[name]}`"
    owner = _owner(function)
    return f"`.{name}`" if owner == "Tensor" else f"`{owner}.{_public_name(owner, name)}`"


def _public_name(owner: str, name: str) -> str:
    """``inv`` for ``torch.linalg``'s ``linalg_inv``."""
    prefix = owner.removeprefix("torch.") + "_"
    return name.removeprefix(prefix)


def _owner(function: Any) -> str:
    name = base_name(function)
    if getattr(function, "__name__", "") == "__get__":
        return "Tensor"
    if any(getattr(kind, name, None) is function for kind in (torch.Tensor, TensorBase)):
        return "Tensor"
    if getattr(torch, name, None) is function:
        return "torch"
    for owner, namespace in zip(C_OWNERS, C_NAMESPACES, strict=True):
        if getattr(namespace, name, None) is function:
            return "torch._C._nn" if owner == "F" and not hasattr(torch.nn.functional, name) else owner
    if getattr(torch.nn.functional, name, None) is function:
        return "F"
    return str(function.__module__).removeprefix("ops_registry.rules.")


# ---------------------------------------------------------------- what is saved


def _may_be_tensor(rule: Rule) -> frozenset[str]:
    """The arguments of the op that some overload takes a tensor for."""
    packet = getattr(torch.ops.aten, rule.name.split(".")[0], None)
    if packet is None:
        return frozenset(rule.signature.names) - rule.signature.constant
    arguments = {
        "input" if a.name == "self" else a.name
        for schema in schemas(packet).values()
        for a in schema.arguments
        if "Tensor" in str(a.type)
    }
    return frozenset(arguments) & frozenset(rule.signature.names)


def _saved(rule: Rule, formula: Formula) -> str:
    heavy, light = [], []
    tensors = _may_be_tensor(rule)
    for name in formula.saves:
        base, _, suffix = name.rpartition("_")
        known = name in rule.signature.names or name in rule.signature.outputs or name == "result"
        if (
            not known
            and suffix in META
            and (base in rule.signature.names or base in (*rule.signature.outputs, "result"))
        ):
            light.append(f"*{base} {suffix}*")
        elif not known:
            heavy.append(f"`{name}`†")
        elif name in rule.signature.names and name not in tensors:
            light.append(f"*{name}*")
        else:
            heavy.append(f"`{name}`")
    return ", ".join(heavy + light) or "nothing"


def _gradients(rule: Rule) -> str:
    lines = []
    for formula in rule.formulas:
        inputs = ", ".join(f"`{n}`" for n in formula.covers)
        lines.append(f"{inputs} ← {_saved(rule, formula)}")
    return "<br>".join(lines)


# ---------------------------------------------------------------- second order, places


def second_order(function: Callable[..., Any]) -> str:
    """What the page says of the second derivatives of a formula, or of an op defined by ``function``."""
    if refuses(function) == "every":
        return "refused"
    if returns_none(function):
        return "zero"
    missing = without_rule(function)
    answer = f"but {', '.join(f'`{m}`' for m in missing)}" if missing else "yes"
    return answer + ("°" if refuses(function) == "some" else "")


def _second(rule: Rule) -> str:
    answers = [second_order(f) for f in _functions(rule)]
    return answers[0] if len(set(answers)) == 1 else "<br>".join(answers)


def _functions(rule: Rule) -> list[Callable[..., Any]]:
    return [f.function for f in rule.formulas] or ([rule.decomposition] if rule.decomposition else [])


def _places(rule: Rule) -> list[tuple[str, str]]:
    """File name and line of each formula, or of the definition."""
    places = []
    for place in dict.fromkeys(rule.location.split(", ")):
        path, _, line = place.rpartition(":")
        places.append((Path(path).name, line))
    return places


def _file(rule: Rule) -> str:
    return _places(rule)[0][0]


def _links(rule: Rule) -> str:
    return "<br>".join(f"[{name}:{line}](../{FOLDER}/{name}#L{line})" for name, line in _places(rule))


# ---------------------------------------------------------------- the page


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [*lines, ""]


def _topic(file: str) -> str:
    """The first paragraph of a rule file's docstring."""
    module = importlib.import_module(f"{FOLDER.replace('/', '.')}.{file.removesuffix('.py')}")
    return " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())


def _counts(rules: dict[str, Rule]) -> list[str]:
    kinds = Counter(info.kind for info in list_rules())
    formulas = [f for rule in rules.values() for f in rule.formulas if not rule.no_gradient]
    second = Counter(second_order(f.function).split()[0].rstrip("°") for f in formulas)
    return [
        f"- {kinds['rule']} ops with a rule of their own, {len(formulas)} formulas in all",
        f"- {kinds['decomposition']} ops defined by other ops",
        f"- {kinds['no gradient']} ops without a gradient",
        f"- {len(TABLE)} torch functions, methods, operators and overloads that these cover",
        f"- second derivatives: {second['yes']} formulas can be differentiated again, {second['zero']} have the derivative zero, "
        f"{second['but']} can but for a function without a rule, {second['refused']} refuse",
    ]


@functools.cache
def page() -> str:
    """The text of ``docs/ops.md``."""
    rules, by_rule = all_rules(), spellings_by_rule()
    topics: dict[str, list[Rule]] = defaultdict(list)
    decompositions: list[Rule] = []
    silent: list[Rule] = []
    for rule in rules.values():
        if rule.no_gradient:
            silent.append(rule)
        elif rule.decomposition is not None:
            decompositions.append(rule)
        else:
            topics[_file(rule)].append(rule)
    lines = [HEAD.format(torch=_torch_version(), counts="\n".join(_counts(rules)))]
    for file, members in sorted(topics.items()):
        lines += [f"## {file.removesuffix('.py').replace('_', ' ')}", "", _topic(file), ""]
        lines += _table(
            ("op", "spelled", "gradient of ← what is saved", "second", "formula"),
            ((f"`{r.name}`", spelled_as(r, by_rule), _gradients(r), _second(r), _links(r)) for r in members),
        )
    lines += ["## Defined by other ops", "", "Their parts have rules; what is saved is what these save.", ""]
    lines += _table(
        ("op", "spelled", "second", "definition"),
        ((f"`{r.name}`", spelled_as(r, by_rule), _second(r), _links(r)) for r in decompositions),
    )
    lines += ["## Without a gradient", "", "Nothing flows back through their results.", ""]
    lines += _table(("op", "spelled"), ((f"`{r.name}`", spelled_as(r, by_rule)) for r in silent))
    return "\n".join(lines)


def _torch_version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ops_registry.catalogue", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether docs/ops.md is up to date")
    options = parser.parse_args(arguments)
    if not options.check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/ops.md is out of date: run python -m ops_registry.catalogue", file=sys.stderr)
    return 1
