"""What a tracked tensor answers past interception: `tracer/asking.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import tracer
from tracer.asking import ATTRIBUTES, METHODS, METHODS_WITH_ARGUMENTS

T = torch.Tensor

#: Conversions of a float32 tensor on the CPU to what it already is, and each to something else.
CONVERSIONS: dict[str, tuple[Callable[[T], T], Callable[[T], T]]] = {
    "contiguous": (lambda x: x.contiguous(), lambda x: x.t().contiguous()),
    "memory format": (
        lambda x: x.contiguous(memory_format=torch.contiguous_format),
        lambda x: x[None, None].contiguous(memory_format=torch.channels_last),
    ),
    "float": (lambda x: x.float(), lambda x: x.double()),
    "cpu": (lambda x: x.cpu(), lambda x: x.half()),
    "dtype": (lambda x: x.to(torch.float32), lambda x: x.to(torch.float64)),
    "dtype by name": (lambda x: x.to(dtype=torch.float32), lambda x: x.to(dtype=torch.float64)),
    "device": (lambda x: x.to(torch.device("cpu")), lambda x: x.to(torch.device("cpu"), torch.float64)),
    "device as text": (lambda x: x.to("cpu"), lambda x: x.to("cpu", torch.float64)),
    "copy": (lambda x: x.to(torch.float32, copy=False), lambda x: x.to(torch.float32, copy=True)),
    "to another": (lambda x: x.to(torch.ones(1)), lambda x: x.to(torch.ones(1).double())),
    "type_as": (lambda x: x.type_as(x[0]), lambda x: x.type_as(torch.ones(1).double())),
}


def leaf() -> T:
    return tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)


def test_a_tensor_is_what_torch_says_it_is() -> None:
    ours, plain = leaf().t(), torch.ones(2, 2).t()
    assert all(getattr(ours, name) == getattr(plain, name) for name in ATTRIBUTES)
    assert all(getattr(ours, name)() == getattr(plain, name)() for name in METHODS + METHODS_WITH_ARGUMENTS)
    assert ours.size(0) == 2 and ours.stride(1) == 2 and not ours.is_contiguous(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_gives_the_tensor_itself_where_torch_does(name: str) -> None:
    to_itself, to_another = CONVERSIONS[name]
    x = leaf() * 1
    assert to_itself(x) is x
    converted = to_another(x)
    assert converted is not x and converted.requires_grad
    leaves = [leaf(), leaf().detach().as_subclass(T).requires_grad_()]
    for a in leaves:
        (to_another(to_itself(a) * 3).sum() * 2).backward()
    assert leaves[0].grad is not None and torch.equal(leaves[0].grad.as_subclass(T), leaves[1].grad)  # type: ignore[arg-type]


def test_a_mode_sees_what_is_asked() -> None:
    seen = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = leaf()
    with Seeing():
        x.is_nested  # noqa: B018
        x.is_complex()
        x.to(torch.float32)
    assert len(seen) == 3


class Foreign(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "answered"


@pytest.mark.parametrize("ask", [lambda x, o: x.to(o), lambda x, o: x.type_as(o)])
def test_a_tensor_of_another_class_answers_a_conversion_to_what_it_is_like(ask: Callable[..., Any]) -> None:
    assert ask(leaf(), torch.ones(1).as_subclass(Foreign)) == "answered"


def test_a_conversion_is_not_recorded_where_interception_is_off() -> None:
    x = leaf().t()
    with torch._C.DisableTorchFunctionSubclass():
        assert type(x.contiguous()) is torch.Tensor and type(x.to(torch.float64)) is torch.Tensor
