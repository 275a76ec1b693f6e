"""``nn.init``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.checking import plain
from support.training import accuracy, digits

import nn
import tracer

INITIALISERS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "uniform_": lambda init, t: init.uniform_(t, -1, 2),
    "normal_": lambda init, t: init.normal_(t, 1, 2),
    "trunc_normal_": lambda init, t: init.trunc_normal_(t, std=0.5, a=-1, b=1),
    "trunc_normal_ far out": lambda init, t: init.trunc_normal_(t, a=2, b=3),
    "constant_": lambda init, t: init.constant_(t, 3),
    "ones_": lambda init, t: init.ones_(t),
    "zeros_": lambda init, t: init.zeros_(t),
    "eye_": lambda init, t: init.eye_(t.view(6, -1)) if t.dim() == 2 else init.dirac_(t, 2),
    "xavier_uniform_": lambda init, t: init.xavier_uniform_(t, 2),
    "xavier_normal_": lambda init, t: init.xavier_normal_(t),
    "kaiming_uniform_": lambda init, t: init.kaiming_uniform_(t, mode="fan_out"),
    "kaiming_normal_": lambda init, t: init.kaiming_normal_(t, nonlinearity="relu"),
    "orthogonal_": lambda init, t: init.orthogonal_(t, 2),
    "sparse_": lambda init, t: init.sparse_(t, 0.3) if t.dim() == 2 else init.zeros_(t),
}


@pytest.mark.parametrize("initialise", INITIALISERS.values(), ids=INITIALISERS)
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3)])
def test_torchs_initialisers_set_tracked_tensors_as_they_set_plain_ones(
    initialise: Callable[[Any, torch.Tensor], Any], shape: tuple[int, ...]
) -> None:
    leaf, plain_leaf = tracer.tensor(torch.zeros(shape), requires_grad=True), torch.zeros(shape)
    for tensor, init in ((leaf, nn.init), (plain_leaf, torch.nn.init)):
        torch.manual_seed(0)
        with torch.no_grad():
            initialise(init, tensor)
    assert leaf.is_leaf and leaf.requires_grad
    assert torch.equal(plain(leaf), plain_leaf)
    leaf.square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * plain_leaf)


def test_they_return_the_tensor_and_need_no_no_grad() -> None:
    for make in (nn.Parameter, lambda t: tracer.tensor(t, requires_grad=False)):
        tensor = make(torch.empty(3, 3))
        assert nn.init.xavier_uniform_(tensor) is tensor and tensor.is_leaf


def convolutional_network() -> torch.nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.PReLU(), nn.Flatten(), nn.Linear(4 * 36, 10, bias=False), nn.Swish()
    )


TORCHS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Any]]] = {
    "xavier": ({}, lambda w: torch.nn.init.xavier_uniform_(w)),
    "xavier_uniform": ({"nonlinearity": "tanh"}, lambda w: torch.nn.init.xavier_uniform_(w, 5 / 3)),
    "xavier_normal": ({}, lambda w: torch.nn.init.xavier_normal_(w)),
    "kaiming": ({}, lambda w: torch.nn.init.kaiming_uniform_(w)),
    "kaiming_uniform": (
        {"a": 0.5, "mode": "fan_out"},
        lambda w: torch.nn.init.kaiming_uniform_(w, 0.5, "fan_out"),
    ),
    "kaiming_normal": ({"nonlinearity": "relu"}, lambda w: torch.nn.init.kaiming_normal_(w, nonlinearity="relu")),
    "orthogonal": ({"nonlinearity": "relu"}, lambda w: torch.nn.init.orthogonal_(w, math.sqrt(2))),
    "trunc_normal": (
        {"std": 0.02 * 0.87962566103423978},
        lambda w: torch.nn.init.trunc_normal_(w, 0, 0.02, -0.04, 0.04),
    ),
}


@pytest.mark.parametrize("scheme", TORCHS)
def test_a_scheme_is_torchs_initialiser_of_every_weight(scheme: str) -> None:
    options, initialise = TORCHS[scheme]
    model, twin = convolutional_network(), torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(144, 10))
    torch.manual_seed(0)
    nn.init.initialize_(model, scheme, **options)
    torch.manual_seed(0)
    for layer in twin:
        initialise(layer.weight)
    for ours, theirs in ((model[0].weight, twin[0].weight), (model[4].weight, twin[1].weight)):
        torch.testing.assert_close(plain(ours), theirs.detach())


def test_the_report_says_what_was_set() -> None:
    report = nn.init.initialize_(convolutional_network(), "kaiming_normal")
    assert [(row.name, row.shape, row.by) for row in report] == [
        ("0.weight", (4, 1, 3, 3), "kaiming_normal"),
        ("0.bias", (4,), "zeros"),
        ("1.weight", (4,), "ones"),
        ("1.bias", (4,), "zeros"),
        ("2.weight", (1,), ""),
        ("4.weight", (10, 144), "kaiming_normal"),
        ("5.beta", (), ""),
    ]
    assert len(report) == 7 and str(report).splitlines()[4].split() == ["2.weight", "(1,)", "left", "as", "it", "was"]


def test_what_the_report_says_is_so() -> None:
    model = convolutional_network()
    for p in model.parameters():
        nn.init.constant_(p, 7)
    nn.init.initialize_(model, "xavier")
    assert not model[0].bias.any() and (model[1].weight == 1).all() and not model[1].bias.any()
    assert model[2].weight.item() == 7 and model[5].beta.item() == 7


@pytest.mark.parametrize(("mode", "fan"), [("fan_in", 100), ("fan_out", 400)])
def test_the_truncated_normal_has_the_deviation_that_the_fan_asks_for(mode: str, fan: int) -> None:
    layer = nn.Linear(100, 400)
    nn.init.initialize_(layer, "truncated_normal", mode=mode, nonlinearity="relu")
    wanted = math.sqrt(2 / fan)
    assert layer.weight.std().item() == pytest.approx(wanted, rel=0.02)
    assert layer.weight.abs().max().item() <= 2 * wanted / 0.8796


@pytest.mark.parametrize(
    ("make", "name", "blocks"),
    [
        (lambda: nn.LSTM(6, 5), "weight_ih_l0", 4),
        (lambda: nn.LSTM(6, 5), "weight_hh_l0", 4),
        (lambda: nn.LSTM(6, 5, proj_size=3), "weight_hr_l0", 1),
        (lambda: nn.GRU(6, 5), "weight_hh_l0", 3),
        (lambda: nn.RNN(6, 5), "weight_hh_l0", 1),
        (lambda: nn.LSTMCell(6, 5), "weight_hh", 4),
        (lambda: nn.ConvLSTM2d(6, 5, 1), "weight_hh_l0", 4),
        (lambda: nn.MultiheadAttention(6, 2), "in_proj_weight", 3),
        (lambda: nn.SelfAttention(6, 2), "in_proj_weight", 3),
        (lambda: nn.CrossAttention(6, 2, kdim=4), "k_proj_weight", 1),
    ],
)
def test_every_weight_packed_into_one_is_orthogonal_by_itself(
    make: Callable[[], torch.nn.Module], name: str, blocks: int
) -> None:
    module = make()
    nn.init.initialize_(module, "orthogonal")
    found = plain(getattr(module, name)).flatten(1).chunk(blocks)
    assert len(found) == blocks
    for block in found:
        gram = block @ block.t() if block.shape[0] <= block.shape[1] else block.t() @ block
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)


def test_biases_of_attention_and_recurrent_layers_are_zero() -> None:
    model = nn.ModuleList([nn.SelfAttention(4, 2), nn.LSTM(2, 3)])
    report = nn.init.initialize_(model, "xavier")
    biases = {name: p for name, p in model.named_parameters() if "bias" in name}
    assert len(biases) == 4 and not any(p.any() for p in biases.values())
    assert {row.name: row.by for row in report if row.name in biases} == dict.fromkeys(biases, "zeros")


def test_the_padding_row_of_an_embedding_is_zero() -> None:
    layer = nn.Embedding(5, 3, padding_idx=2)
    nn.init.initialize_(layer, "xavier_normal")
    assert not layer.weight[2].any() and layer.weight[[0, 1, 3, 4]].any(1).all()


def test_tied_weights_are_set_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert [row.name for row in nn.init.initialize_(model, "xavier")] == ["0.weight", "0.bias", "1.bias"]


@pytest.mark.parametrize(
    "parametrization",
    [torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.parametrizations.orthogonal],
    ids=["weight_norm", "orthogonal"],
)
def test_a_parametrized_weight_is_set_through_its_parametrization(parametrization: Any) -> None:
    layer = parametrization(nn.Linear(4, 4))
    torch.manual_seed(0)
    report = nn.init.initialize_(layer, "orthogonal")
    torch.manual_seed(0)
    torch.testing.assert_close(plain(layer.weight), torch.nn.init.orthogonal_(torch.empty(4, 4)))
    assert sorted((row.name, row.by) for row in report) == [("bias", "zeros"), ("weight", "orthogonal")]


def test_stock_modules_and_frozen_parameters() -> None:
    model = torch.nn.Linear(3, 3).requires_grad_(False)
    nn.init.initialize_(model, "orthogonal")
    torch.testing.assert_close(model.weight @ model.weight.t(), torch.eye(3))
    assert type(model.weight) is torch.nn.Parameter and not model.weight.requires_grad


def test_a_generator_decides_the_values() -> None:
    layers = [nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)]
    for layer, seed in zip(layers, (1, 1, 2), strict=True):
        nn.init.initialize_(layer, "trunc_normal", generator=torch.Generator().manual_seed(seed))
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert not torch.equal(layers[0].weight, layers[2].weight)


def test_a_backward_that_saved_old_values_notices() -> None:
    layer = nn.Linear(3, 3)
    x = tracer.tensor(torch.ones(1, 3), requires_grad=True)
    loss = layer(x).sum()
    nn.init.initialize_(layer, "xavier")
    with pytest.raises(tracer.OverwrittenError):
        loss.backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "lecun"}, "'lecun'; there are xavier"),
        ({"scheme": "kaiming", "mode": "fan_avg"}, "'fan_avg'"),
        ({"scheme": "kaiming", "nonlinearity": "swish"}, "swish"),
    ],
)
def test_names_that_it_does_not_know_are_refused(options: dict[str, str], message: str) -> None:
    layer = nn.Linear(2, 2)
    before = plain(layer.weight).clone()
    with pytest.raises(nn.ArgumentError, match=message):
        nn.init.initialize_(layer, **options)
    assert torch.equal(layer.weight, before)


def test_lazy_modules_are_refused_and_nothing_is_set() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    before = plain(model[0].weight).clone()
    with pytest.raises(tracer.UnsupportedError, match=r"1\.weight"):
        nn.init.initialize_(model, "xavier")
    assert torch.equal(model[0].weight, before)


def test_kaiming_lets_a_deep_network_learn_digits_to_80_percent_where_small_weights_do_not() -> None:
    images, labels, test_images, test_labels = digits()
    reached = []
    for options in ({"scheme": "kaiming_normal"}, {"scheme": "trunc_normal", "std": 0.02}):
        torch.manual_seed(0)
        hidden = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), *hidden, nn.Linear(32, 10))
        nn.init.initialize_(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for _ in range(9):
            for rows in torch.randperm(len(labels)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()
        reached.append(accuracy(model, test_images, test_labels))
    assert reached[0] >= 0.8 and reached[1] <= 0.3
