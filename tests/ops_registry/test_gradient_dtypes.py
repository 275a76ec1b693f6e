"""Calls that mix dtypes, for every operator that takes two floating tensors or more: results, gradients and their dtypes are torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer
from ops_registry.torch_private import tree_unflatten
from tracer.checks.conformance.operators import Way, operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples, seed_call
from tracer.checks.leaves import (
    can_have_gradient,
    leaves_of,
    native_leaf,
    plain,
    random_like,
    tensors_of,
    tracked_leaf,
)

CHUNKS = 4
SINGLE, DOUBLE, HALF, COMPLEX = torch.float32, torch.float64, torch.bfloat16, torch.complex64

#: The dtype of the first tensor of a call and that of the others; where one is a number, it is a 0-d tensor of float64.
NUMBER = "number"
MIXTURES: list[tuple[Any, Any]] = [
    (SINGLE, DOUBLE),
    (DOUBLE, SINGLE),
    (SINGLE, COMPLEX),
    (COMPLEX, SINGLE),
    (HALF, SINGLE),
    (SINGLE, HALF),
    (SINGLE, NUMBER),
    (NUMBER, SINGLE),
]

#: torch runs these and raises in backward for some mixture, where the gradient exists.
TORCH_RAISES = {
    "addr",
    "diagonal_scatter",
    "dist",
    "index_fill",
    "ldexp",
    "linalg.solve_triangular",
    "logaddexp",
    "masked_fill",
    "nn.functional.huber_loss",
    "where",
}

LEFT_OUT = {
    "as_strided_scatter": "torch's gradient of it is wrong in every dtype",
    "masked.logaddexp": "it discards the imaginary part of a complex tensor; torch raises in backward",
    "native_layer_norm": "the kernel takes no bfloat16 input with a float32 weight, here or in torch",
    "nn.functional.linear_cross_entropy.chunked": "the weights of the classes take no gradient, which torch does not say",
    "nn.functional.linear_cross_entropy.chunked_none": "to be looked at: bfloat16 with float32 raises in backward",
}


@pytest.fixture(scope="module")
def op_db() -> dict[str, Any]:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    return operators()


def converted(value: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The same numbers in another dtype, with an imaginary part where it is complex."""
    if dtype is NUMBER:
        return value.double().reshape(-1)[0].clone()
    return (value * (1 + 0.5j) if dtype is COMPLEX else value).to(dtype)


def mixed(sample: OpSample, able: list[int], mixture: tuple[Any, Any]) -> list[Any]:
    """The arguments of a sample, its floating tensors in the dtypes of a mixture."""
    dtypes = [mixture[0], *[mixture[1]] * (len(able) - 1)]
    if NUMBER in mixture:
        dtypes[2:] = [SINGLE] * (len(able) - 2)
    leaves = list(sample.leaves)
    for i, dtype in zip(able, dtypes, strict=True):
        leaves[i] = converted(plain(leaves[i]), dtype)
    return leaves


def run(way: Way, sample: OpSample, leaves: list[Any]) -> list[torch.Tensor]:
    """The results of one call."""
    arguments, keywords = tree_unflatten(leaves, sample.spec)
    seed_call()
    return tensors_of(sample.process(way(arguments, keywords)))


def gradients(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    live = [r for r in results if r.requires_grad]
    found = torch.autograd.grad(live, inputs, random_like(live, 1), allow_unused=True)
    return [None if g is None else plain(g) for g in found]


def in_one_dtype(way: Way, sample: OpSample, leaves: list[Any], able: list[int]) -> list[torch.Tensor | None]:
    """torch's gradients where the tensors are first brought to their common dtype."""
    native = leaves_of(leaves, able, native_leaf)
    common = native[able[0]].dtype
    for i in able:
        common = torch.promote_types(common, native[i].dtype)
    given = [v.to(common) if i in able else v for i, v in enumerate(native)]
    return gradients(run(way, sample, given), [native[i] for i in able])


def assert_alike(ours: torch.Tensor | None, theirs: torch.Tensor | None, low: bool, what: str) -> None:
    if ours is None or theirs is None:
        assert not any(t is not None and t.any() for t in (ours, theirs)), what
        return
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    tolerance = 5e-2 if low else 1e-4
    largest = max(1.0, float(theirs.abs().nan_to_num(0, 0, 0).max())) if theirs.numel() else 1.0
    torch.testing.assert_close(
        plain(ours),
        plain(theirs),
        rtol=tolerance,
        atol=tolerance * largest,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_results_and_gradients_of_mixed_dtypes_are_those_of_torch(chunk: int, op_db: dict[str, Any]) -> None:
    compared = 0
    for name in sorted(set(op_db) - set(LEFT_OUT))[chunk::CHUNKS]:
        for sample in first_samples(op_db[name], 2):
            able = [i for i, v in enumerate(sample.leaves) if can_have_gradient(v)]
            tensors = {id(sample.leaves[i]): sample.leaves[i] for i in able}
            if len(tensors) > 1 and all(t.layout is torch.strided and t.numel() for t in tensors.values()):
                way = ways(op_db[name])[0]
                compared += sum(check(name, way, sample, able, mixture) for mixture in MIXTURES)
    assert compared > 100


def check(name: str, way: Way, sample: OpSample, able: list[int], mixture: tuple[Any, Any]) -> bool:
    """One call; False where torch refuses it."""
    leaves = mixed(sample, able, mixture)
    native = leaves_of(leaves, able, native_leaf)
    try:
        theirs = run(way, sample, native)
    except Exception:
        return False
    if not any(t.requires_grad for t in theirs):
        return False
    what = f"{name} of {mixture[0]} with {mixture[1]} ({sample.text})"
    tracked = leaves_of(leaves, able, tracked_leaf)
    ours = run(way, sample, tracked)
    for a, b in zip(ours, theirs, strict=True):
        assert a.requires_grad == b.requires_grad, what
        assert_alike(a, b, HALF in mixture, what)
    found = gradients(ours, [tracked[i] for i in able])
    try:
        expected = gradients(theirs, [native[i] for i in able])
    except RuntimeError:
        assert name in TORCH_RAISES, what
        expected = in_one_dtype(way, sample, leaves, able)
    for i, a, b in zip(able, found, expected, strict=True):
        assert_alike(a, b, HALF in mixture, what)
        assert a is None or a.dtype == leaves[i].dtype, what
    return True


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.float16, COMPLEX], ids=str)
def test_grad_has_the_dtype_of_its_leaf_however_it_was_used(dtype: torch.dtype) -> None:
    x = tracer.tensor([0.5, 0.25], dtype=dtype, requires_grad=True)
    y = tracer.tensor([2.0, 4.0], dtype=torch.float64, requires_grad=True)
    (x * y + x.to(torch.complex128) * y + x * 2.0).sum().abs().backward()
    assert (x.grad.dtype, y.grad.dtype) == (dtype, torch.float64)


def test_a_number_of_higher_precision_does_not_raise_the_dtype() -> None:
    x = tracer.tensor([0.5, 0.25], dtype=SINGLE, requires_grad=True)
    number = tracer.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    y = x * number
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, number.grad.dtype) == (SINGLE, SINGLE, DOUBLE)
    assert number.grad.item() == 0.75
