"""A full step, with the optimiser inside, leaves parameters, states and losses as the eager step does."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer

O = torch.optim  # noqa: E741
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def trained(kind: Any, options: dict[str, Any]) -> tuple[torch.nn.Module, Any, Step]:
    torch.manual_seed(1)
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    optimizer = kind(model.parameters(), **copy.deepcopy(options))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, step


def assert_same_states(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (O.SGD, {"lr": 0.1}),
    "SGD with momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD foreach": (O.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "foreach": True, "maximize": True}),
    "SGD fused": (O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "Adam": (O.Adam, {"lr": 0.01, "maximize": True}),
    "Adam foreach": (O.Adam, {"lr": 0.01, "weight_decay": 0.1, "foreach": True}),
    "Adam fused": (O.Adam, {"lr": 0.01, "fused": True}),
    "Adam, lr a tensor": (O.Adam, {"lr": torch.tensor(0.01)}),
    "AdamW": (O.AdamW, {"lr": 0.01, "amsgrad": True}),
    "AdamW foreach": (O.AdamW, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    "AdamW fused": (O.AdamW, {"lr": 0.01, "amsgrad": True, "fused": True}),
    "RMSprop": (O.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "RMSprop foreach": (O.RMSprop, {"lr": 0.01, "foreach": True}),
    "Adagrad": (O.Adagrad, {"lr": 0.01, "lr_decay": 0.1}),
    "Adagrad foreach": (O.Adagrad, {"lr": 0.01, "weight_decay": 0.1, "foreach": True}),
    "Adagrad fused": (O.Adagrad, {"lr": 0.01, "fused": True}),
    "Adadelta": (O.Adadelta, {"lr": 0.1}),
    "Adamax": (O.Adamax, {"lr": 0.01}),
    "NAdam": (O.NAdam, {"lr": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_under_a_schedule_are_those_of_eager_and_one_graph(name: str) -> None:
    (model, optimizer, step), (other, eager, eager_step) = trained(*OPTIMIZERS[name]), trained(*OPTIMIZERS[name])
    compiled = tracer.compile(step, backend="replay", fullstep=True)
    schedules = [O.lr_scheduler.ExponentialLR(each, 0.95) for each in (optimizer, eager)]
    for _ in range(20):
        assert torch.equal(compiled(X, Y).detach(), eager_step(X, Y).detach())
        for schedule in schedules:
            schedule.step()
    assert_same_states(model, other)
    assert_same_states(optimizer, eager)
    assert all(p.grad is None for p in model.parameters())
    assert len(compiled.explain().rows) == 1


def test_other_numbers_are_fixed_until_they_change_and_inputs_from_then_on() -> None:
    (model, optimizer, step), (other, eager, eager_step) = trained(*OPTIMIZERS["Adam"]), trained(*OPTIMIZERS["Adam"])
    compiled = tracer.compile(step, backend="replay", fullstep=True)
    for number in range(8):
        for each in (optimizer, eager):
            each.param_groups[0]["betas"] = (0.9 - 0.01 * number, 0.99)
            each.param_groups[0]["weight_decay"] = 0.01 * number
        compiled(X, Y), eager_step(X, Y)
    assert_same_states(model, other)
    assert len(compiled.explain().rows) <= 3


def test_what_changes_between_calls_is_seen() -> None:
    (model, optimizer, step), (other, eager, eager_step) = trained(*OPTIMIZERS["Adam"]), trained(*OPTIMIZERS["Adam"])
    compiled = tracer.compile(step, backend="replay", fullstep=True)

    def both(change: Callable[[torch.nn.Module, Any], Any]) -> None:
        change(model, optimizer), change(other, eager)
        for _ in range(2):
            compiled(X, Y), eager_step(X, Y)
        assert_same_states(model, other)
        assert_same_states(optimizer, eager)

    both(lambda m, o: None)
    saved = copy.deepcopy(optimizer.state_dict())
    both(lambda m, o: m[0].weight.requires_grad_(False))
    both(lambda m, o: m[0].weight.requires_grad_(True))
    both(lambda m, o: o.load_state_dict(copy.deepcopy(saved)))
    both(lambda m, o: o.state.clear())
    both(lambda m, o: (o.param_groups[0]["params"].pop(), o.state.clear()))
    both(lambda m, o: setattr(m[0].weight, "grad", torch.ones(8, 4)))


SGD = (O.SGD, {"lr": 0.1})


class Trainer:
    """Steps whose optimiser, groups, schedule and numbers change between calls."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        torch.manual_seed(1)
        self.model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)))
        self.optimizer = kind(self.model[0].parameters(), **options)
        self.schedules: list[Any] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def more(self) -> None:
        self.optimizer.add_param_group({"params": list(self.model[1].parameters()), "lr": 0.01})

    def another(self) -> None:
        self.optimizer = type(self.optimizer)(self.model.parameters(), lr=0.3)

    def scheduled(self) -> None:
        self.schedules = [O.lr_scheduler.ExponentialLR(self.optimizer, 0.9)]

    def replaced(self) -> None:
        self.optimizer.step = lambda: None

    def numbers(self, **numbers: float) -> None:
        self.optimizer.param_groups[0].update(numbers)


MOMENTUM = (O.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1})
CHANGED: dict[str, tuple[Any, Callable[[Trainer, int], Any], dict[str, Any]]] = {
    "sizes are symbols": (OPTIMIZERS["SGD fused"], lambda t, at: at == 0 and t.scheduled(), {"dynamic": True}),
    "a group is added": (MOMENTUM, lambda t, at: at == 2 and t.more(), {}),
    "another optimiser, and schedules": (SGD, lambda t, at: at in (0, 2) and (t.another(), t.scheduled()), {}),
    "a schedule is made late": (SGD, lambda t, at: (t.numbers(initial_lr=0.1), at == 2 and t.scheduled()), {}),
    "numbers become 0": (MOMENTUM, lambda t, at: t.numbers(weight_decay=(0.1, 0.2, 0)[at % 3], momentum=at % 2), {}),
    "step() is replaced": (SGD, lambda t, at: at == 2 and t.replaced(), {}),
}


@pytest.mark.filterwarnings("error")  # schedules warn where no step came before theirs
@pytest.mark.parametrize("name", CHANGED)
def test_a_change_between_calls_is_that_of_eager(name: str) -> None:
    given, change, options = CHANGED[name]
    trainer, other = Trainer(*given), Trainer(*given)
    compiled = tracer.compile(trainer.step, backend="replay", fullstep=True, **options)
    for at in range(5):
        rows = 4 + 2 * at if options else 16
        for each, step in ((trainer, compiled), (other, other.step)):
            change(each, at)
            step(X[:rows], Y[:rows])
            for schedule in each.schedules:
                schedule.step()
        assert_same_states(trainer.model, other.model)
        assert_same_states(trainer.optimizer, other.optimizer)
    assert not options or len(compiled.explain().rows) == 1


def test_a_hook_that_comes_later_is_refused() -> None:
    trainer = Trainer(*SGD)
    compiled = tracer.compile(trainer.step, backend="replay", fullstep=True)
    compiled(X, Y)
    trainer.optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(tracer.CaptureError, match=r"SGD\.step\(\) has hooks"):
        compiled(X, Y)


def test_gradients_are_left_as_eager_leaves_them() -> None:
    def made() -> tuple[torch.nn.Module, Any, Step]:
        model, optimizer, _ = trained(O.SGD, {"lr": 0.1})

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return model, optimizer, step

    (model, _, step), (other, _, eager_step) = made(), made()
    compiled = tracer.compile(step, backend="replay", fullstep=True)
    for _ in range(3):
        compiled(X, Y), eager_step(X, Y)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert_same_states(model, other)


def test_training_goes_on_eagerly() -> None:
    (model, optimizer, step), (other, eager, eager_step) = trained(*OPTIMIZERS["Adam"]), trained(*OPTIMIZERS["Adam"])
    compiled = tracer.compile(step, backend="replay", fullstep=optimizer, check=True)
    for each in (compiled, compiled, compiled, step):
        each(X, Y), eager_step(X, Y)
    assert_same_states(model, other)
    assert_same_states(optimizer, eager)


def test_a_compiler_gets_numbers_as_tensors() -> None:
    given = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        given.append(graph)
        return graph

    for name in ("SGD with momentum", "AdamW", "RMSprop"):
        (model, _, step), (other, _, eager_step) = trained(*OPTIMIZERS[name]), trained(*OPTIMIZERS[name])
        compiled = tracer.compile(step, backend=backend, fullstep=True)
        for _ in range(20):
            torch.testing.assert_close(compiled(X, Y).detach(), eager_step(X, Y).detach(), rtol=0, atol=1e-6)
        torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=1e-6)
    assert all(node.target is not torch.ops.aten._local_scalar_dense.default for g in given for node in g.graph.nodes)


def _refused(kind: Any, options: dict[str, Any], extra: Callable[[Any], Any], **full: Any) -> str:
    model, optimizer, _ = trained(kind, options)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        extra(optimizer)

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(tracer.CaptureError) as caught:
        tracer.compile(step, backend="replay", **full)(X, Y)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    return str(caught.value)


SCALER = torch.amp.GradScaler("cpu")
SCHEDULE = O.lr_scheduler.ExponentialLR(O.SGD([torch.ones(1)], lr=0.1), 0.9)


def with_a_hook(optimizer: Any) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.step()


def sets_lr(optimizer: Any) -> None:
    optimizer.step()
    optimizer.param_groups[0]["lr"] *= 0.5


REFUSED: dict[str, tuple[tuple[Any, dict[str, Any]], Callable[[Any], Any], str]] = {
    "LBFGS": ((O.LBFGS, {}), lambda o: o.step(lambda: 0.0), r"LBFGS\.step\(\).*torch's SGD"),
    "one that is not known": ((O.Rprop, {}), lambda o: o.step(), r"Rprop\.step\(\)"),
    "a closure": (SGD, lambda o: o.step(lambda: 0.0), "got a closure"),
    "a hook": (SGD, with_a_hook, "has hooks"),
    "a gradient scaler": (SGD, lambda o: SCALER.step(o), r"GradScaler\.step\(\) is called"),
    "a schedule": (SGD, lambda o: SCHEDULE.step(), r"ExponentialLR\.step\(\) is called in a step.*test_full_step\.py"),
    "a learning rate read": (SGD, lambda o: SCHEDULE.get_last_lr(), r"ExponentialLR\.get_last_lr\(\) is called"),
    "a branch on lr": (SGD, lambda o: o.param_groups[0]["lr"] > 1 and o.step(), "branches on a number"),
    "a new lr": (SGD, sets_lr, "the step changes lr"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_in_a_full_step_is_refused_by_name(name: str) -> None:
    (kind, options), extra, text = REFUSED[name]
    message = _refused(kind, options, extra, fullstep=True)
    assert re.search(text, message), message


def test_without_fullstep_the_refusal_names_it() -> None:
    assert "fullstep=True" in _refused(*SGD, lambda optimizer: optimizer.step())


def test_a_module_has_no_full_step() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="fullstep=True was given with a module"):
        tracer.compile(torch.nn.Linear(2, 2), fullstep=True)
