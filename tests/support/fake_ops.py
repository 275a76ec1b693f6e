"""Operators as torch's database describes them, to try the conformance command on: right, wrong, hanging and crashing ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer.tracked_tensor import Tensor


@dataclass
class FakeSample:
    """One set of arguments."""

    input: torch.Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def output_process_fn_grad(self, result: Any) -> Any:
        return result


@dataclass
class FakeOp:
    """What the command asks of an operator."""

    name: str
    op: Callable[..., Any]
    method: Callable[..., Any] | None = None
    in_place: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64,)
    variant_test_name: str = ""
    supports_autograd: bool = True
    supports_gradgrad: bool = True
    aliases: tuple[Any, ...] = ()

    def get_op(self) -> Callable[..., Any]:
        return self.op

    def get_method(self) -> Callable[..., Any] | None:
        return self.method

    def get_inplace(self) -> Callable[..., Any] | None:
        return self.in_place

    def get_operator(self) -> None:
        return None

    def get_inplace_operator(self) -> None:
        return None

    def supported_backward_dtypes(self, device_type: str) -> set[torch.dtype]:
        return set(self.dtypes)

    def sample_inputs_func(
        self, op: FakeOp, device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[FakeSample]:
        torch.manual_seed(0)
        for shape in ((3,), (2, 2)):
            yield FakeSample(torch.rand(shape, device=device, dtype=dtype).requires_grad_(requires_grad))


@dataclass
class FakePairOp(FakeOp):
    """An operator of two tensors, with one sample."""

    def sample_inputs_func(
        self, op: FakeOp, device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[FakeSample]:
        one, other = (torch.rand(2, 3, device=device, dtype=dtype).requires_grad_(requires_grad) for _ in range(2))
        yield FakeSample(one, (other,))


def only_tracked(effect: Callable[[], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sine, with something happening when it is called on a tracked tensor."""

    def function(x: torch.Tensor) -> torch.Tensor:
        factor = effect() if isinstance(x, Tensor) else 1
        return x.sin() * (1 if factor is None else factor)

    return function


def only_both_tracked_right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A product that is wrong where one factor is tracked and the other is plain."""
    return x * y * (1 + (isinstance(x, Tensor) != isinstance(y, Tensor)))


def by_address(x: torch.Tensor) -> torch.Tensor:
    """The identity; of a tracked tensor it reads memory from the start, whatever the strides."""
    if not isinstance(x, Tensor):
        return x * 1
    return x * 1 + 0 * x.detach().as_strided((1,), (1,), 0)


def raises() -> None:
    raise ValueError("no tracked tensors, please (not even 3)\nnor later")


def refuses(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("never")


GOOD = FakeOp("good", torch.sin, torch.Tensor.sin, torch.Tensor.sin_)
WRONG = FakeOp("wrong", only_tracked(lambda: 2))
RAISING = FakeOp("raising", only_tracked(raises))
HANGING = FakeOp("hanging", only_tracked(lambda: time.sleep(600)))
CRASHING = FakeOp("crashing", only_tracked(lambda: os._exit(7)))
REFUSED = FakeOp("refused", refuses)

GOOD_ONES = [GOOD, FakeOp("other", torch.cos, variant_test_name="variant")]
WITH_A_WRONG_ONE = [*GOOD_ONES, WRONG]
WITH_A_REFUSED_ONE = [*GOOD_ONES, REFUSED]
ALL = [HANGING, CRASHING, RAISING, WRONG, *GOOD_ONES, REFUSED]


class ProductOp(FakeOp):
    """An operator of a matrix and a vector, in half precision."""

    def sample_inputs_func(
        self, op: FakeOp, device: str, dtype: torch.dtype, requires_grad: bool = True
    ) -> Iterator[FakeSample]:
        matrix, vector = (torch.rand(shape, device=device, dtype=dtype) + 0.5 for shape in ((8, 64), (64,)))
        yield FakeSample(matrix.requires_grad_(requires_grad), (vector.requires_grad_(requires_grad),))


def rounded_at_each_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product; on a tracked tensor with a detour, each step of whose gradient is rounded."""
    for factor in (3, 5, 7) if isinstance(x, Tensor) else ():
        x = x * factor / factor
    return x * y


def product_only_native(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return only_tracked(raises)(x) * y


HALF_PRECISION = [
    ProductOp("exact", torch.mul, dtypes=(torch.bfloat16,)),
    ProductOp("rounded", rounded_at_each_step, dtypes=(torch.bfloat16,)),
    ProductOp("raising", product_only_native, dtypes=(torch.bfloat16,)),
    ProductOp("random", lambda x, y: x * y * (1 if x.dtype is torch.float64 else 2), dtypes=(torch.bfloat16,)),
]
PAIRS = [FakePairOp("product", torch.mul), FakePairOp("both_tracked", only_both_tracked_right)]
EXACT = [FakeOp("rounded", only_tracked(lambda: 1 + 2**-52)), FakeOp("by_address", by_address)]
