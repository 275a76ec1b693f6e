"""How the arguments of a call map onto the names that its rule uses."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.rule import Rule
from ops_registry.signatures import NUMPY_NAMES, Signature, signature_of


class Kind(Enum):
    """How a call is to be recorded."""

    RULE = "rule"
    IN_PLACE = "in place"
    DECOMPOSITION = "decomposition"
    COMPOSED = "composed"
    NO_GRADIENT = "no gradient"
    OBSERVED = "observed"

    # Looked up in a dictionary at every call: Enum's own hash is a Python function.
    __hash__ = object.__hash__


class Spelling:
    """One torch function, the rule that it falls under, and how its arguments map onto the rule's names."""

    __slots__ = (
        "by_overload",
        "choose",
        "default_tails",
        "defaults",
        "fast",
        "func",
        "function",
        "inplace",
        "kind",
        "order",
        "positional",
        "rule",
        "varargs",
        "written_argument",
    )

    def __init__(
        self, func: Callable[..., Any], rule: Rule, inplace: bool, order: tuple[str, ...], varargs: bool
    ) -> None:
        self.func = func
        #: What to run for it: the C method itself, for an operator that torch wraps in Python to turn a TypeError into NotImplemented.
        wrapped = getattr(func, "__wrapped__", None)
        self.function = wrapped if isinstance(wrapped, types.MethodDescriptorType) else func
        self.rule = rule
        self.inplace = inplace
        #: Names of the spelling's own positional arguments, where they differ in order from the rule's.
        self.order = order
        self.varargs = varargs
        #: Gives the spelling in whose place this one stands for a call: by overload, or by where the call is made. None: it has no rule.
        self.choose: Callable[[tuple[Any, ...], dict[str, Any]], Spelling | None] | None = None
        #: Several overloads share it, with a rule each.
        self.by_overload = False
        signature = rule.signature
        self.defaults = signature.defaults
        if "reduction" in self.defaults and not isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            # torch's C functions default to no reduction, whatever their schema says.
            self.defaults = {**self.defaults, "reduction": 0}
        #: Where in the rule's signature the tensor stands that an in-place spelling writes into.
        self.written_argument = signature.names.index(order[0]) if order and order[0] in signature.names else 0
        #: ``default_tails[n]`` are the defaults to append to n positional arguments; empty where that is not enough to bind them.
        self.default_tails: tuple[tuple[Any, ...], ...] = ()
        #: How many arguments can be given by position.
        self.positional = len(order) if signature.positional is None else signature.positional
        if order == signature.names[: len(order)]:
            defaults = tuple(self.defaults.get(n) for n in signature.names)
            self.default_tails = tuple(defaults[n:] for n in range(min(self.positional, len(defaults)) + 1))
        if rule.composed is not None:
            self.kind = Kind.COMPOSED
        elif rule.decomposition is not None:
            self.kind = Kind.DECOMPOSITION
        elif rule.no_gradient:
            self.kind = Kind.NO_GRADIENT
        else:
            self.kind = Kind.IN_PLACE if inplace else Kind.RULE
        #: Whether a call by position may take the fast lane of interception: nothing special about the rule.
        self.fast = self.kind is Kind.RULE

    def under(self, rule: Rule) -> Spelling:
        """The same function under another rule of its op."""
        return Spelling(self.func, rule, self.inplace, self.order, self.varargs)

    def choosing(self, pick: Callable[[tuple[Any, ...], dict[str, Any]], Spelling | None]) -> Spelling:
        """The same function, whose rule depends on the call."""
        spelled = self.under(self.rule)
        spelled.choose = pick
        spelled.fast = False
        return spelled

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The call's arguments in the order of the rule's signature, defaults filled in.

        Raises ``UnsupportedCallError`` for a call that does not fit the signature: a deprecated order of the arguments
        (``addmm(beta, input, alpha, mat1, mat2)``), or a tensor under a keyword that the rule does not know.
        """
        if self.varargs:
            args = gather_varargs(args)
        given = len(args)
        if given < len(self.default_tails):
            bound = args + self.default_tails[given]
            if not kwargs:
                return bound
            named = self.with_keywords(bound, given, kwargs)
            if named is not None:
                return named
        if given > self.positional:
            raise UnsupportedCallError(
                f"{self.rule.name} was called with {given} arguments by position, and its signature "
                f"({', '.join(self.rule.signature.names)}) takes {self.positional}. Pass the others by name."
            )
        names = self.rule.signature.names
        values = dict(self.defaults)
        values.update(zip(self.order, args, strict=False))
        for name, value in kwargs.items():
            known = self._known(name)
            if known not in names and known != "out" and isinstance(value, torch.Tensor):
                raise UnsupportedCallError(
                    f"{self.rule.name} got a tensor as '{name}', which its signature ({', '.join(names)}) has not"
                )
            values[known] = value
        return tuple([values.get(n) for n in names])

    def with_keywords(self, bound: tuple[Any, ...], given: int, kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """``bound``, whose first ``given`` arguments came by position, with those that came by name; None where a name does not fit."""
        places = self.rule.places
        named = list(bound)
        for name, value in kwargs.items():
            place = places.get(name, -1)
            if place < given:
                return None
            named[place] = value
        return tuple(named)

    def mapped(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Callable[[str, Any], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with ``function(name, value)`` for each argument, by the rule's name; what it leaves to a default stays so."""
        if self.varargs:
            args = gather_varargs(args)
        new_args = tuple([function(name, arg) for name, arg in zip(self.order, args, strict=False)])
        return new_args, {name: function(self._known(name), value) for name, value in kwargs.items()}

    def _known(self, name: str) -> str:
        """The rule's name for a keyword."""
        return "input" if name == "self" else name if name in self.rule.signature.names else NUMPY_NAMES.get(name, name)


class ObservedSpelling(Spelling):
    """A spelling whose calls are made by ``observe(spelling, func, args, kwargs)``, which is given the one ``beneath``."""

    __slots__ = ("beneath", "bottom", "observe")

    def __init__(self, beneath: Spelling, observe: Callable[..., Any]) -> None:
        self.func, self.rule, self.inplace = beneath.func, beneath.rule, beneath.inplace
        self.order, self.varargs = beneath.order, beneath.varargs
        self.kind, self.fast, self.choose, self.by_overload = Kind.OBSERVED, False, None, False
        self.beneath = beneath
        #: The one that nobody observes.
        self.bottom: Spelling = beneath.bottom if isinstance(beneath, ObservedSpelling) else beneath
        self.observe = observe


#: What a list of arguments comes as, where it comes as one.
_LISTS = (list, tuple, type(None))


def gather_varargs(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``x.view(2, 3)`` as ``x.view((2, 3))``."""
    return (args[0], args[1:]) if len(args) > 1 and not isinstance(args[1], _LISTS) else args


def own_order(func: Callable[..., Any], signature: Signature) -> tuple[tuple[str, ...], bool] | None:
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
