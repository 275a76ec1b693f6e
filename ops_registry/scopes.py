"""Where a replaced rule holds: ``use`` puts rules in the place of others for the calls made inside a block."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from ops_registry.binding import Spelling, own_order
from ops_registry.composed import as_composed, is_composed, parts_of
from ops_registry.errors import DuplicateRuleError, RuleError
from ops_registry.matching import Scope, Where, bound_arguments
from ops_registry.registry import RULES, TABLE, Layer, active, changes, extend, find, op_name
from ops_registry.rule import CallPlan, Rule
from ops_registry.signatures import signature_of
from ops_registry.sites import Site, find_site, open_graphs, run_as_at
from ops_registry.spellings import spellings
from ops_registry.torch_private import next_sequence_number
from ops_registry.unused import explain_unused

ReplacementRule = Callable[..., Any] | Mapping[str, Callable[..., Any]]
Replacements = Mapping[Any, ReplacementRule]

Table = Mapping[Callable[..., Any], Spelling]


class use:  # used as a statement, as torch.no_grad is
    """Replace rules for the calls made inside the block by this thread, for every spelling of each op.

    ``rules`` maps a torch function, or a tuple of them, to a rule written as for ``backward``. Where the op's rule covers one input, it
    returns that gradient; where it covers several, a tuple of them in the order of the op's arguments. To replace the formula of some
    inputs only, map to a dict from input name to function. Calls recorded inside keep their rule when backward runs later, outside.

    A rule may name ``default``: ``default(grad)`` is what it stands in the place of, the op's own rule or that of a ``use`` block around
    this one, for the same inputs, projected onto them. It may name ``site``, inside ``with tracer.Graph()``: where the call was made
    (``site.op``, ``site.module``, ``site.line``).

    ``where`` says for which calls: those inside a module of the tracked model, by path or glob (``"layer4"``, ``"layer4.*"``,
    ``"*.attn"``), those on a line (``"model.py:12"``), or those for which ``where(site)`` is true; ``site.args`` are the call's arguments
    there. Elsewhere the rule outside holds; of two nested blocks the inner one wins.

    A function that torch composes of others (``F.normalize``, ``F.multi_head_attention_forward``) may be replaced as a whole: a plain
    function gives the gradient of its first argument, a dict that of others; what is not covered, and ``default``, come from its body.

    ``expect``: at its end the block raises ``UnusedRuleError`` where none of its rules was applied (``"any"``), where one of them was not
    (``"all"``), or never (None). ``UnmatchedScopeError`` is the one for a ``where`` that no call was in.

    It may be made once and entered often, by several threads. Raises ``RuleError`` for a function without arguments to differentiate and
    for a rule that asks for what the op lacks, ``DuplicateRuleError`` for two spellings of one op.
    """

    def __init__(
        self, rules: Replacements, *, where: Where | None = None, expect: Literal["any", "all"] | None = "any"
    ) -> None:
        if expect not in ("any", "all", None):
            raise RuleError(f"use(expect={expect!r}): it is 'any', 'all' or None")
        self._expect = expect
        #: The rules are to meet each gradient once (``packs.reverse``): two layers one behind the other would cancel.
        self._once: bool = getattr(rules, "once", False)
        if self._once and where is None:
            where = ""  # everywhere; where that is, is noted
        self._scope = None if where is None else Scope(where)
        self._replacements = _by_op(rules)
        self._applied: set[str] = set()
        self._threads = _Entered()
        self._layers: weakref.WeakSet[_Block] = weakref.WeakSet()
        layer = self._layer(active.table)
        for replacement in self._replacements.values():
            layer.check(replacement)

    def __enter__(self) -> use:
        outer = active.table
        layer = self._threads.layers.get(id(outer))
        if layer is None or layer.version != changes.version:
            layer = self._layer(outer)
        self._applied |= layer.begin()
        self._threads.stack.append(layer)
        active.table = layer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        layer = self._threads.stack.pop()
        active.table = layer.outer
        applied = layer.end()
        self._applied |= applied
        unused = [name for name in self._replacements if name not in applied]
        crowded = self._scope.crowded() if self._once and self._scope is not None else []
        if kind is None and crowded and self._scope is not None:
            raise RuleError(
                f"use() has turned the gradient round in {' and in '.join(crowded)}: where these stand one behind the other it is turned "
                f"back. Name one layer, where={crowded[0]!r}, or, if they stand side by side, each by a glob ('heads.*')."
            )
        if kind is None and unused and (self._expect == "all" or (self._expect == "any" and not applied)):
            raise explain_unused(unused, layer.ops_met(), layer.taken_inside(), self._scope)

    def _layer(self, outer: Table) -> _Block:
        layers = self._threads.layers
        if len(layers) >= _KEPT_LAYERS:
            layers.clear()
        layer = layers[id(outer)] = _Block(outer, self._replacements, self._scope)
        self._layers.add(layer)
        return layer

    def __del__(self) -> None:
        # A rule and its plans hold each other: without this, what a rule closes over would stay until the garbage collector comes.
        for layer in list(self.__dict__.get("_layers", ())):
            layer.forget()

    def unused(self) -> list[str]:
        """The ops whose rule no recorded call has taken so far."""
        applied = self._applied.union(*(layer.applied() for layer in self._threads.stack))
        return [name for name in self._replacements if name not in applied]


def without_blocks(table: Table) -> Table:
    """``table`` without the rules of ``use`` blocks."""
    if isinstance(table, _Block):
        return without_blocks(table.outer)
    if isinstance(table, Layer):
        beneath = without_blocks(table.outer)
        return table if beneath is table.outer else table.over(beneath)
    return table


def as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, to be run later under the rules in force now, as if it was called here: a stretch of the forward that runs again."""
    table, site, graphs = active.table, find_site("", 2), open_graphs.count
    while isinstance(table, Layer) and not isinstance(table, _Block):
        table = table.outer  # who observes the calls of now does not wait for those
        graphs = graphs or 1  # but sees the parts of a call, of which it is to be made again
    if table is not TABLE and not isinstance(table, _Block):
        return function  # a transform that watches for tracked tensors, and has found none

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        outer, active.table = active.table, table
        open_now, open_graphs.count = open_graphs.count, graphs  # a rule that names site was given one, and is again
        try:
            return run_as_at(site, function, args, kwargs)
        finally:
            active.table, open_graphs.count = outer, open_now

    return run


def _blocks() -> Iterator[_Block]:
    """The ``use`` blocks that this thread is in, from the innermost out."""
    table = active.table
    while isinstance(table, Layer):
        if isinstance(table, _Block):
            yield table
        table = table.outer


def replaced() -> bool:
    """Whether this thread is in a ``use`` block."""
    return active.table is not TABLE and any(True for _ in _blocks())


def watched() -> bool:
    """Whether a transform watches the calls of this thread, beneath all ``use`` blocks."""
    table = active.table
    while isinstance(table, _Block):
        table = table.outer
    return table is not TABLE


def replaced_here(ops: Collection[str], native_call: float = math.inf) -> str | None:
    """One of ``ops`` that a ``use`` block has a rule for where this thread is now; a predicate is taken to say so.

    ``native_call`` is the number of a call in torch's own autograd: blocks that began later do not count.
    """
    for block in _blocks():
        for name, replacement in block._replacements.items() if block.began <= native_call else ():
            if any(map(replacement.covers, ops)) and (block._scope is None or block._scope.may_hold_here(name)):
                return name
    return None


def rules_in_force() -> tuple[Any, ...]:
    """What the ``use`` blocks of this thread put in force, the innermost first: equal where they say the same by the same functions."""
    return tuple([block.says() for block in _blocks()])


def rules_applied() -> tuple[set[str], ...]:
    """For each ``use`` block of this thread, the innermost first: the ops of which a call has taken its rule."""
    return tuple([block.applied() for block in _blocks()])


def note_applied(applied: Sequence[set[str]]) -> None:
    """A graph runs that was captured under blocks that say the same, and took these rules then."""
    for block, ops in zip(_blocks(), applied, strict=True):
        block.replayed |= ops


def blocks_began() -> int:
    """The number in torch's own autograd at which the first block of this thread began."""
    return min((block.began for block in _blocks()), default=0)


def run_unreplaced(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` under the rules outside of every ``use`` block: it may run again what was called there."""
    if not replaced():
        return function(*args)
    outer, active.table = active.table, TABLE
    try:
        return function(*args)
    finally:
        active.table = outer


#: Layers that one ``use`` keeps for the tables around it: a block in a loop finds the same table again.
_KEPT_LAYERS = 8


class _Entered(threading.local):
    """What one thread has of a ``use``: its layers, by the id of the table outside, and those that it is in."""

    def __init__(self) -> None:
        self.layers: dict[int, _Block] = {}
        self.stack: list[_Block] = []


class _Replacement:
    """One op, and the rule that takes the place of its own."""

    def __init__(self, func: Callable[..., Any], rule: ReplacementRule) -> None:
        spelling = find(func)
        self.func = func
        self.name = op_name(func) if spelling is None else spelling.rule.name
        self.formulas = rule
        self.functions = {id(f) for f in (rule.values() if isinstance(rule, Mapping) else (rule,))}
        #: What stands for the rule of an op that has none.
        self.base = Rule(self.name, signature_of(func)) if spelling is None else spelling.rule
        #: Every spelling of an op that has no rule outside, with whether it writes in place.
        self.forms = spellings(func) if spelling is None else {}

    def covers(self, name: str) -> bool:
        """Whether the op filed as ``name`` is meant: itself, or one of its overloads where it has rules by overload (``torch.max``)."""
        by_overload = not isinstance(self.func, torch._ops.OpOverload) and name.startswith(f"{self.name}.")
        return name == self.name or by_overload

    def in_place_of(self, rule: Rule, outer: Table) -> Rule:
        """``rule`` with the formulas replaced. Raises ``RuleError`` where what they ask for is not there."""
        if is_composed(rule, self.func):
            rule = as_composed(rule, outer)
            covered: str | tuple[str, ...] = rule.inputs[0][1]
        else:
            inputs = tuple(name for _, name in rule.inputs) or rule.signature.names[:1]
            covered = inputs[0] if len(inputs) == 1 else inputs
        formulas = self.formulas if isinstance(self.formulas, Mapping) else {covered: self.formulas}
        for names, function in formulas.items():
            rule = extend(rule, function, names, replacing=True)
        return rule


def _by_op(rules: Replacements) -> dict[str, _Replacement]:
    """The replacements by the name of the op. Raises ``DuplicateRuleError`` where two functions mean one op."""
    found: dict[str, _Replacement] = {}
    for funcs, rule in rules.items():
        for func in funcs if isinstance(funcs, tuple) else (funcs,):
            new = _Replacement(func, rule)
            for other in found.values():
                if other.covers(new.name) or new.covers(other.name):
                    raise DuplicateRuleError(
                        f"use() was given two rules for {new.name}: {other.func!r} and {func!r} are spellings of one op"
                    )
            found[new.name] = new
    return found


def _covering(replacements: Mapping[str, _Replacement], op: str) -> _Replacement | None:
    """The replacement for ``op``: its own, or that of a function that it is an overload of."""
    return replacements.get(op) or next((r for r in replacements.values() if r.covers(op)), None)


class Substitution:
    """Other rules for calls that are recorded already: what ``use`` does for those to come. ``rules`` and ``where`` are as there."""

    def __init__(self, rules: Replacements, where: Where | None = None) -> None:
        self._replacements = _by_op(rules)
        self._scope = None if where is None else Scope(where)
        #: The rules made, by the id of the one recorded (which is held), and the ops that a call took one of.
        self._made: dict[int, tuple[Rule, Rule]] = {}
        self._applied: set[str] = set()

    @property
    def scoped(self) -> bool:
        """Whether ``where`` says for which calls they hold."""
        return self._scope is not None

    def covers(self, op: str) -> bool:
        """Whether one of the rules is for ``op``."""
        return _covering(self._replacements, op) is not None

    def plan_for(self, plan: CallPlan, site: Site | None) -> CallPlan | None:
        """The plan of a call, made at ``site``, under its other rule; None where it keeps its own. With a scope, ``site`` has to be known.

        Raises ``RuleError`` where the rule asks for what the op does not have.
        """
        replacement = _covering(self._replacements, plan.rule.name)
        if replacement is None:
            return None
        if self._scope is not None and (site is None or not self._scope.holds_at(site)):
            return None
        _, rule = self._made.get(id(plan.rule), (None, None))
        if rule is None:
            rule = replacement.in_place_of(plan.rule, active.table)
            self._made[id(plan.rule)] = plan.rule, rule
        wanted = {name for bit, (_, name) in enumerate(plan.rule.inputs) if plan.mask >> bit & 1}
        other = rule.plan(sum(1 << bit for bit, (_, name) in enumerate(rule.inputs) if name in wanted))
        if replacement.functions.isdisjoint(id(formula.function) for formula in other.formulas()):
            return None  # a rule for inputs that want no gradient here
        self._applied.add(replacement.name)
        return other

    def check(self, replayed: Mapping[str, int]) -> None:
        """After a pass through so many calls of each op: raise where a rule could not be applied.

        Raises ``RuleError`` for a function that torch composes of others, whose parts were recorded, and ``UnusedRuleError`` where none of
        the rules was applied.
        """
        unused = [name for name in self._replacements if name not in self._applied]
        for name in unused:
            replacement = self._replacements[name]
            if is_composed(replacement.base, replacement.func):
                parts = parts_of(replacement.base.decomposition or replacement.func, replayed)
                raise RuleError(
                    f"replay() was given a rule for {name}, which is made of other ops, and it is those that were recorded: here "
                    f"{', '.join(parts or sorted(replayed)) or 'none'}. Give rules for these, or run the forward pass inside "
                    f"ops_registry.use, which replaces the call as a whole."
                )
        if unused and not self._applied:
            raise explain_unused(unused, set(replayed), set(), self._scope, replayed)


class _Block(Layer):
    """The table inside a ``use`` block: each spelling is looked up outside when it is first met, and replaced where a rule is for it.

    What stands in it are thus the functions that were called in the block.
    """

    def __init__(self, outer: Table, replacements: Mapping[str, _Replacement], scope: Scope | None) -> None:
        super().__init__(outer)
        self.version = changes.version
        #: What torch's own autograd had come to as the block began.
        self.began = 0
        self._replacements = replacements
        self._scope = scope
        self._new = {form: (r, inplace) for r in replacements.values() for form, inplace in r.forms.items()}
        #: The rules made, by the id of the rule outside (which is held, so that no id comes twice), with the name of their replacement.
        self._made: dict[int, tuple[str, Rule, Rule]] = {}
        #: Plans of blocks inside this one, by id: a rule of this block may be what theirs leave in place, or call ``default``.
        self._inner_plans: dict[int, CallPlan] = {}
        #: Ops whose rule was taken when a graph was captured that has run in the block since.
        self.replayed: set[str] = set()

    def says(self) -> tuple[Any, ...]:
        """Which rules hold where; functions stand for themselves."""
        rules = [
            (name, tuple(r.formulas.items()) if isinstance(r.formulas, Mapping) else r.formulas)
            for name, r in self._replacements.items()
        ]
        return tuple(rules), None if self._scope is None else self._scope.where

    def __missing__(self, key: Callable[..., Any]) -> Spelling:
        if key in self._new:
            replacement, inplace = self._new[key]
            order = own_order(key, replacement.base.signature)
            if order is None:
                raise KeyError(key)
            found = self._replaced(Spelling(key, replacement.base, inplace, *order), replacement, has_rule=False)
        else:
            outside = self.outer[key]
            known = _covering(self._replacements, outside.rule.name)
            # A spelling that several overloads share sends the call on to one of them, which is replaced.
            found = outside if known is None or outside.by_overload else self._replaced(outside, known, has_rule=True)
        self[key] = found
        return found

    def _replaced(self, outside: Spelling, replacement: _Replacement, *, has_rule: bool) -> Spelling:
        """The spelling in the block; where it depends on the call, one that chooses: None for a call that has no rule."""
        scope, choose_outside = self._scope, outside.choose
        if scope is None and choose_outside is None:
            return outside.under(self.rule_for(outside.rule, replacement))
        made: dict[int, Spelling] = {}

        def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelling | None:
            chosen = outside if choose_outside is None else choose_outside(args, kwargs)
            spelling = chosen or outside
            if scope is not None and not scope.holds(
                replacement.name, lambda: bound_arguments(spelling.bind, args, kwargs)
            ):
                return chosen if has_rule else None
            inside = made.get(id(spelling.rule))
            if inside is None:
                inside = made[id(spelling.rule)] = spelling.under(self.rule_for(spelling.rule, replacement))
            return inside

        return outside.choosing(choose)

    def forget(self) -> None:
        """Let go of the rules made. A checkpointed stretch that still runs under this table makes them anew."""
        self.clear()
        for _, _, rule in self._made.values():
            rule.plans.clear()
            rule.made.clear()
            rule.spelled.clear()
        self._made.clear()
        self._inner_plans.clear()

    def rule_for(self, outside: Rule, replacement: _Replacement) -> Rule:
        """The rule that takes the place of ``outside``, made once."""
        found = self._made.get(id(outside))
        if found is None:
            new = replacement.in_place_of(outside, self.outer)
            found = self._made[id(outside)] = (replacement.name, outside, new)
        return found[2]

    def check(self, replacement: _Replacement) -> None:
        """Raise ``RuleError`` where the rule asks for what the op does not have; of an op with overloads, one has to fit."""
        outside = find(replacement.func)
        if outside is None or not outside.by_overload:
            self.rule_for(replacement.base if outside is None else outside.rule, replacement)
            return
        refused = None
        for name, rule in list(RULES.items()):
            if replacement.covers(name):
                try:
                    self.rule_for(rule, replacement)
                    return
                except RuleError as error:
                    refused = refused or error
        if refused is not None:
            raise refused

    def begin(self) -> set[str]:
        """A block begins: what was applied before, which counts no more."""
        applied = self.applied()
        self.began = next_sequence_number()
        for _, _, rule in self._made.values():
            rule.plans.clear()
        self._inner_plans.clear()
        self.replayed.clear()
        return applied

    def end(self) -> set[str]:
        """A block ends: what was applied in it, which the blocks around it hear of too."""
        outer = self.outer
        while isinstance(outer, Layer):
            if isinstance(outer, _Block):
                outer._inner_plans.update({id(plan): plan for plan in self._plans()})
            outer = outer.outer
        return self.applied()

    def applied(self) -> set[str]:
        """The ops whose rule a recorded call has taken since the block began: the plans of a rule are filled by the calls that take it."""
        ran = {(plan.rule.name, id(formula.function)) for plan in self._plans() for formula in plan.formulas()}
        took = {r.name for r in self._replacements.values() for op, f in ran if f in r.functions and r.covers(op)}
        return took | self.replayed

    def taken_inside(self) -> set[str]:
        """The ops of which a block inside this one has taken calls."""
        ops = {plan.rule.name for plan in self._inner_plans.values()}
        return {r.name for r in self._replacements.values() if any(map(r.covers, ops))}

    def _plans(self) -> Iterator[CallPlan]:
        for _, _, rule in self._made.values():
            yield from rule.plans.values()
        yield from self._inner_plans.values()

    def ops_met(self) -> set[str]:
        """The ops that were called in a block, recorded or not, and can carry a gradient."""
        return {spelling.rule.name for spelling in self.values() if not spelling.rule.no_gradient}
