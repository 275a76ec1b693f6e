"""TorchScript on tracked tensors and in tracked models: torch's own backward runs, nothing is cut."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from support.leaves import leaf32
from support.models import Model

import nn
import ops_registry
import tracer


@torch.jit.script
def scripted(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * x * scale


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Nested(Model):
    @torch.jit.export
    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
        return x * 2, {"y": [self.forward(x)]}


class Recurrent(torch.nn.Module):
    """Keeps its last state as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.h = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = (self.linear(x) + self.h).tanh()
        return self.h


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return model(x).pow(2).sum()


def reloaded(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


#: How a model comes to be compiled and tracked.
WAYS: dict[str, Callable[[], torch.nn.Module]] = {
    "script of a tracked model": lambda: torch.jit.script(nn.track(Model())),
    "tracked script": lambda: nn.track(torch.jit.script(Model())),
    "submodule of a tracked model": lambda: nn.track(torch.nn.Sequential(torch.jit.script(Model())))[0],
    "saved and loaded": lambda: nn.track(reloaded(torch.jit.script(Model()))),
    "saved tracked": lambda: nn.track(reloaded(torch.jit.script(nn.track(Model())))),
    "trace of a tracked model": lambda: torch.jit.trace(nn.track(Model()), X),
    "trace of a method": lambda: torch.jit.trace(nn.track(Model()).forward, X),
    "trace with a tracked example": lambda: torch.jit.trace(nn.track(Model()), tracer.tensor(X, requires_grad=True)),
    "trace_module": lambda: torch.jit.trace_module(nn.track(Model()), {"forward": X}),
    "deep copy": lambda: copy.deepcopy(torch.jit.script(nn.track(Model()))),
    "plain script": lambda: torch.jit.script(Model()),
}


def native_gradients() -> tuple[dict[str, torch.Tensor | None], torch.Tensor | None]:
    model, x = Model(), X.clone().requires_grad_()
    loss_of(model, x).backward()
    return {name: p.grad for name, p in model.named_parameters()}, x.grad


@pytest.mark.parametrize("tracked_input", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_reach_parameters_and_inputs(way: str, tracked_input: bool) -> None:
    model = WAYS[way]()
    x = tracer.tensor(X, requires_grad=True) if tracked_input else X.clone()
    (loss_of(model, x) + 0 * x.sum()).backward()
    parameters, of_input = native_gradients()
    torch.testing.assert_close({n: p.grad for n, p in model.named_parameters()}, parameters)
    if tracked_input:
        torch.testing.assert_close(x.grad, of_input)


@pytest.mark.parametrize("way", WAYS)
def test_grad_gives_the_same_and_leaves_dot_grad_alone(way: str) -> None:
    model, x = WAYS[way](), tracer.tensor(X, requires_grad=True)
    weight = model.linear.weight
    of_input, of_weight = torch.autograd.grad(loss_of(model, x), (x, weight))
    parameters, wanted = native_gradients()
    torch.testing.assert_close(of_input, wanted)
    torch.testing.assert_close(of_weight, parameters["linear.weight"])
    assert all(p.grad is None for p in model.parameters())


def test_a_script_shares_its_parameters_with_the_model() -> None:
    model = nn.track(Model())
    script = torch.jit.script(model)
    loss_of(script, X).backward()
    assert script.linear.weight is model.linear.weight
    assert type(model.linear.weight) is tracer.Tensor and model.linear.weight.is_leaf
    assert isinstance(model.linear.weight, torch.nn.Parameter)
    torch.testing.assert_close(model.linear.weight.grad, native_gradients()[0]["linear.weight"])


def test_a_frozen_script_passes_the_gradient_of_its_input() -> None:
    x = tracer.tensor(X, requires_grad=True)
    loss_of(torch.jit.freeze(torch.jit.script(nn.track(Model())).eval()), x).backward()
    torch.testing.assert_close(x.grad, native_gradients()[1])


def test_results_in_nests_of_containers_have_a_history() -> None:
    model, native, x = torch.jit.script(nn.track(Nested())), Nested(), leaf32(1.0, 2.0, 3.0)
    for m, given in ((model, x), (native, leaf_native := torch.tensor([1.0, 2.0, 3.0], requires_grad=True))):
        twice, rest = m.both(given)
        (twice.sum() + rest["y"][0].pow(2).sum()).backward()
    torch.testing.assert_close(x.grad, leaf_native.grad)
    torch.testing.assert_close(model.linear.weight.grad, native.linear.weight.grad)


def test_a_state_that_compiled_code_keeps_has_its_history() -> None:
    gradients = []
    for model in (nn.track(torch.jit.script(Recurrent())), Recurrent()):
        model(X)
        (model(X).pow(2).sum() + model.h.sum()).backward()
        gradients.append(model.linear.weight.grad)
    torch.testing.assert_close(*gradients)


@torch.jit.script
class Scale:
    def __init__(self, by: torch.Tensor) -> None:
        self.by = by

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self.by * x


class Holding(torch.nn.Module):
    """Holds one tensor in each way that a compiled module can hold one beside parameters and buffers."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.attribute, self.several, self.scale = w, [w], Scale(w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attribute * x + self.several[0] * x + self.scale.of(x)


def test_tensors_that_a_compiled_module_holds_beside_parameters_get_their_gradients() -> None:
    w = leaf32(1.0)
    (torch.jit.script(Holding(w * 2))(torch.ones(1)).sum() + 0 * w.sum()).backward()
    assert w.grad is not None and w.grad.tolist() == [6.0]


@torch.jit.script
def scaled(scale: Scale, x: torch.Tensor) -> torch.Tensor:
    return scale.of(x)


@torch.jit.script
def making(x: torch.Tensor) -> Scale:
    return Scale(x * 2)


def test_an_object_as_argument_passes_gradients_and_one_as_result_raises() -> None:
    w = leaf32(1.0)
    (scaled(Scale(w), torch.ones(1)).sum() + 0 * w.sum()).backward()
    assert w.grad is not None and w.grad.tolist() == [1.0]
    with pytest.raises(tracer.UnsupportedError, match="returned a Scale"):
        making(w)


def test_forked_tasks_of_compiled_code_pass_gradients() -> None:
    @torch.jit.script
    def forked(x: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(torch.jit.fork(torch.sin, x)) * x

    x = leaf32(1.0)
    forked(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([1.0]).cos() + torch.tensor([1.0]).sin())


def test_hooks_on_native_parameters_run_once_with_the_whole_gradient() -> None:
    model, x, seen = torch.jit.script(Model()), tracer.tensor(X, requires_grad=True), []
    model.linear.weight.register_hook(seen.append)
    (loss_of(model, x) + loss_of(model, x)).backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], 2 * native_gradients()[0]["linear.weight"])


def test_trace_refuses_a_tracked_tensor_that_would_become_a_constant() -> None:
    w = leaf32(1.0)
    with pytest.raises(tracer.UnsupportedError, match=r"torch\.jit\.trace .* would become a constant"):
        torch.jit.trace(lambda x: x * w, torch.ones(1))


def test_a_write_into_an_argument_raises() -> None:
    @torch.jit.script
    def write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.add_(w)

    w = leaf32(1.0)
    for x in (torch.zeros(1), w * 2):
        with pytest.raises(tracer.InPlaceError, match="in place"):
            write(x, w)


def test_a_future_as_result_raises() -> None:
    @torch.jit.script
    def forks(x: torch.Tensor):  # type: ignore[no-untyped-def]
        return torch.jit.fork(torch.sin, x)

    with pytest.raises(tracer.UnsupportedError, match="returned a Future"):
        forks(leaf32(1.0))


def test_scripted_functions_are_one_opaque_call() -> None:
    x = leaf32(2.0)
    with tracer.Graph() as graph:
        y = scripted(x, 3.0)
    assert graph.counts() == {"torch:scripted": 1}
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [12.0]


def test_scripted_modules_are_not_cut() -> None:
    x = leaf32(0.5)
    torch.jit.script(Scripted())(x * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.tensor([1.0]).cos())


def test_a_second_derivative_raises_where_it_is_asked_for() -> None:
    # pytorch/pytorch#58509
    x = leaf32(1.0)
    (g,) = torch.autograd.grad(scripted(x * x, 2.0).sum(), x, create_graph=True)
    assert g.tolist() == [8.0]
    with pytest.raises(tracer.SecondDerivativeError, match="second derivative through torch:scripted"):
        torch.autograd.grad(g.sum(), x)


def test_a_second_derivative_with_respect_to_a_parameter_raises() -> None:
    model = torch.jit.script(nn.track(Model()))
    (g,) = torch.autograd.grad(loss_of(model, X), model.linear.weight, create_graph=True)
    with pytest.raises(tracer.SecondDerivativeError, match="second derivative through torch:forward"):
        (g.sum() + 0 * model.linear.weight.sum()).backward()
    assert model.linear.weight.grad is None


class Rectified(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x * 2)


def test_a_replaced_rule_that_compiled_code_would_not_take_is_refused() -> None:
    x = leaf32(-1.0, 2.0)
    model = torch.nn.Sequential(torch.jit.script(Rectified()), torch.nn.ReLU())
    replaced = {torch.relu: lambda grad: 10 * grad}
    with (
        pytest.raises(ops_registry.UnsupportedCallError, match=r"rule for relu.*inside the compiled code of forward"),
        ops_registry.use(replaced),
    ):
        model(x)
    with ops_registry.use(replaced, where="1"), ops_registry.use({torch.tanh: lambda grad: grad}, expect=None):
        y = model(x)
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 20.0]


class TwoParts(torch.nn.Module):
    """Uses one of its parts, as a model for two sample rates does."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(3, 3)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        return self.used(x) if first else self.unused(x)


def test_a_parameter_that_a_scripted_call_leaves_aside_gets_no_gradient() -> None:
    script = torch.jit.script(TwoParts())
    nn.track(script)
    loss = script(X, True).sum()
    loss.backward()
    found = {name: parameter.grad for name, parameter in script.named_parameters()}
    assert found["unused.weight"] is None and found["unused.bias"] is None
    assert found["used.weight"] is not None and found["used.bias"] is not None


@torch.jit.interface
class Part(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


class WithPart(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


class WithInterface(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


WithInterface.__annotations__ = {"part": Part}  # the class itself, which torch does not find by its name here


@pytest.mark.parametrize(("whole", "later"), [(WithPart, Scaled), (WithInterface, Shifted)])
def test_a_submodule_that_takes_anothers_place_between_calls_gets_the_gradient(
    whole: type[torch.nn.Module], later: type[torch.nn.Module]
) -> None:
    model, x = nn.track(torch.jit.script(whole(Scaled()))), torch.tensor([1.0, 2.0])
    first = model.part.scale
    model(x).sum().backward()
    assert first.grad.tolist() == [1.0, 2.0]
    model.part = nn.track(torch.jit.script(later()))
    model(x).sum().backward()
    assert first.grad.tolist() == [1.0, 2.0]
    [second] = model.parameters()
    assert second.grad.tolist() == ([1.0, 2.0] if later is Scaled else [1.0, 1.0])
