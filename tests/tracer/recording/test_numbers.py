"""A tracked tensor where torch takes a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ops_registry
import tracer

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "full": lambda x: torch.full((2,), x),
    "full, by keyword": lambda x: torch.full((2,), fill_value=x),
    "new_full": lambda x: torch.ones(1).new_full((2,), x),
    "arange": lambda x: torch.arange(0, x, 0.5),
    "range": lambda x: torch.range(0.0, end=x),
    "scalar_tensor": lambda x: torch.scalar_tensor(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_tensor_that_requires_grad_is_no_number(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError):
        call(torch.tensor(2.0, requires_grad=True))
    with pytest.raises(tracer.UnsupportedError, match="number"):
        call(tracer.tensor(2.0, requires_grad=True))


@pytest.mark.filterwarnings("ignore:torch.range")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_one_that_requires_none_is(call: Callable[[Tensor], Tensor]) -> None:
    assert call(tracer.tensor(2.0)).equal(call(torch.tensor(2.0)))


def test_of_a_tracked_tensor_they_make_constants() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert x.new_full((2,), 3.0).tolist() == x.new_full(size=(2,), fill_value=3.0).tolist() == [3.0, 3.0]


def test_they_know_the_default_device_and_are_known_to_script() -> None:
    with torch.device("meta"):
        made = [
            torch.full((2,), 1.0),
            torch.arange(3),
            torch.scalar_tensor(1.0),
            torch.sparse_coo_tensor([[0]], [1.0], (2,)),
        ]
    assert {t.device.type for t in made} == {"meta"}
    assert torch.jit.script(_scripted)(torch.ones(3)).tolist() == [3.0, 4.0, 5.0]


def _scripted(x: Tensor) -> Tensor:
    return x + torch.arange(3) + torch.full((3,), 2.0)


def test_an_op_on_plain_tensors_alone_reads_its_value() -> None:
    plain, x = torch.ones(2), tracer.tensor(2.0, requires_grad=True)
    for made in (torch.add(plain, plain, alpha=x), torch.full_like(plain, x) + 1):  # type: ignore[arg-type]
        assert made.tolist() == [3.0, 3.0] and not made.requires_grad


def test_beside_a_tracked_tensor_it_is_refused() -> None:
    plain, x = torch.ones(2), tracer.tensor(2.0, requires_grad=True)
    with pytest.raises(ops_registry.UnsupportedCallError, match="alpha"):
        torch.add(tracer.tensor([1.0, 1.0]), plain, alpha=x)  # type: ignore[arg-type]
