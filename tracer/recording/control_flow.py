"""torch's control flow as operators (``torch.cond``, ``while_loop``, ``scan``, ``associative_scan``, ``map``) on tracked tensors.

torch compiles their functions even when it runs eagerly. Where a tracked tensor is among the operands, or within reach of the functions,
they run as the Python that defines them, and every call in them is recorded. ``tracer.install`` puts these in the place of torch's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten
from tracer.tracked_tensor import Tensor


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...] | list[Any] = ()
) -> Any:
    """One of two functions of the operands."""
    return (true_fn if pred else false_fn)(*operands)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """``body_fn`` as long as ``cond_fn`` holds."""
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried


def scan(combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """``carry, y = combine_fn(carry, x)`` for each slice of ``xs``: the last carry, and all ``y`` stacked."""
    slices = _slices(xs, dim, reverse)
    if not slices:
        return init, []
    carry, ys = init, []
    for x in slices:
        carry, y = combine_fn(carry, x)
        ys.append(y)
    return carry, _stacked(ys, dim, reverse)


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """All partial results of folding the slices of ``xs``, stacked."""
    first, *rest = _slices(xs, dim, reverse)
    results = [first]
    for x in rest:
        results.append(combine_fn(results[-1], x))
    return _stacked(results, dim, reverse)


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """``f`` of each slice of ``xs``, stacked."""
    return _stacked([f(x, *args) for x in _slices(xs, 0, False)], 0, False)


def _slices(nest: Any, dim: int, reverse: bool) -> list[Any]:
    """A nest of tensors cut along ``dim``: one nest a slice."""
    leaves, structure = tree_flatten(nest)
    slices = [tree_unflatten(list(row), structure) for row in zip(*(t.unbind(dim) for t in leaves), strict=True)]
    return slices[::-1] if reverse else slices


def _stacked(nests: list[Any], dim: int, reverse: bool) -> Any:
    """One nest of many of the same structure, with the tensors stacked along ``dim``; along the first where one has too few."""
    rows = [tree_flatten(nest)[0] for nest in (reversed(nests) if reverse else nests)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    stacked = [None if c[0] is None else torch.stack(c, _place(dim, c[0])) for c in columns]
    return tree_unflatten(stacked, tree_flatten(nests[0])[1])


def _place(dim: int, part: torch.Tensor) -> int:
    return dim if -part.dim() - 1 <= dim <= part.dim() else 0


#: By torch's names: the functions that run in place of its own.
EAGER: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "associative_scan": associative_scan,
    "map": map,
}


def running_eagerly(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """``theirs``, and ``ours`` where a tracked tensor takes part."""

    @functools.wraps(theirs)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _reaches_tracked((args, kwargs)):
            return theirs(*args, **kwargs)
        return ours(*args, **kwargs)

    return chosen


def _reaches_tracked(value: Any) -> bool:
    """Whether a tracked tensor is in a nest, or within reach of a function in it."""
    seen: dict[int, Any] = {}  # with the objects, so that no id is given twice
    open_ones = [value]
    while open_ones:
        value = open_ones.pop()
        if type(value) is Tensor:
            return True
        if id(value) not in seen:
            seen[id(value)] = value
            open_ones.extend(_within(value))
    return False


def _within(value: Any) -> Iterator[Any]:
    """What a container holds, or a function can name: arguments that are bound, variables it closes over, globals."""
    if isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers(), vars(value))
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set):
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, getattr(value, "__wrapped__", None))
        yield from (_content(cell) for cell in value.__closure__ or ())
        if value.__module__.partition(".")[0] != "torch":
            yield from (value.__globals__.get(name) for name in _names_in(value.__code__))
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType | torch.Tensor):
        yield vars(value)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up, in functions that it defines too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
