"""``graph.cuts()``: every place where a history ended, by what, on which line, and whose history it was."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf32

import nn
import tracer
from tracer.notes.cuts import KEPT_CUTS

T = torch.Tensor


def under(mode: Any, run: Callable[[], Any]) -> Any:
    with mode:
        return run()


def saved(tensor: T) -> None:
    torch.save(tensor, io.BytesIO())


# What ended the history, which op did it, and how: of ``y``, which was made from the leaf ``x`` by exp.
OF_A_RESULT: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("detach", "detach", lambda y: y.detach()),
    ("detach", "detach", lambda y: torch.detach(y)),
    ("detach", "detach", lambda y: torch.ops.aten.detach(y)),
    ("detach", "detach_", lambda y: y.detach_()),
    ("detach", "detach", lambda y: torch.nn.Parameter(y)),
    ("detach", "detach", lambda y: torch.asarray(y, requires_grad=False)),
    ("data", "data", lambda y: y.data),
    ("data", "data", lambda y: setattr(tracer.tensor([0.0]), "data", y)),
    ("no_grad", "mul", lambda y: under(torch.no_grad(), lambda: y * 2)),
    ("no_grad", "cat", lambda y: under(torch.no_grad(), lambda: torch.cat([y, y]))),
    ("no_grad", "view", lambda y: under(torch.no_grad(), lambda: y.view(1, -1))),
    ("no_grad", "mul", lambda y: under(torch.no_grad(), lambda: torch.mul(y, 2, out=torch.zeros(2)))),
    ("no_grad", "copy_", lambda y: under(torch.no_grad(), lambda: torch.zeros(2).copy_(y))),
    ("no_grad", "set_", lambda y: under(torch.no_grad(), lambda: torch.zeros(2).set_(y))),
    ("no_grad", "mish", lambda y: under(torch.set_grad_enabled(False), lambda: torch.nn.functional.mish(y))),
    ("inference_mode", "mul", lambda y: under(torch.inference_mode(), lambda: y * 2)),
    ("numpy", "numpy", lambda y: y.numpy(force=True)),
    ("dlpack", "to_dlpack", lambda y: torch.utils.dlpack.to_dlpack(y)),
    ("item", "item", lambda y: y[0].item()),
    ("tolist", "tolist", lambda y: y.tolist()),
    ("float()", "__float__", lambda y: float(y[0])),
    ("int()", "__int__", lambda y: int(y[0])),
    ("bool()", "__bool__", lambda y: bool(y[0])),
    ("complex()", "__complex__", lambda y: complex(y[0])),
    ("float()", "__float__", lambda y: torch.tensor([y[0], 1.0])),
    ("float()", "__float__", lambda y: torch.FloatTensor([y[0]])),
    ("integer result", "long", lambda y: y.long()),
    ("integer result", "to", lambda y: y.to(torch.int32)),
    ("integer result", "type", lambda y: y.type(torch.uint8)),
    ("integer result", "topk", lambda y: y.topk(1).indices),
    ("no gradient", "argmax", lambda y: y.argmax()),
    ("no gradient", "gt", lambda y: y > 0),
    ("no gradient", "eq", lambda y: y == y),
    ("no gradient", "allclose", lambda y: torch.allclose(y, y)),
    ("no gradient", "histc", lambda y: torch.histc(y)),
    ("no gradient", "multinomial", lambda y: torch.multinomial(y, 1)),
    ("conversion", "tensor", lambda y: torch.tensor(y)),
    ("conversion", "tensor", lambda y: tracer.tensor(y)),
    ("conversion", "new_tensor", lambda y: y.new_tensor(y)),
    ("saved", "save", lambda y: saved(y)),
    ("saved", "save", lambda y: copy.copy(y)),
    ("other class", "as_subclass", lambda y: under(torch.no_grad(), lambda: y.as_subclass(torch.Tensor))),
]

OF_A_LEAF: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("requires_grad_(False)", "requires_grad_", lambda x: x.requires_grad_(False)),
    ("requires_grad_(False)", "requires_grad_", lambda x: setattr(x, "requires_grad", False)),
    ("deepcopy", "deepcopy", lambda x: copy.deepcopy(x)),
    ("saved", "save", lambda x: saved(x)),
    ("conversion", "track", lambda x: tracer.track(x)),
    ("no_grad", "exp", lambda x: under(torch.no_grad(), lambda: x.exp())),
]


def ids(cases: list[tuple[str, str, Any]]) -> list[str]:
    return [f"{number}-{what}-{op}" for number, (what, op, _) in enumerate(cases)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("what", "op", "act"), OF_A_RESULT, ids=ids(OF_A_RESULT))
def test_the_end_of_a_result_is_noted(what: str, op: str, act: Callable[[Any], Any]) -> None:
    x = leaf32(1.0, 2.0)
    with tracer.Graph(sites=True) as graph:
        y = x.exp()
        act(y)
    (cut,) = graph.cuts()
    assert (cut.what, cut.site.op) == (what, op)
    line = inspect.getsourcelines(act)[1]
    assert "test_cuts.py:" in str(cut.site.line) and (f":{line}" in str(cut.site.line) or op in ("save", "__float__"))
    ancestors = {call.serial: call for call in graph.calls()}
    (end,) = cut.parents
    assert ancestors[end].op in ("exp", "getitem", "select", "__getitem__")


@pytest.mark.parametrize(("what", "op", "act"), OF_A_LEAF, ids=ids(OF_A_LEAF))
def test_the_end_of_a_leaf_is_noted(what: str, op: str, act: Callable[[Any], Any]) -> None:
    x = leaf32(1.0, 2.0)
    serial = x._node.serial  # type: ignore[union-attr]
    with tracer.Graph(sites=True) as graph:
        act(x)
    (cut,) = graph.cuts()
    assert (cut.what, cut.site.op, cut.parents) == (what, op, (serial,))


CUTS_NOTHING: dict[str, Callable[[Any], Any]] = {
    "a question about the tensor": lambda y: (y.shape, y.dtype, len(y), y.dim(), y.is_contiguous(), y.device),
    "fresh tensors like it": lambda y: (torch.zeros_like(y), y.new_ones(3), torch.empty_like(y)),
    "printing": lambda y: (repr(y), f"{y.sum():.2f}", str(y)),
    "conversions that keep the history": lambda y: (torch.as_tensor(y), torch.Tensor(y), y.double()),
    "a call that raises": lambda y: under(pytest.raises(tracer.GradientArgumentError), y.numpy),
    "what has no history": lambda y: (torch.ones(2).tolist(), tracer.tensor([1.0]).item(), torch.ones(2).argmax()),
    "a write over it": lambda y: under(torch.no_grad(), lambda: y.mul_(torch.ones(2))),
}


@pytest.mark.parametrize("name", CUTS_NOTHING)
def test_what_cuts_nothing_is_not_noted(name: str) -> None:
    with tracer.Graph(sites=True) as graph:
        y = leaf32(1.0, 2.0).exp()
        CUTS_NOTHING[name](y)
    assert graph.cuts() == []


def test_a_frozen_module_is_noted() -> None:
    model = nn.track(torch.nn.Linear(2, 2))
    with tracer.Graph(sites=True) as graph:
        model.requires_grad_(False)
    assert [cut.what for cut in graph.cuts()] == ["requires_grad_(False)"] * 2


def test_the_work_of_optimisers_and_the_books_of_modules_are_no_cuts() -> None:
    model = nn.track(torch.nn.Linear(2, 2))
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, foreach=False)
    with tracer.Graph(sites=True) as graph:
        model(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        plain.step()
        optimiser.zero_grad()
        model.load_state_dict(model.state_dict())
    assert graph.cuts() == []


def test_the_formulas_of_a_recorded_backward_cut_nothing_of_the_users() -> None:
    x = leaf32(1.0, -2.0)
    with tracer.Graph(sites=True) as graph:
        torch.autograd.grad(torch.nn.functional.leaky_relu(x).norm(), x, create_graph=True)
    assert graph.cuts() == []


def test_the_forward_of_a_custom_function_ends_only_what_is_none_of_its_arguments() -> None:
    x, z = leaf32(1.0, 2.0), leaf32(3.0, 4.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            return x * 2 * z

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:  # type: ignore[override]
            return grad * 2

    with tracer.Graph(sites=True) as graph:
        Scale.apply(x)
    (cut,) = graph.cuts()
    assert (cut.what, cut.parents) == ("no_grad", (z._node.serial,))  # type: ignore[union-attr]


def test_a_cut_that_comes_again_is_kept_once_and_their_number_is_bounded() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as graph:
        for _ in range(10):
            x.detach()
        assert len(graph.cuts()) == 1
        for _ in range(KEPT_CUTS + 10):
            x.exp().detach()
    assert len(graph.cuts()) == KEPT_CUTS


def test_cuts_go_to_the_innermost_graph_of_their_thread() -> None:
    x = leaf32(1.0)
    with tracer.Graph(sites=True) as outer:
        with tracer.Graph(sites=True) as inner:
            x.detach()
        with tracer.Graph():
            x.detach()
        x.data  # noqa: B018
    x.detach()
    assert [cut.what for cut in inner.cuts()] == ["detach"]
    assert [cut.what for cut in outer.cuts()] == ["data"]


def test_a_graph_without_sites_has_no_cuts_to_show_and_says_how_to_note_them() -> None:
    with tracer.Graph() as graph:
        leaf32(1.0).detach()
    with pytest.raises(tracer.NotNotedError, match=r"tracer\.Graph\(sites=True\)"):
        graph.cuts()
