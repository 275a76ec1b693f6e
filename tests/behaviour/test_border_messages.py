"""At a border that torch refuses too, the error is ours, names the cause and says what to do."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from support.leaves import leaf32
from torch.masked import as_masked_tensor, masked_tensor

import nn
import tracer

F = torch.nn.functional
CURE = r"made in inference mode.*\.clone\(\).*torch\.no_grad\(\)"


def inference(*values: float) -> torch.Tensor:
    with torch.inference_mode():
        return torch.tensor(values) * 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, c)
        return x * c

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[1], None


SAVING: dict[str, Callable[[tracer.Tensor, torch.Tensor], Any]] = {
    "one saved tensor": lambda w, c: w * c,
    "several": lambda w, c: torch.lerp(w, w * 1, c),
    "a view": lambda w, c: w * c[:1],
    "a matrix product": lambda w, c: F.linear(c, w[None]),
    "in place": lambda w, c: (w * 1).mul_(c),
    "a list": lambda w, c: torch.linalg.multi_dot([w[None], c[:, None]]),
    "a custom Function": lambda w, c: Square.apply(w, c),
}


@pytest.mark.parametrize("call", SAVING.values(), ids=SAVING)
@pytest.mark.parametrize("tracked", [False, True])
def test_an_inference_tensor_cannot_be_saved(call: Callable[..., Any], tracked: bool) -> None:
    with torch.inference_mode():
        c = torch.tensor([1.0, 2.0]) * 1
        c = tracer.tensor(c) * 1 if tracked else c
    with pytest.raises(tracer.InferenceTensorError, match=CURE):
        call(leaf32(1.0, 2.0), c)
    w = leaf32(1.0, 2.0)
    call(w, c.clone()).sum().backward()
    assert w.grad is not None


def test_an_inference_tensor_that_need_not_be_saved_may_take_part() -> None:
    w = leaf32(1.0)
    (w + inference(2.0)).sum().backward()
    torch.cat([w, inference(2.0)]).sum().backward()
    assert w.grad is not None and w.grad.item() == 2.0


def test_tracked_tensors_live_in_inference_mode() -> None:
    w = leaf32(1.0, 2.0)
    with torch.inference_mode():
        y = w * 2
        y.mul_(2).add_(w)
        y[0] = 7.0
    assert y.tolist() == [7.0, 10.0] and y.is_inference() and not y.requires_grad


def test_backward_in_inference_mode_reaches_custom_functions() -> None:
    w = leaf32(3.0)
    y = Square.apply(w, torch.tensor([2.0])).sum()
    with torch.inference_mode():
        y.backward()
    assert w.grad is not None and w.grad.item() == 2.0


@pytest.mark.parametrize("make", [masked_tensor, as_masked_tensor])
def test_masked_tensors_refuse_tracked_ones(make: Any) -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"masked_tensor\(\) got a tracked tensor .*mask=.*torch\.where"):
        make(leaf32(1.0, 2.0), torch.tensor([True, False]))


def test_a_masked_tensor_beside_a_tracked_one_is_named() -> None:
    mask = masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(tracer.UnsupportedError, match=r"MaskedTensor out of a tracked tensor \(tracer\.Tensor\)"):
        mask * leaf32(1.0, 2.0)


def test_a_deep_copy_names_what_made_the_tensor_and_old_weight_norm() -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"made by exp\. Copy x\.detach\(\)"):
        copy.deepcopy(leaf32(1.0).exp())
    module = nn.track(torch.nn.utils.weight_norm(torch.nn.Linear(2, 2)))
    module(torch.ones(1, 2))
    with pytest.raises(tracer.UnsupportedError, match=r"weight_norm.*parametrizations.*remove_weight_norm"):
        copy.deepcopy(module)


class Scaled(torch.utils.data.Dataset[Any]):
    """A data set whose items have a history."""

    def __init__(self) -> None:
        self.scale = leaf32(2.0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.scale * index


@pytest.mark.parametrize("batch", [2, None])
def test_a_worker_that_returns_a_history_says_so(batch: int | None) -> None:
    loader = torch.utils.data.DataLoader(Scaled(), batch_size=batch, num_workers=1, timeout=60)
    with pytest.raises(
        (tracer.OutArgumentError, tracer.UnsupportedError), match=r"worker.*no history crosses processes.*x\.detach\(\)"
    ):
        next(iter(loader))
    assert len(list(torch.utils.data.DataLoader(Scaled(), batch_size=batch))) in (1, 2)


def test_leaves_go_from_process_to_process() -> None:
    assert multiprocessing.get_start_method() is not None
    sent = pickle.loads(bytes(ForkingPickler.dumps(leaf32(1.0, 2.0))))
    assert sent.tolist() == [1.0, 2.0] and sent.requires_grad and sent.is_leaf
