"""Steps of torch's optimisers run past interception, and leave what a step through it would leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import nn
import ops_registry
import tracer
from ops_registry.torch_private import storage_key
from tracer.recording import saved
from tracer.recording.optimizer_steps import STEPS

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def train(model: torch.nn.Module, make: Make, steps: int = 3) -> list[torch.Tensor]:
    optimizer = make(model.parameters())
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure) for _ in range(steps)]
    return [torch.as_tensor(value).detach() for value in (*losses, *model.parameters())]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_gives_torchs_losses_and_parameters(make: Make) -> None:
    for ours, theirs in zip(train(nn.track(network()), make), train(network(), make), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, check_dtype=True)


class Counted:
    """How many calls reach interception."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        there = tracer.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]

        def intercept(cls: type, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return there(cls, *args, **kwargs)

        monkeypatch.setattr(tracer.Tensor, "__torch_function__", classmethod(intercept))


def filled(make: Make = OPTIMIZERS["SGD"]) -> tuple[tracer.Tensor, torch.optim.Optimizer]:
    w = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    w.grad = torch.ones(4)
    return w, make([w])


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
def test_no_call_of_a_step_is_intercepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = filled(OPTIMIZERS[name])
    counted = Counted(monkeypatch)
    optimizer.step()
    assert counted.calls == 0


def test_each_optimizer_of_torchs_but_lbfgs_is_known() -> None:
    names = {step.__qualname__.partition(".")[0] for step in STEPS}
    assert {name.partition(",")[0] for name in OPTIMIZERS} - {"LBFGS", "AdamW"} <= names  # AdamW takes the step of Adam
    assert "LBFGS" not in names


def test_calls_are_intercepted_inside_a_block_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = filled()
    counted = Counted(monkeypatch)
    with ops_registry.use({torch.add: {"input": lambda grad: grad}}, expect=None):
        optimizer.step()
    assert counted.calls > 0


def test_a_graph_with_sites_notes_the_writes_of_a_step_and_errors_name_their_line() -> None:
    w, optimizer = filled()
    with tracer.Graph(sites=True):
        y = w * w
        optimizer.step()
        with pytest.raises(tracer.OverwrittenError, match=r"by add_ of shape \(4,\) at .*\.py:\d+"):
            y.sum().backward()


def test_an_optimizer_derived_by_the_user_runs_through_interception(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    w, optimizer = filled(lambda p: Doubled(p, lr=0.5))
    counted = Counted(monkeypatch)
    optimizer.step()
    assert counted.calls > 0
    assert w.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_differentiable_step_is_recorded() -> None:
    w = tracer.tensor([2.0, 3.0], requires_grad=True)
    moved = w * 1
    moved.retain_grad()
    moved.grad = torch.ones(2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5, differentiable=True)
    optimizer.param_groups[0]["params"] = [moved]
    optimizer.step()
    (moved * moved).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 5.0]  # 2 (w - 0.5)


def test_a_closure_records_and_its_loss_is_returned() -> None:
    w, optimizer = filled()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 30.0
    torch.testing.assert_close(w.detach(), torch.tensor([0.8, 1.6, 2.4, 3.2]))


def test_hooks_of_a_step_run_with_interception_on() -> None:
    w, optimizer = filled()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append((w * 2).requires_grad))
    optimizer.register_step_post_hook(lambda *_: seen.append((w * 2).requires_grad))
    optimizer.step()
    assert seen == [True, True]


def test_one_of_several_views_may_not_be_used_after_a_step() -> None:
    w, optimizer = filled()
    first, _ = w.chunk(2)
    optimizer.step()
    with pytest.raises(tracer.InPlaceError, match="one of several views"):
        (first * 2).sum().backward()


def test_one_of_several_views_of_a_parameter_without_gradient_stays_good() -> None:
    _, optimizer = filled()
    other = tracer.tensor([1.0, 2.0], requires_grad=True)
    optimizer.add_param_group({"params": [other]})
    first, _ = other.chunk(2)
    optimizer.step()
    (first * 2).sum().backward()
    assert other.grad is not None
    assert other.grad.tolist() == [2.0, 0.0]


def test_an_error_about_an_overwritten_tensor_names_the_optimizer() -> None:
    w, optimizer = filled()
    y = w * w
    optimizer.step()
    with pytest.raises(tracer.OverwrittenError, match="overwritten in place by a step of SGD and is at version"):
        y.sum().backward()


def test_a_write_into_memory_that_was_another_tensors_is_not_named() -> None:
    w, optimizer = filled()
    y = w * w
    # As memory that is used again has it.
    saved._writes[storage_key(w)] = ("add", torch.Size((2,)), w._version + 1, None)
    optimizer.step()
    with pytest.raises(tracer.OverwrittenError, match="overwritten in place by a step of SGD and is at version"):
        y.sum().backward()


def test_a_later_write_is_named_in_its_place() -> None:
    w, optimizer = filled()
    y = w * w
    optimizer.step()
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(tracer.OverwrittenError, match=r"by mul_ of shape \(4,\)"):
        y.sum().backward()


def test_the_state_is_loaded_from_where_it_was_saved() -> None:
    model = nn.track(network())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    other = torch.optim.AdamW(network().parameters())
    other.load_state_dict(optimizer.state_dict())
    kept = [s["exp_avg"] for s in optimizer.state.values()]
    for ours, theirs in zip(kept, [s["exp_avg"] for s in other.state.values()], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_step_on_plain_parameters_can_be_compiled_by_torch() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    w.grad = torch.ones(3)
    optimizer = torch.optim.SGD([w], lr=0.5)
    torch.compile(optimizer.step, backend="eager")()
    assert w.tolist() == [0.5, 0.5, 0.5]
