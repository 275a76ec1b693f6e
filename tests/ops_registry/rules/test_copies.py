"""Rules of ``ops_registry/rules/copies.py``."""

from __future__ import annotations

import pytest
import torch
from support.checking import Case, case, rand, run_case
from support.results import square

import tracer

C = torch.complex128
aten = torch.ops.aten
#: Conversions round: what central differences see is the rounding.
ROUNDS = {"differences": False}


CASES = [
    case("clone", lambda x: square(x.clone()), rand(2, 3)),
    case(
        "clone",
        lambda x: square(torch.clone(x, memory_format=torch.channels_last)),
        rand(1, 2, 3, 2, dtype=C),
        label="channels-last",
    ),
    case("clone", lambda x: square(x.expand(3, 2).clone()), rand(2), label="expanded"),
    case("clone", lambda x: x.clone(), rand(0, 2), label="empty"),
    case("contiguous", lambda x: square(x.t().contiguous()), rand(2, 3)),
    case("contiguous", lambda x: square(x.contiguous()), rand(2, 3), label="already"),
    case(
        "contiguous",
        lambda x: square(x.contiguous(memory_format=torch.channels_last)),
        rand(1, 2, 3, 2),
        label="channels-last",
    ),
    case("alias", lambda x: square(aten.alias(x)), rand(2, dtype=C)),
    case("alias", lambda x: square(torch.alias_copy(x)), rand(2), label="copy"),
    case("lift", lambda x: square(aten.lift(x)), rand(2)),
    case("lift_fresh", lambda x: square(aten.lift_fresh(x)), rand(2)),
    case("lift_fresh", lambda x: square(aten.lift_fresh_copy(x)), rand(2), label="copy"),
    case("to", lambda x: square(x.to(torch.float32)), rand(2, 3), label="dtype", **ROUNDS),
    case("to", lambda x: square(x.to(dtype=torch.complex128)), rand(2), label="real-to-complex"),
    case("to", lambda x: square(x.to(x.device, torch.float32, copy=True)), rand(2), label="device-and-dtype", **ROUNDS),
    case("to", lambda x: square(x.to("cpu")), rand(2), label="device"),
    case("to", lambda x: square(x.to(torch.ones(1, dtype=torch.float32))), rand(2), label="other", **ROUNDS),
    case("to", lambda x: square(x.to(x.dtype)), rand(2), label="same"),
    case("to", lambda x: square(aten.to.dtype(x, torch.float32)), rand(2), label="aten", **ROUNDS),
    case("_to_copy", lambda x: square(aten._to_copy(x, dtype=torch.float32)), rand(2), **ROUNDS),
    case("type", lambda x: square(x.type(torch.float32)), rand(2), **ROUNDS),
    case("type", lambda x: square(x.type("torch.DoubleTensor").cpu()), rand(2), label="name"),
    case("to", lambda x: square(x.type_as(torch.ones(1, device=x.device))), rand(2), label="type_as", **ROUNDS),
    case("cpu", lambda x: square(x.cpu()), rand(2)),
    case("double", lambda x: square(x.double()), rand(2)),
    case("double", lambda x: square(x.double()), rand(2, dtype=torch.float32), label="from-float", **ROUNDS),
    case("float", lambda x: square(x.float()), rand(2), **ROUNDS),
    case("float", lambda x: square(x.float(memory_format=torch.contiguous_format)), rand(2), label="keyword", **ROUNDS),
    case("half", lambda x: square(x.half()), rand(2), **ROUNDS),
    case("bfloat16", lambda x: square(x.bfloat16()), rand(2), **ROUNDS),
    case("cdouble", lambda x: square(x.cdouble()), rand(2)),
    case("cdouble", lambda x: square(x.cdouble()), rand(2, dtype=C), label="complex"),
    case("cfloat", lambda x: square(x.cfloat()), rand(2), **ROUNDS),
    # Products of complex halves are not there on every device.
    case("chalf", lambda x: x.chalf().cdouble(), rand(2), **ROUNDS),
    case("copy_", lambda x, v: (x * 2).copy_(v * v) * x, rand(3, 4), rand(3, 4)),
    case("copy_", lambda x, v: (x * 2).copy_(v * v) * x, rand(3, 4), rand(4), label="broadcast"),
    case(
        "copy_",
        lambda x, v: (x * 2).copy_(v) * x,
        rand(3),
        rand(3, dtype=torch.float32),
        label="dtype",
        differences=False,
        rtol=1e-6,
    ),
    case(
        "copy_",
        lambda x, v: ((x * 2).copy_(v) * x).abs(),
        rand(3, dtype=torch.complex128),
        rand(3),
        label="real-into-complex",
    ),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "move", [lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.pin_memory()], ids=["cuda", "to", "pin_memory"]
)
def test_gradient_comes_back_to_the_device_of_the_input(move: object) -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    (move(x) * 3).sum().backward()  # type: ignore[operator]
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [3.0, 3.0]


def test_contiguous_of_a_contiguous_tensor_is_the_same_object() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert x.contiguous() is x
    assert x.requires_grad
    assert x.is_leaf


@pytest.mark.parametrize(
    "same", [lambda x: x.to(x.dtype), lambda x: x.double(), lambda x: x.type_as(x), lambda x: x.cpu()]
)
def test_conversion_that_changes_nothing_gives_the_same_object(same: object) -> None:
    x = tracer.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert same(x) is x  # type: ignore[operator]
    assert x.is_leaf


def test_type_without_arguments_is_the_name() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    assert x.type() == torch.ones(1).type()


@pytest.mark.parametrize("name", ["bool", "byte", "char", "int", "long", "short"])
def test_integers_and_bools_have_no_history(name: str) -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    assert not getattr(x, name)().requires_grad
    assert not x.to(getattr(x, name)().dtype).requires_grad


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_cast_from_complex_to_real_gives_a_real_gradient() -> None:
    z = tracer.tensor([1 + 2j], requires_grad=True)
    z.to(torch.float32).backward(torch.tensor([3.0]))
    assert z.grad.tolist() == [3 + 0j]


def test_gradient_of_a_half_precision_copy_has_the_dtype_of_the_input() -> None:
    x = tracer.tensor([1.0, 2.0], requires_grad=True)
    x.half().sum().backward()
    assert x.grad.dtype == torch.float32


def test_a_plain_tensor_becomes_tracked_by_a_copy_into_it() -> None:
    x, out = tracer.tensor([1.0, 2.0], requires_grad=True), torch.zeros(2)
    out.copy_(x * 3)
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
