"""The table of rules: which rule belongs to which torch function, however it is spelled."""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as copy_with
from typing import Any, TypeVar

import torch

from ops_registry.errors import DuplicateRuleError, RuleError, UnsupportedCallError
from ops_registry.rule import Rule, make_formula
from ops_registry.signatures import NUMPY_NAMES, Signature, base_name, is_custom, signature_of
from ops_registry.spellings import canonical, spellings

F = TypeVar("F", bound=Callable[..., Any])


class Spelling:
    """One torch function, the rule that it falls under, and how its arguments map onto the rule's names."""

    __slots__ = (
        "choose",
        "defaults",
        "func",
        "inplace",
        "order",
        "positional",
        "rule",
        "run",
        "straight",
        "tails",
        "target",
        "varargs",
    )

    def __init__(
        self, func: Callable[..., Any], rule: Rule, inplace: bool, order: tuple[str, ...], varargs: bool
    ) -> None:
        self.func = func
        #: What to run for it: the C method itself, for an operator that torch wraps in Python to turn a TypeError into NotImplemented.
        wrapped = getattr(func, "__wrapped__", None)
        self.run = wrapped if isinstance(wrapped, types.MethodDescriptorType) else func
        self.rule = rule
        self.inplace = inplace
        #: Names of the spelling's own positional arguments, where they differ in order from the rule's.
        self.order = order
        self.varargs = varargs
        self.choose: Callable[[tuple[Any, ...], dict[str, Any]], Spelling] | None = None
        signature = rule.signature
        self.defaults = signature.defaults
        if "reduction" in self.defaults and not isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            # torch's C functions default to no reduction, whatever their schema says.
            self.defaults = {**self.defaults, "reduction": 0}
        #: Where in the rule's signature the tensor stands that an in-place spelling writes into.
        self.target = signature.names.index(order[0]) if order and order[0] in signature.names else 0
        #: ``tails[n]`` are the defaults to append to n positional arguments; empty where that is not enough to bind them.
        self.tails: tuple[tuple[Any, ...], ...] = ()
        #: How many arguments can be given by position.
        self.positional = len(order) if signature.positional is None else signature.positional
        if order == signature.names[: len(order)]:
            defaults = tuple(self.defaults.get(n) for n in signature.names)
            self.tails = tuple(defaults[n:] for n in range(min(self.positional, len(defaults)) + 1))
        #: The common case (by position, nothing special about the rule), which interception takes without another question.
        self.straight = not (inplace or rule.no_gradient or rule.body is not None or rule.forward is not None)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The call's arguments in the order of the rule's signature, defaults filled in.

        Raises ``UnsupportedCallError`` for a call that does not fit the signature: a deprecated order of the arguments
        (``addmm(beta, input, alpha, mat1, mat2)``), or a tensor under a keyword that the rule does not know.
        """
        if self.varargs:
            args = gather_varargs(args)
        if len(args) > self.positional:
            raise UnsupportedCallError(
                f"{self.rule.name} was called with {len(args)} arguments by position, and its signature "
                f"({', '.join(self.rule.signature.names)}) takes {self.positional}. Pass the others by name."
            )
        names = self.rule.signature.names
        values = dict(self.defaults)
        values.update(zip(self.order, args, strict=False))
        for name, value in kwargs.items():
            known = "input" if name == "self" else name if name in names else NUMPY_NAMES.get(name, name)
            if known not in names and known != "out" and isinstance(value, torch.Tensor):
                raise UnsupportedCallError(
                    f"{self.rule.name} got a tensor as '{name}', which its signature ({', '.join(names)}) has not"
                )
            values[known] = value
        return tuple([values.get(n) for n in names])


def gather_varargs(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``x.view(2, 3)`` as ``x.view((2, 3))``."""
    return (args[0], args[1:]) if len(args) > 1 and not isinstance(args[1], list | tuple | None) else args


#: Every spelling of every op that has a rule.
TABLE: dict[Callable[..., Any], Spelling] = {}
_RULES: dict[str, Rule] = {}
_lock = threading.RLock()


class _Layer(dict[Callable[..., Any], Spelling]):
    """Rules in force inside a ``use`` block, over those outside it."""

    def __init__(self, outer: Mapping[Callable[..., Any], Spelling]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, key: Callable[..., Any]) -> Spelling:
        return self.outer[key]


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


def _own_order(func: Callable[..., Any], signature: Signature) -> tuple[tuple[str, ...], bool] | None:
    """Names of the positional arguments of one spelling, and whether a list may come as ``*args``; None if it does not fit."""
    if isinstance(func, torch._ops.OpOverload):
        return signature_of(func).names, False
    if isinstance(func, types.FunctionType):
        try:
            parameters = inspect.signature(func).parameters.values()
        except ValueError:
            return signature.names, signature.varargs
        if [p.kind for p in parameters] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            return signature.names, signature.varargs  # torch's wrapper that turns a TypeError into NotImplemented
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return None  # meshgrid(*tensors): its body hands them on as a list
        names = tuple("input" if p.name in ("self", "tensor") else p.name for p in parameters if p.name != "out")
        fits = all(n in signature.names for n in names)
        return (names, False) if fits else None
    is_method = isinstance(func, types.MethodDescriptorType | types.WrapperDescriptorType)
    if is_method and signature.self_position:
        first = signature.names[signature.self_position]
        return (first, *(n for n in signature.names if n != first)), False
    return signature.names, signature.varargs and is_method


def _file(func: Callable[..., Any], rule: Rule) -> None:
    """Put ``rule`` under every spelling of ``func``."""
    _RULES[rule.name] = rule
    written = rule.written or rule
    if rule.no_gradient and rule.signature.names:
        # Written in place (x.eq_(3)), such a result stands in a tensor that has a history: it goes on with a gradient of zero.
        written = copy_with(rule, no_gradient=False)
        written = _extend(written, _zero, rule.signature.names[rule.signature.self_position], replacing=False)
    for spelled, inplace in spellings(func).items():
        order = _own_order(spelled, rule.signature)
        if order is not None:
            TABLE[spelled] = Spelling(spelled, written if inplace else rule, inplace, *order)


def _zero(grad: Any) -> None:
    return None


def _extend(rule: Rule, function: Callable[..., Any], wrt: str | tuple[str, ...], replacing: bool) -> Rule:
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
            others.append(copy_with(existing, wrt=tuple(n if n not in overlap else "" for n in existing.wrt)))
    written = None if replacing else rule.written
    extended = copy_with(rule, formulas=(*others, formula), no_gradient=False, body=None, written=written, variants={})
    for parameter in formula.keeps:
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
            rule = _RULES.get(name)
            if rule is None:
                rule = Rule(name, signature_of(func))
            if forward is not None:
                rule = copy_with(rule, forward=forward, variants={})
            if constant_results:
                rule = copy_with(rule, constant_results=constant_results, variants={})
            if not rule.signature.names:
                raise RuleError(f"{name} takes no arguments: there is nothing to differentiate")
            covered = rule.signature.names[0] if wrt is None else wrt
            if in_place:
                _file(func, copy_with(rule, written=_extend(rule, function, covered, replacing=True), variants={}))
            else:
                _file(func, _extend(rule, function, covered, replace))
        return function

    return register


def no_gradient(func: Callable[..., Any], *more: Callable[..., Any]) -> None:
    """Declare that nothing ever flows back through the results of these functions (comparisons, ``argmax``, ``zeros_like``)."""
    for function in (func, *more):
        name = op_name(function)
        with _lock:
            if name in _RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {_RULES[name].location}")
            _file(function, Rule(name, signature_of(function), no_gradient=True))


def decomposition(func: Callable[..., Any]) -> Callable[[F], F]:
    """Define ``func`` by other ops: the decorated function takes its arguments and is run with interception on.

    For functions that torch itself builds out of smaller ones in C++ (``cross_entropy_loss``): their parts have rules.
    """

    def register(function: F) -> F:
        name = op_name(func)
        with _lock:
            if name in _RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {_RULES[name].location}")
            _file(func, Rule(name, signature_of(func), body=function))
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
                spelled.choose = _bind_choose(choice, spelled)
                spelled.straight = False
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
            order, varargs = _own_order(spelled.func, rule.signature) or (rule.signature.names, False)
            found = made[id(rule)] = Spelling(spelled.func, rule, spelled.inplace, order, varargs)
        return found

    return choose


def lookup(func: Callable[..., Any]) -> Rule | None:
    """The rule in force for ``func`` in this thread, whichever way it is spelled; None when there is none."""
    spelling = _find(func)
    return None if spelling is None else spelling.rule


def _find(func: Callable[..., Any]) -> Spelling | None:
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


ReplacementRule = Callable[..., Any] | Mapping[str, Callable[..., Any]]


@contextmanager
def use(replacements: Mapping[Callable[..., Any], ReplacementRule]) -> Iterator[None]:
    """Replace rules for the calls made inside the block by this thread, for every spelling of each op.

    A replacement is a function written as for ``backward``. Where the op's rule covers one input, it returns that gradient;
    where it covers several, it returns a tuple of them in the order of the op's arguments. To replace the formula of some inputs
    only, pass a mapping from input name to function. Calls recorded inside keep their rule when backward runs later, outside.

    Raises ``RuleError`` for a function without arguments to differentiate or a replacement that asks for what the op lacks.
    """
    outer = active.table
    layer = _Layer(outer)
    for func, replacement in replacements.items():
        spelling = _find(func)
        rule = Rule(op_name(func), signature_of(func)) if spelling is None else spelling.rule
        new = _replaced(rule, replacement)
        if spelling is None:
            forms = spellings(func)
        else:
            forms = {key: spelled.inplace for key, spelled in _items(outer) if spelled.rule.name == rule.name}
        for key, inplace in forms.items():
            order = _own_order(key, rule.signature)
            if order is not None:
                layer[key] = Spelling(key, new, inplace, *order)
    active.table = layer
    try:
        yield
    finally:
        active.table = outer


def _items(table: Mapping[Callable[..., Any], Spelling]) -> Iterator[tuple[Callable[..., Any], Spelling]]:
    seen = set()
    while True:
        for key, spelling in table.items():
            if key not in seen:
                seen.add(key)
                yield key, spelling
        if not isinstance(table, _Layer):
            return
        table = table.outer


def _replaced(rule: Rule, replacement: ReplacementRule) -> Rule:
    if isinstance(replacement, Mapping):
        for name, function in replacement.items():
            rule = _extend(rule, function, name, replacing=True)
        return rule
    inputs = tuple(name for _, name in rule.inputs) or rule.signature.names[:1]
    return _extend(rule, replacement, inputs[0] if len(inputs) == 1 else inputs, replacing=True)


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
    for name, rule in sorted(_RULES.items()):
        kind = "no gradient" if rule.no_gradient else "decomposition" if rule.body is not None else "rule"
        inputs = tuple(n for _, n in rule.inputs)
        listed.append(RuleInfo(name, inputs, rule.keeps, kind, rule.location))
    return listed
