"""A compiled step does what the step does eagerly."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import nn
import tracer
from tracer.errors import GradientArgumentError


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))


def train_step(model: torch.nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_gradients_are_those_of_the_eager_step() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    compiled = tracer.compile(train_step(model), backend="replay")
    torch.testing.assert_close(compiled(x, y).detach(), train_step(twin)(x, y).detach())
    assert_same_gradients(model, twin)


def test_gradients_add_to_those_that_are_there() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    compiled = tracer.compile(train_step(model), backend="replay")
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randint(3, (5,))
        compiled(x, y)
        train_step(twin)(x, y)
    assert_same_gradients(model, twin)


def test_what_is_written_through_a_conjugated_view_is_read_again() -> None:
    def write(whole: bool) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
        def step(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            view = z.conj()
            (view if whole else view[1:]).mul_(2 + 1j)
            return view.real * 1, view.imag * 1, z.imag * 1, view.contiguous(), torch.view_as_real(z) * 1

        return step

    z = torch.randn(3, 4, dtype=torch.complex128)
    for step in (write(True), write(False)):
        compiled = tracer.compile(step, backend="replay")
        for values in (z, z + 1):
            ours, theirs = compiled(values.clone()), step(values.clone())
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)


def test_a_backend_may_lay_out_what_comes_before_a_view_anew() -> None:
    """It gets a view that copies where it has to; the graph that is exported has the views of the step."""
    model = mlp()
    targets = set()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        targets.update(node.target for node in graph.graph.nodes)
        return graph.forward

    def step(x: torch.Tensor) -> None:
        model(x).view(-1).square().sum().backward()

    tracer.compile(step, backend=backend, check=True)(torch.randn(5, 4))
    assert torch.ops.aten.view.default not in targets and torch.ops.aten.reshape.default in targets
    exported = tracer.export_graph(step, torch.randn(5, 4)).graph
    assert torch.ops.aten.view.default in {node.target for node in exported.nodes}


def test_a_plain_argument_may_be_made_to_require_grad_inside() -> None:
    model = mlp()
    twin = copy.deepcopy(model)

    def step_of(model: Any) -> Callable[[torch.Tensor], None]:
        def step(x: torch.Tensor) -> None:
            y = checkpoint(lambda x: model(x), x.requires_grad_(), use_reentrant=True)
            (y.square().sum() + x.square().sum()).backward()

        return step

    compiled, eager = tracer.compile(step_of(model), backend="replay"), step_of(twin)
    for _ in range(2):
        ours = torch.randn(5, 4)
        theirs = ours.clone()
        compiled(ours)
        eager(theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert_same_gradients(model, twin)


class Trainer:
    """Steps of every form around one model."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 3)))
        self.factor = 1.0
        self.own = tracer.compile(self.plain, backend="replay")

    def plain(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return train_step(self.model)(self.factor * x, y)

    __call__ = plain
    decorated = tracer.compile(backend="replay")(plain)
    static = staticmethod(tracer.compile(lambda trainer, x, y: trainer.plain(x, y), backend="replay"))


FORMS: dict[str, Callable[[Trainer], Any]] = {
    "bound method": lambda t: t.own,
    "decorated method": lambda t: t.decorated,
    "static method": lambda t: lambda x, y: t.static(t, x, y),
    "callable object": lambda t: tracer.compile(t, backend="replay"),
    "static method object": lambda t: tracer.compile(staticmethod(lambda x, y: t.plain(x, y)), backend="replay"),
    "copy": lambda t: copy.copy(t.own),
    "deep copy": lambda t: copy.deepcopy(t.own),
    "deep copy of its owner": lambda t: copy.deepcopy(t).own,
    "pickled": lambda t: pickle.loads(pickle.dumps(t.own)),
    "compiled twice": lambda t: tracer.compile(t.own, backend="replay"),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_steps(name: str) -> None:
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    for seed in (0, 1):
        trainer, twin = Trainer(seed), Trainer(seed)
        if "copy" in name or name == "pickled":
            trainer.own(x, y)
        step = FORMS[name](trainer)
        for _ in range(2):
            torch.testing.assert_close(step(x, y).detach(), twin.plain(x, y).detach())
        if "deep" not in name and name != "pickled":  # those have a trainer of their own
            trainer.factor = twin.factor = 2.0
            torch.testing.assert_close(step(x, y).detach(), twin.plain(x, y).detach())


@tracer.compile(backend="replay")
def by_name(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_step_that_a_module_has_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(by_name)) is by_name


@pytest.mark.parametrize("given", [5, classmethod(lambda cls: None)], ids=["number", "class method"])
def test_what_cannot_be_called_is_refused(given: Any) -> None:
    with pytest.raises(GradientArgumentError, match=r"cannot be called: .*@classmethod above @tracer\.compile"):
        tracer.compile(given)


def pair(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return tensor, tensor.grad


def kept(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    hidden.retain_grad()
    (hidden * hidden).sum().backward()
    return pair(hidden)


def own_leaf(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    leaf = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (hidden * leaf).sum().backward()
    return pair(leaf)


RETURNED: dict[str, Callable[..., Any]] = {
    "detached argument": lambda model, x: x.detach(),
    "detached parameter": lambda model, x: model[0].weight.detach(),
    "data of a parameter": lambda model, x: model[0].weight.data,
    "a result and that detached": lambda model, x: ((loss := model(x).sum()), loss.detach()),
    "shape": lambda model, x: (x.shape, {"same": x.shape}),
    "a result with its gradient": lambda model, x: kept(model(x)),
    "a leaf with its gradient": lambda model, x: own_leaf(model(x)),
    "a result, detached too, and again": lambda model, x: [[h, h.detach(), h, h.data, h[0]] for h in [model(x)]],
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_returned_is_what_the_eager_step_returns(name: str) -> None:
    model = mlp()
    step = lambda x: RETURNED[name](model, x)  # noqa: E731
    compiled = tracer.compile(step, backend="replay")
    for _ in range(3):
        x = torch.randn(5, 4)
        got, expected = (leaves_of(run(x)) for run in (compiled, step))
        assert same_objects(got) == same_objects(expected)
        for a, b in zip(got, expected, strict=True):
            assert type(a) is type(b)
            if not isinstance(b, torch.Tensor):
                assert a == b
                continue
            torch.testing.assert_close(a.detach(), b.detach())
            assert a is not x
            assert a is not model[0].weight
            assert a.requires_grad == b.requires_grad
            assert (a.data_ptr() == x.data_ptr()) == (b.data_ptr() == x.data_ptr())
            assert (a.data_ptr() == model[0].weight.data_ptr()) == (b.data_ptr() == model[0].weight.data_ptr())
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)
    assert model[0].weight.requires_grad


def test_a_gradient_that_is_returned_is_the_one_that_is_filled_also_where_one_was_there() -> None:
    model, x = mlp(), torch.randn(5, 4)

    def step(x: torch.Tensor) -> list[Any]:
        model(x).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    compiled = tracer.compile(step, backend="replay")
    for _ in range(3):
        grads = compiled(x)
        assert all(grad is parameter.grad for grad, parameter in zip(grads, model.parameters(), strict=True))


def test_parts_of_what_is_given_and_of_gradients_are_returned_as_views_of_them() -> None:
    def written(compiles: bool) -> list[torch.Tensor]:
        model, buffer, found = mlp(), torch.zeros(6), list[torch.Tensor]()

        def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            model(x).sum().backward()
            x.mul_(2)
            buffer.add_(1)
            grad = model[0].weight.grad
            return grad[0], grad.view(-1), model[0].bias.grad.detach(), x[1], y.t(), buffer[2:], (grad * 2)[0]

        run = tracer.compile(step, backend="replay") if compiles else step
        for _ in range(3):
            x, y = torch.ones(2, 4), torch.ones(2, 3)
            parts = run(x, y)
            for number, part in enumerate(parts):
                part.add_(number)
            grads = [parameter.grad.detach().clone() for parameter in model.parameters()]
            found += [x, y, buffer.clone(), *grads, *(part.clone() for part in parts)]
        return found

    for ours, eager in zip(written(True), written(False), strict=True):
        assert torch.equal(ours, eager)


def same_objects(leaves: list[Any]) -> list[list[bool]]:
    return [[a is b for a in leaves] for b in leaves if isinstance(b, torch.Tensor)]


def leaves_of(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value, is_leaf=lambda part: isinstance(part, torch.Size))
