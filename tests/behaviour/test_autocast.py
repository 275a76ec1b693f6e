"""Autocast: dtype, value and gradient of every op on torch's own lists are torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

import tracer

LOW = (torch.bfloat16, torch.float16)
LISTS = ("torch_16", "torch_fp16", "torch_fp32", "nn_16", "nn_fp16", "nn_fp32", "torch_need_autocast_promote")
#: A fused kernel without a derivative in torch either, beneath multi_head_attention's inference path.
WITHOUT_DERIVATIVE = {"_native_multi_head_attention", "_addmm_activation"}


def listed(lists: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    for name in LISTS:
        module = torch._C._nn if name.startswith("nn") else torch
        for entry in getattr(lists, name, ()):
            op, args = entry[0], entry[1] if isinstance(entry[1], tuple) else (entry[1],)
            kwargs = next((part for part in entry[2:] if isinstance(part, dict)), {})
            function = getattr(module, op, None)
            if function is not None and op not in WITHOUT_DERIVATIVE:
                yield f"{name}-{op}", function, args, kwargs


def nest_map(nest: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(nest, torch.Tensor):
        return change(nest)
    return type(nest)(nest_map(part, change) for part in nest) if type(nest) in (list, tuple) else nest


def run(
    make_leaf: Callable[[torch.Tensor], torch.Tensor],
    function: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    device: str,
    dtype: torch.dtype,
) -> Any:
    """The results and gradients of a call under autocast, or that it raised."""
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        leaves.append(make_leaf(x.detach().clone()))
        return leaves[-1]

    torch.manual_seed(0)
    try:
        with torch.autocast(device, dtype=dtype):
            result = function(*nest_map(args, leaf), **kwargs)
        results = [r for r in (result if isinstance(result, tuple | list) else [result]) if r.requires_grad]
        sum((r.float().square().sum() for r in results), torch.zeros((), device=device)).backward()
    except (RuntimeError, NotImplementedError) as error:
        return f"raised {'' if isinstance(error, RuntimeError) else type(error)}"
    return [r.detach().as_subclass(torch.Tensor) for r in results], [x.grad for x in leaves]


def assert_same(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], device: str, dtype: torch.dtype
) -> None:
    expected = run(lambda x: x.requires_grad_(), function, args, kwargs, device, dtype)
    got = run(lambda x: tracer.tensor(x, requires_grad=True), function, args, kwargs, device, dtype)
    if isinstance(expected, str) or isinstance(got, str):
        assert got == expected
        return
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=0, equal_nan=True)
    tolerance = torch.finfo(dtype).eps * 4
    torch.testing.assert_close(got[1], expected[1], rtol=tolerance, atol=tolerance, equal_nan=True)


torch.manual_seed(0)
ON_CPU = {name: call for name, *call in listed(AutocastCPUTestLists("cpu"))}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", ON_CPU)
def test_every_op_on_the_cpu_lists_is_cast_as_torch_casts_it(name: str, dtype: torch.dtype) -> None:
    assert_same(*ON_CPU[name], "cpu", dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the CUDA lists need a GPU")
def test_every_op_on_the_cuda_lists_is_cast_as_torch_casts_it() -> None:
    for _, *call in listed(AutocastTestLists("cuda")):
        assert_same(*call, "cuda", torch.float16)


def low(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) * 0.8 + 0.1


CLASSES = torch.tensor([0, 1, 2, 1])
PYTHON_LEVEL: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "cross_entropy": (F.cross_entropy, (low(4, 3), CLASSES), {}),
    "cross_entropy with weights": (F.cross_entropy, (low(4, 3), CLASSES, low(3)), {}),
    "cross_entropy of probabilities": (F.cross_entropy, (low(4, 3), torch.full((4, 3), 1 / 3)), {}),
    "label smoothing": (F.cross_entropy, (low(4, 3), CLASSES), {"label_smoothing": 0.1}),
    "cross_entropy of images": (F.cross_entropy, (low(2, 3, 2, 2), torch.ones(2, 2, 2, dtype=torch.long)), {}),
    "nll_loss": (F.nll_loss, (low(4, 3), CLASSES), {}),
    "nll_loss of images": (F.nll_loss, (low(2, 3, 2, 2), torch.ones(2, 2, 2, dtype=torch.long)), {}),
    "nll_loss of volumes": (F.nll_loss, (low(2, 3, 2, 2, 2), torch.ones(2, 2, 2, 2, dtype=torch.long)), {}),
    "cosine_embedding_loss": (F.cosine_embedding_loss, (low(2, 3), low(2, 3), torch.ones(2, dtype=torch.int)), {}),
    "triplet_margin_loss": (F.triplet_margin_loss, (low(2, 3), low(2, 3), low(2, 3)), {}),
    "hinge_embedding_loss": (F.hinge_embedding_loss, (low(3), torch.ones(3, dtype=torch.int)), {}),
    "margin_ranking_loss": (F.margin_ranking_loss, (low(3), low(3), torch.ones(3, dtype=torch.int)), {}),
    "multi_margin_loss": (F.multi_margin_loss, (low(4, 3), CLASSES), {}),
    "poisson_nll_loss": (F.poisson_nll_loss, (low(3), low(3)), {}),
    "gaussian_nll_loss": (F.gaussian_nll_loss, (low(3), low(3), low(3)), {}),
    "kl_div": (F.kl_div, (low(3), low(3)), {}),
    "ctc_loss": (
        F.ctc_loss,
        (low(5, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
        {},
    ),
    "quantile": (torch.quantile, (low(5), 0.3), {}),
    "nanquantile": (torch.nanquantile, (low(5), 0.3), {}),
    "linalg.solve": (torch.linalg.solve, (low(3, 3) + torch.eye(3), low(3, 2)), {}),
    "max_pool3d": (F.max_pool3d, (low(1, 1, 4, 4, 4), 2), {}),
    "adaptive_max_pool3d": (F.adaptive_max_pool3d, (low(1, 1, 4, 4, 4), 2), {}),
    "layer_norm": (F.layer_norm, (low(4, 3), (3,)), {}),
    "group_norm": (F.group_norm, (low(2, 4, 3), 2), {}),
    "softmax": (torch.softmax, (low(3), 0), {}),
    "matmul": (torch.matmul, (low(2, 3), low(3, 2)), {}),
    "cdist": (torch.cdist, (low(2, 3), low(2, 3)), {}),
    "normalize": (F.normalize, (low(2, 3),), {}),
    "logsigmoid": (F.logsigmoid, (low(3),), {}),
}


@pytest.mark.parametrize(("dtype", "given"), [*itertools.product(LOW, (None, *LOW))], ids=str)
@pytest.mark.parametrize("name", PYTHON_LEVEL)
def test_python_level_functions_are_cast_as_torch_casts_them(
    name: str, dtype: torch.dtype, given: torch.dtype | None
) -> None:
    function, args, kwargs = PYTHON_LEVEL[name]
    if given is not None:
        args = nest_map(args, lambda x: x.to(given) if x.is_floating_point() else x)
    assert_same(function, args, kwargs, "cpu", dtype)


def test_a_block_with_autocast_off_inside_one_with_it_on_casts_nothing() -> None:
    x = tracer.tensor(low(4, 3).bfloat16(), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert F.cross_entropy(x, CLASSES).dtype == torch.bfloat16
        assert F.cross_entropy(x, CLASSES).dtype == torch.float32
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
