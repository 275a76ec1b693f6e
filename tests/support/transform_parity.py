"""One call of a transform by ``torch.func`` on plain tensors, and by us: the same values and structures, or both raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tracer
from ops_registry.errors import GlassgradError
from ops_registry.torch_private import tree_flatten

#: A call: ``names`` is where the transforms are looked up, ``make`` makes a tensor of the kind under test out of a plain one.
Call = Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], Any]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy."""
    return tensor.clone()


def tracked(tensor: torch.Tensor) -> torch.Tensor:
    """A tracked copy that requires grad where it can; not a leaf."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.clone()
    return tracer.tensor(tensor, requires_grad=True) * 1


WORLDS = {
    "tracer.func on plain tensors": (tracer.func, plain),
    "torch.func on tracked tensors": (torch.func, tracked),
    "tracer.func on tracked tensors": (tracer.func, tracked),
}


def outcome(call: Call, names: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What the call returns, or the exception that it raises."""
    torch.manual_seed(0)
    try:
        return call(names, make)
    except Exception as error:
        return error


def assert_same_outcome(call: Call, world: str) -> None:
    """Hold the call in ``world`` against torch's; an error that is not torch's own has to be of ours."""
    theirs = outcome(call, torch.func, plain)
    found = outcome(call, *WORLDS[world])
    if isinstance(theirs, Exception):
        assert isinstance(found, Exception), f"torch raises {theirs!r}, and we return {found}"
        assert isinstance(found, GlassgradError | type(theirs)), found
        return
    if isinstance(found, Exception):
        raise found
    ours, spec = tree_flatten(found)
    expected, expected_spec = tree_flatten(theirs)
    assert spec == expected_spec
    for ours_one, one in zip(ours, expected, strict=True):
        if isinstance(one, torch.Tensor):
            assert ours_one.dtype == one.dtype
            plain_one = ours_one.detach().as_subclass(torch.Tensor)
            torch.testing.assert_close(plain_one, one.detach(), rtol=1e-6, atol=1e-9, equal_nan=True)
        else:
            assert type(ours_one) is type(one)
