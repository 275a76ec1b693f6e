"""A ``TorchFunctionMode`` around backward sees the one call, as in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.leaves import leaf32
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode


class Names(TorchFunctionMode):
    """Notes the names of the functions that are called."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", ["method", "function", "grad"])
def test_a_mode_sees_what_the_user_calls_alone(call: str) -> None:
    x = leaf32(0.5)
    with Names() as mode, BaseTorchFunctionMode():
        y = torch.nn.functional.gelu(x * 2).sum()
        if call == "method":
            y.backward()
        elif call == "function":
            torch.autograd.backward(y)
        else:
            torch.autograd.grad(y, x)
    assert mode.seen == ["mul", "gelu", "sum", "grad" if call == "grad" else "backward"]
    assert call == "grad" or x.grad is not None


def test_a_default_device_does_not_reach_into_backward() -> None:
    x = leaf32(3.0, 1.0, 2.0)
    y = (x.cummax(0).values * x.prod()).sum() + torch.nn.functional.interpolate(x[None, None], 5, mode="linear").sum()
    (expected,) = torch.autograd.grad(y, x, retain_graph=True)
    with torch.device("meta"):
        y.backward()
    torch.testing.assert_close(x.grad, expected)
