"""The table of rules: which rule belongs to which torch function, however it is spelled."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as copy_with
from typing import Any, TypeVar

import torch

from ops_registry.binding import Spelling, own_order
from ops_registry.errors import DuplicateRuleError, RuleError
from ops_registry.formula import Formula, make_formula
from ops_registry.rule import Rule
from ops_registry.signatures import base_name, is_custom, signature_of
from ops_registry.spellings import canonical, spellings
from ops_registry.torch_private import C_NAMESPACES

F = TypeVar("F", bound=Callable[..., Any])


#: Every spelling of every op that has a rule.
TABLE: dict[Callable[..., Any], Spelling] = {}
RULES: dict[str, Rule] = {}
lock = threading.RLock()


class Layer(dict[Callable[..., Any], Spelling]):
    """A table over another, ``outer``, that remembers what it has looked up there. Tables are told apart by identity."""

    def __init__(self, outer: Mapping[Callable[..., Any], Spelling]) -> None:
        super().__init__()
        self.outer = outer
        changes.layers.add(self)

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def over(self, outer: Mapping[Callable[..., Any], Spelling]) -> Layer:
        """The same over another table."""
        raise NotImplementedError


#: Functions of ``torch.nn.functional`` that hand over to an op of another name. One of their own name is another op.
HANDS_OVER_TO = {"fold": "col2im", "nll_loss": "nll_loss_nd", "unfold": "im2col"}


class _Changes:
    """How often the table has changed, and who has to hear of it."""

    def __init__(self) -> None:
        self.version = 0
        #: Whether a rule has been put in the place of another for good.
        self.replaced = False
        self.layers: weakref.WeakSet[Layer] = weakref.WeakSet()

    def note(self) -> None:
        """The table has changed."""
        self.version += 1
        for layer in list(self.layers):
            layer.clear()


changes = _Changes()


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


def file_rule(func: Callable[..., Any], rule: Rule) -> None:
    """Put ``rule`` under every spelling of ``func``."""
    RULES[rule.name] = rule
    written = rule.in_place_rule or rule
    for spelled, inplace in spellings(func).items():
        order = own_order(spelled, rule.signature)
        if order is not None:
            TABLE[spelled] = Spelling(spelled, written if inplace else rule, inplace, *order)
    changes.note()


def extend(
    rule: Rule,
    function: Callable[..., Any],
    wrt: str | tuple[str, ...],
    replacing: bool,
    cast_to_grad: tuple[str, ...] = (),
    linear: tuple[tuple[str, ...], ...] = (),
    symmetric: tuple[str, ...] = (),
    holomorphic: bool = True,
) -> Rule:
    """``rule`` with one more formula. One that replaces others gets the arguments in the dtype in which those got them.

    What was declared of the inputs that it replaces is no longer known.
    """
    formula = make_formula(function, wrt, rule.signature, rule.name, cast_to_grad)
    if formula.wraps:
        formula = copy_with(formula, inner=_inner(rule, formula))
    others = []
    casts = list(cast_to_grad)
    for existing in rule.formulas:
        overlap = set(existing.covers) & set(formula.wrt)
        if not overlap:
            others.append(existing)
        elif not replacing:
            raise DuplicateRuleError(
                f"{rule.name} already has a rule for {', '.join(sorted(overlap))}, written at {existing.location}; the second is "
                f"at {formula.location}. Pass replace=True to put it in the place of the first."
            )
        else:
            casts += existing.cast_to_grad
            if not set(existing.covers) <= set(formula.wrt):
                # A joint formula that loses one of its inputs still serves the others: it is told so by ``needs``.
                others.append(copy_with(existing, replaced=existing.replaced | overlap))
    formula = copy_with(formula, cast_to_grad=tuple(n for n in formula.saves if n in casts))
    written = None if replacing or rule.no_gradient else rule.in_place_rule
    kept = [group for group in rule.linear if not (replacing and set(group) & set(formula.wrt))]
    extended = copy_with(
        rule,
        formulas=(*others, formula),
        no_gradient=False,
        decomposition=None,
        as_one=None,
        in_place_rule=written,
        linear=(*kept, *linear),
        symmetric=(rule.symmetric - set(formula.wrt)) | set(symmetric),
        holomorphic=(rule.holomorphic - set(formula.wrt)) | set(symmetric if holomorphic else ()),
    )
    for parameter in formula.saves:
        extended.expression(parameter)
    return extended


def _inner(rule: Rule, formula: Formula) -> tuple[Formula, ...]:
    """The formulas that ``default`` means. Raises ``RuleError`` where an input has none."""
    inner = tuple(f for f in rule.formulas if set(f.covers) & set(formula.wrt))
    missing = set(formula.wrt).difference(*(f.covers for f in inner))
    if missing and not rule.no_gradient:
        raise RuleError(
            f"the rule for {rule.name} written at {formula.location} asks for 'default', and {rule.name} has no rule for "
            f"{', '.join(sorted(missing))} that it could stand in the place of. Return the gradient itself."
        )
    return inner


def backward(
    *funcs: Callable[..., Any],
    wrt: str | tuple[str, ...] | None = None,
    cast_to_grad: str | tuple[str, ...] = (),
    forward: Callable[..., tuple[Any, dict[str, Any]]] | None = None,
    copied: tuple[str, ...] = (),
    constant_results: tuple[int, ...] = (),
    in_place: bool = False,
    replace: bool = False,
    linear: bool | Sequence[str | tuple[str, ...]] = False,
    symmetric: bool | str | tuple[str, ...] = False,
    holomorphic: bool = True,
) -> Callable[[F], F]:
    """Register the decorated function as the backward rule of each of ``funcs``, for every way to spell them.

    The function's parameter names say what is saved for it: ``grad`` (the cotangent of the result; a tuple with None for
    results that received nothing, where the op returns several differentiable ones), any argument of the torch function by its
    name, ``result`` (or one of several results by its name, as ``indices``), an argument's name followed by ``_shape``,
    ``_dtype`` or ``_device`` (that property alone is saved) or, of an index, ``_frozen`` (as it reads at the call),
    and ``needs``. Nothing else stays alive.

    ``wrt`` names the input that the formula differentiates; the first argument when left out. A tuple of names makes one joint
    formula that returns a tuple of gradients in that order and may ask ``needs``, a named tuple of bools, which of them are wanted
    (``needs.weight``).
    What it returns is projected: summed over broadcast axes, cast, its real part taken; a rule does none of that. ``None`` means
    a gradient of zero, without the memory. For an input that is a list of tensors, the gradient is a list of the same length.

    ``cast_to_grad`` names saved arguments that the formula gets in the dtype of ``grad``: where promotion or the op itself brought
    its arguments to one dtype, that is the dtype in which it ran, and what its backward kernel wants throughout. What is no tensor
    is left alone. Formulas of ops that torch's autocast lists name get their floating arguments so without being asked.

    ``forward`` takes the op's arguments and returns ``(result, by_products)``; the rule may name any by-product.

    ``copied`` names arguments of which the forward may make copies to compute with. It hands back either nothing or, under the names of all
    of them, what is to be saved in their place: the same elements, in the argument or in its copy. So an argument that is a part of a
    large tensor does not keep the whole, and backward need not copy it again.

    ``constant_results`` are positions of floating results that do not require grad (the permutation among the results of LU); integer
    ones never do.

    ``in_place`` makes it the formula of the in-place spellings alone, written after the one that serves all others: those that save
    an input save a copy of it where it is overwritten, and one that makes do with ``result`` spares that copy.

    Two words say how forward mode (``tracer.func.jvp``) gets along without transposing the formula. ``linear``: the op is linear in
    the inputs of ``wrt``, in each while all others stay, so that it carries their tangents itself. Where it is linear in other inputs,
    or in several jointly, they are named: ``linear=[("input", "bias"), ("weight", "bias")]`` for ``x W' + b``; of those together, one
    without a tangent is zero. ``symmetric``: the Jacobian with respect to each input of ``wrt`` (or to those named), once that is
    broadcast to the result, is symmetric, so that the formula serves both ways. That of a pointwise op is diagonal. Over complex
    numbers it holds for a holomorphic op; of one with complex results that is not, say ``holomorphic=False``.

    Raises ``DuplicateRuleError`` when the input is covered already, unless ``replace``; ``RuleError`` when the function asks for
    something that the op does not have, or no function is given.
    """
    if not funcs:
        raise RuleError("backward() was given no function to write a rule for: @backward(torch.exp)")
    casts = (cast_to_grad,) if isinstance(cast_to_grad, str) else cast_to_grad

    def register(function: F) -> F:
        for func in funcs:
            with lock:
                rule = _rule_to_extend(func, forward, copied, constant_results)
                covered = rule.signature.names[0] if wrt is None else wrt
                groups = _groups(linear, covered, rule)
                both_ways = tuple([name for group in _groups(symmetric, covered, rule) for name in group])
                extended = extend(rule, function, covered, replace or in_place, casts, groups, both_ways, holomorphic)
                file_rule(func, copy_with(rule, in_place_rule=extended) if in_place else extended)
                changes.replaced |= replace and not is_custom(func)
        return function

    return register


def _groups(
    word: bool | str | Sequence[str | tuple[str, ...]], wrt: str | tuple[str, ...], rule: Rule
) -> tuple[tuple[str, ...], ...]:
    """The inputs that a word of a declaration speaks of, those together of which it speaks jointly; each of ``wrt`` for True."""
    if isinstance(word, bool):
        word = wrt if word else ()
    groups = tuple([(n,) if isinstance(n, str) else tuple(n) for n in ((word,) if isinstance(word, str) else word)])
    for name in {name for group in groups for name in group}:
        if name not in rule.signature.names:
            raise RuleError(
                f"{rule.name}({', '.join(rule.signature.names)}) has no input '{name}' to be linear or symmetric in"
            )
    return groups


def _rule_to_extend(
    func: Callable[..., Any],
    forward: Callable[..., tuple[Any, dict[str, Any]]] | None,
    copied: tuple[str, ...],
    constant_results: tuple[int, ...],
) -> Rule:
    """The rule that ``func`` has, or a new one without formulas."""
    name = op_name(func)
    rule = RULES.get(name) or Rule(name, signature_of(func))
    if forward is not None:
        rule = copy_with(rule, forward=forward, copied=rule.copied | set(copied))
    if constant_results:
        rule = copy_with(rule, constant_results=constant_results)
    if not rule.signature.names:
        raise RuleError(f"{name} takes no arguments: there is nothing to differentiate")
    return rule


def decomposition(func: Callable[..., Any]) -> Callable[[F], F]:
    """Define ``func`` by other ops: the decorated function takes its arguments and is run with interception on.

    For functions that torch itself builds out of smaller ones in C++ (``cross_entropy_loss``): their parts have rules.
    """

    def register(function: F) -> F:
        name = op_name(func)
        with lock:
            if name in RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {RULES[name].location}")
            file_rule(func, Rule(name, signature_of(func), decomposition=function))
        return function

    return register


def as_one(
    func: Callable[..., Any],
    *,
    wrt: tuple[str, ...],
    forward: Callable[..., tuple[Any, dict[str, Any]] | None],
    stands_for: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Give ``func``, which is defined by other ops, a rule for the call as one, in a fraction of the time.

    It is taken where nobody looks into the call: not inside a ``use`` block or a ``Graph``, once a rule was replaced for good, under
    autocast or in a transform. There the parts run, and what is said of them holds.

    ``wrt`` names all inputs that it has gradients for, ``forward`` is as for ``backward``; it may return None, for a call that is left to
    the parts. ``stands_for`` maps a by-product to the input whose place it takes in a recorded backward pass: a formula that gives the
    same for either need not keep the input.
    """

    def register(function: F) -> F:
        with lock:
            rule = RULES[op_name(func)]
            one = Rule(rule.name, rule.signature, forward=forward, stands_for=stands_for or {})
            one = extend(one, function, wrt, replacing=False)
            one.uncovered = ()  # forward leaves such a call to the parts
            file_rule(func, copy_with(rule, as_one=one))
        return function

    return register


def overloaded(func: Callable[..., Any], *, alone: bool = False) -> Callable[[F], F]:
    """Send each call of ``func`` to one of its ``torch.ops`` overloads, which have a rule each.

    The decorated function takes the call's arguments and returns the overload that they mean (``torch.max`` of one tensor, along a
    dimension, or of two tensors). ``alone``: of this spelling only, where another of the same name takes its arguments otherwise.
    """

    def register(choice: F) -> F:
        rule = Rule(op_name(func), signature_of(func))

        with lock:
            for function, inplace in ({func: False} if alone else spellings(func)).items():
                if isinstance(function, torch._ops.OpOverload) and function in TABLE:
                    continue
                spelled = Spelling(function, rule, inplace, rule.signature.names, False)
                TABLE[function] = spelled.choosing(_choose_overload(choice, spelled))
                TABLE[function].by_overload = True
            changes.note()
        return choice

    return register


def _choose_overload(
    choice: Callable[..., Any], spelled: Spelling
) -> Callable[[tuple[Any, ...], dict[str, Any]], Spelling | None]:
    #: By the id of the overload, what was chosen outside of every layer, where nothing depends on the call but the overload.
    known: dict[int, Spelling] = {}
    version = changes.version

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelling | None:
        nonlocal version
        overload = choice(*args, **kwargs)
        if active.table is not TABLE:
            return look_up(overload, args, kwargs)
        if version != changes.version:
            known.clear()
            version = changes.version
        # An overload's own hash is a Python function.
        made = known.get(id(overload))
        if made is None:
            made = look_up(overload, args, kwargs)
            if made is not None and TABLE[overload].choose is None:
                known[id(overload)] = made
        return made

    def look_up(overload: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelling | None:
        chosen = active.table[overload]
        if chosen.choose is not None:  # by where the call is made
            found = chosen.choose(args, kwargs)
            if found is None:
                return None
            chosen = found
        made = chosen.rule.spelled.get(spelled.func)
        if made is None:
            order, varargs = own_order(spelled.func, chosen.rule.signature) or (spelled.rule.signature.names, False)
            made = Spelling(spelled.func, chosen.rule, spelled.inplace, order, varargs)
            chosen.rule.spelled[spelled.func] = made
        return made

    return choose


def lookup(func: Callable[..., Any]) -> Rule | None:
    """The rule in force for ``func`` in this thread, whichever way it is spelled; None when there is none."""
    spelling = find(func)
    return None if spelling is None else spelling.rule


def find(func: Callable[..., Any]) -> Spelling | None:
    """The spelling in force for ``func`` in this thread; None where no rule covers it."""
    try:
        return active.table[func]
    except KeyError:
        pass
    # A Python-level function (F.relu) that hands over to the op of the same name is one more way to spell it.
    if isinstance(func, types.FunctionType) and (func.__module__ or "").startswith("torch"):
        name = func.__name__.lstrip("_")  # F.threshold calls itself _threshold
        if func.__module__ == "torch.nn.functional":
            name = HANDS_OVER_TO.get(name, name)
        for candidate in (getattr(owner, name, None) for owner in (torch, torch.Tensor, *C_NAMESPACES)):
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
    #: What is saved from the forward call when every input wants a gradient.
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
