"""What a step may do: each, replayed as a graph, gives the losses, gradients, writes and random state of the eager step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import nn
import ops_registry
import tracer

Step = Callable[..., Any]
L = torch.nn


class Last(L.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, kind: str, trained: bool = True, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(L, kind)(4, 6, batch_first=True, **options).requires_grad_(trained)
        self.out = L.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Both(L.Module):
    """An LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = L.LSTM(4, 6, num_layers=2, bidirectional=True), L.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x.transpose(0, 1))[0][-1])


class Loop(L.Module):
    """A cell over the steps of a sequence."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell, self.out = getattr(L, kind)(4, 6), L.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Tied(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = L.Linear(4, 4), L.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())[:, :3]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * grad


def mlp() -> L.Module:
    return L.Sequential(L.Linear(4, 8), L.ReLU(), L.Linear(8, 3))


def batch(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randint(3, (rows,))


def sequences(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 7, 4), torch.randint(3, (rows,))


def plain(model: L.Module) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def assert_same_state(ours: L.Module, theirs: L.Module) -> None:
    pairs = zip(
        [*ours.named_parameters(), *ours.named_buffers()], [*theirs.parameters(), *theirs.buffers()], strict=True
    )
    for (name, a), b in pairs:
        torch.testing.assert_close(a.detach(), b.detach(), msg=lambda text, name=name: f"{name}: {text}")
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, msg=lambda text, name=name: f"gradient of {name}: {text}")
            assert a.grad.stride() == b.grad.stride(), name


def assert_as_eager(
    make_model: Callable[[], L.Module],
    make_step: Callable[[L.Module], Step] = plain,
    arguments: Callable[..., tuple[Any, ...]] = batch,
    between: Callable[[L.Module, int], Any] = lambda model, i: None,
    backend: str = "replay",
    rows: tuple[int, ...] = (),
) -> Any:
    """Three calls of the compiled step and of the eager one, on equal models and arguments, from equal random states.

    With ``rows``, one call for each of these batch sizes, with symbolic sizes. Returns the compiled step.
    """
    torch.manual_seed(0)
    model = nn.track(make_model())
    twin = copy.deepcopy(model)
    compiled, eager = tracer.compile(make_step(model), backend=backend, dynamic=bool(rows)), make_step(twin)
    for i, size in enumerate(rows or (5, 5, 5)):
        args = arguments(size)
        twins = copy.deepcopy(args)
        torch.manual_seed(i)
        got = compiled(*args)
        state = torch.get_rng_state()
        torch.manual_seed(i)
        expected = eager(*twins)
        if backend == "replay":
            assert torch.equal(state, torch.get_rng_state())
        leaves = zip(
            torch.utils._pytree.tree_leaves((got, args)),
            torch.utils._pytree.tree_leaves((expected, twins)),
            strict=True,
        )
        for a, b in leaves:
            if isinstance(b, torch.Tensor):
                assert type(a) is type(b)
                torch.testing.assert_close(a.detach(), b.detach())
                if b.is_leaf and b.grad is not None:
                    torch.testing.assert_close(a.grad, b.grad)
            else:
                assert a == b
        assert_same_state(model, twin)
        between(model, i)
        between(twin, i)
    return compiled


MODELS: dict[str, tuple[Callable[[], L.Module], Callable[[int], tuple[Any, ...]]]] = {
    "batch norm": (lambda: L.Sequential(L.Linear(4, 8), L.BatchNorm1d(8), L.ReLU(), L.Linear(8, 3)), batch),
    "layer and group norm": (lambda: L.Sequential(L.Linear(4, 8), L.GroupNorm(2, 8), L.LayerNorm(8), L.Linear(8, 3)), batch),
    "dropout": (lambda: L.Sequential(L.Linear(4, 8), L.Dropout(0.5), L.Linear(8, 3), L.AlphaDropout(0.3)), batch),
    "CNN": (
        lambda: L.Sequential(
            L.Conv2d(1, 4, 3), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2), L.Dropout2d(0.3), L.Flatten(), L.Linear(36, 3)
        ),
        lambda rows: (torch.randn(rows, 1, 8, 8), torch.randint(3, (rows,))),
    ),
    "LSTM": (lambda: Last("LSTM", num_layers=2, dropout=0.3), sequences),
    "LSTM both ways": (lambda: Both(), sequences),
    "LSTM without biases": (lambda: Last("LSTM", bias=False), sequences),
    "LSTM that is not trained": (lambda: Last("LSTM", trained=False), sequences),
    "GRU": (lambda: Last("GRU"), sequences),
    "RNN": (lambda: Last("RNN"), sequences),
    "LSTMCell": (lambda: Loop("LSTMCell"), sequences),
    "GRUCell": (lambda: Loop("GRUCell"), sequences),
    "embedding": (
        lambda: L.Sequential(L.Embedding(10, 4, padding_idx=0), L.Flatten(), L.Linear(12, 3)),
        lambda rows: (torch.randint(10, (rows, 3)), torch.randint(3, (rows,))),
    ),
    "transformer": (
        lambda: L.Sequential(L.TransformerEncoderLayer(4, 2, 8, batch_first=True), L.Flatten(), L.Linear(28, 3)),
        sequences,
    ),
    "tied weights": (Tied, batch),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_eagerly(name: str) -> None:
    model, arguments = MODELS[name]
    assert_as_eager(model, arguments=arguments)


@pytest.mark.parametrize("name", ["batch norm", "dropout", "CNN"])
def test_training_and_evaluation_have_graphs_of_their_own(name: str) -> None:
    model, arguments = MODELS[name]
    assert_as_eager(model, arguments=arguments, between=lambda m, i: m.train(i % 2 == 1))


def test_the_graph_of_an_lstm_does_not_grow_with_the_sequence() -> None:
    model = L.LSTM(4, 6)
    nn.track(model)
    step = lambda x: model(x)[0].sum().backward()  # noqa: E731
    sizes = [len(tracer.export_graph(step, torch.randn(steps, 2, 4)).graph.nodes) for steps in (5, 50)]
    assert sizes[0] == sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch norm", "tied weights", "LSTM both ways"])
def test_inductor_trains_as_eagerly(name: str) -> None:
    model, arguments = MODELS[name]
    assert_as_eager(model, arguments=arguments, backend="inductor")


def step_that(act: Callable[..., Any]) -> Callable[[L.Module], Step]:
    """A step that calls ``act(model, x, y)``."""
    return lambda model: lambda x, y: act(model, x, y)


def loss_of(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def zero_grad_first(model: L.Module, x: torch.Tensor, y: torch.Tensor, set_to_none: bool = True) -> torch.Tensor:
    model.zero_grad(set_to_none)
    loss = loss_of(model, x, y)
    loss.backward()
    return loss


def clip(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(model, x, y)
    loss.backward()
    return {"loss": loss, "norm": torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), "clipped": True}


def several_passes(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = loss_of(model, x, y)
    loss.backward(retain_graph=True)
    (2 * loss).backward()
    other = model(x).square().mean()
    torch.autograd.backward(other)
    return loss, other


def gradient_penalty(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    out = model(x).tanh()
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = F.cross_entropy(out, y) + slope.square().sum()
    loss.backward()
    return loss


def hooks_inside(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = model[0](x)
    hidden.register_hook(lambda grad: grad * 3)
    hidden.retain_grad()
    loss = F.cross_entropy(model[2](model[1](hidden)), y)
    loss.backward()
    return loss, hidden.grad


def writes_through_views(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = model[0](x)
    hidden[:, :2].mul_(2)
    hidden = hidden.clone()
    hidden.view(-1)[::3] = 0
    buffer = torch.zeros(x.shape[0], 8)
    buffer[1:3] = hidden[1:3]
    buffer.relu_()
    loss = F.cross_entropy(model[2](buffer + hidden), y)
    loss.backward()
    return loss


def writes_an_argument(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return zero_grad_first(model, x, y)


def updates_parameters(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, x, y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1 * parameter.grad)
            parameter.grad = None
        model[0].weight.data.clamp_(-0.2, 0.2)
    return loss


def functions(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model[2](Square.apply(model[0](x))), y)
    loss.backward()
    return loss


def checkpointed(model: L.Module, x: torch.Tensor, y: torch.Tensor, reentrant: bool = False) -> torch.Tensor:
    hidden = checkpoint(lambda h: F.dropout(model[1](h), 0.5), model[0](x), use_reentrant=reentrant)
    loss = F.cross_entropy(model[2](F.dropout(hidden, 0.2)), y)
    loss.backward()
    return loss


def autocast(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, x, y)
    loss.backward()
    return loss


def replaced_rules(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with ops_registry.use({torch.relu: lambda grad, result: grad * 5}):
        loss = loss_of(model, x, y)
    loss.backward()
    return loss


def scoped_rules(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with ops_registry.use({F.linear: {"weight": lambda default, grad: default(grad) * 2}}, where="2"):
        loss = loss_of(model, x, y)
    loss.backward()
    return loss


def returns_gradients(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.autograd.grad(loss_of(model, x, y), tuple(model.parameters()))


def tracks_inside(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    weight = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    loss = loss_of(model, x * weight, y)
    loss.backward()
    return loss, weight.grad


def transforms(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    slopes = torch.func.vmap(torch.func.grad(lambda row: model(row).square().sum()))(x)
    loss = slopes.square().mean() + loss_of(model, x, y)
    loss.backward()
    return loss, slopes


def writes_into_a_product(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """It is a view of what torch makes inside of the call, which only C++ holds."""
    product = torch.einsum("bi,ji->bj", model(x), torch.ones(3, 3))
    product *= torch.tensor([1.0, 2.0, 3.0])
    loss = F.cross_entropy(product, y)
    loss.backward()
    return loss


def decides_by_values(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Eagerly a rule looks whether a product can be divided, and a loss at the classes that count."""
    scores = model(x)
    loss = F.cross_entropy(scores, y, torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1) + scores.prod(1).mean()
    (loss + scores.cumprod(0).mean()).backward()
    return loss


def writes_into_views_twice_differentiated(model: L.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    scores = model(x) * 2
    scores[:, 1].mul_(x[:, 0])
    scores.view(-1)[1:5].copy_(scores.detach().view(-1)[:4].clone())
    loss = F.cross_entropy(scores, y)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(slope.square().sum() for slope in slopes)).backward()
    return loss


ACTS = (
    zero_grad_first, lambda m, x, y: zero_grad_first(m, x, y, set_to_none=False), clip, several_passes, gradient_penalty, hooks_inside,
    writes_through_views, writes_an_argument, updates_parameters, functions, checkpointed,
    lambda m, x, y: checkpointed(m, x, y, reentrant=True), autocast, replaced_rules, scoped_rules, returns_gradients, tracks_inside,
    transforms,
)  # fmt: skip


@pytest.mark.parametrize(
    "act",
    [*ACTS, writes_into_a_product, decides_by_values, writes_into_views_twice_differentiated],
    ids=lambda act: act.__name__,
)
def test_steps_do_as_eagerly(act: Callable[..., Any]) -> None:
    assert_as_eager(mlp, step_that(act))


def test_hooks_on_parameters_and_modules_run() -> None:
    def make(model: L.Module) -> Step:
        def halve(p: torch.Tensor) -> None:
            p.grad.mul_(0.5)

        model[0].weight.register_hook(lambda grad: grad * 2)
        model[2].weight.register_post_accumulate_grad_hook(halve)
        model[2].register_forward_hook(lambda module, args, out: out * 3)
        model[1].register_full_backward_hook(lambda module, grad_in, grad_out: tuple(g * 2 for g in grad_in))
        return plain(model)

    assert_as_eager(mlp, make)


def test_grad_that_is_there_at_the_first_call_is_read() -> None:
    def trained(backend: str | None) -> Any:
        torch.manual_seed(0)
        model = nn.track(mlp())
        model(torch.ones(2, 4)).sum().backward()

        def step(x: torch.Tensor) -> torch.Tensor:
            before = model[0].weight.grad.clone()  # raises where there is none, which is the first guess of a capture
            (model(x) * before.mean()).sum().backward()
            return before

        call = step if backend is None else tracer.compile(step, backend=backend)
        return [call(torch.ones(3, 4)) for _ in range(2)], [p.grad for p in model.parameters()]

    torch.testing.assert_close(trained("replay"), trained(None))


def test_arguments_that_require_grad_get_their_gradient() -> None:
    assert_as_eager(mlp, arguments=lambda rows: (torch.randn(rows, 4, requires_grad=True), torch.randint(3, (rows,))))


def test_an_argument_given_twice_gets_one_gradient() -> None:
    def arguments(rows: int) -> tuple[torch.Tensor, ...]:
        x = torch.randn(rows, 4, requires_grad=True)
        return x, x, torch.randint(3, (rows,))

    def make(model: L.Module) -> Step:
        def step(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.cross_entropy(model(a) + model(2 * b), y)
            loss.backward()
            return loss

        return step

    assert_as_eager(mlp, make, arguments)


def times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda grad: grad * factor


def test_rules_around_the_call_are_those_of_the_graph() -> None:
    model = nn.track(mlp())
    twin = copy.deepcopy(model)
    compiled, eager, args = tracer.compile(plain(model), backend="replay"), plain(twin), batch()
    for factor in (5, 7, 5):
        rules = {torch.relu: times(factor)}
        for _ in range(2):
            for step in (compiled, eager):
                with ops_registry.use(rules):  # raises at its end where the rule was not taken
                    step(*args)
            with ops_registry.use(ops_registry.packs.guided_backprop):
                compiled(*args)
            with ops_registry.use(ops_registry.packs.guided_backprop):
                eager(*args)
        compiled(*args)
        eager(*args)
    assert_same_state(model, twin)


#: Batches of other sizes than any layer has.
ROWS = (5, 7, 10, 13)


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_of_symbolic_sizes_trains_every_batch(name: str) -> None:
    model, arguments = MODELS[name]
    compiled = assert_as_eager(model, arguments=arguments, rows=ROWS)
    assert [row["calls"] for row in compiled.explain().rows] == [4]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_steps_do_as_eagerly_with_symbolic_sizes(act: Callable[..., Any]) -> None:
    compiled = assert_as_eager(mlp, step_that(act), rows=ROWS)
    # A step that looks at .grad has a graph for those that are there too.
    assert len(compiled.explain().rows) <= 2


@pytest.mark.inductor
@pytest.mark.parametrize("name", ["batch norm", "embedding"])
def test_inductor_trains_every_batch_by_one_graph(name: str) -> None:
    model, arguments = MODELS[name]
    compiled = assert_as_eager(model, arguments=arguments, backend="inductor", rows=ROWS)
    assert [row["calls"] for row in compiled.explain().rows] == [4]
