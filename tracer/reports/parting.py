"""``compare``: the first call at which two runs part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.graph import Graph
from tracer.node import tensors_in
from tracer.reports.badness import at, element
from tracer.reports.fingerprints import Numbers, Print, Run, dense_on_cpu
from tracer.reports.report import Report, Row, calls

#: How far results may lie apart, in parts of their largest element: about a hundred roundings.
_TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 5e-3,
    "complex32": 5e-3,
    "bfloat16": 3e-2,
}
#: Of float8.
_COARSEST = 0.3

#: So many calls before the parting are shown, and after it.
_AROUND = 3
#: So far one run may be ahead of the other to be found again.
_AHEAD = 50

#: What could be held against each other: whole tensors, five numbers of each, two numbers, or the calls alone.
_HOW = ("values", "numbers", "extremes", "calls")
_CALLS = 3


@dataclass(frozen=True)
class Compared(Row):
    """One call of both runs."""

    call: int
    op: str
    place: str
    #: Of the other run, where it is another.
    other_op: str
    other_place: str
    #: The largest, in parts of the largest element; None where no values of both are known.
    difference: float | None
    #: Where the runs part.
    parts: bool


@dataclass(frozen=True)
class _Apart:
    """How far two results lie apart."""

    #: In parts of the largest element; infinite for another shape, and for nan against a number.
    relative: float
    allowed: float
    text: str = ""


def compare(graph_a: Graph | Mapping[str, Any], graph_b: Graph | Mapping[str, Any]) -> Report[Compared]:
    """The first call at which two runs part: another op, another place, or other results; with the calls around it.

    Each is a graph with ``sites``, or what ``tracer.fingerprint`` has made of one. Results are compared element by element where both
    graphs kept ``values``, by five numbers of each where one is a fingerprint of such a graph, by their smallest and largest element where
    both note ``finite``, else not at all; the report says which. They part where they lie further apart than rounding explains: 1e-9 of
    the largest element in float64, 1e-5 in float32, 5e-3 in float16, 3e-2 in bfloat16, 0.3 in float8; of two dtypes the coarser counts.
    Integers are equal.

    Two blocks of one script run the same model from two lines. So lines count only for a call no values of which were compared, and only
    where one stands in place of another that it did not stand for before. Raises ``NotNotedError`` for a graph without ``sites``.
    """
    a, b = Run(graph_a), Run(graph_b)
    if a.dropped != b.dropped:
        return Report(
            f"the runs cannot be lined up: the notes of {calls(a.dropped)} of the one and of {calls(b.dropped)} of the other have been "
            f"dropped",
            (),
            ["Open the graph around one step of the loop."],
        )
    how = [0] * len(_HOW)
    lines = _Lines()
    for i in range(min(len(a), len(b))):
        if a.name(i)[:2] != b.name(i)[:2]:
            return _other_call(a, b, i, how)
        apart, way = _apart(a, b, i, "result")
        if apart is not None and apart.relative > apart.allowed:
            return _other_result(a, b, i, apart, how)
        if not lines.fit(a.name(i)[2], b.name(i)[2]) and way == _CALLS:
            return _other_call(a, b, i, how)
        how[way] += 1
    if len(a) != len(b):
        return _other_call(a, b, min(len(a), len(b)), how)
    known = ", as far as is known" if how[_CALLS] else ""
    return Report(f"the runs are alike{known}: {_agree(how)}", (), _notes(a, b, how))


class _Lines:
    """Which line of the one run stands for which of the other, in one file."""

    def __init__(self) -> None:
        self._of_a: dict[str, str] = {}
        self._of_b: dict[str, str] = {}

    def fit(self, a: str | None, b: str | None) -> bool:
        """Whether two lines stand for one another as they did before."""
        if a is None or b is None or a.rpartition(":")[0] != b.rpartition(":")[0]:
            return True
        return self._of_a.setdefault(a, b) == b and self._of_b.setdefault(b, a) == a


# ---------------------------------------------------------------------- values
def _apart(a: Run, b: Run, i: int, name: str) -> tuple[_Apart | None, int]:
    """How far a value of call ``i`` lies apart in both runs, None where it is not known of both, and how that was found out."""
    one, other = a.tensors(i).get(name), b.tensors(i).get(name)
    if one is not None and other is not None:
        return _tensors_apart(name, tensors_in(one), tensors_in(other)), 0
    first, second = a.print(i), b.print(i)
    if name in first.values and name in second.values:
        return _numbers_apart(name, first.values[name], second.values[name]), 1
    if name == "result" and (extremes := _extremes_of(first)) and (others := _extremes_of(second)):
        return _numbers_apart(name, [[first.dtype, [], *extremes]], [[second.dtype, [], *others]]), 2
    return None, 3


def _extremes_of(p: Print) -> tuple[float, float] | None:
    if p.extremes is not None or len(p.values.get("result", ())) != 1 or len(p.values["result"][0]) < 4:
        return p.extremes
    low, high = p.values["result"][0][2:4]
    return low, high


def _tensors_apart(name: str, one: list[torch.Tensor], other: list[torch.Tensor]) -> _Apart:
    if len(one) != len(other):
        return _Apart(math.inf, 0.0, f"{len(one)} tensors against {len(other)}")
    return max(
        (_tensor_apart(name, x, y) for x, y in zip(one, other, strict=True)), key=_excess, default=_Apart(0.0, 0.0)
    )


def _tensor_apart(name: str, one: torch.Tensor, other: torch.Tensor) -> _Apart:
    with DisableTorchFunctionSubclass(), torch.no_grad():
        allowed = _allowed(str(one.dtype).removeprefix("torch."), str(other.dtype).removeprefix("torch."))
        if one.shape != other.shape:
            return _Apart(math.inf, allowed, f"shape {tuple(one.shape)} against {tuple(other.shape)}")
        alike = one.device == other.device and one.dtype is other.dtype and one.layout is other.layout is torch.strided
        if alike and not one.is_meta and torch.equal(one, other):
            return _Apart(0.0, allowed)  # mostly, and quickly found out
        x, y = dense_on_cpu(one), dense_on_cpu(other)
        if x is None or y is None or not x.numel():
            return _Apart(0.0, allowed)
        off = (x - y).abs()
        off[(x == y) | (x.isnan() & y.isnan())] = 0.0
        off = off.nan_to_num(math.inf, math.inf)
        index = tuple(int(n) for n in torch.unravel_index(off.argmax(), off.shape))
        largest = float(off.max())
        finite = [t.abs()[t.isfinite()] for t in (x, y)]
        scale = max((float(t.max()) for t in finite if t.numel()), default=1.0) or 1.0
        text = f"{at(name, index)} {element(x, index, x.shape)} against {element(y, index, y.shape)}"
        return _Apart(largest / scale, allowed, text)


def _numbers_apart(name: str, one: list[Numbers], other: list[Numbers]) -> _Apart:
    if len(one) != len(other):
        return _Apart(math.inf, 0.0, f"{len(one)} tensors against {len(other)}")
    return max(
        (_number_apart(name, x, y) for x, y in zip(one, other, strict=True)), key=_excess, default=_Apart(0.0, 0.0)
    )


def _number_apart(name: str, one: Numbers, other: Numbers) -> _Apart:
    allowed = _allowed(one[0], other[0])
    if one[1] != other[1]:
        return _Apart(math.inf, allowed, f"{name} of shape {tuple(one[1])} against {tuple(other[1])}")
    words = ("smallest element", "largest element", "mean", "root mean square", "mean times a wave")
    finite = [abs(n) for n in (*one[2:4], *other[2:4]) if math.isfinite(n)]
    scale = max(finite, default=1.0) or 1.0
    worst = _Apart(0.0, allowed)
    for word, x, y in zip(words, one[2:], other[2:], strict=False):
        off = 0.0 if x == y or (x != x and y != y) else abs(x - y) / scale
        off = math.inf if off != off else off
        if off > worst.relative:
            worst = _Apart(off, allowed, f"{word} of {name} {x:.6g} against {y:.6g}")
    return worst


def _excess(apart: _Apart) -> float:
    return apart.relative - apart.allowed


def _allowed(one: str, other: str) -> float:
    return max(_tolerance(one), _tolerance(other))


def _tolerance(dtype: str) -> float:
    if dtype.startswith(("int", "uint", "bool")):
        return 0.0
    return _TOLERANCE.get(dtype, _COARSEST)


# ---------------------------------------------------------------------- reports
def _other_call(a: Run, b: Run, i: int, how: list[int]) -> Report[Compared]:
    if i == min(len(a), len(b)):
        run, which, more = (a, "first", len(a) - i) if len(a) > i else (b, "second", len(b) - i)
        p = run.print(i)
        what = f"the {which} has {calls(more)} more, {p.op} at {p.place} and on"
    else:
        one, other = a.print(i), b.print(i)
        what = f"{one.op} at {one.place} against {other.op} at {other.place}"
        ahead = _ahead(a, b, i)
        if ahead:
            which = "first" if ahead > 0 else "second"
            what += f"; the {which} has {calls(abs(ahead))} more there, and goes on like the other"
    return Report(f"the runs part at call {i}: {what}; {_before(i, how)}", _rows(a, b, i), _notes(a, b, how))


def _ahead(a: Run, b: Run, i: int) -> int:
    """How many calls one run has more here: above zero the first, below zero the second, 0 where they do not meet again soon."""
    for shift in range(1, _AHEAD):
        for one, other, sign in ((a, b, 1), (b, a, -1)):
            length = min(_AROUND, len(one) - i - shift, len(other) - i)
            if length > 0 and all(one.name(i + shift + k)[:2] == other.name(i + k)[:2] for k in range(length)):
                return sign * shift
    return 0


def _other_result(a: Run, b: Run, i: int, apart: _Apart, how: list[int]) -> Report[Compared]:
    p, q = a.print(i), b.print(i)
    where = f"{p.op} at {p.place}" + (f", in the second run at {q.place}," if q.place != p.place else "")
    relative = "" if math.isinf(apart.relative) else f", {apart.relative:.2g} times the largest element"
    return Report(
        f"the runs part at call {i}: {where} gave other results, {apart.text}{relative}; {_before(i, how)}",
        _rows(a, b, i),
        [_cause(a, b, i), *_notes(a, b, how)],
    )


def _cause(a: Run, b: Run, i: int) -> str:
    """Whether what the call was given differed already."""
    given, others = a.print(i).values, b.print(i).values
    names = [name for name in given if name != "result" and name in others]
    for name in names:
        apart, _ = _apart(a, b, i, name)
        if apart is not None and apart.relative > apart.allowed:
            return f"Its argument differed already ({apart.text}): other data, another initialisation, or a write in between."
    if not names:
        return "What it was given is not known of both: record both inside tracer.Graph(sites=True, values=True)."
    return (
        "It was given the same and gave something else: it draws random numbers (seed), or another kernel ran (device, dtype, version, "
        "number of threads)."
    )


def _rows(a: Run, b: Run, i: int) -> list[Compared]:
    rows = []
    for k in range(max(0, i - _AROUND), min(i + _AROUND + 1, max(len(a), len(b)))):
        one = a.print(k) if k < len(a) else None
        other = b.print(k) if k < len(b) else None
        same = one is not None and other is not None and a.name(k)[:2] == b.name(k)[:2]
        apart = _apart(a, b, k, "result")[0] if same else None
        rows.append(
            Compared(
                k,
                "" if one is None else one.op,
                "" if one is None else one.place,
                "" if same or other is None else other.op,
                "" if other is None or (same and one is not None and other.place == one.place) else other.place,
                None if apart is None else apart.relative,
                k == i,
            )
        )
    return rows


def _before(i: int, how: list[int]) -> str:
    return "no call before" if not i else f"before: {_agree(how)}"


def _agree(how: list[int]) -> str:
    whole, numbers, extremes, _ = how
    total = sum(how)
    told = [
        f"{whole:,} in all elements" if whole else "",
        f"{numbers:,} in five numbers of the result" if numbers else "",
        f"{extremes:,} in smallest and largest element" if extremes else "",
    ]
    return f"{calls(total)} agree in op and place" + "".join(f", {text}" for text in told if text)


def _notes(a: Run, b: Run, how: list[int]) -> list[str]:
    notes = []
    if how[_CALLS]:
        notes.append(
            f"Of {calls(how[_CALLS])} no values were compared, the op and the place alone: record both runs inside "
            f"tracer.Graph(sites=True, finite=True, values=True), and keep the losses: what is gone or written over has no values."
        )
    if a.version != b.version:
        notes.append(f"The first ran under torch {a.version}, the second under torch {b.version}.")
    if a.dropped:
        notes.append(f"The notes of the first {calls(a.dropped)} of each have been dropped.")
    return notes
