"""Which tensors of a call want a gradient, tracked ones and those of torch's own autograd.

A native leaf that requires grad is adopted: it gets a ``Leaf`` node, and its ``.grad`` is filled by our backward. A native tensor with
a history is bridged: the gradient that arrives there is handed to torch's own backward. So no gradient of theirs is ever lost.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ops_registry.errors import UnsupportedCallError
from ops_registry.rule import LISTS, Rule
from ops_registry.scopes import blocks_began, replaced, replaced_here
from ops_registry.torch_private import in_data_parallel_forward
from tracer.errors import UnsupportedError
from tracer.node import Bridge, Leaf, Node
from tracer.tracked_tensor import Tensor

#: dtypes that carry gradients.
DIFFERENTIABLE = frozenset(
    d for d in vars(torch).values() if isinstance(d, torch.dtype) and (d.is_floating_point or d.is_complex)
)

_PLAIN = torch.Tensor
#: Types of the most frequent arguments that are no tensors and hold none.
_NEVER_WANTING = frozenset(
    {bool, float, int, slice, str, type(None), type(Ellipsis), torch.Size, torch.device, torch.dtype}
)

#: A node of torch's own autograd, named after its op; a custom Function's has no number.
_NATIVE = re.compile(r"(\w+)Backward\d+")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")

#: The nodes of native leaves, so that all uses of one meet. Beside the tensors and not on them: an attribute would be copied and saved
#: along with a tensor, and the copy's gradient would go to the original.
_adopted: MutableMapping[torch.Tensor, Leaf] = WeakTensorKeyDictionary()


def find_parents(rule: Rule, bound: tuple[Any, ...]) -> tuple[int, tuple[Any, ...], bool]:
    """Which of the rule's inputs want a gradient (a bit each), their nodes, and whether one has a history in torch's autograd."""
    mask, bit, has_native = 0, 1, False
    parents: list[Any] = []
    for position, _ in rule.inputs:
        value = bound[position]
        kind = type(value)
        if kind is Tensor:
            node = value._node
            if node is not None:
                parents.append(node)
                mask |= bit
        elif kind is list or kind is tuple:
            nodes, found_native = nodes_of_list(value)
            if nodes is not None:
                parents.append(nodes)
                mask |= bit
                has_native |= found_native
        elif isinstance(value, _PLAIN) and value.requires_grad:
            parents.append(node_of(value))
            mask |= bit
            has_native = True
        bit <<= 1
    if rule.uncovered:
        check_uncovered(rule, bound)
    return mask, tuple(parents), has_native


def check_uncovered(rule: Rule, bound: tuple[Any, ...]) -> None:
    """Raise ``UnsupportedCallError`` where a gradient is wanted in an argument for which the rule has no formula: it would be lost."""
    for position, name in rule.uncovered:
        value = bound[position]
        if type(value) not in _NEVER_WANTING and wants_gradient(value):
            raise UnsupportedCallError(
                f"{rule.name}: its rule gives no gradient for '{name}', which requires grad here and would lose it. Detach it, or cover it "
                f"with a formula: @ops_registry.backward(..., wrt='{name}')."
            )


def wants_gradient(nest: Any) -> bool:
    """Whether a tensor in a nest of tuples, lists and dicts requires grad, be it native."""
    if type(nest) is Tensor:
        return nest._node is not None
    if isinstance(nest, _PLAIN):
        return nest.requires_grad
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, LISTS):
        return False
    for value in nest:  # any() would take longer
        kind = type(value)
        if kind is Tensor:
            if value._node is not None:
                return True
        elif kind not in _NEVER_WANTING and wants_gradient(value):
            return True
    return False


def node_of(tensor: torch.Tensor) -> Node:
    """The node of a plain tensor that requires grad in torch's own autograd.

    Raises ``UnsupportedError`` for a parameter in the forward pass of its DistributedDataParallel, whose hooks would not fire.
    """
    if not tensor.is_leaf:
        if replaced():
            _refuse_unseen(tensor)
        return Bridge(tensor)
    if in_data_parallel_forward(tensor):
        raise UnsupportedError(
            f"a parameter of shape {tuple(tensor.shape)} met a tracked tensor in the forward pass of a module wrapped by "
            f"DistributedDataParallel: its gradient would come from our backward pass, of which the wrapper does not hear, and each "
            f"process would train for itself. Use plain tensors there (x.data), or do not wrap the module."
        )
    leaf = _adopted.get(tensor)
    if leaf is None:
        leaf = _adopted[tensor] = Leaf(tensor, tensor.shape, tensor.dtype, adopted=True)
    leaf.shape, leaf.dtype = tensor.shape, tensor.dtype  # .data may have been set since
    return leaf


def _refuse_unseen(tensor: torch.Tensor) -> None:
    """Raise ``UnsupportedCallError`` where torch's own history of a tensor has a call that a rule of an open ``use`` block is for."""
    began, pending, seen = blocks_began(), [tensor.grad_fn], set()
    while pending:
        function = pending.pop()
        if function is None or function in seen or function._sequence_nr() < began:
            continue
        seen.add(function)
        pending += [before for before, _ in function.next_functions]
        called = _NATIVE.fullmatch(function.name())
        name = _CAPITAL.sub("_", called[1]).lower() if called else ""
        op = replaced_here((name,), function._sequence_nr())
        if op is not None:
            raise UnsupportedCallError(
                f"use() has a rule for {op}, and {op} was called inside its block on torch's own tensors alone, of which nothing here "
                f"hears: torch's own derivative would be taken. Track what it was called on: nn.track(model), tracer.tensor(x)."
            )


def known_node(tensor: torch.Tensor) -> Node | None:
    """The node of a tensor, where it has one already: a native leaf has none before its first use beside a tracked tensor."""
    return tensor._node if type(tensor) is Tensor else _adopted.get(tensor)


def forget_adopted(tensor: torch.Tensor) -> Leaf | None:
    """The node of a native leaf that was adopted, which is forgotten: its next use makes another. None for any other tensor."""
    return _adopted.pop(tensor, None)


def any_node(tensor: torch.Tensor) -> Node | None:
    """The node of a tensor, tracked or native; None where no gradient is wanted."""
    if type(tensor) is Tensor:
        return tensor._node
    return node_of(tensor) if tensor.requires_grad else None


def nodes_of_list(values: Any) -> tuple[tuple[Any, ...] | None, bool]:
    """The nodes of a list of tensors (None where none is wanted), or None when no element wants one; whether one is native."""
    nodes: list[Any] = []
    wanted = found_native = False
    for value in values:
        node = None
        if type(value) is Tensor:
            node = value._node
        elif isinstance(value, _PLAIN) and value.requires_grad:
            node = node_of(value)
            found_native = True
        if node is not None:
            wanted = True
        nodes.append(node)
    return (tuple(nodes), found_native) if wanted else (None, False)


def nodes_in(nest: Any) -> list[Node]:
    """The nodes of all tensors in a nest of tuples, lists and dicts."""
    if isinstance(nest, torch.Tensor):
        node = any_node(nest)
        return [] if node is None else [node]
    if isinstance(nest, dict):
        nest = tuple(nest.values())
    return [n for item in nest for n in nodes_in(item)] if isinstance(nest, LISTS) else []


def holds_tracked(nest: Any) -> bool:
    """Whether a tracked tensor that requires grad stands in a nest of tuples, lists and dicts: torch's own are no matter."""
    if type(nest) is Tensor:
        return nest._node is not None
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, LISTS):
        return False
    return any(holds_tracked(value) for value in nest)
