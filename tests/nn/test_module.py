"""``nn.Module``: what is assigned is tracked, and stays so."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.utils.prune

import nn
import tracer


def all_tracked(module: torch.nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and all(type(p) is tracer.Tensor for p in parameters)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0]))
        self.stock = torch.nn.Linear(2, 1)
        self.nothing = None
        self.register_parameter("absent", None)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stock(x) * self.factor


def test_assigned_parameters_and_stock_modules_are_tracked() -> None:
    model = Own()
    assert all_tracked(model) and type(model.seen) is torch.Tensor
    assert [name for name, _ in model.named_parameters()] == ["factor", "stock.weight", "stock.bias"]
    model(torch.ones(3, 2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_they_stay_the_same_objects() -> None:
    parameter, layer = torch.nn.Parameter(torch.ones(1)), torch.nn.Linear(2, 2)
    weight = layer.weight
    model = nn.Module()
    model.parameter, model.layer = parameter, layer
    assert model.parameter is parameter and model.layer is layer and model.layer.weight is weight


def test_registered_parameters_and_added_modules_are_tracked() -> None:
    model = nn.Module()
    model.register_parameter("a", torch.nn.Parameter(torch.ones(1)))
    model.add_module("b", torch.nn.Linear(2, 2))
    model.register_module("c", torch.nn.Linear(2, 2))
    model.add_module("d", None)
    assert all_tracked(model)


def test_frozen_parameters_stay_frozen() -> None:
    model = nn.Module()
    model.a = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    assert type(model.a) is tracer.Tensor and not model.a.requires_grad


def test_other_tensors_are_plain_attributes() -> None:
    model = nn.Module()
    model.cached = torch.ones(1)
    model.tracked = tracer.tensor([1.0], requires_grad=True)
    assert type(model.cached) is torch.Tensor and not list(model.parameters())


def test_torchs_errors_are_torchs() -> None:
    class NoInit(nn.Module):
        def __init__(self) -> None:
            self.layer = torch.nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="before Module"):
        NoInit()
    with pytest.raises(TypeError, match="Parameter or None"):
        nn.Module().register_parameter("a", torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a Module"):
        nn.Module().add_module("a", torch.ones(1))  # type: ignore[arg-type]


def test_parameters_of_other_tensor_classes_are_refused() -> None:
    class Special(torch.nn.Parameter):
        pass

    model = nn.Module()
    with pytest.raises(tracer.UnsupportedError, match="Special"):
        model.a = Special(torch.ones(1))
    assert not list(model.parameters())


def test_lazy_parameters_are_tracked_when_they_get_their_shape() -> None:
    model = nn.Module()
    model.layer = torch.nn.LazyLinear(3)
    weight = model.layer.weight
    model.layer(torch.ones(1, 2))
    assert model.layer.weight is weight and all_tracked(model)


def saved_and_loaded(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assigned_state(model: torch.nn.Module) -> torch.nn.Module:
    plain = {name: value.detach().as_subclass(torch.Tensor).clone() for name, value in model.state_dict().items()}
    model.load_state_dict(plain, assign=True)
    return model


CHANGES: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": saved_and_loaded,
    "double": lambda m: m.double(),
    "half and back": lambda m: m.half().float(),
    "meta and back": lambda m: m.to("meta").to_empty(device="cpu"),
    "load_state_dict(assign)": assigned_state,
    "share_memory": lambda m: m.share_memory(),
    "requires_grad_": lambda m: m.requires_grad_(False).requires_grad_(True),
}


@pytest.mark.parametrize("make", [Own, lambda: nn.LSTM(2, 1), lambda: nn.Linear(2, 1)], ids=["own", "LSTM", "Linear"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_module_is_tracked_and_has_gradients(
    change: Callable[[torch.nn.Module], torch.nn.Module], make: Callable[[], torch.nn.Module]
) -> None:
    model = change(make())
    assert all_tracked(model)
    output = model(torch.ones(3, 2, dtype=next(model.parameters()).dtype))
    (output[0] if isinstance(output, tuple) else output).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_shared_weights_stay_shared() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin[0].weight is twin[1].weight and len(list(twin.parameters())) == 3


REWRITES: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
    "orthogonal": torch.nn.utils.parametrizations.orthogonal,
    "prune": lambda m: torch.nn.utils.prune.l1_unstructured(m, "weight", 0.3),
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_rewritten_weights_are_tracked_and_their_gradients_torchs(
    rewrite: Callable[[torch.nn.Module], torch.nn.Module],
) -> None:
    models: list[torch.nn.Module] = [nn.Linear(4, 3).double(), torch.nn.Linear(4, 3).double()]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(5, 4, dtype=torch.float64)
    for model in models:
        torch.manual_seed(0)
        rewrite(model)
        model(x).square().sum().backward()
    assert all_tracked(models[0]) and list(models[0].state_dict()) == list(models[1].state_dict())
    for (name, ours), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda m, name=name: f"{name}: {m}")


def test_a_removed_parametrization_leaves_the_weight_tracked() -> None:
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    torch.nn.utils.parametrize.remove_parametrizations(model, "weight")
    assert type(model) is nn.Linear and all_tracked(model)


def test_a_functional_call_leaves_the_weights_it_is_given_alone() -> None:
    model = nn.Linear(2, 1)
    weights = {"weight": torch.nn.Parameter(torch.ones(1, 2)), "bias": torch.nn.Parameter(torch.ones(1))}
    torch.func.functional_call(model, weights, (torch.ones(1, 2),)).sum().backward()
    assert type(weights["weight"]) is torch.nn.Parameter and weights["weight"].grad is not None
    assert model.weight.grad is None and all_tracked(model)


@pytest.mark.parametrize("foreach", [False, True])
def test_optimisers_and_clipping(foreach: bool) -> None:
    model = Own()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=foreach)
    model(torch.ones(3, 2)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=foreach)
    optimizer.step()
    assert all((before[name] != value).all() for name, value in model.named_parameters())


def test_averaged_models_are_tracked() -> None:
    model = Own()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    assert all_tracked(averaged)


def test_zero_grad_drops_the_history_of_gradients() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).square().sum().backward(create_graph=True)
    assert model.weight.grad is not None and model.weight.grad.requires_grad
    model.zero_grad(set_to_none=False)
    assert not model.weight.grad.requires_grad and not model.weight.grad.any()
    model.zero_grad()
    assert model.weight.grad is None
