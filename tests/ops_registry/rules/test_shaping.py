"""Rules of ``ops_registry/rules/shaping.py``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.checking import Case, case, rand, run_case
from support.results import square

import tracer

C = torch.complex128
aten = torch.ops.aten


CASES = [
    # order stays
    case("reshape", lambda x: square(x.reshape(4, 3)), rand(3, 4)),
    case("reshape", lambda x: square(torch.reshape(x, (-1,))), rand(2, 3, dtype=C), label="complex"),
    case("reshape", lambda x: square(x.t().reshape(6)), rand(2, 3), label="transposed"),
    case("reshape", lambda x: x.reshape(1, 1), rand(), label="scalar"),
    case("reshape", lambda x: x.reshape(0, 5), rand(2, 0), label="empty"),
    case("reshape", lambda x: square(x.reshape(shape=(2, 2, 1, 3, 2))), rand(4, 6), label="rank-5-keyword"),
    case("reshape", lambda x: square(aten._reshape_copy(x, [4])), rand(2, 2), label="copy"),
    case("reshape", lambda x, y: square(x.reshape_as(y)) + y * 0, rand(6), rand(2, 3), label="as"),
    case("view", lambda x: square(x.view(4, 3)), rand(3, 4)),
    case("view", lambda x: square(x.view((2, -1))), rand(3, 4), label="sequence"),
    case("view", lambda x: square(x.view(size=(12,))), rand(3, 4), label="keyword"),
    case("view", lambda x: square(aten.view(x, [12])), rand(3, 4), label="aten"),
    case("view", lambda x: square(x.expand(5, 2, 3).view(5, 6)), rand(2, 3), label="expanded"),
    case("view_copy", lambda x: square(torch.view_copy(x, (12,))), rand(3, 4)),
    case("view", lambda x, y: square(x.view_as(y)) + y * 0, rand(6), rand(2, 3), label="as"),
    case("_unsafe_view", lambda x: square(aten._unsafe_view(x, [6])), rand(2, 3)),
    case("_reshape_alias", lambda x: square(aten._reshape_alias(x, [6], [1])), rand(2, 3)),
    case("_reshape_alias", lambda x: square(torch._reshape_alias_copy(x, [6], [1])), rand(2, 3), label="copy"),
    case("flatten", lambda x: square(x.flatten()), rand(2, 3, 2)),
    case("flatten", lambda x: square(torch.flatten(x, start_dim=1, end_dim=-2)), rand(2, 3, 2, 2), label="part"),
    case("flatten", lambda x: x.flatten(), rand(), label="scalar"),
    case("unflatten", lambda x: square(x.unflatten(1, (2, 3))), rand(2, 6)),
    case("unflatten", lambda x: square(torch.unflatten(x, -1, (-1, 2))), rand(2, 6), label="function"),
    case("ravel", lambda x: square(x.t().ravel()), rand(2, 3)),
    case("squeeze", lambda x: square(x.squeeze()), rand(1, 3, 1, 2)),
    case("squeeze", lambda x: square(x.squeeze(-2)), rand(1, 3, 1, 2), label="dim"),
    case("squeeze", lambda x: square(x.squeeze(1)), rand(1, 3, 1, 2), label="not-of-length-1"),
    case("squeeze", lambda x: square(torch.squeeze(x, dim=(0, 2))), rand(1, 3, 1, 2, 1), label="dims"),
    case("squeeze", lambda x: square(aten.squeeze.dims(x, [0, 1])), rand(1, 1, 2), label="aten-dims"),
    case("squeeze", lambda x: square(torch.squeeze_copy(x)), rand(1, 3), label="copy"),
    case("squeeze", lambda x: square(x * 1).squeeze_(0), rand(1, 3), label="in-place"),
    case("unsqueeze", lambda x: square(x.unsqueeze(-1)), rand(2, 3, dtype=C), label="complex"),
    case("unsqueeze", lambda x: square(torch.unsqueeze(x, axis=0)), rand(), label="scalar-axis"),
    case("unsqueeze", lambda x: square(x * 1).unsqueeze_(1), rand(3), label="in-place"),
    case("unsqueeze", lambda x: square(torch.unsqueeze_copy(x, 0)), rand(3), label="copy"),
    # dimensions permuted
    case("transpose", lambda x: square(x.transpose(0, -1)), rand(2, 3, 4)),
    case(
        "transpose", lambda x: square(torch.transpose(x, dim0=1, dim1=0)), rand(2, 3, dtype=C), label="complex-keyword"
    ),
    case("transpose", lambda x: x.transpose(0, -1), rand(), label="scalar"),
    case("transpose", lambda x: square(x * 1).transpose_(0, 1), rand(2, 3), label="in-place"),
    case("transpose", lambda x: square(torch.transpose_copy(x, 0, 1)), rand(2, 3), label="copy"),
    case("swapaxes", lambda x: square(x.swapaxes(axis0=0, axis1=2)), rand(2, 3, 4)),
    case("swapaxes", lambda x: square(x * 1).swapaxes_(0, 1), rand(2, 3), label="in-place"),
    case("swapdims", lambda x: square(torch.swapdims(x, dim0=0, dim1=2)), rand(2, 3, 4)),
    case("swapdims", lambda x: square(x * 1).swapdims_(0, 1), rand(2, 3), label="in-place"),
    case("t", lambda x: square(x.t()), rand(2, 3)),
    case("t", lambda x: square(torch.t(x)), rand(3), label="vector"),
    case("t", lambda x: square(x * 1).t_(), rand(2, 3), label="in-place"),
    case("t", lambda x: square(torch.t_copy(x)), rand(2, 3), label="copy"),
    case("T", lambda x: square(x.T), rand(2, 3)),
    case("T", lambda x: square(x.T), rand(2, 3, 4, 1, 2), label="rank-5"),
    case("T", lambda x: x.T, rand(), label="scalar"),
    case("T", lambda x: square(aten.numpy_T(x)), rand(2, 3), label="aten"),
    case("mT", lambda x: square(x.mT), rand(2, 3, 4)),
    case("H", lambda x: square(x.H), rand(2, 3, dtype=C), label="complex"),
    case("H", lambda x: square(x.H), rand(2, 3)),
    case("mH", lambda x: square(x.mH), rand(2, 3, 4, dtype=C), label="complex"),
    case("adjoint", lambda x: square(x.adjoint()), rand(2, 3, 4, dtype=C), label="complex"),
    case("adjoint", lambda x: square(torch.adjoint(x)), rand(2, 3)),
    case("permute", lambda x: square(x.permute(2, 0, 1)), rand(2, 3, 4)),
    case("permute", lambda x: square(torch.permute(x, (-1, 0, -2))), rand(2, 3, 4, dtype=C), label="complex-negative"),
    case("permute", lambda x: square(x.permute(dims=[1, 4, 0, 3, 2])), rand(2, 1, 3, 2, 2), label="rank-5-keyword"),
    case("permute", lambda x: square(x.permute(0)), rand(3), label="vector"),
    case("permute", lambda x: x.permute(()), rand(), label="scalar"),
    case("permute", lambda x: square(torch.permute_copy(x, (1, 0))), rand(2, 3), label="copy"),
    case("movedim", lambda x: square(x.movedim(0, -1)), rand(2, 3, 4)),
    case(
        "movedim",
        lambda x: square(torch.moveaxis(x, source=(0, 1), destination=(2, 0))),
        rand(2, 3, 4),
        label="several",
    ),
    # elements permuted
    case("flip", lambda x: square(x.flip(0, 1)), rand(2, 3)),
    case("flip", lambda x: square(torch.flip(x, dims=(-1,))), rand(2, 3, dtype=C), label="complex-keyword"),
    case("flip", lambda x: square(x.expand(3, 2).flip(0)), rand(2), label="expanded"),
    case("flip", lambda x: x.flip(()), rand(), label="scalar"),
    case("fliplr", lambda x: square(x.fliplr()), rand(2, 3)),
    case("flipud", lambda x: square(torch.flipud(x)), rand(2, 3)),
    case("roll", lambda x: square(x.roll(2)), rand(2, 3), label="flattened"),
    case("roll", lambda x: square(x.roll(1, 0)), rand(3, 2), label="dim"),
    case(
        "roll", lambda x: square(torch.roll(x, shifts=(-1, 4), dims=(0, -1))), rand(3, 2, dtype=C), label="complex-dims"
    ),
    case("roll", lambda x: x.roll(1, 0), rand(0, 2), label="empty"),
    case("rot90", lambda x: square(x.rot90()), rand(2, 3)),
    case("rot90", lambda x: square(torch.rot90(x, k=-3, dims=(2, 0))), rand(2, 3, 4), label="dims"),
    case("pixel_shuffle", lambda x: square(F.pixel_shuffle(x, 2)), rand(1, 8, 2, 3)),
    case("pixel_unshuffle", lambda x: square(F.pixel_unshuffle(x, 2)), rand(1, 2, 4, 2)),
    case("channel_shuffle", lambda x: square(F.channel_shuffle(x, 3)), rand(1, 6, 2, 2)),
    # torch has no derivative of its own here.
    case(
        "native_channel_shuffle", lambda x: square(F.native_channel_shuffle(x, 2)), rand(1, 6, 2, 2), torch_agrees=False
    ),
    # copies of elements
    case("expand", lambda x: square(x.expand(4, -1, 3)), rand(2, 1)),
    case("expand", lambda x: square(x.expand((2, 3))), rand(dtype=C), label="complex-scalar"),
    case("expand", lambda x: square(x.expand(size=(2, 2, 2, 2, 3))), rand(3), label="rank-5-keyword"),
    case("expand", lambda x: x.expand(0, 3), rand(1, 3), label="to-nothing"),
    case("expand", lambda x: square(torch.expand_copy(x, (2, 3))), rand(3), label="copy"),
    case("expand", lambda x, y: square(x.expand_as(y)) + y * 0, rand(1, 3), rand(2, 3), label="as"),
    case("broadcast_to", lambda x: square(torch.broadcast_to(x, (4, 2, 3))), rand(2, 1)),
    case("repeat", lambda x: square(x.repeat(2, 1, 3)), rand(2, 2)),
    case("repeat", lambda x: square(x.repeat(repeats=(2,))), rand(dtype=C), label="complex-scalar"),
    case("repeat", lambda x: square(x.t().repeat(1, 2)), rand(2, 3), label="transposed"),
    case("repeat", lambda x: x.repeat(2, 0), rand(2, 2), label="no-times"),
    case("repeat", lambda x: x.repeat(1, 1), rand(2, 2), label="once"),
    case("tile", lambda x: square(x.tile(2, 3)), rand(2, 2)),
    case("tile", lambda x: square(torch.tile(x, dims=(2,))), rand(2, 2, 2), label="fewer-than-dimensions"),
    case("tile", lambda x: square(torch.tile(x, (2, 1, 2))), rand(2), label="more-than-dimensions"),
    case("repeat_interleave", lambda x: square(x.repeat_interleave(3)), rand(2, 2), label="flattened"),
    case("repeat_interleave", lambda x: square(x.repeat_interleave(2, dim=-2)), rand(2, 3, 2, dtype=C), label="dim"),
    case("repeat_interleave", lambda x: square(torch.repeat_interleave(x, 2)), rand(), label="scalar"),
    case("repeat_interleave", lambda x: x.repeat_interleave(0, 0), rand(2, 3), label="no-times"),
    case(
        "repeat_interleave",
        lambda x: square(x.repeat_interleave(torch.tensor([2, 0, 1], device=x.device), 1)),
        rand(2, 3),
        label="a-number-each",
    ),
    case(
        "repeat_interleave",
        lambda x: square(torch.repeat_interleave(x, torch.tensor([2], device=x.device))),
        rand(2, 2),
        label="one-number-in-a-tensor",
    ),
    case(
        "repeat_interleave",
        lambda x: square(x.repeat_interleave(repeats=torch.tensor([1, 2], device=x.device), dim=0, output_size=3)),
        rand(2, 2),
        label="output-size",
    ),
]


@pytest.mark.filterwarnings("ignore:.*deprecated.*")  # T of a tensor whose rank is not 2
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float32])
def test_view_as_another_dtype_has_no_history(dtype: torch.dtype) -> None:
    x = tracer.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert not x.view(dtype).requires_grad
    assert not x.view(dtype=dtype).requires_grad
    assert not torch.view_copy(x, dtype).requires_grad


def test_reshape_keeps_no_memory() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert x.reshape(2, 1).grad_fn.saved == (torch.Size([2]),)


def test_permute_undoes_itself_exactly() -> None:
    x = tracer.tensor(torch.arange(24.0).reshape(2, 3, 4), requires_grad=True)
    seed = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    (gradient,) = torch.autograd.grad(x.permute(2, 0, 1), x, seed)
    assert torch.equal(gradient, x)


def test_expand_adds_up_the_copies() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.expand(3, 2).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_tile_adds_up_the_copies() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    torch.autograd.backward(x.tile(3), torch.arange(6.0))
    assert x.grad.tolist() == [0.0 + 2 + 4, 1.0 + 3 + 5]


def test_repeat_interleave_leaves_zero_for_what_is_repeated_no_times() -> None:
    x = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.repeat_interleave(torch.tensor([0, 1, 2])).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["reshape_as", "view_as", "expand_as"])
def test_tensor_that_gives_the_shape_gets_no_gradient(name: str) -> None:
    like = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert not getattr(tracer.tensor([3.0, 4.0]), name)(like).requires_grad
    assert not getattr(torch.ones(2), name)(like).requires_grad


def test_flatten_of_a_vector_is_the_same_object() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert x.flatten() is x


def test_in_place_transpose_keeps_the_object() -> None:
    x = tracer.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    y = x * 2
    assert y.t_() is y
    torch.autograd.backward(y, torch.tensor([[1.0], [2.0], [3.0]]))
    assert x.grad.tolist() == [[2.0, 4.0, 6.0]]


def test_in_place_transpose_of_a_leaf_is_refused() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        tracer.tensor([[1.0, 2.0]], requires_grad=True).t_()
