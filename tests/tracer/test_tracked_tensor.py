"""The tracked tensor as users meet it: made, printed, copied, saved, asked for its attributes."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import tracer


def test_tensor_copies_its_data() -> None:
    data = np.ones(3)
    x = tracer.tensor(data)
    data[0] = 5
    assert x.tolist() == [1, 1, 1]


def test_tensor_has_the_dtype_that_torch_tensor_gives() -> None:
    assert tracer.tensor([1, 2]).dtype == torch.int64
    assert tracer.tensor([1.0]).dtype == torch.float32
    assert tracer.tensor([1, 2], dtype=torch.float64).dtype == torch.float64


def test_tensor_of_a_tensor_is_a_copy() -> None:
    source = torch.ones(2)
    x = tracer.tensor(source, requires_grad=True)
    source[0] = 7
    assert x.tolist() == [1, 1]
    assert x.requires_grad and x.is_leaf


def test_track_shares_storage() -> None:
    source = torch.ones(2)
    x = tracer.track(source)
    source[0] = 7
    assert x.tolist() == [7, 1]


def test_track_takes_over_requires_grad() -> None:
    assert tracer.track(torch.ones(2, requires_grad=True)).requires_grad
    assert not tracer.track(torch.ones(2)).requires_grad
    assert tracer.track(torch.ones(2), requires_grad=True).requires_grad


def test_track_refuses_a_tensor_with_history() -> None:
    with pytest.raises(tracer.GradientArgumentError, match="history"):
        tracer.track(torch.ones(2, requires_grad=True) * 2)


def test_integers_cannot_require_grad() -> None:
    with pytest.raises(tracer.GradientArgumentError, match=r"torch\.int64"):
        tracer.tensor([1, 2], requires_grad=True)


def test_results_are_tracked_and_know_their_call() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    assert type(y) is tracer.Tensor
    assert y.requires_grad and not y.is_leaf
    assert y.grad_fn is not None and y.grad_fn.name() == "MulBackward0"
    assert [n and n.name() for n, _ in y.grad_fn.next_functions] == ["torch::autograd::AccumulateGrad", None]


def test_native_requires_grad_stays_off() -> None:
    y = tracer.tensor([1.0], requires_grad=True) * 2
    assert not torch.Tensor.as_subclass(y.detach(), torch.Tensor).requires_grad
    with torch._C.DisableTorchFunctionSubclass():
        assert not torch._C.TensorBase.requires_grad.__get__(y)


def test_results_of_constants_do_not_require_grad() -> None:
    y = tracer.tensor([1.0]) * 2
    assert type(y) is tracer.Tensor and not y.requires_grad and y.is_leaf and y.grad_fn is None


def test_integer_and_bool_results_are_plain() -> None:
    x = tracer.tensor([1.0, 3.0], requires_grad=True)
    assert type(x > 2) is torch.Tensor
    assert type(x.argmax()) is torch.Tensor


def test_shape_is_a_torch_size() -> None:
    assert type(tracer.tensor([[1.0]]).shape) is torch.Size


def test_named_results_stay_named() -> None:
    found = tracer.tensor([[1.0, 3.0]], requires_grad=True).max(1)
    assert type(found) is torch.return_types.max
    assert found.values.requires_grad and found.indices.tolist() == [1]


def test_repr_says_what_gradient_it_wants() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    assert repr(x) == "tensor([1.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2.], grad_fn=<MulBackward0>)"
    assert repr(x.detach()) == "tensor([1.])"


def test_a_scalar_formats_as_its_number() -> None:
    assert f"{tracer.tensor(1.23456, requires_grad=True):.2f}" == "1.23"


def test_requires_grad_can_be_turned_off_for_leaves_only() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    y = x * 2
    with pytest.raises(tracer.GradientArgumentError, match="mul"):
        y.requires_grad = False
    x.requires_grad_(False)
    assert not x.requires_grad


def test_detach_shares_storage_and_has_no_history() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    y = x.detach()
    assert type(y) is tracer.Tensor and not y.requires_grad
    assert y.data_ptr() == x.data_ptr()


def test_numpy_of_a_tensor_that_requires_grad_raises() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with pytest.raises(tracer.GradientArgumentError, match="detach"):
        x.numpy()
    assert x.detach().numpy().tolist() == [1.0]


def test_results_under_no_grad_have_no_history() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 2
    assert not y.requires_grad and z.requires_grad
    with torch.set_grad_enabled(False):
        assert not (x * 2).requires_grad


def test_a_result_of_no_grad_can_become_a_leaf() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with torch.no_grad():
        y = x * 2
    y.requires_grad_()
    (y * 3).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [3.0] and x.grad is None


def test_deepcopy_copies_value_gradient_and_wish() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    (x * 3).sum().backward()
    twin = copy.deepcopy(x)
    assert type(twin) is tracer.Tensor and twin.requires_grad and twin.is_leaf
    assert twin.grad is not None and twin.grad.tolist() == [3.0, 3.0]
    assert twin.data_ptr() != x.data_ptr() and twin.grad.data_ptr() != x.grad.data_ptr()  # type: ignore[union-attr]
    (twin * 5).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


def test_deepcopy_of_a_result_raises() -> None:
    with pytest.raises(tracer.UnsupportedError, match="detach"):
        copy.deepcopy(tracer.tensor([1.0], requires_grad=True) * 2)


def test_saved_tensors_load_with_safe_defaults() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    loaded = torch.load(file)["x"]
    assert loaded.tolist() == [1.0, 2.0] and loaded.requires_grad


def test_pickle_round_trip_keeps_the_wish_for_a_gradient() -> None:
    loaded = pickle.loads(pickle.dumps(tracer.tensor([1.0], requires_grad=True)))
    (loaded * tracer.tensor([2.0])).sum().backward()
    assert loaded.grad.tolist() == [2.0]


def test_data_shares_storage_without_history() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.data[0] = 9.0
    assert x.tolist() == [9.0, 2.0] and x._version == 0


def test_setting_data_changes_what_the_leaf_is() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.data = torch.ones(3, dtype=torch.float64)
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float64 and x.grad.tolist() == [2.0, 2.0, 2.0]


def test_grad_can_be_set_and_deleted() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.grad = torch.ones(2)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    del x.grad
    assert x.grad is None


def test_grad_of_a_result_warns_as_in_torch() -> None:
    y = tracer.tensor([1.0], requires_grad=True) * 2
    with pytest.warns(UserWarning, match="not a leaf"):
        assert y.grad is None


def test_an_identity_call_returns_the_same_object() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert x.contiguous() is x
    assert x.to(torch.float32) is x


def test_iteration_and_unpacking_give_tracked_rows() -> None:
    x = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    first, second = x
    (first * second).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[3.0, 4.0], [1.0, 2.0]]


def test_functions_of_torch_that_the_class_answers_itself_work_as_functions() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    assert torch.Tensor.requires_grad.__get__(x) is True  # type: ignore[attr-defined]
    torch.Tensor.backward((x * 2).sum())
    assert x.grad is not None and x.grad.tolist() == [2.0]
    assert torch.Tensor.detach(x).requires_grad is False


class Doubling(TorchFunctionMode):
    """Computes with the tensor whose attributes somebody asks for."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append(args[0] * 2)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["device", "dtype", "ndim", "shape"])
def test_a_mode_sees_who_asks_for_an_attribute(name: str) -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    with Doubling() as mode:
        found = getattr(x, name)
    assert found == getattr(torch.tensor([1.0, 2.0]), name)
    (double,) = mode.made
    double.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "ask",
    [len, torch.Tensor.dim, lambda x: x.size(), lambda x: x.size(-1), lambda x: x.size(dim=0), lambda x: x.stride(0)],
)
def test_what_is_asked_past_interception_is_seen_by_modes_and_answered_as_in_torch(ask: Any) -> None:
    seen: list[Any] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    plain = torch.zeros(2, 3).t()
    x = tracer.track(plain)
    assert ask(x) == ask(plain)
    with Watching():
        assert ask(x) == ask(plain)
    assert seen
