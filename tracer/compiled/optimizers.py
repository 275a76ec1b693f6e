"""Optimisers inside of a full step: torch's own code for their steps becomes part of the graph, with their state as inputs.

Learning rates are inputs too: a schedule changes them at each call. Other numbers of a group are fixed at first, and inputs from the first
change on. In the capture each is a symbol that stands for a number, so what torch's code computes of it in Python is in the graph as well.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ops_registry.torch_private import HAS_STEPPED
from tracer.compiled.fused_steps import FusedSteps
from tracer.compiled.guards import Guards
from tracer.compiled.telling import users_line
from tracer.errors import CaptureError

_optim = torch.optim
#: Those whose steps run without a look at values.
KNOWN = (
    _optim.SGD,
    _optim.Adam,
    _optim.AdamW,
    _optim.RMSprop,
    _optim.Adagrad,
    _optim.Adadelta,
    _optim.Adamax,
    _optim.NAdam,
)
_KNOWN = frozenset(KNOWN)
#: How torch's steps are to be written for a compiler, which makes loops over all tensors itself.
_ONE_BY_ONE = {"foreach": False, "fused": False}


class StateToCome(Exception):
    """The step makes state of an optimiser, as the first one does: it has to run eagerly."""


#: True, or those that nothing in the step leads to.
FullStep = bool | torch.optim.Optimizer | Iterable[torch.optim.Optimizer]


@dataclasses.dataclass
class _Number:
    """A number in a group, the tensor that stands for it in a graph, and the value that this holds."""

    value: float
    tensor: torch.Tensor
    varies: bool


class Hyperparameters:
    """The numbers in the groups of one optimiser: which of them are inputs of a graph."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str, one_by_one: bool) -> None:
        self.optimizer = optimizer
        self.name = name
        self._one_by_one = one_by_one
        #: By group, name and, in a tuple, position.
        self._numbers: dict[tuple[int, str, int | None], _Number] = {}
        self._ran = False

    def refresh(self) -> None:
        """Note which numbers have changed since the last time: they are inputs from now on."""
        for key, value in self._all():
            if not _is_number(value):
                self._numbers.pop(key, None)
                continue
            known = self._numbers.get(key)
            if known is None:
                tensor = torch.tensor(float(value), dtype=torch.float64)
                self._numbers[key] = _Number(value, tensor, key[1] == "lr")
            else:
                known.varies |= known.value != value and not self._is_fused(key[0])
        self.fill()

    def fill(self) -> None:
        """Put the numbers of now into their tensors."""
        groups = self.optimizer.param_groups
        for (group, name, at), number in self._numbers.items():
            value = groups[group][name] if at is None else groups[group][name][at]
            if value is not number.value and _is_number(value):
                number.value = value
                number.tensor.fill_(value)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The inputs, by name."""
        return [(_name(*key), number.tensor) for key, number in self._numbers.items() if number.varies]

    def fixed(self) -> tuple[Any, ...]:
        """All else in the groups that is no tensor: what a graph is made for."""
        found = list[Any]()
        for key, value in self._all():
            number = self._numbers.get(key)
            if number is not None and number.varies and _is_number(value):
                found.append((*key, "varies", value == 0))
            elif isinstance(value, torch.Tensor):
                found.append((*key, "a tensor"))
            else:
                found.append((*key, type(value), value if _is_simple(value) else id(value)))
        return tuple(found)

    def facts(self) -> list[tuple[str, Any]]:
        """The same by name."""
        return [(f"{self.name}'s {_name(*entry[:3])}", entry[3:]) for entry in self.fixed()]

    def lacks_state(self) -> bool:
        """Whether the first step is still to come, which makes the state. Asked once."""
        optimizer, ran = self.optimizer, self._ran
        self._ran = True
        keeps = type(optimizer) is not _optim.SGD or any(group["momentum"] for group in optimizer.param_groups)
        return type(optimizer) in _KNOWN and keeps and not optimizer.state and not ran

    def note_step(self) -> None:
        """As torch's schedules do when they see a step: they warn where none came before theirs."""
        vars(self.optimizer)[HAS_STEPPED] = True

    @contextmanager
    def as_symbols(self) -> Iterator[None]:
        """In the block the numbers that vary are symbols, and the step is written in a way that suits what runs the graph.

        Raises ``CaptureError`` where the block has changed a group, and ``StateToCome`` where it has made state.
        """
        groups = self.optimizer.param_groups
        before = [dict(group) for group in groups]
        sizes = self._sizes_of_state()
        for group in groups:
            if self._one_by_one:
                group.update({name: value for name, value in _ONE_BY_ONE.items() if name in group})
        for (at, name, place), number in self._numbers.items():
            if number.varies and (self._is_fused(at) or number.value != 0):
                symbol = number.tensor if self._is_fused(at) else _symbol(number)
                group = groups[at]
                group[name] = symbol if place is None else _put(group[name], place, symbol)
        within = [dict(group) for group in groups]
        try:
            yield
            now = [dict(group) for group in self.optimizer.param_groups]
        finally:
            for group, copied in zip(groups, before, strict=True):
                group.clear()
                group.update(copied)
        if self._sizes_of_state() != sizes:
            raise StateToCome
        changed = next((_changed(*pair) for pair in zip(within, now, strict=True) if _changed(*pair)), "")
        if changed or len(now) != len(within):
            raise CaptureError(
                f"the step changes {changed or 'the groups'} of {type(self.optimizer).__name__}, and a graph would not: do it after the "
                f"compiled step, which sees the new value at its next call."
            )

    def _all(self) -> Iterator[tuple[tuple[int, str, int | None], Any]]:
        for at, group in enumerate(self.optimizer.param_groups):
            for name, value in group.items():
                if isinstance(value, tuple):
                    for place, part in enumerate(value):
                        yield (at, name, place), part
                elif name != "params":
                    yield (at, name, None), value

    def _is_fused(self, group: int) -> bool:
        """Whether torch's step is one call for all tensors, which takes a tensor for the learning rate and numbers for the rest."""
        return bool(self.optimizer.param_groups[group].get("fused")) and not self._one_by_one

    def _sizes_of_state(self) -> dict[Any, int]:
        return {id(key): len(held) for key, held in self.optimizer.state.items() if held}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_simple(value: Any) -> bool:
    return isinstance(value, int | float | str | type(None))


def _name(group: int, name: str, at: int | None) -> str:
    return f"{name}{'' if at is None else at} of group {group}"


def _symbol(number: _Number) -> Any:
    """Of a number that is not 0: torch's code asks for that, and a graph for 0 has that itself."""
    symbol = number.tensor.item()
    torch._check(symbol != 0)
    return symbol


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return *values[:at], value, *values[at + 1 :]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The name of an entry that is another one; empty where there is none."""
    names = [name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)]
    return min(names, default="")


@contextmanager
def stepping(optimizers: Sequence[Hyperparameters] | None, shapes: ShapeEnv, stepped: list[int]) -> Iterator[None]:
    """While a step is captured: optimisers that are known step inside, all others raise ``CaptureError``.

    ``optimizers`` are those that the step reaches; None where none may step. The positions of those that step are added to ``stepped``.
    """
    given, thread = {id(known.optimizer): at for at, known in enumerate(optimizers or ())}, threading.get_ident()

    def enter(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            _check(optimizer, optimizers is not None, id(optimizer) in given, (*args[1:], *kwargs.values()))
            stepped.append(given[id(optimizer)])
            _answer_numbers(shapes, True)

    def leave(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            _answer_numbers(shapes, False)

    with ExitStack() as stack:
        _answer_numbers(shapes, True)
        for known in optimizers or ():
            stack.enter_context(known.as_symbols())
        _answer_numbers(shapes, False)
        stack.callback(register_optimizer_step_pre_hook(enter).remove)
        stack.callback(register_optimizer_step_post_hook(leave).remove)
        stack.enter_context(FusedSteps())
        yield


def _answer_numbers(shapes: ShapeEnv, wanted: bool) -> None:
    """Whether the value of a tensor may be asked for, and is a symbol."""
    shapes.settings = dataclasses.replace(shapes.settings, allow_scalar_outputs=wanted)


def _check(optimizer: torch.optim.Optimizer, full: bool, is_known: bool, closures: Iterable[Any]) -> None:
    name = f"{type(optimizer).__name__}.step()"
    if type(optimizer) not in _KNOWN:
        known = ", ".join(kind.__name__ for kind in KNOWN)
        raise CaptureError(
            f"{name} is called in a step that is captured, {users_line()}: the optimisers that may step inside (fullstep=True) are torch's "
            f"{known}. Call it after the compiled step."
        )
    if not full:
        raise CaptureError(
            f"{name} is called in a step that is captured, {users_line()}: its own state would not be part of the graph. "
            f"tracer.compile(step, fullstep=True) makes it part; or call it after the compiled step."
        )
    if not is_known:
        raise CaptureError(
            f"{name} is called in a full step, {users_line()}, which is not known to reach that optimiser: name it (fullstep=optimizer)."
        )
    if any(closure is not None for closure in closures):
        raise CaptureError(
            f"{name} got a closure in a step that is captured, {users_line()}: compute the loss and call backward() before, and step() "
            f"without it."
        )
    if _has_hooks(optimizer):
        raise CaptureError(
            f"{name} has hooks (register_step_pre_hook, register_step_post_hook), {users_line()}, which would run in the capture alone. "
            f"Remove them, or call it after the compiled step."
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise CaptureError(
            f"{name} is differentiable, {users_line()}: the history of its writes would end with the step. Make it without "
            f"differentiable=True."
        )


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anything but ``stepping`` is called around its steps."""
    return any(len(table) > ours for table, ours in zip(_hooks_of(optimizer), (0, 0, 1, 1), strict=True))


def _hooks_of(optimizer: torch.optim.Optimizer) -> list[dict[Any, Any]]:
    """The tables of hooks around its steps, and around those of all. A handle leads to the table that it stands in."""
    registers: tuple[Callable[..., Any], ...] = (
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    )
    handles = [register(lambda *_: None) for register in registers]
    for handle in handles:
        handle.remove()
    return [handle.hooks_dict_ref() for handle in handles]


def optimizers_of(fullstep: FullStep) -> list[torch.optim.Optimizer]:
    """Those that were given by ``fullstep=``."""
    if isinstance(fullstep, bool):
        return []
    return [fullstep] if isinstance(fullstep, torch.optim.Optimizer) else list(fullstep)


class Optimizers:
    """The optimisers that a full step has been found to reach."""

    def __init__(self, given: Sequence[torch.optim.Optimizer], one_by_one: bool) -> None:
        self.given = given
        self._one_by_one = one_by_one
        self._met: dict[int, Hyperparameters] = {}

    def meet(self, optimizer: torch.optim.Optimizer, name: str) -> Hyperparameters:
        """What is known of it, from now on if it is new."""
        return self._met.setdefault(id(optimizer), Hyperparameters(optimizer, name, self._one_by_one))


def visit_state(known: Hyperparameters, guards: Guards, visit: Callable[..., None]) -> None:
    """The parameters, the state and the numbers of an optimiser, each shown to ``visit``, and what may change of them to ``guards``."""
    optimizer, name = known.optimizer, known.name
    guards.names(vars(optimizer), ("param_groups", "state"))
    guards.name(vars(optimizer), "step")
    visit(vars(optimizer).get("step"), f"{name}.step")  # schedules put one of theirs there
    for table in _hooks_of(optimizer):
        visit(table, f"{name}'s hooks")
    guards.items(optimizer.param_groups)
    guards.whole(optimizer.state)
    for position, group in enumerate(optimizer.param_groups):
        guards.names(group, ("params",))
        guards.items(group["params"])
        for at, parameter in enumerate(group["params"]):
            visit(parameter, f"{name}'s parameter {at} of group {position}", module=True)
            held = optimizer.state.get(parameter, {})
            guards.whole(held)
            for key, value in held.items():
                visit(value, f"{name}'s {key} of parameter {at} of group {position}", module=True)
    for key, tensor in known.tensors():
        visit(tensor, f"{name}'s {key}", module=True)
    guards.answer(known.fixed)
