"""What a step reads in ways that no walk over its closures finds: each change is seen by the next call, or refused by name."""

from __future__ import annotations

import array
import copy
import ctypes
import gc
import itertools
import logging
import os
import random
import time
import types
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nn
import ops_registry
import tracer

Between = Callable[[], Any]
Case = tuple[Callable[[torch.Tensor], Any], Between]

model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))


class Scaled:
    """Read through operators and calls, which name nothing."""

    shift = 0.0

    def __init__(self) -> None:
        self.factor, self.store, self.mask = 1.0, {"a": 1.0}, torch.ones(3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor * self.mask + self.shift

    def __getitem__(self, name: str) -> float:
        return self.store[name]


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0

    def __mul__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def scaled(change: Callable[[Scaled], Any], read: Callable[[Scaled, torch.Tensor], Any]) -> Callable[[Any], Case]:
    def make(patch: pytest.MonkeyPatch) -> Case:
        thing = Scaled()
        return lambda out: read(thing, out), lambda: change(thing)

    return make


def library_global(patch: pytest.MonkeyPatch) -> Case:
    """Code of an installed library, as far as one can tell: its module lies there."""
    library = types.ModuleType("a_library")
    library.__file__ = "/somewhere/site-packages/a_library.py"
    exec("scale = 1.0\nclass Kept: factor = 1.0\ndef scaled(x): return x * scale * Kept.factor", library.__dict__)
    patch.setitem(__import__("sys").modules, "a_library", library)
    return lambda out: library.scaled(out), lambda: (setattr(library, "scale", 3.0), setattr(library.Kept, "factor", 2))


def slotted(patch: pytest.MonkeyPatch) -> Case:
    thing = Slotted()
    return lambda out: thing * out, lambda: setattr(thing, "factor", 3.0)


def attribute_by_computed_name(patch: pytest.MonkeyPatch) -> Case:
    thing, name = types.SimpleNamespace(factor=1.0), "".join(["fac", "tor"])
    return lambda out: out * getattr(thing, name), lambda: setattr(thing, "factor", 3.0)


def held(thing: Any, read: Callable[[Any], float], change: Callable[[Any], Any]) -> Callable[[Any], Case]:
    return lambda patch: (lambda out: out * read(thing), lambda: change(thing))


def patched(owner: Any, name: str) -> Callable[[Any], Case]:
    def make(patch: pytest.MonkeyPatch) -> Case:
        return lambda out: F.relu(out).sigmoid(), lambda: patch.setattr(
            owner, name, lambda *args, **options: args[-1] * 3
        )

    return make


def environment(patch: pytest.MonkeyPatch) -> Case:
    patch.setenv("SCALE_OF_A_TEST", "1")
    return lambda out: out * float(os.environ["SCALE_OF_A_TEST"]), lambda: patch.setenv("SCALE_OF_A_TEST", "3")


def code_of_a_function(patch: pytest.MonkeyPatch) -> Case:
    def read(out: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return out * factor

    return lambda out: read(out), lambda: setattr(read, "__defaults__", (3.0,))


SEEN: dict[str, Callable[[Any], Case]] = {
    "attribute behind a call": scaled(lambda t: setattr(t, "factor", 3.0), lambda t, out: t(out)),
    "tensor behind a call": scaled(lambda t: setattr(t, "mask", torch.tensor([1.0, 2.0, 3.0])), lambda t, out: t(out)),
    "attribute of a class": scaled(lambda t: setattr(type(t), "shift", type(t).shift + 1), lambda t, out: t(out)),
    "dictionary behind an index": scaled(lambda t: t.store.update(a=3.0), lambda t, out: out * t["a"]),
    "library": library_global,
    "slot": slotted,
    "computed name": attribute_by_computed_name,
    "UserDict": held(UserDict(a=1.0), lambda t: t["a"], lambda t: t.update(a=3.0)),
    "array": held(array.array("d", [1.0]), lambda t: t[0], lambda t: t.__setitem__(0, 3.0)),
    "ctypes": held(ctypes.c_double(1.0), lambda t: t.value, lambda t: setattr(t, "value", 3.0)),
    "mapping proxy": held(d := {"a": 1.0}, lambda t: types.MappingProxyType(t)["a"], lambda t: t.update(a=3.0)),
    "patched function": patched(F, "relu"),
    "patched class of torch": patched(torch.nn.ReLU, "forward"),
    "patched method": patched(torch.Tensor, "sigmoid"),
    "environment": environment,
    "defaults": code_of_a_function,
    "number of an optimiser": held(
        torch.optim.SGD([torch.ones(1)], lr=1.0),
        lambda t: t.param_groups[0]["lr"],
        lambda t: t.param_groups[0].update(lr=3.0),
    ),
    "data set": held(
        torch.utils.data.TensorDataset(torch.ones(1)),
        lambda t: t[0][0],
        lambda t: setattr(t, "tensors", (torch.full((1,), 3.0),)),
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, change = SEEN[name](monkeypatch)
    twin = copy.deepcopy(model)

    def step_of(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = read(model(x)).square().sum()
            loss.backward()
            return loss

        return step

    compiled, eager = tracer.compile(step_of(model), backend="replay"), step_of(twin)
    for i in range(4):
        x = torch.randn(5, 4)
        model.zero_grad()
        twin.zero_grad()
        torch.testing.assert_close(compiled(x).detach(), eager(x).detach())
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        if i == 1:
            assert len(compiled.explain().rows) == 1
            change()


def test_the_scale_that_a_gradient_scaler_makes_is_kept_and_its_other_steps_are_refused() -> None:
    def trained(backend: str | None) -> tuple[list[Any], torch.optim.Optimizer, Any, Any]:
        torch.manual_seed(0)
        layer = nn.track(torch.nn.Linear(4, 3))
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = layer(x).square().mean()
            scaler.scale(loss).backward()
            return loss

        call = step if backend is None else tracer.compile(step, backend=backend)
        losses = []
        for _ in range(4):
            losses.append(call(torch.ones(5, 4)).detach())
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [losses, scaler.state_dict()], optimizer, scaler, layer

    (found, optimizer, scaler, layer), (expected, *_) = trained("replay"), trained(None)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)

    def unscales(x: torch.Tensor) -> None:
        scaler.scale(layer(x).sum()).backward()
        scaler.unscale_(optimizer)

    with pytest.raises(tracer.CaptureError, match=r"GradScaler\.unscale_\(\) is called in a step.*Use it outside"):
        tracer.compile(unscales, backend="replay")(torch.ones(5, 4))
    unscales(torch.ones(5, 4))  # nothing was noted of the optimiser


def test_what_a_rule_closes_over_is_seen() -> None:
    factor = 1.0

    def rule(grad: torch.Tensor, default: Any) -> torch.Tensor:
        return default(grad) * factor

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    compiled, x = tracer.compile(step, backend="replay"), torch.randn(5, 4)
    found = []
    for factor in (1.0, 1.0, 3.0):  # noqa: B007
        model.zero_grad()
        with ops_registry.use({torch.relu: rule}):
            compiled(x)
        found.append(model[0].weight.grad.clone())
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], 3 * found[0])


class Batch:
    def __init__(self, x: torch.Tensor, factor: float) -> None:
        self.x, self.factor = x, factor

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


ARGUMENTS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "objects that call themselves equal": (lambda a: model(a.x) * a.factor, [Batch(torch.ones(5, 4), k) for k in (1.0, 3.0)]),
    "signed zeros": (lambda a: model(torch.ones(5, 4)) + np.copysign(1, a.imag), [0j, complex(0, -0.0)]),
    "keys that are equal": (lambda a: model(a[1]) * (2 if any(k is True for k in a) else 3),
                            [{1: torch.ones(5, 4)}, {True: torch.ones(5, 4)}]),
    "sets": (lambda a: model(torch.ones(5, 4)) * len(a), [{1}, {1, 2}]),
    "slices": (lambda a: model(torch.ones(5, 4))[a], [slice(0, 2), slice(0, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_told_apart(name: str) -> None:
    read, values = ARGUMENTS[name]
    compiled = tracer.compile(lambda a: read(a).sum(), backend="replay")
    for value in (*values, *values):
        torch.testing.assert_close(compiled(value).detach(), read(value).sum().detach())
    assert len(compiled.explain().rows) == 2


def test_an_attribute_of_an_argument_is_seen() -> None:
    compiled = tracer.compile(lambda x: model(x).sum() * x.factor, backend="replay")
    for factor in (1.0, 3.0):
        x = torch.ones(5, 4)
        x.factor = factor  # type: ignore[attr-defined]
        torch.testing.assert_close(compiled(x).detach(), factor * model(x).sum().detach())


numbers, generator, python = itertools.count(), np.random.default_rng(0), random.Random(0)

REFUSED: dict[str, tuple[Callable[[torch.Tensor, Any], Any], Any, str]] = {
    "iterator": (lambda out, a: out * next(numbers), None, "numbers, an iterator"),
    "iterator argument": (lambda out, a: out * next(a), iter([1.0]), "an iterator, is reached"),
    "generator of NumPy's": (lambda out, a: out * float(generator.random()), None, "draws random numbers from generator"),
    "generator of Python's": (lambda out, a: out * python.random(), None, "draws random numbers from python"),
    "clock": (lambda out, a: out * time.time(), None, "reads the clock"),
    "file": (lambda out, a: out * len(open(__file__).read()), None, "opens a file"),  # noqa: SIM115
    "seed": (lambda out, a: out * torch.initial_seed(), None, "reads the seed"),
    "dictionary argument changed": (lambda out, a: out * a.pop("k"), {"k": 1.0}, "changes a dict among its arguments"),
    "version": (lambda out, a: out * a._version, torch.ones(3), "asks for _version"),
    "data replaced": (lambda out, a: setattr(a, "data", a * 2), torch.ones(3), "gives a other memory"),
    "transposed in place": (lambda out, a: a.t_(), torch.ones(3, 2), "another shape"),
    "module made inside": (
        lambda out, a: (torch.nn.Linear(3, 1)(out) + 1).sum().backward(), None, "comes into the step|makes a tensor that requires grad",
    ),
    "parameter made inside": (
        lambda out, a: (out * torch.nn.Parameter(torch.ones(3))).sum().backward(), None, "comes into the step|requires grad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name: str) -> None:
    act, argument, message = REFUSED[name]
    states = python.getstate(), generator.bit_generator.state
    with pytest.raises(tracer.CaptureError, match=message):
        tracer.compile(lambda x, a: act(model(x), a), backend="replay")(torch.randn(5, 4), argument)
    assert (python.getstate(), generator.bit_generator.state) == states
    assert name != "dictionary argument changed" or argument == {"k": 1.0}


def test_graphs_are_bounded_where_each_call_makes_one() -> None:
    compiled = tracer.compile(lambda x, a: model(x).sum() * a, backend="replay")
    x = torch.ones(5, 4)
    with pytest.warns(UserWarning, match="captured 9 times"):
        for i in range(70):
            torch.testing.assert_close(compiled(x, float(i)).detach(), i * model(x).sum().detach())
    assert len(compiled.explain().rows) <= 64


def test_what_runs_beside_the_step_is_no_part_of_it() -> None:
    kept: list[Any] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append((record, time.perf_counter()))

    def collected(phase: str, info: dict[str, int]) -> None:
        kept.append(time.perf_counter())

    logger = logging.getLogger("a library")
    logger.addHandler(Keeps())
    gc.callbacks.append(collected)
    try:

        def step(x: torch.Tensor) -> torch.Tensor:
            logger.warning("a record")
            gc.collect()
            loss = x.sin().sum()
            loss.backward()
            return loss

        x = tracer.tensor([1.0, 2.0], requires_grad=True)
        tracer.compile(step, backend="replay")(x)
    finally:
        gc.callbacks.remove(collected)
    assert len(kept) >= 3 and x.grad is not None
