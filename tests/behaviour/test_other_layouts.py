"""Packed sequences, nested, MKL-DNN and quantized tensors: right, or refused in words; no gradient is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import plain
from torch.nn.utils import rnn

import nn
import tracer

T = torch.Tensor


def gradients_of_both(function: Callable[..., T], *data: T) -> tuple[list[T], list[T]]:
    """The gradients of the summed squares, ours and torch's."""
    found = []
    for make in (lambda t: tracer.track(t.clone(), True), lambda t: t.clone().requires_grad_()):
        leaves = [make(t) for t in data]
        function(*leaves).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    return found[0], found[1]


def ramp(*shape: int) -> T:
    return torch.linspace(-1, 2, torch.Size(shape).numel()).view(shape)


PACKING: dict[str, tuple[Callable[..., T], tuple[T, ...]]] = {
    "pack_padded": (lambda x: rnn.pack_padded_sequence(x, [4, 2, 1]).data, (ramp(4, 3, 2),)),
    "there and back": (lambda x: rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, [4, 2, 1]))[0], (ramp(4, 3, 2),)),
    "unsorted": (
        lambda x: rnn.pad_packed_sequence(
            rnn.pack_padded_sequence(x, torch.tensor([2, 4, 1]), batch_first=True, enforce_sorted=False),
            batch_first=True,
            padding_value=3.0,
            total_length=6,
        )[0],
        (ramp(3, 4, 2),),
    ),
    "pack_sequence": (lambda a, b: rnn.pack_sequence([a, b]).data, (ramp(3, 2), ramp(2, 2))),
    "pad_sequence": (lambda a, b: rnn.pad_sequence([a, b], padding_value=1.0), (ramp(3, 2), ramp(2, 2))),
    "unpack": (lambda a, b: torch.cat(rnn.unpack_sequence(rnn.pack_sequence([a, b]))), (ramp(3, 2), ramp(2, 2))),
    "unpad": (lambda x: torch.cat(rnn.unpad_sequence(x * 1, torch.tensor([4, 2, 1]))), (ramp(4, 3, 2),)),
    "to another dtype": (lambda a: rnn.pack_sequence([a]).to(torch.float64).data, (ramp(3, 2),)),
}


@pytest.mark.parametrize("name", PACKING)
def test_packed_sequences_have_torchs_gradients(name: str) -> None:
    torch.testing.assert_close(*gradients_of_both(PACKING[name][0], *PACKING[name][1]))


# nested tensors

JAGGED = {"layout": torch.jagged}


def ones() -> T:
    return tracer.track(torch.ones(2, 3), True)


NESTED: dict[str, Callable[[], Any]] = {
    "made of a list": lambda: torch.nested.as_nested_tensor([ones(), ones()]),
    "made of a list, jagged": lambda: torch.nested.as_nested_tensor([ones(), ones()], **JAGGED),
    "made of a tensor": lambda: torch.nested.as_nested_tensor(ones().unsqueeze(0), **JAGGED),
    "made of values": lambda: torch.nested.nested_tensor_from_jagged(ones(), torch.tensor([0, 1, 2])),
    "narrowed": lambda: torch.nested.narrow(ones(), 1, torch.tensor([0, 1]), torch.tensor([2, 2]), **JAGGED),
    "on the right": lambda: ones() * torch.nested.nested_tensor([torch.ones(2, 3)], **JAGGED),
    "on the left": lambda: F.linear(torch.nested.nested_tensor([torch.ones(2, 3)], **JAGGED), ones()),
    "a leaf": lambda: tracer.track(torch.nested.nested_tensor([torch.ones(2, 3)]), True),
    "a jagged leaf": lambda: tracer.track(torch.nested.nested_tensor([torch.ones(2, 3)], **JAGGED), True),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_tensor_that_would_lose_a_gradient_raises(name: str) -> None:
    with pytest.raises(tracer.UnsupportedError, match="nested"):
        NESTED[name]()


def test_nested_tensors_work_where_no_gradient_is_wanted() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3)], **JAGGED)
    with torch.no_grad():
        assert (nested * ones()[0]).is_nested
    assert (nested * ones()[0].detach()).is_nested


# MKL-DNN


MKLDNN: dict[str, Callable[[T], T]] = {
    "there and back": lambda x: x.to_mkldnn().to_dense(),
    "relu": lambda x: x.to_mkldnn().relu().to_dense(),
    "sum of two": lambda x: (x.to_mkldnn() + x.to_mkldnn()).to_dense(),
    "used twice": lambda x: (lambda m: m.to_dense() + m.relu().to_dense())(x.to_mkldnn()),
}


@pytest.mark.parametrize("name", MKLDNN)
def test_mkldnn_tensors_have_torchs_gradients(name: str) -> None:
    torch.testing.assert_close(*gradients_of_both(MKLDNN[name], ramp(3, 4)))


def test_gradient_of_an_mkldnn_leaf_is_one_too() -> None:
    x = tracer.track(ramp(3, 4).to_mkldnn(), True)
    for _ in range(2):
        x.to_dense().sum().backward()
    assert x.grad is not None
    assert x.grad.layout is torch._mkldnn
    assert x.grad.to_dense().unique().tolist() == [2]


def test_recorded_write_into_an_mkldnn_tensor_raises() -> None:
    m = ones().to_mkldnn()
    with pytest.raises(tracer.UnsupportedError, match="relu_ writes into"):
        m.relu_()


# quantized


def test_quantized_tensor_has_no_history_as_in_torch() -> None:
    for x in (ones(), torch.ones(2, 3, requires_grad=True)):
        assert not torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize().requires_grad


def test_encoder_with_padding_evaluates_as_in_torch() -> None:
    # torch takes a path over nested tensors, which leaves zeros where the padding is.
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        found = nn.track(model)(x, src_key_padding_mask=mask)
    torch.testing.assert_close(plain(found)[~mask], expected[~mask])
