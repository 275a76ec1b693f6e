"""A rule: the formulas of one op, and what each of them wants to be saved from the forward call.

Nothing here touches a tensor. ``tracer`` reads a rule in two places: when a call is recorded (``CallPlan.gather`` says what
to save) and when backward reaches it (``CallPlan.steps`` says which formula gives which gradient).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from ops_registry.errors import RuleError
from ops_registry.formula import KIND, Formula, compile_call, make_needs
from ops_registry.shared.descriptors import device_of, dtype_of, offset_of, shape_of, stride_of
from ops_registry.shared.indices import frozen
from ops_registry.signatures import Signature
from ops_registry.sites import site_for_rule
from ops_registry.torch_private import has_autocast_kernel

#: The parameter that stands for where the call was made.
SITE = "site"
#: The by-product of a composed call: what its body recorded.
BODY = "body"

#: Suffixes by which a rule asks for a property of an argument without saving the argument.
META = ("shape", "dtype", "device", "stride", "offset")

#: Suffix by which a rule asks for an index as it reads at the call, whatever becomes of the lists and counters in it.
FROZEN = "frozen"

#: torch's own ways to them, past properties of a subclass: they are read with interception off.
_READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": shape_of,
    "dtype": dtype_of,
    "device": device_of,
    "stride": stride_of,
    "offset": offset_of,
}

#: How a call for one of them is written in ``Rule.expression``: of an argument, or of a result.
_META_CALL = re.compile(r"_meta\(((?:bound|result)(?:\[(\d+)\])?), '(\w+)'\)")

#: Where a saved value stems from, for reattaching it to the graph when the backward pass is recorded itself: the whole result;
#: one of several results is FROM_RESULT - 1 - its position; a parent is its position.
FROM_RESULT = -1

#: Devices whose autocast lists are asked about.
AUTOCAST_DEVICES = ("cpu", "cuda") if torch.backends.cuda.is_built() else ("cpu",)


#: Ops of which torch lets each result be written into, though one call returns several views.
_MAKES_EACH_VIEW = frozenset({"dsplit", "hsplit", "tensor_split", "vsplit"})

#: Written out for ``isinstance``, wherever a call goes through: a union would be made each time.
LISTS = (tuple, list)


def _meta(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return _READ[name](value)
    if isinstance(value, LISTS):
        try:
            return list(map(_READ[name], value))
        except TypeError:  # not of tensors alone
            return [_meta(v, name) for v in value]
    return torch.Size(()) if name == "shape" else None


def _kind(value: Any) -> Any:
    """Shape and dtype of a tensor, or of each in a list."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return [_kind(v) for v in value] if isinstance(value, list | tuple) else (torch.Size(()), torch.get_default_dtype())


@dataclass(frozen=True, slots=True)
class Step:
    """One formula of a call whose set of inputs that want a gradient is known."""

    formula: Formula
    #: ``call(grad, saved, needs)`` picks what the formula asks for out of the saved values.
    call: Callable[[Any, tuple[Any, ...], tuple[bool, ...] | None], Any]
    #: Position among the call's parents for each input of the formula, None where it wants no gradient.
    parents: tuple[int | None, ...]
    needs: tuple[bool, ...]
    #: The parent of a formula with one input.
    parent: int
    joint: bool

    def narrowed(self, wanted: tuple[bool, ...]) -> Step:
        """The step for those of its inputs alone whose parents are ``wanted``."""
        parents = tuple([p if p is not None and wanted[p] else None for p in self.parents])
        needs = make_needs(self.formula.wrt, [p is not None for p in parents])
        return replace(self, parents=parents, needs=needs)


@dataclass(frozen=True, slots=True)
class Push:
    """How the tangents of some inputs of a call become one of its result: through the op itself, or through a formula."""

    #: The inputs that the op is linear in jointly: tangents take the places of those that are ``carried``, zeros those of the others.
    linear: tuple[str, ...] = ()
    carried: frozenset[str] = frozenset()
    #: The formula of the one input in which the op's Jacobian is symmetric, so that it serves both ways.
    symmetric: Step | None = None
    #: The position of that input among the call's parents.
    parent: int = 0


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What one call saves and runs: a rule for one set of inputs that want a gradient. Only what their formulas name is saved."""

    rule: Rule
    steps: tuple[Step, ...]
    saved_names: tuple[str, ...]
    #: ``gather(bound, result, extra)`` gives the values to save, in the order of ``saved_names``.
    gather: Callable[[tuple[Any, ...], Any, dict[str, Any]], tuple[Any, ...]] | None
    #: For each saved value: the parent it is, FROM_RESULT or below, or None (a constant).
    sources: tuple[int | None, ...]
    #: Positions of the saved values that may hold tensors or lists; the others are saved as they are.
    tensor_positions: tuple[int, ...] = ()
    #: Which of the rule's inputs want a gradient, a bit each.
    mask: int = 0
    #: Whether a saved value is the result, or is read off it.
    of_result: bool = True
    #: What ``steps_for`` has made.
    _narrowed: dict[tuple[bool, ...], tuple[Step, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    #: What ``pushes_for`` has made.
    _pushes: dict[tuple[bool, ...], tuple[Push, ...] | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that want a gradient, in the order of the call's parents."""
        return tuple([name for bit, (_, name) in enumerate(self.rule.inputs) if self.mask >> bit & 1])

    def pushes_for(self, carrying: tuple[bool, ...]) -> tuple[Push, ...] | None:
        """How the tangents of the ``carrying`` ones of the call's parents, a flag each, go through it; None where no word says so."""
        if carrying not in self._pushes:
            self._pushes[carrying] = self._make_pushes(carrying)
        return self._pushes[carrying]

    def _make_pushes(self, carrying: tuple[bool, ...]) -> tuple[Push, ...] | None:
        left = {name: i for i, name in enumerate(self.names) if carrying[i]}
        pushes = []
        # Through the op for what no formula serves; what is linear jointly with that comes along.
        while alone := left.keys() - self.rule.symmetric:
            groups = [group for group in self.rule.linear if not alone.isdisjoint(group)]
            if not groups:
                return None
            group = max(groups, key=lambda group: len(left.keys() & set(group)))
            pushes.append(Push(group, frozenset(left.keys() & set(group))))
            left = {name: i for name, i in left.items() if name not in group}
        for i in left.values():
            (step,) = self.steps_for(tuple([k == i for k in range(len(carrying))]))
            pushes.append(Push(symmetric=step, parent=i))
        return tuple(pushes)

    def formulas(self) -> Iterator[Formula]:
        """Every formula that gradients of this call may come from, those that ``default`` stands for included."""
        for step in self.steps:
            wanted = [n for n, position in zip(step.formula.wrt, step.parents, strict=True) if position is not None]
            yield from step.formula.with_inner(wanted)

    def steps_for(self, wanted: tuple[bool, ...]) -> tuple[Step, ...]:
        """The steps that give the gradients of the ``wanted`` ones of the call's parents, a flag each."""
        steps = self._narrowed.get(wanted)
        if steps is None:
            narrowed = [step.narrowed(wanted) for step in self.steps]
            steps = self._narrowed[wanted] = tuple([step for step in narrowed if any(step.needs)])
        return steps


@dataclass
class Rule:
    """All formulas of one op."""

    name: str
    signature: Signature
    formulas: tuple[Formula, ...] = ()
    #: Runs the forward in place of the torch function and returns ``(result, {name: by-product})``.
    forward: Callable[..., Any] | None = None
    #: Arguments of which the forward may hand back the copy that it computed with, under their names: those are saved in their place.
    copied: frozenset[str] = frozenset()
    #: Set for ops whose results never carry a gradient.
    no_gradient: bool = False
    #: Such an op reads the values, and not only what the tensor is like.
    reads_values: bool = True
    #: ``file:line`` where that was declared.
    declared_at: str = ""
    #: Set for ops that are defined by other ops: runs them with interception on.
    decomposition: Callable[..., Any] | None = None
    #: Of such an op: its rule as one call, for where nobody looks into it. Its forward may return None: that call goes by the other ops.
    as_one: Rule | None = field(default=None, repr=False)
    #: By-products that stand for an input in a recorded backward pass: the formulas are the same functions of either.
    stands_for: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Set where a function that torch composes has a rule of its own inside ``use``: the rules under which its body runs.
    composed: Mapping[Any, Any] | None = field(default=None, repr=False)
    #: The rule of the in-place spellings, where they have formulas of their own.
    in_place_rule: Rule | None = None
    #: Differentiable inputs as (position in the signature, name), in the signature's order.
    inputs: tuple[tuple[int, str], ...] = ()
    #: Their positions alone.
    positions: tuple[int, ...] = ()
    #: Where each argument stands in the signature.
    places: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    #: Positions of results that are constants though they are floating.
    constant_results: tuple[int, ...] = ()
    #: Inputs in which the op is linear; of several that stand together it is linear in all of them jointly.
    linear: tuple[tuple[str, ...], ...] = ()
    #: Inputs in which its Jacobian is symmetric.
    symmetric: frozenset[str] = frozenset()
    #: Those of them in which it is holomorphic, where it takes complex numbers.
    holomorphic: frozenset[str] = frozenset()
    #: As in the signature.
    may_alias: bool = True
    #: The result may be an argument itself beside the one that wants a gradient: several of them can be tensors.
    may_return_plain: bool = True
    #: torch makes each of the views that it returns by itself: they may be written into.
    makes_each_view: bool = field(default=False, init=False, repr=False)
    #: Plans in use, by mask: a replaced rule that has one was applied.
    plans: dict[int, CallPlan] = field(default_factory=dict, init=False, repr=False)
    #: Plans made so far, by mask.
    made: dict[int, CallPlan] = field(default_factory=dict, init=False, repr=False)
    #: Its spellings among the functions that several overloads share.
    spelled: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False, repr=False)
    #: Arguments that can be a tensor and that no formula covers: a gradient wanted there would be lost.
    uncovered: tuple[tuple[int, str], ...] = ()
    #: Those of them that can be given by position.
    uncovered_positional: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        covered = {name for formula in self.formulas for name in formula.covers}
        self.inputs = tuple((i, n) for i, n in enumerate(self.signature.names) if n in covered)
        self.places = {name: place for place, name in enumerate(self.signature.names)}
        self.may_alias = self.signature.may_alias
        self.makes_each_view = self.name.partition(".")[0] in _MAKES_EACH_VIEW
        self.may_return_plain = self.may_alias and len({*self.signature.names} - self.signature.constant) > 1
        self.positions = tuple(i for i, _ in self.inputs)
        self.uncovered = tuple(
            (i, n) for i, n in enumerate(self.signature.names) if n not in covered and n not in self.signature.constant
        )
        self.uncovered_positional = tuple((i, n) for i, n in self.uncovered if n not in self.signature.keyword_only)

    @property
    def saves(self) -> tuple[str, ...]:
        """Everything that some formula of the rule saves."""
        return tuple(dict.fromkeys(k for f in self.formulas for k in f.saves))

    @property
    def location(self) -> str:
        """``file:line`` of each formula, of the body, or of the declaration."""
        if self.no_gradient:
            return self.declared_at
        if self.decomposition is not None:
            return f"{self.decomposition.__code__.co_filename}:{self.decomposition.__code__.co_firstlineno}"
        return ", ".join(f.location for f in self.formulas)

    def plan(self, mask: int) -> CallPlan:
        """The plan for the inputs whose bits are set in ``mask`` (bit k: ``inputs[k]``)."""
        try:
            return self.plans[mask]
        except KeyError:
            plan = self.made.get(mask) or self._build(mask)
            self.made[mask] = self.plans[mask] = plan
            return plan

    def _build(self, mask: int) -> CallPlan:
        parent_of: dict[str, int] = {}
        for bit, (_, name) in enumerate(self.inputs):
            if mask >> bit & 1:
                parent_of[name] = len(parent_of)
        active = [f for f in self.formulas if any(n in parent_of for n in f.covers)]
        saved_names = tuple(dict.fromkeys(k for f in active for k in f.saves_for(parent_of)))
        steps = []
        for formula in active:
            parents = tuple(None if n in formula.replaced else parent_of.get(n) for n in formula.wrt)
            needs = make_needs(formula.wrt, (p is not None for p in parents))
            call = compile_call(formula, self.name, saved_names, self._autocast_arguments(), parent_of)
            steps.append(Step(formula, call, parents, needs, parents[0] or 0, formula.joint))
        sources = tuple(self._source(n, parent_of) for n in saved_names)
        tensor_positions = tuple(
            i for i, n in enumerate(saved_names) if n not in self.signature.plain and n != SITE and not self._is_meta(n)
        )
        gather = self.gatherer(saved_names) if saved_names else None
        of_result = any("result" in self.expression(n) for n in saved_names)
        return CallPlan(self, tuple(steps), saved_names, gather, sources, tensor_positions, mask, of_result)

    def _autocast_arguments(self) -> tuple[str, ...]:
        """The arguments that autocast may have cast on their way into the op."""
        if not any(has_autocast_kernel(self.name, device) for device in AUTOCAST_DEVICES):
            return ()
        return tuple(n for n in self.signature.names if n not in self.signature.plain)

    def _is_meta(self, name: str) -> bool:
        return name not in self.signature.names and self.expression(name).startswith(("_meta(", "_kind("))

    def _source(self, name: str, parent_of: dict[str, int]) -> int | None:
        name = self.stands_for.get(name, name)
        if name in parent_of:
            return parent_of[name]
        if name in self.signature.outputs:
            return FROM_RESULT - 1 - self.signature.outputs.index(name)
        return FROM_RESULT if name == "result" else None

    def gatherer(self, names: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
        """``gather(bound, result, extra)``, which fetches the values of these parameters from a call."""
        # Generated once per plan: a loop over names would cost more than the rest of the recording of a small op.
        known: dict[str, Any] = {
            "__name__": __name__,
            "_meta": _meta,
            "_kind": _kind,
            "_frozen": frozen,
            "_site": partial(site_for_rule, self.name),
        }
        parts = ", ".join(map(self.expression, names))
        gather = eval(f"lambda bound, result, extra: ({parts},)", known)
        of_a_tensor = _META_CALL.sub(self._of_a_tensor, parts)
        if of_a_tensor == parts:
            return gather
        # Most often it is a tensor whose shape is asked for, and torch itself says when it is not.
        known |= {"_any": gather} | {f"_{name}": read for name, read in _READ.items()}
        exec(
            f"def gather(bound, result, extra):\n"
            f"    try:\n        return ({of_a_tensor},)\n"
            f"    except TypeError:\n        return _any(bound, result, extra)\n",
            known,
        )
        return cast(Callable[..., tuple[Any, ...]], known["gather"])

    def _of_a_tensor(self, call: re.Match[str]) -> str:
        """Python text that does what ``call`` does, for a tensor, or for None where the argument may be left out."""
        value, position, name = call.groups()
        optional = (
            value.startswith("bound") and self.signature.defaults.get(self.signature.names[int(position)], 0) is None
        )
        return f"({call[0]} if {value} is None else _{name}({value}))" if optional else f"_{name}({value})"

    def _given(self, name: str) -> str:
        """Python text that fetches an argument from ``bound``."""
        return f"bound[{self.signature.names.index(name)}]"

    def expression(self, name: str) -> str:
        """Python text that fetches the value of parameter ``name`` from ``bound``, ``result`` and ``extra``.

        Raises ``RuleError`` when the op has nothing of that name.
        """
        names, outputs = self.signature.names, self.signature.outputs
        if name == SITE:
            return "_site()"
        if name in names:
            return f"(extra[{name!r}] if extra else {self._given(name)})" if name in self.copied else self._given(name)
        if name in outputs:  # before the whole result: linalg.solve_ex calls one of its outputs so
            return f"result[{outputs.index(name)}]"
        if name == "result":
            return "result"
        base, _, suffix = name.rpartition("_")
        if suffix == KIND and base in names:
            return f"_kind({self._given(base)})"
        if suffix == FROZEN and base in names:
            return f"_frozen({self._given(base)})"
        if suffix in META and (base in names or base == "result" or base in outputs):
            return f"_meta({self._given(base) if base in names else self.expression(base)}, {suffix!r})"
        if self.forward is not None or (self.composed is not None and name == BODY):
            return f"extra[{name!r}]"
        raise RuleError(
            f"the rule for {self.name} asks for '{name}', which {self.name}({', '.join(names)}) does not have. A rule may name "
            f"grad, needs, default, site, result, {'the results ' + ', '.join(outputs) + ', ' if outputs else ''}the op's arguments, or an "
            f"argument followed by {', '.join('_' + m for m in (*META, FROZEN))}; a by-product of the forward needs forward=."
        )
