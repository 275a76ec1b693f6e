"""Conversions and constructors that torch never lets a subclass intercept keep the history of a tracked tensor."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.leaves import leaf32

import tracer

CONVERSIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as_subclass": lambda x: x.as_subclass(torch.Tensor),
    "as_subclass of a function": lambda x: torch.Tensor.as_subclass(x, torch.Tensor),
    "as_subclass to a parameter": lambda x: x.as_subclass(torch.nn.Parameter),
    "asarray": torch.asarray,
    "asarray, copied": lambda x: torch.asarray(x, copy=True),
    "asarray, not copied": lambda x: torch.asarray(x, copy=False),
    "asarray to a dtype": lambda x: torch.asarray(x, dtype=torch.float64),
    "asarray to a device": lambda x: torch.asarray(x, device="cpu"),
    "asarray of a result": lambda x: torch.asarray(x * 1, requires_grad=True),
    "as_tensor": torch.as_tensor,
    "as_tensor to a dtype": lambda x: torch.as_tensor(x, dtype=torch.float64),
    "as_tensor by name": lambda x: torch.as_tensor(data=x, dtype=torch.float64),
    "Tensor": torch.Tensor,
    "Tensor of another dtype": lambda x: torch.Tensor(x.double()),
    "FloatTensor": torch.FloatTensor,
    "DoubleTensor": lambda x: torch.DoubleTensor(x.double()),
    "HalfTensor": lambda x: torch.HalfTensor(x.half()),
    "BFloat16Tensor": lambda x: torch.BFloat16Tensor(x.bfloat16()),
    "new": lambda x: x.new(x),
    "new of a plain tensor": lambda x: torch.ones(1).new(x),
    "Tensor by name": lambda x: torch.Tensor(other=x),  # type: ignore[call-arg]
    "FloatTensor by name": lambda x: torch.FloatTensor(other=x),
    "new by name": lambda x: x.new(other=x),
    "type": lambda x: x.type(torch.DoubleTensor),
    "type by name": lambda x: x.type("torch.DoubleTensor"),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_conversion_keeps_the_history(convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = [1.0, 2.0, 3.0]
    native, ours = torch.tensor(values, requires_grad=True), leaf32(*values)
    expected, made = convert(native), convert(ours)
    assert (made.dtype, made.shape, made.requires_grad) == (expected.dtype, expected.shape, True)
    assert isinstance(made, torch.nn.Parameter) == isinstance(expected, torch.nn.Parameter)
    assert (made is ours) == (expected is native)
    # Beside another term: alone, a cut would be an error, here it would be a zero.
    ((made.detach() * made).sum() + 0 * ours.sum()).backward()
    assert ours.grad is not None and ours.grad.tolist() == values
    (gradient,) = torch.autograd.grad(convert(ours).sum() + 0 * ours.sum(), ours)
    assert gradient.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("construct", [torch.Tensor, torch.FloatTensor], ids=["Tensor", "FloatTensor"])
def test_a_constructor_shares_memory_as_in_torch(construct: Any) -> None:
    x = leaf32(1.0, 2.0) * 1
    view = construct(x)
    assert view.data_ptr() == x.data_ptr() and view._base is x
    view.mul_(3)
    assert x.tolist() == [3.0, 6.0] and x.grad_fn is not None


def test_the_old_sparse_constructors_keep_the_history_of_the_values() -> None:
    x, indices = leaf32(1.0, 2.0), torch.tensor([[0, 2]])
    for made in (
        torch.sparse.FloatTensor(indices, x * 2, (3,)),
        torch.sparse.FloatTensor(indices=indices, values=x * 2, size=(3,)),
        torch.sparse_coo_tensor(indices, torch.ones(2), (3,)).new(indices, x * 2, (3,)),
    ):
        assert made.layout is torch.sparse_coo and made.requires_grad
        (made.to_dense().sum() + 0 * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]


def test_no_history_is_made_where_none_is_wanted() -> None:
    x = leaf32(1.0)
    with torch.no_grad():
        made = [
            torch.Tensor(x),
            torch.FloatTensor(x),
            x.new(x),
            torch.asarray(x, copy=True),
            x.as_subclass(torch.Tensor),
        ]
    assert not any(t.requires_grad for t in made)
    assert not torch.asarray(x, requires_grad=False).requires_grad and x.requires_grad
    assert not x.new(2, 3).requires_grad


def test_torchs_own_refusals_stay() -> None:
    x = leaf32(1.0)
    with pytest.raises(TypeError, match="expected TensorOptions"):
        torch.DoubleTensor(x)
    with pytest.raises(RuntimeError, match="Legacy tensor constructor"):
        torch.Tensor(x, device="cpu")
    with pytest.raises(ValueError, match=r"can.t alias tensor"):
        torch.asarray(x, dtype=torch.float64, copy=False)


@pytest.mark.parametrize("target", [lambda: torch.empty(0), lambda: tracer.tensor([0.0]), lambda: leaf32(1.0)])
def test_set_raises_where_a_history_would_be_lost(target: Callable[[], torch.Tensor]) -> None:
    x = leaf32(1.0, 2.0)
    with pytest.raises(tracer.InPlaceError, match=r"set_ gives other memory.*torch\.no_grad"):
        target().set_(x)
    with torch.no_grad():
        assert target().set_(x).tolist() == [1.0, 2.0]
    assert torch.empty(0).set_(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor"])
def test_the_old_constructors_are_the_classes_they_were(name: str) -> None:
    kind = getattr(torch, name)
    made = kind(2, 3)
    assert isinstance(kind, type) and isinstance(made, kind) and not isinstance(torch.ones(1, dtype=torch.int8), kind)
    assert issubclass(kind, kind) and not issubclass(torch.Tensor, kind)
    assert (kind.__name__, kind.__module__, repr(kind)) == (name, "torch", f"<class 'torch.{name}'>")
    assert made.dtype is kind.dtype and torch.ones(1).type(kind).dtype is kind.dtype
    assert made.type() == f"torch.{name}"
    assert kind([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_default_tensor_types_may_still_be_set() -> None:
    code = """
import torch, tracer
torch.set_default_tensor_type(torch.DoubleTensor); print(torch.ones(1).dtype)
torch.set_default_tensor_type("torch.FloatTensor"); print(torch.ones(1).dtype)
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["torch.float64", "torch.float32"]


def test_default_devices_reach_the_replaced_constructors() -> None:
    with torch.device("meta"):
        assert torch.asarray([1.0]).is_meta and torch.as_tensor([1.0]).is_meta
        assert torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (2,)).is_meta
        assert torch.as_tensor(leaf32(1.0)).is_meta


@torch.jit.script
def scripted_conversion(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def test_scripts_take_the_replaced_functions_for_torchs() -> None:
    assert scripted_conversion(torch.ones(2)).dtype is torch.float64


def test_what_cuts_in_torch_cuts_here() -> None:
    x = leaf32(1.0, 2.0)
    for made in (x.data, x.detach(), torch.tensor([x[0], x[1]]), np.array(x.tolist())):
        assert not getattr(made, "requires_grad", False)
    for leave in (x.numpy, lambda: np.asarray(x), x.__array__, lambda: np.sin(x), lambda: torch.from_dlpack(x)):
        with pytest.raises((RuntimeError, BufferError), match=r"requires? grad"):
            leave()
