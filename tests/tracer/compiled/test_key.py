"""A graph serves the calls that it was made for, and no other: what changes leads to another one, never to a stale one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import nn
import ops_registry
import tracer


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.scale, self.options = model, 1.0, {"power": 2}
        self.weight = torch.ones(3)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.scale * (self.model(x) * self.weight).pow(self.options["power"]).mean()
        loss.backward()
        return loss


def other_data(trainer: Trainer) -> None:
    trainer.model[0].weight.data = torch.arange(32.0).reshape(4, 8).t() / 32


def other_shape(trainer: Trainer) -> None:
    trainer.model[2].weight.data, trainer.model[2].bias.data = torch.ones(1, 8), torch.ones(1)


def other_module(trainer: Trainer) -> None:
    torch.manual_seed(1)
    trainer.model[0] = nn.track(torch.nn.Linear(4, 8))


CHANGES: dict[str, Callable[[Trainer], Any]] = {
    "number": lambda t: setattr(t, "scale", 3.0),
    "number in a dictionary": lambda t: t.options.update(power=3),
    "another tensor": lambda t: setattr(t, "weight", torch.tensor([1.0, 2.0, 3.0])),
    "a tensor written": lambda t: t.weight.copy_(torch.tensor([1.0, 2.0, 3.0])),
    "data": other_data,
    "shape": other_shape,
    "module": other_module,
    "no bias": lambda t: setattr(t.model[2], "bias", None),
    "frozen": lambda t: t.model[0].weight.requires_grad_(False),
    "hook": lambda t: t.model[0].weight.register_hook(lambda grad: grad * 2) and None,
    "hook on a module": lambda t: t.model[0].register_forward_hook(lambda m, a, out: out * 2) and None,
    "another model": lambda t: setattr(t, "model", nn.track(torch.nn.Linear(4, 3, bias=False))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    trainer = Trainer(mlp())
    twin = copy.deepcopy(trainer)
    compiled = tracer.compile(trainer.step, backend="replay")
    for i in range(4):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x).detach(), twin.step(x).detach())
        for a, b in zip(trainer.model.parameters(), twin.model.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)
        if i == 1:
            trainer.model.zero_grad()
            twin.model.zero_grad()
            for which in (trainer, twin):
                torch.manual_seed(3)
                CHANGES[name](which)


SCALE = 2.0


def test_a_global_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()

    def step(x: torch.Tensor) -> torch.Tensor:
        return SCALE * model(x).sum().detach()

    compiled, x = tracer.compile(step, backend="replay"), torch.randn(5, 4)
    first = compiled(x)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    torch.testing.assert_close(compiled(x), 2 * first)


def test_a_rule_that_is_replaced_for_good_is_seen(clean_registry: None) -> None:
    model, x = mlp(), torch.randn(5, 4)

    def step(x: torch.Tensor) -> None:
        F.elu(model(x)).sum().backward()

    compiled = tracer.compile(step, backend="replay")
    compiled(x)
    model.zero_grad()

    @ops_registry.backward(F.elu, replace=True)
    def elu(grad: torch.Tensor) -> torch.Tensor:
        return grad * 0

    compiled(x)
    assert not any(parameter.grad.any() for parameter in model.parameters())


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if getattr(func, "__name__", "") == "relu" else result

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor


AROUND: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "a mode": Doubling,
    "another mode": lambda: Doubling(3.0),
    "cuDNN's flags": lambda: torch.backends.cudnn.flags(enabled=False),
}


@pytest.mark.parametrize("first", ["nothing", "a mode", "default device"])
@pytest.mark.parametrize("name", AROUND)
def test_modes_around_the_call_are_seen(name: str, first: str) -> None:
    model, x = mlp(), torch.randn(5, 4)
    compiled = tracer.compile(lambda x: (model(x), torch.zeros(2)), backend="replay")
    with AROUND.get(first, contextlib.nullcontext)():
        compiled(x)
    for _ in range(2):
        with AROUND[name]():
            for got, expected in zip(compiled(x), (model(x), torch.zeros(2)), strict=True):
                assert (got.dtype, got.device, got.requires_grad) == (
                    expected.dtype,
                    expected.device,
                    expected.requires_grad,
                )
                assert got.device.type == "meta" or torch.equal(got, expected)
    # Inside of a mode of the user's the step runs as it is written, which makes no graph.
    assert len(compiled.explain().rows) == len({first, name} - {"a mode", "another mode"})


SWITCHED: dict[str, Callable[[bool], Any]] = {
    "oneDNN": lambda on: torch.backends.mkldnn.set_flags(on),
    "flash attention": torch.backends.cuda.enable_flash_sdp,
    "attention by cuDNN": torch.backends.cuda.enable_cudnn_sdp,
    "attention in half precision": lambda on: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(not on),
    "deterministic algorithms": lambda on: torch.use_deterministic_algorithms(not on),
    "precision": lambda on: torch.set_float32_matmul_precision("highest" if on else "medium"),
    "precision of one kind": lambda on: setattr(
        torch.backends.mkldnn.matmul, "fp32_precision", "ieee" if on else "bf16"
    ),
    "default dtype": lambda on: torch.set_default_dtype(torch.float32 if on else torch.float64),
    "threads": lambda on: torch.set_num_threads(1 if on else 2),
}


@pytest.mark.parametrize("name", SWITCHED)
def test_switches_of_torch_are_seen(name: str) -> None:
    model, x, threads = mlp(), torch.randn(5, 4), torch.get_num_threads()
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="replay")
    try:
        for on in (True, False, True):
            SWITCHED[name](on)
            compiled(x)
        assert len(compiled.explain().rows) == 2
    finally:
        SWITCHED[name](True)
        torch.set_num_threads(threads)


def test_explain_names_the_list_that_has_grown_and_no_tensors_behind_it() -> None:
    held: list[torch.Tensor] = []
    model = torch.nn.Linear(4, 3)
    compiled = tracer.compile(lambda x: (model(x).sum() + sum(held)).backward(), backend="replay")
    for _ in range(2):
        compiled(torch.ones(2, 4))
        held.append(torch.ones(()))
    (differed,) = compiled.explain().rows[1]["differed"]
    assert differed.startswith("held (")


def test_an_argument_that_torch_compile_has_seen_is_as_any_other() -> None:
    model, x = mlp(), torch.randn(5, 4)
    x._dynamo_propagated_dynamic_indices = {0}  # as torch leaves it there
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="replay")
    for given in (x, torch.randn(5, 4)):
        compiled(given)
    assert len(compiled.explain().rows) == 1


def test_explain_says_what_differed() -> None:
    trainer = Trainer(mlp())
    compiled = tracer.compile(trainer.step, backend="replay")
    compiled(torch.randn(5, 4))
    compiled(torch.randn(5, 4))
    compiled(torch.randn(3, 4))
    trainer.scale = 2.0
    compiled(torch.randn(3, 4))
    rows = compiled.explain().rows
    assert [row["calls"] for row in rows] == [2, 1, 1]
    assert any("shape of x" in text for text in rows[1]["differed"])
    assert any("self.scale" in text for text in rows[2]["differed"])
    assert "captured since these differed" in str(compiled.explain())


def guided(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return grad.clamp(min=0) * (result > 0)


def test_explain_compares_with_the_graph_that_comes_nearest() -> None:
    """A part of the key alone, whatever other graphs there are, in the user's words."""
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    compiled = tracer.compile(lambda x, factor=1.0, *rest: (model(x) * factor).sum().backward(), backend="replay")
    x = torch.randn(2, 4)
    for _ in range(2):
        compiled(x)
        model.train(not model.training)
    with ops_registry.use({torch.relu: guided}, where="1"):
        compiled(x)
    compiled(x, 2.0)
    compiled(x, factor=2.0)
    compiled(tracer.tensor(x))
    compiled(x, 2.0, 3)
    hook = model[0].weight.register_hook(lambda grad: grad * 2)
    compiled(x)
    hook.remove()
    told = [row["differed"] for row in compiled.explain().rows]
    assert told[0] == []
    assert told[1] == [f"{part}.training (True -> False)" for part in ("model.0", "model.1", "model")]
    assert told[2] == ["rules of use blocks (none -> relu: guided where='1')"]
    assert told[3] == ["factor (new: 2.0)"]
    assert told[4] == ["how the arguments are nested, or which are given by name"]
    assert told[5] == ["class of x (torch.Tensor -> tracer.Tensor)"]
    assert told[6] == ["rest[0] (new: 3)"]
    assert told[7][0].startswith("the hooks of model.0.weight (new: an OrderedDict with ")


def test_explain_tells_of_graphs_that_were_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.compiled.step.KEPT", 2)
    compiled = tracer.compile(lambda x, factor: x * factor, backend="replay")
    for factor in range(5):
        torch.testing.assert_close(compiled(torch.ones(3), factor), torch.full((3,), float(factor)))
    report = compiled.explain()
    assert (len(report.rows), report.let_go, report.to_dict()["let_go"]) == (1, 4, 4)
    assert "4 graphs that were captured before were let go" in str(report)


def test_many_graphs_are_told_of_once() -> None:
    model = mlp()
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="replay")
    with pytest.warns(UserWarning, match="captured 9 times; this time since it differed in shape of x"):
        for rows in range(1, 10):
            compiled(torch.randn(rows, 4))


def test_check_compares_with_the_eager_step_and_leaves_no_trace_of_it() -> None:
    model = mlp()
    twin = copy.deepcopy(model)

    def step_of(model: torch.nn.Module) -> Callable[..., Any]:
        return lambda x: F.dropout(model(x), 0.5).square().sum().backward()

    compiled, x = tracer.compile(step_of(model), backend="replay", check=True), torch.randn(5, 4)
    torch.manual_seed(0)
    compiled(x)
    torch.manual_seed(0)
    step_of(twin)(x)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_check_names_what_differs_and_puts_everything_back() -> None:
    def wrong(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda *given: [result * 1.01 for result in graph(*given)]

    model = mlp()
    compiled = tracer.compile(lambda x: model(x).square().sum().backward(), backend=wrong, check=True)
    with pytest.raises(tracer.CompiledStepError, match=r"\.grad of model\.0\.weight: differs by"):
        compiled(torch.randn(5, 4))
    assert all(parameter.grad is None for parameter in model.parameters())


class OfBatches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return (self.linear(batch["inputs"][0]) * batch["weight"]).sum()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("of_a_module", [True, False])
def test_nests_of_new_tensors_take_one_graph(of_a_module: bool, grad: bool) -> None:
    model = nn.track(OfBatches())
    if of_a_module:
        compiled: Any = tracer.compile(model, backend="replay")
    else:
        compiled = tracer.compile(lambda batch: model(batch).backward(), backend="replay")
    for _ in range(3):
        x, weight = (tracer.tensor(torch.rand(4, 3), requires_grad=grad) for _ in range(2))
        result = compiled({"inputs": [x], "weight": weight})
        if of_a_module:
            result.backward()
        assert (x.grad is not None) == (weight.grad is not None) == grad
    assert len(compiled.explain().rows) == 1
