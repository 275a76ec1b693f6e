"""Functions that torch composes of others, under a rule for the call as a whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf

import nn
import tracer
from ops_registry import UnsupportedCallError, use


def unchanged(grad, default):
    return default(grad)


def times(factor):
    return lambda grad, default: default(grad) * factor


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def tracked(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tracer.track(t.clone(), True) for t in tensors]


def attention(query, key, value, weight, bias, out_weight, out_bias, **options: Any):
    return F.multi_head_attention_forward(
        query, key, value, 4, 2, weight, bias, None, None, False, 0.0, out_weight, out_bias, **options
    )


LABELS = torch.tensor([0, 2, 1])
ATTENDED = (drawn(5, 2, 4), drawn(4, 2, 4), drawn(4, 2, 4), drawn(12, 4), drawn(12), drawn(4, 4), drawn(4))
HEADS = (drawn(2, 2, 5, 4), drawn(2, 2, 4, 4), drawn(2, 2, 4, 4))
MATRIX, OTHER = drawn(3, 4), drawn(3, 4) * 0.5 + 1

#: The function that is given a rule, a call of it, and the call's tensors.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "normalize": (F.normalize, F.normalize, (MATRIX,)),
    "cross_entropy": (F.cross_entropy, lambda x: F.cross_entropy(x, LABELS), (MATRIX,)),
    "cross_entropy of probabilities": (
        F.cross_entropy,
        lambda x, y: F.cross_entropy(x, y.softmax(-1), label_smoothing=0.1),
        (MATRIX, OTHER),
    ),
    "attention": (F.multi_head_attention_forward, lambda *a: attention(*a)[0], ATTENDED),
    "its weights": (F.multi_head_attention_forward, lambda *a: sum(p.square().sum() for p in attention(*a)), ATTENDED),
    "attention alone": (
        F.multi_head_attention_forward,
        lambda *a: attention(*a, need_weights=False)[0],
        ATTENDED,
    ),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, F.scaled_dot_product_attention, HEADS),
    "the same with dropout": (
        F.scaled_dot_product_attention,
        lambda *a: F.scaled_dot_product_attention(*a, dropout_p=0.5),
        HEADS,
    ),
    "silu": (F.silu, F.silu, (MATRIX,)),
    "mish": (F.mish, F.mish, (MATRIX,)),
    "hardswish": (F.hardswish, F.hardswish, (MATRIX,)),
    "softsign": (F.softsign, F.softsign, (MATRIX,)),
    "tanhshrink": (F.tanhshrink, F.tanhshrink, (MATRIX,)),
    "softmin": (F.softmin, lambda x: F.softmin(x, -1), (MATRIX,)),
    "gumbel_softmax": (F.gumbel_softmax, lambda x: F.gumbel_softmax(x, tau=0.7), (MATRIX,)),
    "cosine_similarity": (F.cosine_similarity, F.cosine_similarity, (MATRIX, OTHER)),
    "pairwise_distance": (F.pairwise_distance, F.pairwise_distance, (MATRIX, OTHER)),
    "triplet_margin_loss": (F.triplet_margin_loss, F.triplet_margin_loss, (MATRIX, OTHER, drawn(3, 4).exp())),
    "kl_div": (F.kl_div, lambda x, y: F.kl_div(x, y.softmax(-1), reduction="sum"), (MATRIX, OTHER)),
    "ctc_loss": (
        F.ctc_loss,
        lambda x: F.ctc_loss(
            x.log_softmax(-1), torch.tensor([[1, 2], [2, 1]]), torch.tensor([6, 6]), torch.tensor([2, 2])
        ),
        (drawn(6, 2, 4),),
    ),
    "einsum": (torch.einsum, lambda x, y: torch.einsum("ij,kj,ij->ik", x, y, x), (MATRIX, OTHER)),
    "cross": (torch.cross, lambda x, y: torch.cross(x, y, dim=0), (MATRIX, OTHER)),
    "bilinear": (F.bilinear, F.bilinear, (MATRIX, OTHER, drawn(2, 4, 4), drawn(2))),
    "stft": (torch.stft, lambda x: torch.view_as_real(torch.stft(x, 8, return_complex=True)), (drawn(32),)),
    "alpha_dropout": (F.alpha_dropout, lambda x: F.alpha_dropout(x, 0.5, True), (MATRIX,)),
    "meshgrid": (torch.meshgrid, lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), (drawn(3), drawn(4))),
}


def derivatives(call: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...], rules: Any) -> dict[str, Any]:
    """Values, what was drawn, and gradients of both orders and both lanes, each beside another term."""
    found: dict[str, Any] = {}
    for lane in ("grad", "backward"):
        torch.manual_seed(3)
        inputs = tracked(*tensors)
        with use(rules, expect=None):
            result = call(*inputs)
        found["value"], found["next number drawn"] = [result.detach()], [torch.rand(1)]
        loss = (result * result.detach().cos()).sum() + result.square().sum() + sum((0 * x).sum() for x in inputs)
        if lane == "backward":
            loss.backward()
            found[lane] = [x.grad for x in inputs]
        else:
            found[lane] = torch.autograd.grad(loss, inputs, create_graph=True)
            found["second"] = torch.autograd.grad(sum(g.square().sum() for g in found[lane]), inputs)
    return found


@pytest.mark.parametrize(("function", "call", "tensors"), CALLS.values(), ids=CALLS)
def test_default_is_the_function_itself(function, call, tensors) -> None:
    plain, wrapped = (derivatives(call, tensors, rules) for rules in ({}, {function: unchanged}))
    for name, expected in plain.items():
        # Relative to the largest of them: the bias of the keys has a gradient of zero, which is a difference of such numbers.
        scale = max(float(b.abs().max()) for b in expected)
        for a, b in zip(wrapped[name], expected, strict=True):
            assert (a - b).abs().max() <= 1e-13 * scale, name


#: Ops that bodies are made of.
PARTS = (torch.softmax, F.log_softmax, torch.tanh, torch.abs, torch.exp, torch.linalg.vector_norm, torch.sum)


@pytest.mark.parametrize(
    "name",
    [
        "normalize",
        "cross_entropy",
        "attention",
        "softsign",
        "tanhshrink",
        "softmin",
        "gumbel_softmax",
        "cosine_similarity",
    ],
)
def test_inside_a_replaced_call_nothing_bites_a_second_time(name) -> None:
    function, call, tensors = CALLS[name]
    parts = {f: times(10) for f in PARTS}
    rules = {function: times(3), **parts}
    plain, wrapped = derivatives(call, tensors, {}), derivatives(call, tensors, rules)
    for lane in ("grad", "backward"):
        torch.testing.assert_close(wrapped[lane][0], 3 * plain[lane][0], rtol=1e-11, atol=1e-11)


def test_a_body_runs_under_the_rules_outside_of_its_block() -> None:
    rules = {torch.linalg.vector_norm: times(5)}
    found = []
    for inner in ({}, {F.normalize: unchanged}):
        (x,) = tracked(MATRIX)
        with use(rules, expect=None), use(inner, expect=None):
            y = F.normalize(x)
        (y * OTHER).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=1e-13, atol=1e-15)
    (x,) = tracked(MATRIX)
    (F.normalize(x) * OTHER).sum().backward()
    assert not torch.allclose(x.grad, found[0])


def test_nested_rules_for_one_composed_function_multiply() -> None:
    (x,), (twin,) = tracked(MATRIX), tracked(MATRIX)
    twice, thrice = (use({F.normalize: times(n)}) for n in (2, 3))
    with twice, thrice:
        y = F.normalize(x)
    (y * OTHER).sum().backward()
    (F.normalize(twin) * OTHER).sum().backward()
    torch.testing.assert_close(x.grad, 6 * twin.grad)


def test_one_tensor_in_two_places_gets_the_gradient_of_each() -> None:
    """As in self-attention, where query, key and value are one tensor: a rule for the query is not one for the key."""
    (x, *others), (q, k, v, *_) = tracked(ATTENDED[0], *ATTENDED[3:]), tracked(*[ATTENDED[0]] * 3)
    attention(q, k, v, *others)[0].square().sum().backward()
    with use({F.multi_head_attention_forward: unchanged}):
        whole = attention(x, x, x, *others)[0]
    (found,) = torch.autograd.grad(whole.square().sum(), x)
    torch.testing.assert_close(found, q.grad + k.grad + v.grad)
    with use({F.multi_head_attention_forward: lambda grad: None}):
        rest = attention(x, x, x, *others)[0]
    (found,) = torch.autograd.grad(rest.square().sum(), x)
    torch.testing.assert_close(found, k.grad + v.grad)


def test_a_dict_gives_the_gradients_that_it_names_and_the_body_the_others() -> None:
    inputs, twins = tracked(*ATTENDED), tracked(*ATTENDED)
    rule = {"key": lambda grad, key: torch.ones_like(key), "out_proj_bias": times(2)}
    with use({F.multi_head_attention_forward: rule}):
        y = attention(*inputs, need_weights=False)[0]
    y.square().sum().backward()
    attention(*twins)[0].square().sum().backward()
    assert inputs[1].grad.unique().tolist() == [1.0]
    torch.testing.assert_close(inputs[6].grad, 2 * twins[6].grad)
    for i in (0, 2, 3, 4, 5):
        torch.testing.assert_close(inputs[i].grad, twins[i].grad)


# ---------------------------------------------------------------------- from modules
class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.loss = torch.nn.Linear(4, 4), torch.nn.CrossEntropyLoss()

    def forward(self, x):
        return self.loss(self.layer(x), LABELS)


BATCH = drawn(2, 5, 4)
MODULES = {
    "CrossEntropyLoss": (F.cross_entropy, Classifier, (MATRIX,)),
    "MultiheadAttention": (
        F.multi_head_attention_forward,
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
        (BATCH, BATCH * 2, BATCH + 1),
    ),
    "TransformerEncoderLayer": (
        F.multi_head_attention_forward,
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        (BATCH,),
    ),
    "attention in TransformerEncoderLayer": (
        F.scaled_dot_product_attention,
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        (BATCH,),
    ),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("function", "make", "tensors"), MODULES.values(), ids=MODULES)
def test_modules_that_call_a_replaced_function_follow_its_rule(function, make, tensors, mode) -> None:
    """In eval the modules of attention have a fast path of torch's, which is not taken where gradients are wanted."""
    torch.manual_seed(0)
    original = getattr(make().double(), mode)()
    found = []
    for rules in ({}, {function: unchanged}):
        net, inputs = nn.track(copy.deepcopy(original)), tracked(*tensors)
        with use(rules):
            result = net(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        (result.square().sum() + sum((0 * x).sum() for x in inputs)).backward()
        found.append([result.detach(), *(t.grad for t in (*inputs, *net.parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


# ---------------------------------------------------------------------- borders
def test_native_tensors_beside_tracked_ones_get_their_gradient() -> None:
    for native in (lambda t: t, lambda t: t * 2):  # a leaf of torch's own autograd, and one with a history there
        found = []
        for rules in ({}, {F.cosine_similarity: unchanged}):
            x = MATRIX.clone().requires_grad_()
            (y,) = tracked(OTHER)
            with use(rules):
                result = F.cosine_similarity(native(x), y)
            (result * torch.arange(3)).sum().backward()
            found.append((x.grad, y.grad))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: F.normalize(x @ y.T),
        lambda x, y: F.cosine_similarity(x @ y.T, y @ y.T),
        lambda x, y: F.cross_entropy(x @ y.T, LABELS),
        lambda x, y: torch.einsum("ij,kj", x, y),
        lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    ],
    ids=["normalize", "cosine_similarity", "cross_entropy", "einsum", "scaled_dot_product_attention"],
)
def test_autocast_casts_inside_a_replaced_call_as_elsewhere(call) -> None:
    functions = (F.normalize, F.cosine_similarity, F.cross_entropy, torch.einsum, F.scaled_dot_product_attention)
    found = []
    for rules in ({}, dict.fromkeys(functions, unchanged)):
        inputs = tracked(MATRIX.float(), OTHER.float())
        with torch.autocast("cpu", dtype=torch.bfloat16), use(rules):
            result = call(*inputs)
        result.float().square().sum().backward()
        found.append((result.detach(), *(x.grad for x in inputs)))
    for a, b in zip(*found, strict=True):
        assert a.dtype is b.dtype and torch.equal(a, b)


def test_a_write_by_a_composed_function_is_refused() -> None:
    x = leaf(1.0, 2.0)
    with use({F.dropout2d: unchanged}, expect=None), pytest.raises(UnsupportedCallError, match="out of place"):
        F.dropout2d(x[None, None] * 1, inplace=True)


def test_without_gradients_a_replaced_function_is_called_as_ever() -> None:
    (x,) = tracked(MATRIX)
    with use({F.normalize: unchanged}, expect=None), torch.no_grad():
        y = F.normalize(x)
    assert not y.requires_grad and torch.equal(y.detach(), F.normalize(MATRIX))


@pytest.mark.parametrize(
    ("function", "call", "tensor"),
    [
        (F.nll_loss, lambda x: F.nll_loss(x, LABELS), MATRIX),
        (F.unfold, lambda x: F.unfold(x, 2), drawn(1, 1, 3, 3)),
        (F.fold, lambda x: F.fold(x, (3, 3), 2), drawn(1, 4, 4)),
        (torch.Tensor.unfold, lambda x: x.unfold(0, 2, 1), MATRIX),
    ],
    ids=["nll_loss", "F.unfold", "F.fold", "Tensor.unfold"],
)
def test_a_function_that_hands_over_to_an_op_of_another_name_may_be_replaced(function, call, tensor) -> None:
    (x,) = tracked(tensor)
    with use({function: lambda grad, input: torch.full_like(input, 7)}):
        y = call(x)
    y.sum().backward()
    assert x.grad.unique().tolist() == [7.0]


VIEWS = {
    "unflatten": (torch.Tensor.unflatten, lambda x: x.unflatten(0, (3, 1))),
    "atleast_3d": (torch.atleast_3d, torch.atleast_3d),
    "dropout2d that drops nothing": (F.dropout2d, lambda x: F.dropout2d(x, training=False)),
}


@pytest.mark.parametrize("written", ["result", "argument"])
@pytest.mark.parametrize(("function", "call"), VIEWS.values(), ids=VIEWS)
def test_a_composed_function_that_returns_a_view_hears_of_writes(function, call, written) -> None:
    found = []
    for rules in ({}, {function: unchanged}):
        (x,) = tracked(drawn(3, 4, 2) if function is F.dropout2d else MATRIX)
        base = x * 1
        with use(rules):
            view = call(base)
        (view if written == "result" else base).mul_(3)
        (base.square().sum() + view.exp().sum()).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_one_of_several_views_of_an_argument_may_not_be_written_into() -> None:
    (x,) = tracked(MATRIX)
    with use({torch.broadcast_tensors: lambda grad, default: default(grad)}):
        view, _ = torch.broadcast_tensors(x * 1, MATRIX)
    with pytest.raises(tracer.InPlaceError, match="one of several views"):
        view.mul_(2)


@pytest.mark.parametrize(
    "call", [F.normalize, lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0]], ids=["one", "several"]
)
def test_what_a_body_saved_goes_when_backward_has_come_through(call) -> None:
    (x,) = tracked(MATRIX)
    with use({F.normalize: unchanged, torch.meshgrid: unchanged}):
        y = call(x)
    y.sum().backward()
    with pytest.raises(tracer.FreedGraphError):
        y.sum().backward()
    with use({F.normalize: unchanged, torch.meshgrid: unchanged}):
        y = call(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
