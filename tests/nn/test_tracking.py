"""``nn.track``: stock modules on tracked parameters."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def inputs_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 4), torch.randint(3, (16,))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> list[float]:
    torch.manual_seed(1)
    data, target = inputs_and_labels()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_parameters_stay_the_same_objects() -> None:
    model = network()
    before = [id(p) for p in model.parameters()]
    assert nn.track(model) is model
    assert [id(p) for p in model.parameters()] == before
    assert all(type(p) is tracer.Tensor and isinstance(p, torch.nn.Parameter) for p in model.parameters())


def test_the_keys_of_state_dict_are_unchanged() -> None:
    model = network()
    keys = list(model.state_dict())
    assert list(nn.track(model).state_dict()) == keys


def test_buffers_stay_plain() -> None:
    model = nn.track(network())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(type(b) is torch.Tensor for b in model.buffers())


def test_frozen_parameters_stay_frozen() -> None:
    model = network()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    nn.track(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model[0].weight.grad is None and model[3].weight.grad is not None


def test_tied_parameters_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    nn.track(model)
    assert model[1].weight is model[0].weight
    x = torch.ones(1, 4)
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    model(x).sum().backward()
    w = model[0].weight.detach().as_subclass(torch.Tensor).clone().requires_grad_()
    F.linear(F.linear(x, w, model[0].bias.data), w, model[1].bias.data).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, w.grad)


@pytest.mark.parametrize("before", [True, False], ids=["optimiser first", "tracking first"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
    ids=["SGD", "Adam", "foreach AdamW", "fused Adam", "RMSprop", "Adagrad"],
)
def test_stock_optimisers_take_the_same_steps_as_on_torchs_gradients(make, before: bool) -> None:
    model = network()
    twin = copy.deepcopy(model)
    if before:
        optimizer = make(model.parameters())
        nn.track(model)
    else:
        nn.track(model)
        optimizer = make(model.parameters())
    ours, theirs = train(model, optimizer), train(twin, make(twin.parameters()))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_lbfgs_and_its_closure() -> None:
    model = network()
    twin = copy.deepcopy(model)
    data, target = inputs_and_labels()
    for m in (nn.track(model), twin):
        optimizer = torch.optim.LBFGS(m.parameters(), max_iter=5)

        def closure(m=m, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(m(data), target)
            loss.backward()
            return loss

        optimizer.step(closure)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().as_subclass(torch.Tensor), theirs.detach(), rtol=1e-4, atol=1e-5)


def test_schedules_clipping_and_zero_grad_work() -> None:
    model = nn.track(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    train(model, optimizer, 1)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norm > 1e-3
    total = sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5
    assert total == pytest.approx(1e-3, rel=1e-2)
    schedule.step()
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    model.zero_grad(set_to_none=False)


def test_zero_grad_without_none_fills_with_zeros() -> None:
    model = nn.track(network())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    model.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_to_changes_dtype_and_gradients_follow() -> None:
    model = nn.track(network())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    before = [id(p) for p in model.parameters()]
    model.double()
    assert [id(p) for p in model.parameters()] == before
    assert all(p.dtype == torch.float64 and p.grad.dtype == torch.float64 for p in model.parameters())
    model.zero_grad()
    model(torch.randn(5, 4, dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in model.parameters())


def test_to_device(device: torch.device) -> None:
    model = nn.track(network()).to(device)
    model(torch.randn(5, 4, device=device)).sum().backward()
    assert all(p.grad is not None and p.grad.device.type == device.type for p in model.parameters())


def test_deepcopy_gives_an_independent_tracked_model() -> None:
    model = nn.track(network())
    twin = copy.deepcopy(model)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), 1)
    assert all(type(p) is tracer.Tensor for p in twin.parameters())
    assert all(p.grad is None for p in model.parameters()) and all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in copy.deepcopy(twin).parameters())  # as torch's parameters


def test_state_dict_saves_and_loads_with_safe_defaults() -> None:
    model, other = nn.track(network()), network()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    assert all(type(t) is torch.Tensor for t in loaded.values())
    other.load_state_dict(loaded)
    tracked = nn.track(network())
    tracked.load_state_dict(loaded)
    model.eval(), other.eval(), tracked.eval()
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), model(x).detach().as_subclass(torch.Tensor))
    torch.testing.assert_close(other(x), tracked(x).detach().as_subclass(torch.Tensor))


def test_gradients_and_hooks_made_before_are_kept() -> None:
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    handle = model.weight.register_hook(lambda g: g * 10)
    nn.track(model)
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[11.0, 11.0]]
    handle.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[12.0, 12.0]]


def test_tracking_twice_changes_nothing() -> None:
    model = nn.track(network())
    nodes = [p._node for p in model.parameters()]
    nn.track(model)
    assert all(a is b for a, b in zip(nodes, (p._node for p in model.parameters()), strict=True))


def test_lazy_parameters_are_tracked_when_they_get_their_shape() -> None:
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(3)))
    weight = model[1].weight
    assert torch.nn.parameter.is_lazy(weight)
    model(torch.ones(1, 2)).sum().backward()
    assert model[1].weight is weight and type(weight) is tracer.Tensor and weight.grad is not None


def test_other_tensor_classes_are_refused_and_nothing_is_changed() -> None:
    class Special(torch.nn.Parameter):
        pass

    model = torch.nn.Linear(2, 2)
    model.bias = Special(torch.ones(2))
    with pytest.raises(tracer.UnsupportedError, match="Special"):
        nn.track(model)
    assert type(model.weight) is torch.nn.Parameter


def test_a_module_called_functionally() -> None:
    model = nn.track(torch.nn.Linear(2, 1))
    weights = {name: tracer.tensor(p.data * 2, requires_grad=True) for name, p in model.named_parameters()}
    torch.func.functional_call(model, weights, (torch.ones(1, 2),)).sum().backward()
    assert weights["weight"].grad.tolist() == [[1.0, 1.0]] and model.weight.grad is None


STOCK = {
    "convolution": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.BatchNorm2d(3), torch.nn.ReLU()),
        (2, 2, 5, 5),
    ),
    "volumes": (
        lambda: torch.nn.Sequential(torch.nn.Conv3d(1, 2, 2), torch.nn.MaxPool3d(2), torch.nn.Flatten()),
        (2, 1, 5, 5, 5),
    ),
    "sequence": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv1d(2, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.GELU(), torch.nn.AvgPool1d(2)
        ),
        (2, 2, 9),
    ),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "decoder": (lambda: Decoder(), (2, 5, 8)),
    "weight norm": (lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)), (2, 4)),
    "spectral norm": (lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 3)), (2, 4)),
    "in-place activations": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.ReLU(inplace=True), torch.nn.Linear(5, 5), torch.nn.SiLU(inplace=True)
        ),
        (2, 4),
    ),
}


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 8)
        self.layer = torch.nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embed(torch.tensor([[1, 2, 3], [6, 0, 1]])), memory)


@pytest.mark.parametrize(("make", "shape"), STOCK.values(), ids=STOCK)
def test_gradients_of_stock_modules_equal_torchs(make, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = make().double()
    twin = copy.deepcopy(model)
    data = torch.randn(shape, dtype=torch.float64)
    outputs = []
    for m in (nn.track(model), twin):
        out = m(data)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        outputs.append(out.detach().as_subclass(torch.Tensor))
    torch.testing.assert_close(*outputs)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}"
        )
