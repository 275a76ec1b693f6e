"""The tensors of a call under check: copies that lie in memory as the originals do, leaves of either kind, random cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase, tree_leaves
from tracer.tracked_tensor import track

#: Makes a leaf of a plain tensor, which requires grad if the second argument says so.
MakeLeaf = Callable[[torch.Tensor, bool], torch.Tensor]

#: The random state in which every call is made, so that random ops draw the same.
SEED = 42


def restart_random(seed: int) -> None:
    """``torch.manual_seed``, which formats the stack for each kind of device that is not there: many times what a checked call takes."""
    torch.default_generator.manual_seed(seed)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without a history."""
    with DisableTorchFunctionSubclass():
        return TensorBase.detach(tensor)


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as the original does, gaps and repeated elements included."""
    source = plain(tensor)
    if source.layout != torch.strided or source.is_conj() or source.is_neg() or source.is_nested:
        return source.clone()
    empty = torch.empty(0, dtype=source.dtype, device=source.device)
    return empty.set_(source.untyped_storage().clone(), source.storage_offset(), source.size(), source.stride())


def non_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, lying in memory behind an offset, with the axes in reverse order and gaps that hold ``foreign`` values."""
    axes = list(range(tensor.dim()))[::-1]
    turned = plain(tensor).permute(axes)
    return torch.stack((foreign(turned), turned), -1)[..., 1].permute(axes)


def foreign(like: torch.Tensor) -> torch.Tensor:
    """What nobody may read: nan, or an integer that is out of range for most dimensions."""
    odd = torch.nan if can_have_gradient(like) else 12
    return torch.full_like(like, odd)


def can_have_gradient(value: Any) -> bool:
    """Whether a gradient can flow to it."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def tensors_of(*nests: Any) -> list[torch.Tensor]:
    """All tensors in nests of arguments and results."""
    return [t for t in tree_leaves(nests) if isinstance(t, torch.Tensor)]


def requiring_grad(nest: Any) -> list[torch.Tensor]:
    """The tensors among results that require grad."""
    return [t for t in tensors_of(nest) if t.requires_grad]


def random_like(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """A random cotangent for each; complex ones have both parts. The same for the same shapes, whatever the class of the tensor."""
    made = []
    for i, tensor in enumerate(tensors):
        generator = torch.Generator().manual_seed(1000 * seed + i)
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        values = torch.randn(tuple(tensor.shape), generator=generator, dtype=wide)
        made.append(values.to(device=tensor.device, dtype=tensor.dtype))
    return made


def native_leaf(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A leaf of torch's autograd."""
    return tensor.requires_grad_(requires_grad)


def tracked_leaf(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A leaf of ours."""
    return track(tensor, requires_grad)


def tracked_alone(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A leaf of ours where it requires grad; the plain tensor where not."""
    return track(tensor, True) if requires_grad else tensor


def leaves_of(values: Sequence[Any], wanted: Sequence[int], leaf: MakeLeaf) -> list[Any]:
    """The values of a call with fresh leaves in place of the tensors; one that stands at two places stays one."""
    copies: dict[int, Any] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor) and id(value) not in copies:
            copies[id(value)] = leaf(twin(value), i in wanted)
    return [copies.get(id(v), v) for v in values]
