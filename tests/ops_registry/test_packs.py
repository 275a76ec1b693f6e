"""``ops_registry.packs``: each ready mapping against networks changed by hand, in torch's own autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf

import nn
import tracer
from ops_registry import RuleError, UnusedRuleError, packs, use


# ---------------------------------------------------------------------- networks changed by hand
class GuidedRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.ends = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,), (low, high) = ctx.saved_tensors, ctx.ends
        return grad.clamp(min=0) * ((x > low) & (x < high)), None, None


class DeconvRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(min=0), None, None


class ByHand(torch.nn.Module):
    """Stands for a rectifier of the network."""

    def __init__(self, function, high):
        super().__init__()
        self.function, self.high = function, high

    def forward(self, x):
        return self.function.apply(x, 0.0, self.high)


class Block(torch.nn.Module):
    """A residual block as in a stock ResNet, with one in-place relu used twice."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.conv2, self.bn2 = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


def network(rectifier=torch.nn.ReLU):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        rectifier(inplace=True),
        Block(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 3),
    )
    return net.double().eval()


def by_hand(net, function, below=""):
    """A copy of the network in which every rectifier is replaced, or those whose path begins with ``below``."""
    net = copy.deepcopy(net)
    for path, module in list(net.named_modules()):
        if isinstance(module, torch.nn.ReLU | torch.nn.ReLU6) and path.startswith(below):
            parent, _, name = path.rpartition(".")
            high = 6.0 if isinstance(module, torch.nn.ReLU6) else float("inf")
            setattr(net.get_submodule(parent), name, ByHand(function, high))
    return net


def picture():
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3


def gradients(net, x):
    score = net(x)[:, 1].sum()
    return torch.autograd.grad(score, [x, *net.parameters()])


PICTURES = {"guided": (packs.guided_backprop, GuidedRelu), "deconvnet": (packs.deconvnet, DeconvRelu)}


@pytest.mark.parametrize("rectifier", [torch.nn.ReLU, torch.nn.ReLU6])
@pytest.mark.parametrize(("pack", "function"), PICTURES.values(), ids=PICTURES)
def test_a_network_with_in_place_rectifiers_equals_one_changed_by_hand(pack, function, rectifier) -> None:
    net = network(rectifier)
    truth = gradients(by_hand(net, function), picture().requires_grad_())
    with use(pack):
        found = gradients(nn.track(net), tracer.tensor(picture(), requires_grad=True))
    assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


@pytest.mark.parametrize(("pack", "function"), PICTURES.values(), ids=PICTURES)
def test_a_pack_scoped_to_one_stage_leaves_the_others_alone(pack, function) -> None:
    net = network()
    truth = gradients(by_hand(net, function, below="2"), picture().requires_grad_())
    with use(pack, where="2"):
        found = gradients(nn.track(net), tracer.tensor(picture(), requires_grad=True))
    assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


def test_hardtanh_is_a_rectifier_where_its_lower_end_is_not_negative() -> None:
    weights = torch.tensor([-1.0, -1.0, 1.0])
    for pack in (packs.guided_backprop, packs.deconvnet):
        x = leaf(-0.5, 0.5, 0.5)
        with use(pack):
            (F.hardtanh(x) * weights).sum().backward()
        assert x.grad.tolist() == [-1.0, -1.0, 1.0]


def test_another_op_is_given_the_rule_of_a_pack() -> None:
    x, twin = leaf(-0.5, 0.5, 0.7), torch.tensor([-0.5, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    with use({F.gelu: packs.guided_backprop[torch.relu]}):
        (F.gelu(x) * torch.tensor([1.0, -1.0, 2.0])).sum().backward()
    (F.gelu(twin) * torch.tensor([1.0, 0.0, 2.0])).sum().backward()
    assert torch.equal(x.grad, twin.grad)


# ---------------------------------------------------------------------- steps
STEPS = {
    "round": torch.round,
    "round to decimals": lambda x: torch.round(x, decimals=1),
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "fix": torch.fix,
    "heaviside": lambda x: torch.heaviside(x, torch.zeros((), dtype=x.dtype)),
    "in place": lambda x: (x * 1).round_(),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_straight_through_takes_a_step_for_the_identity(step) -> None:
    x = leaf(-1.4, 0.3, 2.0)
    with use(packs.straight_through):
        y = step(x)
    (y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(y.detach(), step(torch.tensor([-1.4, 0.3, 2.0], dtype=torch.float64)))
    assert x.grad.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_straight_through_with_a_range_stops_outside_of_it(step) -> None:
    x = leaf(-1.4, -1.0, 0.3, 2.0, 2.1, float("nan"))
    with use(packs.straight_through(-1, 2)):
        y = step(x)
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_the_value_of_heaviside_at_zero_keeps_its_gradient() -> None:
    for pack in (packs.straight_through, packs.surrogate(2.0)):
        x, value = leaf(-1.0, 0.0), leaf(0.5, 0.5)
        with use(pack):
            torch.heaviside(x, value).sum().backward()
        assert value.grad.tolist() == [0.0, 1.0]


def test_a_surrogate_is_the_slope_of_a_fast_sigmoid() -> None:
    x = leaf(-1.0, 0.0, 0.5)
    with use(packs.surrogate(slope=2.0)):
        torch.heaviside(x, torch.zeros((), dtype=torch.float64)).sum().backward()
    assert x.grad.tolist() == pytest.approx([1 / 9, 1.0, 1 / 4])


def test_a_spike_by_comparison_is_not_passed_over_in_silence() -> None:
    x = leaf(-1.0, 0.5)
    with pytest.raises(UnusedRuleError, match="heaviside was not called"), use(packs.surrogate(2.0)):
        (x > 0).double().sum()


# ---------------------------------------------------------------------- at the input of an op
class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enc, self.cls = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
        self.dom = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))

    def forward(self, x):
        h = torch.tanh(self.enc(x))
        return self.cls(h), self.dom(h)


def losses(net):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    a, b = net(x)
    return a.square().mean(), b.square().mean()


def test_reversal_at_the_first_layer_of_a_head_reverses_for_what_lies_before_it_alone() -> None:
    plain = TwoHeads().double()
    names, parameters = zip(*plain.named_parameters(), strict=True)
    of_a, of_b = (torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True) for loss in losses(plain))
    net = nn.track(TwoHeads().double())
    with use(packs.reverse(0.5), where="dom.0"):
        sum(losses(net)).backward()
    for name, p, a, b in zip(names, net.parameters(), of_a, of_b, strict=True):
        a, b = (torch.zeros_like(p) if g is None else g for g in (a, b))
        torch.testing.assert_close(p.grad, a - 0.5 * b if name.startswith("enc") else a + b, rtol=1e-13, atol=1e-15)


def test_a_reversal_at_several_layers_of_one_module_is_refused() -> None:
    net = nn.track(TwoHeads().double())
    with pytest.raises(RuleError, match=r"dom\.0 and in dom\.2.*where='dom\.0'"), use(packs.reverse(0.5), where="dom"):
        losses(net)


def test_layers_that_each_are_named_by_a_glob_are_reversed_at() -> None:
    net = nn.track(TwoHeads().double())
    with use(packs.reverse(0.5), where="dom.*"):
        a, b = losses(net)
    assert a.requires_grad and b.requires_grad


def test_a_reversal_at_every_layer_is_refused() -> None:
    net = nn.track(TwoHeads().double())
    with pytest.raises(RuleError, match="cls and in dom"), use(packs.reverse(0.5)):
        losses(net)


def test_a_reversal_at_the_one_layer_there_is_needs_no_place() -> None:
    layer, x = nn.track(torch.nn.Linear(1, 1, bias=False)), leaf(1.0).float()
    with use(packs.reverse(0.5)):
        y = layer(x)
    (found,) = torch.autograd.grad(y, x)
    torch.testing.assert_close(found, -0.5 * layer.weight.detach()[0])


@pytest.mark.parametrize(
    ("pack", "expected"),
    [
        (packs.reverse(0.5, torch.clone), [-1.5, 2.0]),
        (packs.clip(3.5, torch.clone), [3.0, -3.5]),
        (packs.clip_norm(2.5, torch.clone), [1.5, -2.0]),
        (packs.clip_norm(6.0, torch.clone), [3.0, -4.0]),
    ],
    ids=repr,
)
def test_what_passes_back_through_one_op_is_changed(pack, expected) -> None:
    x = leaf(1.0, 1.0)
    with use(pack):
        y = x.clone()
    (y * torch.tensor([3.0, -4.0])).sum().backward()
    assert x.grad.tolist() == pytest.approx(expected)


def test_a_gradient_of_zero_has_no_norm_to_clip() -> None:
    x = leaf(1.0, 1.0)
    with use(packs.clip_norm(2.0, torch.clone)):
        (x.clone() * 0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_each_tensor_of_a_list_is_changed() -> None:
    x, y = leaf(1.0), leaf(2.0, 3.0)
    with use(packs.reverse(2.0, (torch.cat, torch.stack))):
        torch.cat([x, y]).sum().backward()
    assert x.grad.tolist() == [-2.0] and y.grad.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: packs.straight_through(1, -1),
        lambda: packs.surrogate(0.0),
        lambda: packs.clip(-1.0),
        lambda: packs.clip_norm(0.0),
    ],
)
def test_a_pack_of_impossible_numbers_is_refused(make) -> None:
    with pytest.raises(RuleError, match=r"packs\."):
        make()


def test_packs_are_mappings_that_can_be_put_together() -> None:
    x = leaf(0.4, -0.4)
    with use({**packs.guided_backprop, **packs.straight_through}, expect="any"):
        torch.round(torch.relu(x)).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]
    assert repr(packs.straight_through(-1, 1)) == "ops_registry.packs.straight_through(-1, 1)"


# ---------------------------------------------------------------------- kinks
def one(value):
    return torch.tensor(value, dtype=torch.float64)


#: A function of one number, and the places of its kinks.
KINKS = {
    "relu": (torch.relu, [0.0]),
    "relu in place": (lambda x: (x * 1).relu_(), [0.0]),
    "relu6": (F.relu6, [0.0, 6.0]),
    "nn.ReLU6": (torch.nn.ReLU6(), [0.0, 6.0]),
    "hardtanh": (lambda x: F.hardtanh(x, -2.0, 0.5), [-2.0, 0.5]),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 3.0]),
    "hardswish": (F.hardswish, [-3.0, 3.0]),
    "softshrink": (lambda x: F.softshrink(x, 0.25), [-0.25, 0.25]),
    "softshrink of nothing": (lambda x: F.softshrink(x, 0.0), [0.0]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), [0.0]),
    "leaky_relu in place": (lambda x: F.leaky_relu_(x * 1, 0.2), [0.0]),
    "prelu": (lambda x: F.prelu(x, one([0.3])), [0.0]),
    "elu": (lambda x: F.elu(x, 0.4), [0.0]),
    "selu": (F.selu, [0.0]),
    "threshold": (lambda x: F.threshold(x, 1.0, 1.0), [1.0]),
    "abs": (torch.abs, [0.0]),
    "abs by dunder": (abs, [0.0]),
    "l1_loss": (lambda x: F.l1_loss(x, one([2.0])), [2.0]),
    "clamp": (lambda x: x.clamp(-1.0, 0.5), [-1.0, 0.5]),
    "clip": (lambda x: x.clip(max=0.5), [0.5]),
    "clamp between tensors": (lambda x: x.clamp(one([-1.0]), one([0.5])), [-1.0, 0.5]),
    "clamp_min": (lambda x: x.clamp_min(0.5), [0.5]),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.5), [0.5]),
    "maximum": (lambda x: torch.maximum(x, one([0.5])), [0.5]),
    "max": (lambda x: torch.max(x, one([0.5])), [0.5]),
    "fmax": (lambda x: torch.fmax(x, one([0.5])), [0.5]),
    "minimum": (lambda x: torch.minimum(x, one([0.5])), [0.5]),
    "fmin": (lambda x: torch.fmin(x, one([0.5])), [0.5]),
}
CONVENTIONS = {
    "zero": lambda left, right: 0.0,
    "half": lambda left, right: (left + right) / 2,
    "left": lambda left, right: left,
    "right": lambda left, right: right,
}


def one_sided_slopes(function, place, step=1e-7):
    """By differences, in plain torch."""
    low, middle, high = (function(one([place + d])).sum().item() for d in (-step, 0.0, step))
    return (middle - low) / step, (high - middle) / step


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize(("function", "places"), KINKS.values(), ids=KINKS)
def test_the_slope_at_a_kink_is_the_one_that_was_named(function, places, name) -> None:
    for place in places:
        x = leaf(place)
        with use(packs.pinned(name)):
            y = function(x)
        y.sum().backward()
        left, right = one_sided_slopes(function, place)
        smooth = abs(left - right) < 1e-5
        assert x.grad.item() == pytest.approx(left if smooth else CONVENTIONS[name](left, right), abs=1e-6)


@pytest.mark.parametrize(("function", "places"), KINKS.values(), ids=KINKS)
def test_elsewhere_a_pinned_op_keeps_its_own_slope(function, places) -> None:
    at = sorted({p + d for p in places for d in (-0.1, 0.1)})
    for place in at:
        x, twin = leaf(place), leaf(place)
        with use(packs.pinned("right"), expect=None):
            function(x).sum().backward()
        function(twin).sum().backward()
        assert torch.equal(x.grad, twin.grad)


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (torch.maximum, (0.0, 1.0), (1.0, 0.0)),
        (torch.minimum, (1.0, 0.0), (0.0, 1.0)),
        (lambda x, y: x.clamp(min=y), (0.0, 1.0), (1.0, 0.0)),
        (lambda x, y: x.clamp(one([-9.0]), y), (1.0, 0.0), (0.0, 1.0)),
        (torch.clamp_max, (1.0, 0.0), (0.0, 1.0)),
        (F.l1_loss, (-1.0, 1.0), (1.0, -1.0)),
    ],
    ids=["maximum", "minimum", "lower bound", "upper bound", "clamp_max", "l1_loss"],
)
def test_of_two_equal_arguments_one_convention_serves_both(function, left, right) -> None:
    middle = tuple((a + b) / 2 for a, b in zip(left, right, strict=True))
    for name, expected in {"left": left, "right": right, "half": middle, "zero": (0.0, 0.0)}.items():
        x, y = leaf(2.0), leaf(2.0)
        with use(packs.pinned(name)):
            function(x, y).sum().backward()
        assert (x.grad.item(), y.grad.item()) == expected


def test_an_infinite_gradient_is_stopped_by_a_pinned_zero() -> None:
    x = leaf(0.0, 1.0)
    with use(packs.pinned("zero")):
        y = torch.relu(x)
    y.backward(torch.tensor([float("inf"), 2.0], dtype=torch.float64))
    assert x.grad.tolist() == [0.0, 2.0]


def test_the_slope_of_prelu_at_zero_is_that_of_its_channel() -> None:
    x = tracer.track(torch.zeros(2, 3, 2, dtype=torch.float64), True)
    weight = tracer.track(one([0.1, 0.2, 0.3]), True)
    with use(packs.pinned("left")):
        F.prelu(x, weight).sum().backward()
    assert x.grad[1, :, 0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_complex_abs_has_no_left_or_right() -> None:
    z = tracer.track(torch.tensor([0j, 3 + 4j], dtype=torch.complex128), True)
    with use(packs.pinned("right")):
        z.abs().sum().backward()
    torch.testing.assert_close(z.grad, torch.tensor([0j, 0.6 + 0.8j], dtype=torch.complex128))


def test_a_convention_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RuleError, match="zero, half, left, right"):
        packs.pinned("one")
