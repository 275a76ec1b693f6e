"""Autocast: dtype, value and gradient of every op on torch's own lists are torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

import nn
import tracer
from ops_registry.errors import GlassgradError

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
    except RuntimeError as error:
        return error
    return [r.detach().as_subclass(torch.Tensor) for r in results], [x.grad for x in leaves]


def assert_same(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], device: str, dtype: torch.dtype
) -> None:
    expected = run(lambda x: x.requires_grad_(), function, args, kwargs, device, dtype)
    got = run(lambda x: tracer.tensor(x, requires_grad=True), function, args, kwargs, device, dtype)
    if isinstance(expected, RuntimeError) or isinstance(got, RuntimeError):
        assert isinstance(got, GlassgradError) or str(got) == str(expected)
        assert isinstance(expected, RuntimeError), got
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


RECURRENT: dict[str, Callable[[], torch.nn.Module]] = {
    "lstm": lambda: torch.nn.LSTM(3, 4),
    "lstm of two directions": lambda: torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "lstm without biases": lambda: torch.nn.LSTM(3, 4, bias=False, batch_first=True),
    "lstm with a projection": lambda: torch.nn.LSTM(3, 4, proj_size=2),
    "gru": lambda: torch.nn.GRU(3, 4),
    "rnn": lambda: torch.nn.RNN(3, 4),
    "relu": lambda: torch.nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks_have_torchs_values_and_gradients(name: str, packed: bool) -> None:
    def run_network(tracked: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        torch.manual_seed(0)
        network, x = RECURRENT[name](), torch.rand(3, 3, 3)
        network = nn.track(network) if tracked else network
        given: Any = torch.nn.utils.rnn.pack_padded_sequence(x, [3, 2, 1]) if packed else x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, ends = network(given)
        results = [output.data if packed else output, *(ends if isinstance(ends, tuple) else [ends])]
        sum(r.float().square().sum() for r in results).backward()
        return [r.detach().as_subclass(torch.Tensor) for r in results], [p.grad for p in network.parameters()]

    results, grads = run_network(tracked=True)
    torchs_results, torchs_grads = run_network(tracked=False)
    torch.testing.assert_close(results, torchs_results, rtol=0, atol=1e-7)
    assert_near(grads, torchs_grads, torch.bfloat16)


def assert_near(ours: Any, torchs: Any, dtype: torch.dtype) -> None:
    """Gradients within what one rounding to ``dtype`` more or less makes: torch's cache sums those of a weight used twice in it."""
    for got, expected in zip(ours, torchs, strict=True):
        tolerance = torch.finfo(dtype).eps * 4
        largest = expected.abs().max().item()
        torch.testing.assert_close(
            got.as_subclass(torch.Tensor), expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True
        )


def both(program: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]) -> tuple[Any, Any]:
    """What a program gives for tracked leaves, and for torch's own, with the same random numbers."""
    torch.manual_seed(0)
    ours = program(lambda x: tracer.tensor(x, requires_grad=True))
    torch.manual_seed(0)
    return ours, program(lambda x: x.clone().requires_grad_())


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(
    "write",
    [
        lambda y, w: y.add_(w @ w),
        lambda y, w: y.addmm_(w, w),
        lambda y, w: y.copy_(w @ w),
        lambda y, w: y.__setitem__(0, (w @ w)[0]),
        lambda y, w: y.__imul__(w @ w),
        lambda y, w: y.relu_(),
    ],
    ids=["add_", "addmm_", "copy_", "setitem", "mul_", "relu_"],
)
def test_in_place_spellings_are_cast_as_torch_casts_them(write: Callable[..., Any], dtype: torch.dtype) -> None:
    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x, w = leaf(low(3, 3)), leaf(low(3, 3))
        try:
            with torch.autocast("cpu", dtype=dtype):
                y = x @ w
                write(y, w)
            y.float().square().sum().backward()
        except RuntimeError as error:
            return str(error), []
        return (y.dtype, y.detach().float().tolist()), [x.grad, w.grad]

    (ours, our_grads), (torchs, torchs_grads) = both(program)
    assert ours == torchs
    assert_near(our_grads, torchs_grads, dtype)


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_with_and_without_its_cache_a_weight_used_twice_has_torchs_gradient(cache_enabled: bool) -> None:
    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x, w = leaf(low(3, 3)), leaf(low(3, 3))
        for _ in range(2):  # what a cache held of the weight before the step would be stale
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache_enabled):
                loss = ((x @ w) @ w).float().square().sum()
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
        return loss.detach(), x.grad, w.grad

    assert_near(*both(program), torch.bfloat16)


class CastFunction(torch.autograd.Function):
    """Runs in single precision where ``cast_inputs`` says so, and notes in which state of autocast."""

    states: list[bool]

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        CastFunction.states.append(torch.is_autocast_enabled("cpu"))
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        CastFunction.states.append(torch.is_autocast_enabled("cpu"))
        return grad @ w.t(), x.t() @ grad


def test_custom_fwd_and_custom_bwd_cast_and_set_autocast_as_in_torch() -> None:
    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        CastFunction.states = []
        x, w = leaf(low(3, 3).bfloat16()), leaf(low(3, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = CastFunction.apply(x, w)
        y.square().sum().backward()
        return y.dtype, CastFunction.states, y.detach().tolist(), x.grad.dtype, x.grad.tolist(), w.grad.tolist()

    ours, torchs = both(program)
    assert ours == torchs


def test_a_grad_scaler_scales_skips_and_steps_as_with_torchs_parameters() -> None:
    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        w, x = leaf(low(3, 3)), low(3, 3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        optimizer, history = torch.optim.SGD([w], lr=0.1), []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (x @ w).float().square().mean()
            scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([w], 1.0)
            scaler.step(optimizer)
            scaler.update()
            history.append((scaler.get_scale(), w.detach().tolist()))
        return history

    ours, torchs = both(program)
    assert ours == torchs


def test_second_derivatives_under_autocast_are_torchs() -> None:
    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x, w = leaf(low(3, 3)), leaf(low(3, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy((x @ w).tanh() @ w, torch.tensor([0, 1, 2]))
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
        first.square().sum().backward()
        return first.dtype, [first.detach(), x.grad, w.grad]

    (dtype, ours), (torchs_dtype, torchs) = both(program)
    assert dtype == torchs_dtype
    assert_near(ours, torchs, torch.bfloat16)


@pytest.mark.parametrize("name", ["matmul", "layer_norm", "cross_entropy", "linalg.solve", "normalize", "softmax"])
def test_backward_inside_the_block_is_as_in_torch(name: str) -> None:
    function, args, kwargs = PYTHON_LEVEL[name]

    def program(leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        leaves: list[torch.Tensor] = []

        def made(x: torch.Tensor) -> torch.Tensor:
            leaves.append(leaf(x) if x.is_floating_point() else x)
            return leaves[-1]

        with torch.autocast("cpu", dtype=torch.bfloat16):
            function(*nest_map(args, made), **kwargs).square().sum().backward()
        return [x.grad for x in leaves if x.is_floating_point()]

    assert_near(*both(program), torch.bfloat16)


BUILTIN = AutocastCPUTestLists("cpu")


@pytest.mark.parametrize(
    "name",
    [f"torch.{e[0]}" for e in BUILTIN.torch_expect_builtin_promote]
    + [f"Tensor.{e[0]}" for e in BUILTIN.methods_expect_builtin_promote],
)
def test_what_promotes_by_itself_is_left_alone_by_autocast(name: str) -> None:
    where, _, op = name.partition(".")
    entries = BUILTIN.torch_expect_builtin_promote if where == "torch" else BUILTIN.methods_expect_builtin_promote
    entry = next(e for e in entries if e[0] == op)
    owner = torch if where == "torch" else torch.Tensor
    if not hasattr(owner, op):
        assert op == "__div__"  # of Python 2; torch's own test passes it over
        return
    assert_same(getattr(owner, op), entry[1], {}, "cpu", torch.bfloat16)


def test_a_block_with_autocast_off_inside_one_with_it_on_casts_nothing() -> None:
    x = tracer.tensor(low(4, 3).bfloat16(), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert F.cross_entropy(x, CLASSES).dtype == torch.bfloat16
        assert F.cross_entropy(x, CLASSES).dtype == torch.float32
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
