"""Blocks in which interception is off: torch records there, and so do we."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import tracer

GUARDS = [torch.DisableTorchFunctionSubclass, torch.DisableTorchFunction]  # type: ignore[attr-defined]
each_guard = pytest.mark.parametrize("guard", GUARDS, ids=["subclasses", "modes too"])


@each_guard
def test_tracked_tensors_are_recorded_in_the_block(guard: Any) -> None:
    x = tracer.tensor([2.0], requires_grad=True)
    with guard():
        y = torch.stack([x * x, x.sin().exp()])[0]
        with guard():
            y = y * 3
        y += x.shape[0]
    (y.sum() + 0 * x.sum()).backward()
    assert y.tolist() == [13.0] and x.grad is not None and x.grad.tolist() == [12.0]


@each_guard
def test_a_backward_pass_in_the_block(guard: Any) -> None:
    x = tracer.tensor([2.0], requires_grad=True)
    with guard():
        (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4.0]


class Loud(torch.Tensor):
    """A class that answers its calls by torch's own recipe."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.DisableTorchFunctionSubclass():  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))


def test_another_class_answers_its_calls_as_before() -> None:
    made = torch.ones(2).as_subclass(Loud) * 2
    assert type(made) is torch.Tensor and made.tolist() == [2.0, 2.0]


class Counting(TorchFunctionMode):
    """How many calls a mode sees."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("guard", "seen"), [(GUARDS[0], 1), (GUARDS[1], 0)], ids=["subclasses", "modes too"])
def test_modes_are_asked_as_in_torch(guard: Any, seen: int) -> None:
    plain = torch.ones(2)
    with Counting() as mode, guard():
        plain.sin()
    assert mode.count == seen


@each_guard
def test_interception_is_on_again_after_an_error(guard: Any) -> None:
    with pytest.raises(ValueError, match="here"), guard():
        raise ValueError("here")
    assert torch._C._is_torch_function_enabled()  # type: ignore[attr-defined]
    assert torch.overrides._get_current_function_mode() is None
