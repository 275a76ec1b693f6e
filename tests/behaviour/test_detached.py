"""Leaving the recorded world and coming back: as torch, and no gradient is lost in silence."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from support.leaves import leaf32

import tracer


def test_detach_shares_the_version_counter() -> None:
    x = leaf32(1.0, 2.0)
    y = x.sigmoid()
    y.detach().zero_()
    with pytest.raises(tracer.OverwrittenError, match="sigmoid"):
        y.sum().backward()


def test_data_does_not_share_it_as_in_torch() -> None:
    x = leaf32(1.0, 2.0)
    y = x.sigmoid()
    y.data.zero_()
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]


def test_a_write_to_a_detached_tensor_reaches_the_value_and_not_the_history() -> None:
    x = leaf32(1.0, 2.0)
    y = x * 3
    y.detach()[0] = 100.0
    assert y.tolist() == [100.0, 6.0]
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_set_data_of_a_result_changes_the_value_only() -> None:
    x = leaf32(1.0, 2.0)
    y = x * 3
    y.data = torch.tensor([7.0, 8.0])
    (y * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]


def test_torch_tensor_of_a_tracked_tensor_is_a_detached_copy() -> None:
    x = leaf32(1.0, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.tensor(x)
    assert y.tolist() == [1.0, 2.0] and not y.requires_grad
    y[0] = 5
    assert x.tolist() == [1.0, 2.0]


def test_as_tensor_hands_back_the_tensor() -> None:
    x = leaf32(1.0)
    assert torch.as_tensor(x) is x


def test_item_and_tolist_are_numbers() -> None:
    x = leaf32(1.5, 2.5)
    assert x[0].item() == 1.5 and x.tolist() == [1.5, 2.5] and float(x[1]) == 2.5
    assert type(x[0].item()) is float


def test_numpy_of_a_detached_tensor_shares_memory() -> None:
    x = leaf32(1.0, 2.0)
    array = x.detach().numpy()
    array[0] = 9.0
    assert x.tolist() == [9.0, 2.0]


def test_numpy_functions_on_a_tensor_that_requires_grad_raise_as_in_torch() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)numpy\(\) on a tensor that requires grad"):
        np.asarray(leaf32(1.0))
    assert np.asarray(leaf32(1.0).detach()).tolist() == [1.0]


WORLDS = pytest.mark.parametrize("make", [tracer.tensor, torch.tensor], ids=["tracked", "torch"])


@WORLDS
def test_a_tensor_times_an_array_raises_before_it_loses_a_gradient(make: Any) -> None:
    array = np.array([3.0, 4.0], dtype=np.float32)
    with pytest.raises(RuntimeError, match=r"(?i)can't call numpy\(\) on (a )?tensor that requires grad"):
        make([1.0, 2.0], requires_grad=True) * array
    assert (make([1.0, 2.0]) * array).tolist() == [3.0, 8.0]


@WORLDS
def test_an_array_times_a_tensor_raises_before_it_loses_a_gradient(make: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        np.array([3.0, 4.0], dtype=np.float32) * make([1.0, 2.0], requires_grad=True)


def test_inference_mode_records_nothing() -> None:
    x = leaf32(1.0, 2.0)
    with torch.inference_mode():
        y = x * 2
    assert not y.requires_grad and y.tolist() == [2.0, 4.0]


def test_an_inference_tensor_may_not_be_saved_as_in_torch() -> None:
    x = leaf32(1.0, 2.0)
    with torch.inference_mode():
        w = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"(?i)inference"):
        (x * w).sum().backward()


def test_requires_grad_on_a_detached_tensor_starts_anew() -> None:
    x = leaf32(1.0)
    y = (x * 2).detach().requires_grad_()
    (y * 3).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [3.0] and x.grad is None


def test_set_grad_enabled_as_a_function_and_as_a_block() -> None:
    x = leaf32(1.0)
    previous = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        assert not (x * 2).requires_grad
    finally:
        torch.set_grad_enabled(previous)
    with torch.set_grad_enabled(True):
        assert (x * 2).requires_grad


def test_no_grad_as_a_decorator() -> None:
    x = leaf32(1.0)

    @torch.no_grad()
    def double(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    assert not double(x).requires_grad


def test_set_writes_other_memory_into_a_tensor_without_history() -> None:
    x = tracer.tensor([1.0, 2.0])
    x.set_(torch.tensor([5.0, 6.0, 7.0]))
    assert x.tolist() == [5.0, 6.0, 7.0]


def test_detach_in_place_cuts_the_history() -> None:
    x = leaf32(1.0)
    y = x * 2
    y.detach_()
    assert y.is_leaf and not y.requires_grad


def test_shared_memory_of_a_tracked_tensor_and_its_source() -> None:
    source = torch.ones(2)
    x = tracer.track(source, requires_grad=True)
    with torch.no_grad():
        x.mul_(3)
    assert source.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("detach", [torch.detach, torch.ops.aten.detach, torch.ops.aten.detach.default])
def test_detach_called_as_a_function_cuts_the_history(detach: Any) -> None:
    y = detach(tracer.tensor([1.0], requires_grad=True) * 2)
    assert not y.requires_grad and isinstance(y, tracer.Tensor)


def test_other_memory_is_not_given_to_a_tensor_with_a_history() -> None:
    y = tracer.tensor([1.0], requires_grad=True) * 2
    with pytest.raises(tracer.InPlaceError, match="set_ gives other memory"):
        y.set_(torch.tensor([5.0]))
    with torch.no_grad():
        y.set_(torch.tensor([5.0, 6.0]))
    assert y.tolist() == [5.0, 6.0]
