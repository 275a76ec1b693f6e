"""``torch.func`` on tracked tensors: the call is handed over to our own rules.

Where a tracked tensor is among the arguments, at once. What a function closes over shows only when it is used: torch starts, and the
first call that a tracked tensor answers gives the whole transform over to us, which starts again, from the same random state.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ops_registry.binding import Spelling
from ops_registry.registry import active
from ops_registry.torch_private import transform_parts, tree_any_only
from tracer.func.forward import jvp
from tracer.func.reverse import grad_and_value, linearize, vjp
from tracer.tracked_tensor import Tensor

Transform = Callable[..., Any]


class _Met(BaseException):
    """A tracked tensor takes part in a transform that torch has started. Not for user code to catch."""


class _Watching(dict[Callable[..., Any], Spelling]):
    """In the place of the table of rules while torch runs a transform of its own: whatever is asked of it, a tracked tensor is there."""

    def __missing__(self, key: Callable[..., Any]) -> NoReturn:
        raise _Met


class _State(threading.local):
    ours = False


_state = _State()


@contextmanager
def on_our_rules() -> Iterator[None]:
    """Transforms inside the block are ours from the start, also on plain tensors."""
    before, _state.ours = _state.ours, True
    try:
        yield
    finally:
        _state.ours = before


def handed_over(theirs: Transform, ours: Transform) -> Transform:
    """One of torch's transforms that is ours where a tracked tensor takes part."""

    @functools.wraps(theirs)
    def transform(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return theirs(*args, **kwargs)
        if _state.ours or tree_any_only(Tensor, lambda _: True, (args, kwargs)):
            return ours(*args, **kwargs)
        table = active.table
        if type(table) is _Watching:  # within a transform that is watched already, which starts again as a whole
            return theirs(*args, **kwargs)
        random_state = torch.get_rng_state()
        active.table = _Watching()
        try:
            return theirs(*args, **kwargs)
        except _Met:
            pass
        finally:
            active.table = table
        torch.set_rng_state(random_state)
        return ours(*args, **kwargs)

    return transform


def _vjp(func: Callable[..., Any], *primals: Any, **kwargs: Any) -> tuple[Any, ...]:
    """torch's ``vjp``, whose function of cotangents is ours where a tracked one is given to it."""
    random_state = torch.get_rng_state()
    value, theirs, *aux = _torch_vjp(func, *primals, **kwargs)

    @functools.wraps(theirs)
    def vjp_fn(cotangents: Any, *args: Any, **keywords: Any) -> Any:
        if not tree_any_only(Tensor, lambda _: True, cotangents):
            return theirs(cotangents, *args, **keywords)
        if type(active.table) is _Watching:
            raise _Met
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(random_state)
            _, ours, *_ = vjp(func, *primals, **kwargs)
        return ours(cotangents, *args, **keywords)

    return (value, vjp_fn, *aux)


_torch_vjp: Callable[..., tuple[Any, ...]] = transform_parts._vjp_with_argnums
_torch_functionalize: Callable[..., Callable[..., Any]] = torch.func.functionalize


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """``torch.func.functionalize``; where a tracked tensor takes part the function itself, whose values it does not change."""
    return handed_over(_torch_functionalize(func, remove=remove), func)


#: Our transforms by the names under which torch looks up its own.
_OURS: dict[str, Transform] = {
    "grad_and_value_impl": grad_and_value,
    "_vjp_with_argnums": vjp,
    "_jvp_with_argnums": jvp,
    "linearize": linearize,
}
TRANSFORMS = {
    name: handed_over(_vjp if ours is vjp else getattr(transform_parts, name), ours) for name, ours in _OURS.items()
}
