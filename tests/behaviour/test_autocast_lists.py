"""Autocast of every op that the dispatcher has an autocast kernel for on the CPU, with samples of torch's operator database.

Each runs with all arguments in float32, and with every other one in half precision, forward and backward, beside torch's autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

import tracer
from ops_registry.errors import GlassgradError
from tracer.checks.op_database import listed_ops, samples_of
from tracer.errors import MissingRuleError

LOW = (torch.bfloat16, torch.float16)
LISTED = sorted(
    {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    }
)
#: What the database gives no samples of, with the reason why it is not called here.
NOT_CALLED = {
    "_addmm_activation": "torch has no derivative of it",
    "_native_multi_head_attention": "torch has no derivative of it: the inference path of multi_head_attention",
    "mkldnn_rnn_layer": "the op beneath torch.lstm, which tests/behaviour/test_autocast.py calls",
}
#: Where torch refuses the target's gradient, and ours has it.
TORCH_ALONE_RAISES = {"soft_margin_loss"}
#: Kernels beneath grid_sample and multilabel_margin_loss, which have rules: the kernels alone have none, and backward says so.
WITHOUT_RULE = {"_grid_sampler_2d_cpu_fallback", "multilabel_margin_loss_forward"}
#: LAPACK's result depends on where its work space lies: torch's second call with the same arguments is not equal to its first.
NOT_REPEATED_TO_THE_BIT = {"linalg_lstsq"}
SAMPLES, MOST_CALLS = 60, 6

Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) * 0.8 + 0.1


def handmade() -> dict[str, list[Call]]:
    aten, classes = torch.ops.aten, torch.tensor([0, 1, 2, 1])
    image, grid = rand(1, 2, 4, 4), rand(1, 3, 3, 2)
    geometry = [1], [0], [1], False, [0], 1, False, False, True
    return {
        "_convolution": [(torch._convolution, [rand(1, 2, 5), rand(3, 2, 2), rand(3), *geometry], {})],
        "_grid_sampler_2d_cpu_fallback": [(torch._grid_sampler_2d_cpu_fallback, [image, grid, 0, 0, False], {})],
        "_lu_with_info": [(torch._lu_with_info, [rand(3, 3) + torch.eye(3)], {})],
        "conv_tbc": [(torch.conv_tbc, [rand(5, 2, 3), rand(2, 3, 4), rand(4), 1], {})],
        "cross_entropy_loss": [(F.cross_entropy, [rand(4, 3), classes, rand(3)], {"label_smoothing": 0.1})],
        "fake_quantize_per_tensor_affine": [(torch.fake_quantize_per_tensor_affine, [rand(4), 0.1, 0, 0, 255], {})],
        "grid_sampler": [(torch.grid_sampler, [image, grid, 0, 0, False], {})],
        "multilabel_margin_loss_forward": [
            (aten.multilabel_margin_loss_forward, [rand(2, 3), torch.tensor([[0, 2, -1], [1, -1, 0]]), 1], {})
        ],
        "nll_loss2d": [(F.nll_loss, [rand(2, 3, 2, 2), torch.ones(2, 2, 2, dtype=torch.long)], {})],
        "reflection_pad1d": [(F.pad, [rand(1, 2, 4), (1, 2)], {"mode": "reflect"})],
        "reflection_pad2d": [(F.pad, [image, (1, 2, 0, 1)], {"mode": "reflect"})],
        "replication_pad1d": [(F.pad, [rand(1, 2, 4), (1, 2)], {"mode": "replicate"})],
        "replication_pad2d": [(F.pad, [image, (1, 2, 0, 1)], {"mode": "replicate"})],
        "replication_pad3d": [(F.pad, [rand(1, 1, 2, 3, 3), (1, 2, 0, 1, 1, 0)], {"mode": "replicate"})],
    }


@cache
def ops_by_name() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for op in listed_ops():
        if torch.float32 in op.dtypes and not op.name.startswith("masked."):
            spelled = {op.aten_name, op.name.removeprefix("nn.functional."), op.name.replace(".", "_")}
            for name in spelled | {alias.name for alias in op.aliases}:
                found.setdefault(name, []).append(op)
    return found


def calls_of(name: str) -> Iterator[Call]:
    yield from handmade().get(name, [])
    for op in ops_by_name().get(name, []):
        samples = list(itertools.islice(samples_of(op, "cpu", torch.float32), SAMPLES))
        for sample in samples[:: max(1, len(samples) // MOST_CALLS + 1)]:
            yield op.op, [sample.input, *sample.args], sample.kwargs


def run(make_leaf: Callable[[torch.Tensor], torch.Tensor], call: Call, dtype: torch.dtype, lowered: int | None) -> Any:
    """Results and gradients of a call under autocast, or the error that it raised; every other argument is in ``dtype``."""
    function, args, kwargs = call
    leaves: list[torch.Tensor] = []

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
            return x
        x = x.detach().clone()
        leaves.append(make_leaf(x.to(dtype) if len(leaves) % 2 == lowered else x))
        return leaves[-1]

    args, kwargs = tree_map(leaf, args), tree_map(leaf, kwargs)
    torch.manual_seed(0)
    try:
        with torch.autocast("cpu", dtype=dtype):
            results = [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        loss = torch.zeros(())
        for r in (r for r in results if r.requires_grad):
            parts = torch.view_as_real(r) if r.is_complex() else r.float()
            loss = loss + (parts * torch.linspace(0.5, 1.5, parts.numel()).view(parts.shape)).sum()
        if loss.requires_grad:
            loss.backward()
    except RuntimeError as error:
        return error
    return [r.detach().as_subclass(torch.Tensor) for r in results], [x.grad for x in leaves]


def assert_same(name: str, call: Call, dtype: torch.dtype, lowered: int | None) -> None:
    expected = run(lambda x: x.requires_grad_(), call, dtype, lowered)
    got = run(lambda x: tracer.tensor(x, requires_grad=True), call, dtype, lowered)
    if isinstance(got, Exception):
        assert isinstance(got, MissingRuleError) if name in WITHOUT_RULE else isinstance(expected, Exception), got
        assert isinstance(got, GlassgradError) or str(got) == str(expected)
        return
    if isinstance(expected, Exception):
        assert name in TORCH_ALONE_RAISES, expected
        return
    exact = 1e-5 if name in NOT_REPEATED_TO_THE_BIT else 0
    torch.testing.assert_close(got[0], expected[0], rtol=exact, atol=exact, equal_nan=True)
    for ours, torchs in zip(got[1], expected[1], strict=True):
        if ours is None or torchs is None:
            assert ours is torchs or not (torchs if ours is None else ours).any()
            continue
        tolerance = torch.finfo(dtype).eps * 4
        largest = torchs.nan_to_num(0, 0, 0).abs().max().item() if torchs.numel() else 0.0
        torch.testing.assert_close(ours, torchs, rtol=tolerance, atol=tolerance * max(largest, 1e-3), equal_nan=True)


@pytest.mark.parametrize("lowered", [None, 0, 1], ids=["float32", "first-low", "second-low"])
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", [name for name in LISTED if name not in NOT_CALLED])
def test_an_op_with_an_autocast_kernel_is_cast_as_torch_casts_it(
    name: str, dtype: torch.dtype, lowered: int | None
) -> None:
    calls = list(calls_of(name))
    assert calls, f"no call of {name}"
    for call in calls:
        assert_same(name, call, dtype, lowered)
