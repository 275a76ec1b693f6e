"""``torch.utils.swap_tensors`` of tracked tensors: modules convert their parameters with it where the user asked for that.

torch swaps contents, attributes and hooks, and refuses while a weak reference to either tensor is alive. A leaf's node is one: it is let go
for the swap, and each leaf gets a new node after it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.errors import UnsupportedError
from tracer.node import Leaf
from tracer.recording.parents import forget_adopted
from tracer.tracked_tensor import Tensor

#: A weak reference to a tensor that is gone.
_NO_TENSOR: weakref.ref[torch.Tensor] = weakref.ref(torch.empty(0))


def swapping(swap: Callable[[torch.Tensor, torch.Tensor], None]) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """torch's ``swap_tensors``, which takes tracked leaves too."""

    @functools.wraps(swap)
    def swapped(t1: torch.Tensor, t2: torch.Tensor) -> None:
        tensors = (t1, t2)
        for tensor in tensors:
            _check(tensor)
        leaves = [_leaf_of(tensor) for tensor in tensors]
        for leaf in leaves:
            if leaf is not None:
                leaf.tensor = _NO_TENSOR
        try:
            swap(t1, t2)
        except RuntimeError:
            for tensor, leaf in zip(tensors, leaves, strict=True):
                if leaf is not None:
                    _renew(tensor, leaf)  # torch has refused, and nothing has moved
            raise
        for tensor, leaf in zip(tensors, reversed(leaves), strict=True):
            if leaf is not None:
                _renew(tensor, leaf)
                leaf.extras = None
                leaf.add_hook(_refuse)

    return swapped


def _check(tensor: torch.Tensor) -> None:
    """Raise ``UnsupportedError`` for a tensor that is known by more than its content, and so cannot take another's."""
    if type(tensor) is not Tensor:
        return
    with DisableTorchFunctionSubclass():
        view = tensor._base is not None
    if view or tensor.retains_grad:
        raise UnsupportedError(
            f"swap_tensors() got a tensor of shape {tuple(tensor.shape)} that {'is a view of another' if view else 'retains its grad'}. "
            f"Swap clones."
        )


def _leaf_of(tensor: torch.Tensor) -> Leaf | None:
    """The node of a leaf, ours or adopted; None for any other tensor."""
    node = tensor._node if type(tensor) is Tensor else forget_adopted(tensor)
    return node if isinstance(node, Leaf) else None


def _renew(tensor: torch.Tensor, leaf: Leaf) -> None:
    """Give ``tensor`` a node of its own in the place of ``leaf``, with its hooks; an adopted leaf gets one when it is next used."""
    if type(tensor) is Tensor:
        with DisableTorchFunctionSubclass():
            tensor._node = Leaf(tensor, tensor.shape, tensor.dtype)
        tensor._node.extras = leaf.extras


def _refuse(grad: torch.Tensor) -> None:
    raise UnsupportedError(
        f"backward reached a leaf, with a gradient of shape {tuple(grad.shape)}, whose content swap_tensors() has given away since: with "
        f"torch.__future__.set_swap_module_params_on_conversion(True), module.to() and load_state_dict() do that. Convert or load "
        f"before the forward pass, or after backward."
    )
