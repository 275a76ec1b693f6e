"""The captured graph made smaller: no aliases, no dead calls, no inputs that nobody reads; and each gradient in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ops_registry.torch_private import storage_key

_aten = torch.ops.aten
#: What gives its argument back, in a graph in which nothing is written before the end.
_ALIASES = frozenset({_aten.detach.default, _aten.alias.default})
#: What has no effect in a graph, whatever torch says of it: what it gives goes if nobody reads it.
_PURE = frozenset(
    {
        _aten._fused_sdp_choice.default,
        _aten._local_scalar_dense.default,
        torch.ops.profiler._record_function_enter_new.default,
    }
)
#: What the graph does not need: the profiler's marks of an optimiser's step.
_MARKS = frozenset({torch.ops.profiler._record_function_exit._RecordFunction})
#: Views, which may show all of what they look at as it is.
_VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten.expand.default})
#: A value with another in a part of it.
_SCATTERS = frozenset(
    {
        _aten.select_scatter.default,
        _aten.slice_scatter.default,
        _aten.diagonal_scatter.default,
        _aten.as_strided_scatter.default,
    }
)


def simplified(module: torch.fx.GraphModule, own: Sequence[int]) -> tuple[torch.fx.GraphModule, list[int]]:
    """The same graph, simpler, and which of its inputs are left. The results at ``own`` share their memory with nothing."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target in _MARKS:
            graph.erase_node(node)
        elif node.target in _SCATTERS:
            _write_as_it_comes(node)
    for node in graph.nodes:
        if node.target is _aten.cat.default:
            _leave_out_nothing(node)
        if node.target is _aten.select.int:
            _look_past_writes(node)
        same = _same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    give_own_memory(graph, output, own)
    # The choice among kernels of attention is said to draw random numbers, and draws none.
    graph.eliminate_dead_code(lambda node: node.target not in _PURE and node.is_impure())
    used = []
    for position, node in enumerate([node for node in graph.nodes if node.op == "placeholder"]):
        if node.users:
            used.append(position)
        else:
            graph.erase_node(node)
    return module, used


def _same_as(node: torch.fx.Node) -> Any:
    """The argument that a call gives back, or whose like it gives back; None where it computes something."""
    if node.target in _ALIASES:
        return node.args[0]
    if node.target in _VIEWS and same_geometry(node.args[0].meta["val"], node.meta["val"]):  # type: ignore[union-attr]
        return node.args[0]
    if node.target is _aten.empty_like.default and _is_unwritten_like(node.args[0], node):
        return node.args[0]
    if node.target is _aten.copy.default and same_geometry(node.args[1].meta["val"], node.meta["val"]):  # type: ignore[union-attr]
        return node.args[1]
    return None


def _write_as_it_comes(scatter: torch.fx.Node) -> None:
    """Let ``scatter`` write a tensor itself: a copy of it in the layout of the part that it goes to may be as large as the whole."""
    copied: Any = scatter.args[1]
    if copied.target is not _aten.copy.default:
        return
    value = copied.args[1]
    kinds = [(t.dtype, t.device, *t.shape) for t in (value.meta["val"], copied.meta["val"])]
    if all(type(size) is int for kind in kinds for size in kind[2:]) and kinds[0] == kinds[1]:
        scatter.args = (scatter.args[0], value, *scatter.args[2:])
        if not copied.users:
            scatter.graph.erase_node(copied)


def _look_past_writes(select: torch.fx.Node) -> None:
    """Let ``select`` read what a write to another place has left as it was before that write.

    The gradient of ``states[:, t] = h`` in a loop is for each step a copy of the whole with zeros at ``t``, of which the step before
    reads its own place: without those reads nobody needs the copies.
    """
    # What is computed of it is new memory, and that alone.
    if any(is_view(user) or user.op == "output" for user in select.users):
        return
    source: Any
    source, dim, index = select.args
    while (before := _before_write(source, dim, index)) is not None:
        source = before
    if source is not select.args[0]:
        select.args = (source, dim, index)
        select.meta["val"] = source.meta["val"].select(dim, index)


def _before_write(source: torch.fx.Node, dim: Any, index: Any) -> Any:
    """What has the same numbers as ``source`` at ``index`` of ``dim``, of the same geometry, and was made before it; None for nothing."""
    if source.target is _aten.select_scatter.default:
        before, _, written_dim, written = source.args
        size = source.meta["val"].shape[dim]
        if (
            written_dim != dim
            or any(type(n) is not int for n in (size, index, written))
            or (index - written) % size == 0
        ):
            return None
    elif source.target is _aten.clone.default:
        before = source.args[0]
    else:
        return None
    same = same_geometry(before.meta["val"], source.meta["val"])  # type: ignore[union-attr]
    return before if same else None


def is_view(node: torch.fx.Node) -> bool:
    """Whether ``node`` hands on the memory of its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _is_nothing(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and type(tensor.shape[0]) is int and tensor.shape[0] == 0


def _leave_out_nothing(cat: torch.fx.Node) -> None:
    """Take tensors of shape ``(0,)`` out of what is joined: torch joins them to anything, and compilers lay out the result anew."""
    joined: Any = cat.args[0]
    result = cat.meta["val"]
    kept = [part for part in joined if not _is_nothing(part.meta["val"])]
    if len(kept) == len(joined) or not kept or any(part.meta["val"].dtype != result.dtype for part in kept):
        return
    if len(kept) > 1:
        cat.args = (kept, *cat.args[1:])
    elif result.is_contiguous():
        cat.target, cat.args = _aten.clone.default, (kept[0],)
        cat.kwargs = {"memory_format": torch.contiguous_format}


def _is_unwritten_like(argument: Any, node: torch.fx.Node) -> bool:
    """Whether ``argument`` is memory that nobody writes, and only looks like what ``node`` makes."""
    same = argument.target is _aten.empty_like.default and same_geometry(argument.meta["val"], node.meta["val"])
    return same and len(argument.users) == 1


def same_geometry(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, device, shape and strides, without asking for the value of a symbolic size."""
    if left.dtype != right.dtype or left.device != right.device:
        return False
    sizes = (*left.shape, *left.stride()), (*right.shape, *right.stride())
    return all(type(size) is int for size in (*sizes[0], *sizes[1])) and sizes[0] == sizes[1]


def give_own_memory(graph: torch.fx.Graph, output: torch.fx.Node, own: Sequence[int]) -> None:
    """Copy each result at ``own`` that is in the memory of an input or of another result."""
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    taken = {_memory(node) for node in graph.nodes if node.op == "placeholder"}
    wanted = set(own)
    taken |= {_memory(node) for position, node in enumerate(results) if position not in wanted}
    for position in own:
        memory = _memory(results[position])
        if memory in taken:
            with graph.inserting_before(output):
                copied = graph.call_function(_aten.clone.default, (results[position],))
                copied.meta = dict(results[position].meta)
            results[position] = copied
        taken.add(memory)
    output.args = (results,)


def _memory(node: Any) -> int:
    # A view may have been made of another copy of what it looks at.
    while isinstance(node, torch.fx.Node) and is_view(node):
        node = node.args[0]
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return storage_key(value)
    return id(node)


def written_inputs(graph: torch.fx.Graph, used: Sequence[int]) -> list[int]:
    """The inputs that calls of the graph write into, by their positions before it was made smaller."""
    places = dict(zip((node for node in graph.nodes if node.op == "placeholder"), used, strict=True))
    return [
        places[node.args[0]] for node in graph.nodes if node.target is _aten.copy_.default and node.args[0] in places
    ]
