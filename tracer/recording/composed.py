"""Calls of functions that torch composes of others, under a rule for the call as a whole (``ops_registry/composed.py``).

Where the rule gives every gradient that is wanted, the call runs like any other. Where the body has to give some, it is recorded beside the
call, from aliases of the arguments on: the call's node saves that record, and asks it for the gradients when backward comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ops_registry.binding import Spelling
from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import active
from ops_registry.rule import BODY, Rule
from ops_registry.torch_private import DisableTorchFunctionSubclass, storage_key
from tracer.node import CallNode, Node, OpaqueNode, Output, tensors_in
from tracer.recording.call import record, save_and_mark
from tracer.recording.levels import levels
from tracer.recording.parents import any_node, find_parents
from tracer.tracked_tensor import Tensor, plain_alias, tracked_alias


class Argument(OpaqueNode):
    """Where the record of a body begins: an argument, told apart from the same tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor, node: Node) -> None:
        super().__init__("argument", (node,), tensor.shape, tensor.dtype)

    @property
    def origin(self) -> str:
        return "an argument of a composed function"

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        return (grad,)


class Body:
    """What the body of one call recorded, from its arguments to its results."""

    def __init__(self, arguments: tuple[Any, ...], result: Any) -> None:
        #: In the order of the rule's inputs: the alias of a tensor, a list of them, or None where no gradient is wanted.
        self.arguments = arguments
        self.results = tensors_in(result)

    def gradients(self, grad: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        """The gradients of the arguments that need one, by the rules that the body ran under."""
        asked = [a if need else None for a, need in zip(self.arguments, needs, strict=True)]
        inputs = [tensor for tensor in tensors_in(asked) if tensor.requires_grad]
        roots = [
            (r, g)
            for r, g in zip(self.results, grad if isinstance(grad, tuple | list) else (grad,), strict=True)
            if g is not None and r.requires_grad
        ]
        if not roots or not inputs:
            return (None,) * len(asked)
        results, cotangents = zip(*roots, strict=True)
        found = torch.autograd.grad(
            results, inputs, cotangents, retain_graph=True, create_graph=torch.is_grad_enabled(), allow_unused=True
        )
        of = {id(tensor): g for tensor, g in zip(inputs, found, strict=True)}
        return tuple([self._of(argument, of) for argument in asked])

    def _of(self, argument: Any, of: dict[int, Any]) -> Any:
        if isinstance(argument, tuple | list):
            return [of.get(id(tensor)) for tensor in argument]
        return of.get(id(argument))


def record_composed(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the call, and record it as one, with its body beside it where gradients are to come from there."""
    rule = spelling.rule
    if torch.is_grad_enabled():
        with DisableTorchFunctionSubclass():
            bound = spelling.bind(args, kwargs)
            mask, parents, _ = find_parents(rule, bound)
        if mask:
            _refuse_write(spelling, bound)
            if BODY in rule.plan(mask).saved_names:
                return _record_with_body(spelling, mask, parents, func, args, kwargs, bound)
    return record(spelling, func, args, kwargs)


def _refuse_write(spelling: Spelling, bound: tuple[Any, ...]) -> None:
    names = spelling.rule.signature.names
    if spelling.inplace or ("inplace" in names and bound[names.index("inplace")]):
        raise UnsupportedCallError(
            f"{spelling.rule.name} writes into its argument here, and is made of other ops: a rule for the call as a whole cannot stand "
            f"for the write. Call it out of place, or replace the rules of the ops inside."
        )


def _record_with_body(
    spelling: Spelling,
    mask: int,
    parents: tuple[Any, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    bound: tuple[Any, ...],
) -> Any:
    rule = spelling.rule
    with DisableTorchFunctionSubclass():
        args, kwargs = _with_aliases(args), _with_aliases(kwargs)
        inner = spelling.bind(args, kwargs)
    outer, active.table = active.table, rule.composed  # type: ignore[assignment]
    try:
        recorded = func(*args, **kwargs)
    finally:
        active.table = outer
    with DisableTorchFunctionSubclass():
        result = _plain(recorded, _by_memory(bound))
        by_products = {BODY: Body(_differentiable(rule, inner), recorded)}
        return _let_go(save_and_mark(rule, mask, parents, bound, result, by_products))


#: A saved tensor that takes no memory, at its version.
_NOTHING = ((torch.empty(0), 0),)


def _let_go(result: Any) -> Any:
    """Let the call's node be released by a backward pass, as one that saved a tensor is: what the body saved goes with it."""
    for tensor in tensors_in(result):
        node = tensor._node if type(tensor) is Tensor else None
        call = node.parents[0] if type(node) is Output else node
        if type(call) is CallNode and not call.saved_versions and not call.packed:
            call.saved_versions = _NOTHING
    return result


def _differentiable(rule: Rule, bound: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of the arguments, those that the rule has gradients for."""
    return tuple([bound[position] for position in rule.positions])


def _with_aliases(nest: Any) -> Any:
    """A nest of arguments with a tracked alias in each place of a tensor that wants a gradient.

    Places, not tensors: what one tensor receives as query is not what it receives as key.
    """
    if isinstance(nest, torch.Tensor):
        node = any_node(nest)
        return nest if node is None else tracked_alias(plain_alias(nest), Argument(nest, node))
    if isinstance(nest, dict):
        return {name: _with_aliases(value) for name, value in nest.items()}
    if type(nest) in (tuple, list):
        return type(nest)([_with_aliases(value) for value in nest])
    return nest


def _plain(result: Any, arguments: Mapping[int, torch.Tensor]) -> Any:
    """The results as new plain tensors, in the structure in which they came; ``arguments`` are those of the call, by their memory."""
    if isinstance(result, torch.Tensor):
        return _as_result(result, arguments) if type(result) is Tensor else result
    if isinstance(result, tuple | list):
        items = [_plain(item, arguments) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _as_result(result: torch.Tensor, arguments: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """An alias of what the body returned; where that shares an argument's memory, a view of the argument, which hears of writes."""
    argument = arguments.get(storage_key(result)) if arguments else None
    if argument is None or argument.dtype is not result.dtype or argument.is_conj() != result.is_conj():
        return plain_alias(result)
    return argument.as_strided(result.shape, result.stride(), result.storage_offset())


def _by_memory(arguments: tuple[Any, ...]) -> dict[int, torch.Tensor]:
    """Inside a level of ``torch.vmap`` tensors do not say whose memory they have."""
    tensors = () if levels.open else tensors_in(arguments)
    return {
        storage_key(tensor): tensor
        for tensor in tensors
        if tensor.layout is torch.strided and (type(tensor) is Tensor or not tensor.requires_grad)
    }
