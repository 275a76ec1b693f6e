"""How errors and graphs name a function and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tracer.naming import describe, qualified

NAMES: dict[str, Callable[..., Any]] = {
    "torch.cdist": torch.cdist,
    "torch.relu": torch.relu,
    "torch.linalg.eig": torch.linalg.eig,
    "torch.special.i0e": torch.special.i0e,
    "torch.fft.fft": torch.fft.fft,
    "torch.nn.functional.relu": F.relu,
    "torch.nn.functional.gelu": F.gelu,
    "torch.Tensor.mvlgamma": torch.Tensor.mvlgamma,
    "torch.Tensor.__add__": torch.Tensor.__add__,
    "torch.Tensor.add_": torch.Tensor.add_,
    "torch.Tensor.T.__get__": torch.Tensor.T.__get__,
    "torch.ops.aten.add": torch.ops.aten.add,
    "torch.ops.aten.add.Tensor": torch.ops.aten.add.Tensor,
    "torch._C._nn.mse_loss": torch._C._nn.mse_loss,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_named_as_a_user_would_write_it(name: str) -> None:
    assert qualified(NAMES[name]) == name


@pytest.mark.parametrize("name", [name for name in NAMES if "__get__" not in name])
def test_the_name_leads_to_the_function(name: str) -> None:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found == NAMES[name]


def test_a_function_that_is_not_torchs_has_its_own_name() -> None:
    assert qualified(len) == "len"


def test_arguments_are_described_by_shape_and_dtype_or_as_they_are() -> None:
    assert describe((torch.ones(2, 3), 1, "sum", None)) == "float32[2, 3], 1, 'sum', None"
    assert describe((torch.ones((), dtype=torch.complex128),)) == "complex128[]"
    assert describe(([torch.ones(1), torch.ones(2, dtype=torch.int64)], [])) == "[float32[1], int64[2]], []"
    assert describe(()) == ""


def test_a_long_argument_is_cut() -> None:
    text = describe((list(range(50)),))
    assert len(text) == 60 and text.startswith("[0, 1, 2,") and text.endswith("...")
