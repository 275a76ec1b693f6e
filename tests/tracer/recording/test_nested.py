"""Nested tensors beside tracked ones: refused at the call, in both layouts, wherever torch would differentiate or fail inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.leaves import tracked

import tracer

LAYOUTS = [torch.strided, torch.jagged]


def leaf() -> tracer.Tensor:
    return tracked([[1.0, 2.0], [3.0, 4.0]])


def nested(layout: torch.layout) -> Any:
    rows = [torch.ones(2, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)]
    return torch.nested.nested_tensor(rows, layout=layout)


#: Calls that make a nested tensor out of a tracked one.
MAKING: dict[str, Callable[[Any, Any], Any]] = {
    "as_nested_tensor of a list": lambda x, layout: torch.nested.as_nested_tensor([x, x[:1]], layout=layout),
    "as_nested_tensor of a tensor": lambda x, layout: torch.nested.as_nested_tensor(x.unsqueeze(0), layout=layout),
    "narrow": lambda x, layout: torch.nested.narrow(
        x.unsqueeze(0), 1, 0 if layout is torch.strided else torch.tensor([0]), 1, layout=layout
    ),
    "masked_select": lambda x, layout: torch.nested.masked_select(x, torch.tensor([[True, False], [True, True]])),
    "nested_tensor_from_jagged": lambda x, layout: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 2])),
    "to_padded_tensor": lambda x, layout: torch.nested.to_padded_tensor(
        torch.nested.as_nested_tensor([x, x[:1]], layout=layout), 0.0
    ),
    "_nested_tensor_from_mask": lambda x, layout: torch._nested_tensor_from_mask(
        x.unsqueeze(0), torch.tensor([[True, False]])
    ),
}

#: Calls of a nested tensor and a tracked one.
BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda n, x: n * x[0, 0],
    "mul, reflected": lambda n, x: x[0, 0] * n,
    "div": lambda n, x: n / x[0, 0],
    "linear": lambda n, x: F.linear(n, x, x[0]),
    "layer_norm": lambda n, x: F.layer_norm(n, (2,), x[0], x[1]),
    "mul_": lambda n, x: n.mul_(x[0, 0]),
    "fill_": lambda n, x: n.fill_(x[0, 0]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAKING)
def test_a_nested_tensor_is_not_made_of_one_that_requires_grad(name: str, layout: torch.layout) -> None:
    try:
        made = MAKING[name](leaf(), layout)
    except tracer.UnsupportedError as error:
        assert "nested" in str(error) and "pad_sequence" in str(error)
        return
    # What torch narrows in the strided layout is no nested tensor of ours to lose: a list of views of it.
    assert (name, layout) == ("narrow", torch.strided) and made.requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BESIDE)
def test_a_call_beside_a_nested_tensor_is_refused(name: str, layout: torch.layout) -> None:
    with pytest.raises(tracer.UnsupportedError, match=r"nested tensor.*pad_sequence"):
        BESIDE[name](nested(layout), leaf())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", [lambda n: n.unbind()[0], lambda n: n.values()[:2]], ids=["unbind", "values"])
def test_writing_into_the_memory_of_a_nested_tensor_raises(layout: torch.layout, part: Callable[[Any], Any]) -> None:
    target = nested(layout)
    with pytest.raises((tracer.UnsupportedError, tracer.InPlaceError), match=r"nested|copy_ writes into a view"):
        part(target).copy_(leaf()[:2] if layout is torch.jagged else leaf().flatten()[:2])
    assert target.is_nested and not target.requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nested_tensor_copies_without_history_as_in_torch(layout: torch.layout) -> None:
    x = leaf()
    made = torch.nested.nested_tensor([x, x[:1]], layout=layout)
    assert not made.requires_grad and torch.equal(made.unbind()[0], x.detach())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchs_own_nested_tensors_are_left_alone(layout: torch.layout) -> None:
    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x, x[:1]], layout=layout) * 3, 0.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[6.0, 6.0], [3.0, 3.0]]


# ---------------------------------------------------------------------- plain views, by which the memory of nested tensors is shown
def test_a_plain_view_of_several_is_not_written_as_in_torch() -> None:
    buffer = torch.zeros(2, 2, dtype=torch.float64)
    with pytest.raises(tracer.InPlaceError, match="one of several views"):
        buffer.unbind()[0].copy_(leaf()[0])


def test_a_plain_view_made_under_no_grad_is_not_written_with_gradients_on_as_in_torch() -> None:
    buffer = torch.zeros(2, 2, dtype=torch.float64)
    with torch.no_grad():
        view = buffer[0]
    with pytest.raises(tracer.InPlaceError, match=r"copy_ writes into a view .* made under no_grad"):
        view.copy_(leaf()[0])
