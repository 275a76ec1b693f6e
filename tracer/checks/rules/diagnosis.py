"""What a failed check looks like: which mistake, in which call, in which rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.errors import RuleCheckError, RuleResultError
from ops_registry.formula import Formula
from ops_registry.rule import Rule
from ops_registry.scopes import use
from ops_registry.torch_private import tree_leaves
from tracer.checks.derivatives import Call, differentiate
from tracer.checks.jacobians import Jacobian, from_rows, numerical_jacobians, unit_cotangents
from tracer.checks.leaves import (
    SEED,
    can_have_gradient,
    leaves_of,
    native_leaf,
    plain,
    random_like,
    requiring_grad,
    restart_random,
    tensors_of,
    tracked_leaf,
    twin,
)
from tracer.checks.mistakes import UNKNOWN, diagnose, expands_to
from tracer.checks.rules.sample_call import SampleCall, name_of
from tracer.errors import Mistake

#: What an in-place write is said to be.
WRITES = "a formula writes into the gradient or into what was saved for it"

#: Jacobians up to that many elements are computed to say what a mistake looks like.
LARGEST_JACOBIAN = 1 << 14


@dataclass
class FailedCall:
    """One call for which the rule is wrong."""

    what: str
    detail: str
    call: SampleCall
    #: Which inputs wanted a gradient, by name, and the one that got a wrong one, where that is known.
    wanted: tuple[str, ...] = ()
    name: str = ""
    order: int = 1
    #: Known where the comparison itself tells.
    mistake: Mistake | None = None


def error_of(rule: Rule, failures: list[FailedCall], examples: int) -> RuleCheckError:
    """The report of all that failed: the mistake that the calls show, and the smallest call that shows it."""
    mistake, shown, name = diagnosis(rule, failures)
    lines = [
        f"the rule of {rule.name} is wrong: {shown.what}",
        f"  it looks like: {mistake}",
        f"  call: {name_of(shown.call.spelling)}({shown.call.sample}), arguments {shown.call.sample.source}",
    ]
    if shown.detail:
        lines.append(f"  {shown.detail}")
    if shown.wanted:
        lines.append(f"  gradients asked of: {', '.join(shown.wanted)}" + (f"; wrong for: {name}" if name else ""))
    lines.append(f"  rule: {_location(rule, name)}")
    lines.append(f"  {len(failures)} of {examples} calls fail")
    return RuleCheckError("\n".join(lines), mistake.kind)


def diagnosis(rule: Rule, failures: list[FailedCall]) -> tuple[Mistake, FailedCall, str]:
    """The mistake that explains most, the smallest call that shows it, and the input that it is about.

    A call counts by its number of different values: to a single number any mistake is a factor. An error that was raised tells less than
    a Jacobian.
    """
    votes: dict[str, list[tuple[Mistake, FailedCall, str]]] = {}
    for failure in sorted(failures, key=_weight, reverse=True)[:8]:
        mistake, name = (failure.mistake, failure.name) if failure.mistake else _from_jacobians(rule, failure)
        if mistake is not UNKNOWN:
            votes.setdefault(mistake.kind, []).append((mistake, failure, name))
    if not votes:
        smallest = min(failures, key=_weight)
        return UNKNOWN, smallest, smallest.name
    telling = {kind: found for kind, found in votes.items() if kind not in ("raises", "some elements")} or votes
    found = max(telling.values(), key=lambda cases: sum(_weight(f) for _, f, _ in cases))
    _, shown, name = min(found, key=lambda entry: _weight(entry[1]))
    return found[0][0], shown, name


def _weight(failure: FailedCall) -> int:
    """How many different values its tensors have."""
    tensors = [t for t in tree_leaves(failure.call.sample.values) if can_have_gradient(t)]
    return 1 + sum(len(set(t.to_dense().flatten().tolist())) for t in tensors)


def _from_jacobians(rule: Rule, failure: FailedCall) -> tuple[Mistake, str]:
    """What the Jacobians of the call show, and of which input."""
    if failure.call.dtype not in (torch.float64, torch.complex128):
        return UNKNOWN, failure.name
    call = failure.call
    wanted = [i for i in call.able if not failure.wanted or call.names[i] in failure.wanted]
    try:
        for i in wanted:
            if not failure.name or call.names[i] == failure.name:
                found = mistake_at(call, wanted, i, failure.order)
                if found is not None:
                    return found, call.names[i]
        return _narrow(rule, call), failure.name
    except Exception:  # a diagnosis that fails must not hide what is diagnosed
        return UNKNOWN, failure.name


def _narrow(rule: Rule, call: SampleCall) -> Mistake:
    """Right as far as differences can tell: digits are lost on the way."""
    seen: list[Mistake] = []
    with watched(rule, call.spelling, seen):
        differentiate(call, leaves_of(call.leaves, call.able, tracked_leaf), call.able, 1, tracked_leaf)
    return (
        seen[0]
        if seen
        else Mistake("precision", "right to a few digits only: is part of it computed in a narrower dtype?")
    )


def _location(rule: Rule, name: str) -> str:
    """File and line of the formula of one input; of all where it is not known which."""
    covering = [f for f in rule.formulas if name in f.covers]
    return ", ".join(f"{f.location} ({f.function.__name__})" for f in covering) if covering and name else rule.location


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-9) -> bool:
    """Equal up to ``tolerance`` relative to the largest element."""
    kind = torch.promote_types(a.dtype, b.dtype)
    scale = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    atol = tolerance * max(1.0, scale)
    return torch.allclose(a.to_dense().to(kind), b.to_dense().to(kind), rtol=tolerance, atol=atol, equal_nan=True)


# ---------------------------------------------------------------------------------------------- looking closer
def mistake_at(call: SampleCall, wanted: Sequence[int], position: int, order: int) -> Mistake | None:
    """What the Jacobians with respect to one leaf look like; None where none is wrong, unknown where they are too large to tell."""
    values = [twin(v).contiguous() if isinstance(v, torch.Tensor) else v for v in call.leaves]
    leaves = leaves_of(values, wanted, tracked_leaf)
    outputs = _outputs_of(call, leaves, wanted, order)
    if sum(o.numel() for o in outputs) * leaves[position].numel() > LARGEST_JACOBIAN:
        return UNKNOWN
    measured = _measured(call, values, wanted, position, order)
    for k, output in enumerate(outputs):
        analytic = _analytic(output, leaves[position])
        if close(analytic.values, measured[k].values, 1e-5):
            continue
        others: dict[str, Jacobian] = {}
        if order == 1:
            others = {call.names[i]: _measured(call, values, wanted, i, 1)[k] for i in wanted if i != position}
        known = {call.names[i]: v for i, v in enumerate(values) if isinstance(v, torch.Tensor)}
        found = diagnose(analytic, measured[k], others, known | {"the result": plain(output)}, rtol=1e-5, atol=1e-6)
        if order == 2 and "no gradient arrives" in found.text:
            return Mistake("missing term", "no second derivative arrives: a formula detaches what it is given")
        return found
    return None


def _outputs_of(call: Call, leaves: list[Any], wanted: Sequence[int], order: int) -> list[torch.Tensor]:
    """What is differentiated: the results of the call, or, for second derivatives, its gradients."""
    restart_random(SEED)
    live = requiring_grad(call(leaves))
    if order == 1:
        return live
    inputs = [leaves[i] for i in wanted]
    found = torch.autograd.grad(live, inputs, random_like(live, 1), create_graph=True, allow_unused=True)
    return [g for g in found if g is not None]


def _measured(call: SampleCall, values: list[Any], wanted: Sequence[int], position: int, order: int) -> list[Jacobian]:
    """The Jacobians of the outputs with respect to one leaf, by differences; of a definition by torch's own autograd."""
    if call.definition is not None:
        leaves = leaves_of(values, wanted, native_leaf)
        return [_analytic(output, leaves[position]) for output in _outputs_of(call.truth, leaves, wanted, order)]
    moved = [v.clone() if isinstance(v, torch.Tensor) else v for v in values]

    def outputs() -> list[torch.Tensor]:
        return [plain(o) for o in _outputs_of(call, leaves_of(moved, wanted, tracked_leaf), wanted, order)]

    return numerical_jacobians(outputs, moved[position], 1e-6)


def _analytic(output: torch.Tensor, leaf: torch.Tensor) -> Jacobian:
    """The Jacobian of one output with respect to one leaf, by backward."""
    rows = []
    for cotangent in unit_cotangents(plain(output)):
        row = None
        if output.requires_grad:
            (row,) = torch.autograd.grad([output], [leaf], [cotangent], retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(plain(leaf)) if row is None else plain(row))
    return from_rows(rows, plain(output), plain(leaf))


@contextmanager
def watched(rule: Rule, main: Spelling, seen: list[Mistake]) -> Iterator[None]:
    """The rule with an eye on what its formulas return and what they do to what they are given."""
    replaced = {f.wrt if f.joint else f.wrt[0]: _watching(f, seen) for f in rule.formulas if not f.replaced}
    with use({main.func: replaced}):  # type: ignore[dict-item]
        yield


def _watching(formula: Formula, seen: list[Mistake]) -> Callable[..., Any]:
    @functools.wraps(formula.function)
    def function(*args: Any) -> Any:
        given = tensors_of(list(args))
        before = [t._version for t in given]
        result = formula.function(*args)
        if before != [t._version for t in given]:
            seen.append(Mistake("in-place write", WRITES))
        wide = max(map(_bits, given), default=0)
        for gradient in tensors_of(result):
            if 0 < _bits(gradient) < wide:
                text = f"a formula returns {gradient.dtype} where all else is wider; casting it back loses digits"
                seen.append(Mistake("wrong dtype", text))
        return result

    return function


def _bits(tensor: torch.Tensor) -> int:
    """How wide its numbers are; 0 where no gradient flows to it."""
    return torch.finfo(tensor.dtype).bits if can_have_gradient(tensor) else 0


def result_mistake(rule: Rule, main: Spelling, call: SampleCall, error: RuleResultError) -> Mistake:
    """What is wrong with a gradient whose shape does not fit its input."""
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def looking(formula: Formula) -> Callable[..., Any]:
        @functools.wraps(formula.function)
        def function(*args: Any) -> Any:
            result = formula.function(*args)
            results = result if formula.joint and isinstance(result, tuple) else (result,)
            for name, gradient in zip(formula.wrt, results, strict=False):
                value = call.leaves[call.names.index(name)] if name in call.names else None
                if isinstance(gradient, torch.Tensor) and isinstance(value, torch.Tensor):
                    shapes.append((tuple(gradient.shape), tuple(value.shape)))
            return result

        return function

    replaced = {f.wrt if f.joint else f.wrt[0]: looking(f) for f in rule.formulas if not f.replaced}
    try:
        with use({main.func: replaced}):  # type: ignore[dict-item]
            differentiate(call, leaves_of(call.leaves, call.able, tracked_leaf), call.able, 1, tracked_leaf)
    except Exception:
        pass
    for gradient, value in shapes:
        if gradient == value or expands_to(value, gradient):
            continue
        if sorted(gradient) == sorted(value):
            return Mistake("transposed", f"a gradient of shape {gradient} for an input of shape {value}")
        if expands_to(gradient, value):
            return Mistake(
                "missing broadcast", f"a gradient of shape {gradient} has to be expanded to that of the input, {value}"
            )
    return Mistake("wrong shape", str(error))
