"""Python-level torch functions run their own body, whose parts are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import ops_registry
import tracer
from tracer.recording import python_functions

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normalize": lambda x: F.normalize(x, dim=1),
    "unflatten, which calls itself": lambda x: x.unflatten(1, (2, 2)),
    "norm": lambda x: x.norm(dim=0),
    "gumbel-free softmin": lambda x: F.softmin(x, dim=1),
    "max_pool2d, dispatched on a flag": lambda x: F.max_pool2d(x.view(1, 1, 3, 4), 2),
    "split": lambda x: torch.cat(x.split([1, 3], dim=1)[::-1], 1),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([0], [0])),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "cosine similarity": lambda x: F.cosine_similarity(x, x + 1, dim=1),
    "reflected division": lambda x: 2 / (x + 5),
    "reflected power": lambda x: 2**x,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("torch_offers_redispatch", [True, False])
def test_gradients_equal_torchs(name: str, torch_offers_redispatch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytorch/pytorch#131947
    if not torch_offers_redispatch:
        monkeypatch.setattr(python_functions, "skip_one_hop", None)
    function = CALLS[name]
    data = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).cos()
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    out, expected = function(x), function(native)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach())
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), x), torch.autograd.grad(expected.square().sum(), native)
    )


def test_an_error_in_the_body_leaves_no_state() -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    for _ in range(2):  # a function whose body raised is entered again, not taken for a call from its own body
        with pytest.raises(ValueError, match="reduction"):
            F.binary_cross_entropy(x, x, reduction="nonsense")
    with tracer.Graph() as graph:
        F.normalize(x, dim=0).sum().backward()
        assert len(graph) == 0 and x.grad is not None and x.grad.tolist() == [[0.0, 0.0]]


def intercepted_in(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that reach interception in a call."""
    names: list[str] = []
    there = tracer.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]

    def intercept(cls: type, func: Any, *args: Any) -> Any:
        names.append(func.__name__)
        return there(cls, func, *args)

    with monkeypatch.context() as patched:
        patched.setattr(tracer.Tensor, "__torch_function__", classmethod(intercept))
        call()
    return names


def test_a_function_runs_its_body_without_being_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    weight = tracer.tensor([1.0, 1.0], requires_grad=True)
    assert intercepted_in(lambda: F.relu(x), monkeypatch) == ["relu"]
    assert intercepted_in(lambda: F.layer_norm(x, (2,), weight), monkeypatch) == ["layer_norm"]
    assert intercepted_in(lambda: torch.functional.norm(x), monkeypatch)[0] != "norm"


def test_a_function_with_a_rule_of_its_own_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    assert intercepted_in(lambda: torch.cdist(x, x), monkeypatch)[0] == "cdist"
    with ops_registry.use({F.normalize: {"input": lambda grad: 7 * grad}}):
        F.normalize(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[7.0, 7.0]]


def test_a_mode_sees_the_function_itself() -> None:
    seen = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Seeing():
        F.relu(tracer.tensor([1.0], requires_grad=True))
    assert F.relu in seen


def test_another_class_beside_answers_the_function_itself() -> None:
    seen = []

    class Other(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    F.layer_norm(x, (2,), torch.ones(2).as_subclass(Other))
    assert F.layer_norm in seen


def test_torchs_compiler_and_torchscript_go_through_such_functions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.layer_norm(x, [2]), dim=1)

    x = torch.tensor([[1.0, 2.0]])
    expected = function(x)
    torch.testing.assert_close(torch.compile(function, backend="eager", fullgraph=True)(x), expected)
    torch.testing.assert_close(torch.jit.script(function)(x), expected)
