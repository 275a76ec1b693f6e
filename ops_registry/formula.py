"""A formula: one function that gives the gradient of one input of an op or of several, and how it is called with what was saved.

Its parameter names say what it wants. ``default`` among them is what the formula stands in the place of, as a function of the gradient of
the result; what that needs is saved along with the formula's own.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ops_registry.errors import RuleError, RuleResultError
from ops_registry.projection import project
from ops_registry.signatures import Signature

#: Parameters that backward itself supplies.
SUPPLIED = ("grad", "needs", "default")

#: The suffix for shape and dtype of an input, by which ``default`` projects onto it.
KIND = "kind"

#: The dtypes of what autocast casts.
_CAST_BY_AUTOCAST = frozenset((torch.float16, torch.bfloat16, torch.float32))


@dataclass(frozen=True, slots=True)
class Formula:
    """One function that gives the gradient of one input, or of several inputs at once (``joint``)."""

    function: Callable[..., Any]
    wrt: tuple[str, ...]
    joint: bool
    parameters: tuple[str, ...]
    #: Parameters that are brought to the dtype of ``grad`` before the formula sees them: the op ran in that dtype.
    cast_to_grad: tuple[str, ...] = ()
    #: Inputs of a joint formula that another formula gives the gradient of since. ``needs`` says False for them.
    replaced: frozenset[str] = frozenset()
    #: Of a formula that names ``default``: those in whose place it stands.
    inner: tuple[Formula, ...] = ()

    @property
    def covers(self) -> tuple[str, ...]:
        """The inputs whose gradient is taken from this formula."""
        return tuple(n for n in self.wrt if n not in self.replaced) if self.replaced else self.wrt

    @property
    def location(self) -> str:
        """``file:line`` where the formula is written, or declared (``ops_registry.declare``)."""
        function = inspect.unwrap(self.function)
        code = function.__code__
        declared_at: str | None = getattr(function, "declared_at", None)
        return declared_at or f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def wraps(self) -> bool:
        """Whether it names ``default``, what it stands in the place of."""
        return "default" in self.parameters

    @property
    def saves(self) -> tuple[str, ...]:
        """What has to be saved from the forward call when each of its inputs wants a gradient."""
        return self.saves_for(self.covers)

    def saves_for(self, wanted: Container[str]) -> tuple[str, ...]:
        """What has to be saved where the ``wanted`` inputs want a gradient: by a wrapping formula also what ``default`` needs for those."""
        own = [p for p in self.parameters if p not in SUPPLIED]
        if self.wraps:
            own += [f"{n}_{KIND}" for n in self.covers if n in wanted]
            own += [p for f in self.serving(wanted) for p in f.saves_for(wanted)]
        return tuple(dict.fromkeys(own))

    def serving(self, wanted: Container[str]) -> tuple[Formula, ...]:
        """Those of the formulas under ``default`` that give the gradient of a ``wanted`` input."""
        return tuple(f for f in self.inner if any(n in wanted and n in self.wrt for n in f.covers))

    def with_inner(self, wanted: Container[str]) -> Iterator[Formula]:
        """Itself, and those that ``default`` stands for where the ``wanted`` inputs want a gradient, however deep."""
        yield self
        for formula in self.serving(wanted):
            yield from formula.with_inner(wanted)


@cache
def _needs_type(wrt: tuple[str, ...]) -> Any:
    return namedtuple("needs", wrt, rename=True)  # a name that no attribute can have is asked for by position


def make_needs(wrt: tuple[str, ...], flags: Iterable[bool]) -> tuple[bool, ...]:
    """``needs`` of a formula: which of its inputs want a gradient, by position and by name (``needs.weight``)."""
    made: tuple[bool, ...] = _needs_type(wrt)(*flags)
    return made


def compile_call(
    formula: Formula, op: str, saved_names: tuple[str, ...], autocast_arguments: tuple[str, ...], wanted: Container[str]
) -> Callable[..., Any]:
    """``call(grad, saved, needs)``, which picks what the formula asks for out of the saved values.

    ``wanted`` are the inputs that want a gradient.
    """
    parts = []
    for parameter in formula.parameters:
        part = parameter if parameter in SUPPLIED else f"saved[{saved_names.index(parameter)}]"
        if parameter == "default":
            part = "default(saved, needs)"
        elif parameter in formula.cast_to_grad:
            part = f"in_dtype_of({part}, grad)"
        elif parameter in autocast_arguments:
            part = f"as_autocast_cast({part}, grad)"
        parts.append(part)
    names: dict[str, Any] = {
        "__name__": __name__,
        "function": formula.function,
        "in_dtype_of": in_dtype_of,
        "as_autocast_cast": as_autocast_cast,
    }
    if formula.wraps:
        inner = [(f, compile_call(f, op, saved_names, autocast_arguments, wanted)) for f in formula.serving(wanted)]
        names["default"] = _Default(formula, op, saved_names, inner, wanted).maker()
    return eval(f"lambda grad, saved, needs: function({', '.join(parts)})", names)


class _Default:
    """Makes ``default`` of a call: ``default(grad)`` gives what the rules in whose place the formula stands would give.

    Each gradient comes projected onto its input, a zero one as a tensor: the formula may take its norm, or add to it.
    """

    def __init__(
        self,
        formula: Formula,
        op: str,
        saved_names: tuple[str, ...],
        inner: Sequence[tuple[Formula, Callable[..., Any]]],
        wanted: Container[str],
    ) -> None:
        self.formula = formula
        self.op = op
        self.inner = inner
        #: By input: where its shape and dtype stand among the saved values.
        self.places = {n: saved_names.index(f"{n}_{KIND}") for n in formula.covers if n in wanted}

    def maker(self) -> Callable[[tuple[Any, ...], tuple[bool, ...]], Callable[[Any], Any]]:
        """``make(saved, needs)`` gives ``default`` of one call: from what it saved, for the inputs that want a gradient."""
        of_one_input = not self.formula.joint and len(self.inner) == 1 and not self.inner[0][0].joint
        return self._maker_of_one_input() if of_one_input else self._make

    def _make(self, saved: tuple[Any, ...], needs: tuple[bool, ...]) -> Callable[[Any], Any]:
        def default(grad: Any) -> Any:
            self._require(grad)
            asked = {n for n, need in zip(self.formula.wrt, needs, strict=True) if need}
            found: dict[str, Any] = {}
            for formula, call in self.inner:
                theirs = make_needs(formula.wrt, [n in asked and n not in formula.replaced for n in formula.wrt])
                if any(theirs):
                    found.update(self._results(formula, call(grad, saved, theirs), theirs))
            gradients = [
                self._fit(found.get(n), saved[self.places[n]], grad) if n in asked else None for n in self.formula.wrt
            ]
            return tuple(gradients) if self.formula.joint else gradients[0]

        return default

    def _maker_of_one_input(self) -> Callable[[tuple[Any, ...], tuple[bool, ...]], Callable[[Any], Any]]:
        """The same where one formula stands in the place of another: the common case, in a fraction of the time."""
        (_, call), place = self.inner[0], self.places[self.formula.wrt[0]]
        require, fit, plain = self._require, self._fit, torch.Tensor

        def make(saved: tuple[Any, ...], needs: tuple[bool, ...]) -> Callable[[Any], Any]:
            def default(grad: Any) -> Any:
                if type(grad) is not plain:
                    require(grad)
                value, kind = call(grad, saved, needs), saved[place]
                if type(value) is plain and value.shape == kind[0] and value.dtype is kind[1]:
                    return value
                return fit(value, kind, grad)

            return default

        return make

    def _require(self, grad: Any) -> None:
        if grad is None or (isinstance(grad, tuple | list) and all(part is None for part in grad)):
            raise RuleResultError(
                f"default of {self.op} was given None, by the rule written at {self.formula.location}: pass it the gradient of the "
                f"result, zeros where that is zero."
            )

    def _results(self, formula: Formula, result: Any, needs: tuple[bool, ...]) -> dict[str, Any]:
        if not formula.joint:
            return {formula.wrt[0]: result}
        if result is None:
            return {}
        if len(result) != len(formula.wrt):
            raise RuleResultError(
                f"default of {self.op}: the rule written at {formula.location} returned {len(result)} gradients for "
                f"{len(formula.wrt)} inputs ({', '.join(formula.wrt)}). Return one for each, None for a gradient of zero."
            )
        return {n: r for n, r, need in zip(formula.wrt, result, needs, strict=True) if need}

    def _fit(self, value: Any, kind: Any, grad: Any) -> Any:
        """A gradient projected onto its input; a list of them for a list."""
        if isinstance(kind, list):
            values = [None] * len(kind) if value is None else value
            return [self._fit(v, k, grad) for v, k in zip(values, kind, strict=True)]
        shape, dtype = kind
        if value is None:
            like = grad if isinstance(grad, torch.Tensor) else next(part for part in grad if part is not None)
            return like.new_zeros(shape, dtype=dtype)
        if value.shape == shape and value.dtype == dtype:
            return value
        return project(value, shape, dtype, lambda: f"default of {self.op}")


def in_dtype_of(value: Any, grad: torch.Tensor) -> Any:
    """A saved tensor in the dtype of ``grad``: what autocast or promotion did to the argument on its way into the op."""
    if not isinstance(value, torch.Tensor) or value.dtype == grad.dtype:
        return value
    return value.to(grad.dtype)


def as_autocast_cast(value: Any, grad: Any) -> Any:
    """A saved argument of an op on torch's autocast lists, as the op got it: its results have the dtype in which it ran."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _CAST_BY_AUTOCAST:
        return value
    if not isinstance(grad, torch.Tensor):
        grad = next(part for part in grad if part is not None)
    dtype = grad.dtype.to_real()
    return value if value.dtype == dtype else value.to(dtype)


def make_formula(
    function: Callable[..., Any],
    wrt: str | tuple[str, ...],
    signature: Signature,
    name: str,
    cast_to_grad: tuple[str, ...] = (),
) -> Formula:
    """Check that ``function`` can be a formula of the op and say what it covers."""
    joint = not isinstance(wrt, str)
    inputs = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    for covered in inputs:
        if covered not in signature.names:
            raise RuleError(f"{name}({', '.join(signature.names)}) has no input '{covered}' for a rule to cover")
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RuleError(f"the rule for {name} is not a Python function: {function!r}") from error
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RuleError(
                f"the rule for {name} takes '{parameter}': what a rule saves is read from its parameter names, so each needs one"
            )
    names = tuple(p.name for p in parameters)
    if "grad" not in names:
        raise RuleError(f"the rule for {name} does not take 'grad': it would not depend on what comes from above")
    for cast in cast_to_grad:
        if cast not in names:
            raise RuleError(f"the rule for {name} casts '{cast}' to the dtype of grad, and has no such parameter")
    return Formula(function, inputs, joint, names, cast_to_grad)
