"""The table of rules: which rule belongs to which torch function, however it is spelled."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as copy_with
from typing import Any, TypeVar

import torch

from ops_registry.binding import Spelling, own_order
from ops_registry.errors import DuplicateRuleError, RuleError
from ops_registry.rule import Rule, make_formula
from ops_registry.signatures import base_name, is_custom, signature_of
from ops_registry.spellings import canonical, spellings

F = TypeVar("F", bound=Callable[..., Any])


#: Every spelling of every op that has a rule.
TABLE: dict[Callable[..., Any], Spelling] = {}
RULES: dict[str, Rule] = {}
_lock = threading.RLock()


class _Active(threading.local):
    table: Mapping[Callable[..., Any], Spelling] = TABLE


#: The table in force in this thread.
active = _Active()


def op_name(func: Callable[..., Any]) -> str:
    """The name under which a rule for ``func`` is filed: the op's name, with the overload where one is named."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func).removeprefix("aten.").removesuffix(".default")
    if is_custom(func):
        return str(func)
    name = base_name(func)
    if name.startswith("__") or (name.endswith("_") and not hasattr(torch.Tensor, name[:-1])):
        return name
    return canonical(name.rstrip("_"))


def _file(func: Callable[..., Any], rule: Rule) -> None:
    """Put ``rule`` under every spelling of ``func``."""
    RULES[rule.name] = rule
    written = rule.in_place_rule or rule
    if rule.no_gradient and rule.signature.names:
        # Written in place (x.eq_(3)), such a result stands in a tensor that has a history: it goes on with a gradient of zero.
        written = copy_with(rule, no_gradient=False)
        written = extend(written, _zero, rule.signature.names[rule.signature.self_position], replacing=False)
    for spelled, inplace in spellings(func).items():
        order = own_order(spelled, rule.signature)
        if order is not None:
            TABLE[spelled] = Spelling(spelled, written if inplace else rule, inplace, *order)


def _zero(grad: Any) -> None:
    return None


def extend(rule: Rule, function: Callable[..., Any], wrt: str | tuple[str, ...], replacing: bool) -> Rule:
    formula = make_formula(function, wrt, rule.signature, rule.name)
    others = []
    for existing in rule.formulas:
        overlap = set(existing.wrt) & set(formula.wrt)
        if not overlap:
            others.append(existing)
        elif not replacing:
            raise DuplicateRuleError(
                f"{rule.name} already has a rule for {', '.join(sorted(overlap))}, written at {existing.location}; the second is "
                f"at {formula.location}. Pass replace=True to put it in the place of the first."
            )
        elif not set(existing.wrt) <= set(formula.wrt):
            # A joint formula that loses one of its inputs still serves the others: it is told so by ``needs``.
            rest = tuple(n if n not in overlap else "" for n in existing.wrt)
            others.append(copy_with(existing, wrt=rest, written_wrt=existing.needs_names))
    written = None if replacing else rule.in_place_rule
    extended = copy_with(
        rule, formulas=(*others, formula), no_gradient=False, decomposition=None, in_place_rule=written, plans={}
    )
    for parameter in formula.saves:
        extended.expression(parameter)
    return extended


def backward(
    func: Callable[..., Any],
    *,
    wrt: str | tuple[str, ...] | None = None,
    forward: Callable[..., tuple[Any, dict[str, Any]]] | None = None,
    constant_results: tuple[int, ...] = (),
    in_place: bool = False,
    replace: bool = False,
) -> Callable[[F], F]:
    """Register the decorated function as the backward rule of ``func``, for every way to spell it.

    The function's parameter names say what it keeps: ``grad`` (the cotangent of the result; a tuple with None for
    results that received nothing, where the op returns several differentiable ones), any argument of the torch function by its
    name, ``result`` (or one of several results by its name, as ``indices``), an argument's name followed by ``_shape``,
    ``_dtype`` or ``_device`` (keeps that alone), and ``needs``. Nothing else stays alive.

    ``wrt`` names the input that the formula differentiates; the first argument when left out. A tuple of names makes one joint
    formula that returns a tuple of gradients in that order and may ask ``needs``, a tuple of bools, which of them are wanted.
    What it returns is projected: summed over broadcast axes, cast, its real part taken; a rule does none of that. ``None`` means
    a gradient of zero, without the memory. For an input that is a list of tensors, the gradient is a list of the same length.

    ``forward`` takes the op's arguments and returns ``(result, by_products)``; the rule may name any by-product.

    ``constant_results`` are positions of floating results that do not require grad (the permutation among the results of LU); integer
    ones never do.

    ``in_place`` makes it the formula of the in-place spellings alone, written after the one that serves all others: those that keep
    an input keep a copy of it where it is overwritten, and one that makes do with ``result`` spares that copy.

    Raises ``DuplicateRuleError`` when the input is covered already, unless ``replace``; ``RuleError`` when the function asks for
    something that the op does not have.
    """

    def register(function: F) -> F:
        name = op_name(func)
        with _lock:
            rule = RULES.get(name)
            if rule is None:
                rule = Rule(name, signature_of(func))
            if forward is not None:
                rule = copy_with(rule, forward=forward, plans={})
            if constant_results:
                rule = copy_with(rule, constant_results=constant_results, plans={})
            if not rule.signature.names:
                raise RuleError(f"{name} takes no arguments: there is nothing to differentiate")
            covered = rule.signature.names[0] if wrt is None else wrt
            if in_place:
                _file(func, copy_with(rule, in_place_rule=extend(rule, function, covered, replacing=True), plans={}))
            else:
                _file(func, extend(rule, function, covered, replace))
        return function

    return register


def no_gradient(func: Callable[..., Any], *more: Callable[..., Any]) -> None:
    """Declare that nothing ever flows back through the results of these functions (comparisons, ``argmax``, ``zeros_like``)."""
    for function in (func, *more):
        name = op_name(function)
        with _lock:
            if name in RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {RULES[name].location}")
            _file(function, Rule(name, signature_of(function), no_gradient=True))


def decomposition(func: Callable[..., Any]) -> Callable[[F], F]:
    """Define ``func`` by other ops: the decorated function takes its arguments and is run with interception on.

    For functions that torch itself builds out of smaller ones in C++ (``cross_entropy_loss``): their parts have rules.
    """

    def register(function: F) -> F:
        name = op_name(func)
        with _lock:
            if name in RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {RULES[name].location}")
            _file(func, Rule(name, signature_of(func), decomposition=function))
        return function

    return register


def overloaded(func: Callable[..., Any], *, alone: bool = False) -> Callable[[F], F]:
    """Send each call of ``func`` to one of its ``torch.ops`` overloads, which have a rule each.

    The decorated function takes the call's arguments and returns the overload that they mean (``torch.max`` of one tensor, along a
    dimension, or of two tensors). ``alone``: of this spelling only, where another of the same name takes its arguments otherwise.
    """

    def register(choice: F) -> F:
        rule = Rule(op_name(func), signature_of(func))

        with _lock:
            for function, inplace in ({func: False} if alone else spellings(func)).items():
                if isinstance(function, torch._ops.OpOverload) and function in TABLE:
                    continue
                spelled = Spelling(function, rule, inplace, rule.signature.names, False)
                spelled.pick_overload = _bind_choose(choice, spelled)
                spelled.fast = False
                TABLE[function] = spelled
        return choice

    return register


def _bind_choose(
    choice: Callable[..., Any], spelled: Spelling
) -> Callable[[tuple[Any, ...], dict[str, Any]], Spelling]:
    made: dict[Rule | int, Spelling] = {}

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelling:
        rule = active.table[choice(*args, **kwargs)].rule
        found = made.get(id(rule))
        if found is None:
            order, varargs = own_order(spelled.func, rule.signature) or (rule.signature.names, False)
            found = made[id(rule)] = Spelling(spelled.func, rule, spelled.inplace, order, varargs)
        return found

    return choose


def lookup(func: Callable[..., Any]) -> Rule | None:
    """The rule in force for ``func`` in this thread, whichever way it is spelled; None when there is none."""
    spelling = find(func)
    return None if spelling is None else spelling.rule


def find(func: Callable[..., Any]) -> Spelling | None:
    try:
        return active.table[func]
    except KeyError:
        pass
    # A Python-level function (F.relu) that hands over to the op of the same name is one more way to spell it.
    if isinstance(func, types.FunctionType) and (func.__module__ or "").startswith("torch"):
        for candidate in (getattr(torch, func.__name__, None), getattr(torch.Tensor, func.__name__, None)):
            if candidate is not None and candidate is not func:
                try:
                    return active.table[candidate]
                except (KeyError, TypeError):
                    continue
    return None


@dataclass(frozen=True)
class RuleInfo:
    """What ``list_rules()`` tells of one op."""

    op: str
    #: Inputs that a gradient flows to; empty for an op without a gradient or one defined by other ops.
    inputs: tuple[str, ...]
    #: What is kept from the forward call when every input wants a gradient.
    keeps: tuple[str, ...]
    #: ``"rule"``, ``"no gradient"`` or ``"decomposition"``.
    kind: str
    #: ``file:line`` of each formula.
    location: str


def list_rules() -> list[RuleInfo]:
    """Everything that is registered, sorted by op."""
    listed = []
    for name, rule in sorted(RULES.items()):
        kind = "no gradient" if rule.no_gradient else "decomposition" if rule.decomposition is not None else "rule"
        inputs = tuple(n for _, n in rule.inputs)
        listed.append(RuleInfo(name, inputs, rule.saves, kind, rule.location))
    return listed
