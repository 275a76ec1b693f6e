"""The names of ``torch.func``, on our own rules from the start, whether or not a tracked tensor takes part."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ops_registry.errors import GlassgradError
from ops_registry.torch_private import transform_parts
from tracer.errors import TransformError, TransformValueError
from tracer.func.handover import on_our_rules
from tracer.func.jacobians import jacobian, scalar_hessian

T = TypeVar("T", bound=Callable[..., Any])

#: Where torch's own code of the transforms lies.
_TORCH_TRANSFORMS = os.path.dirname(transform_parts.__file__)


@contextmanager
def _our_transform(name: str) -> Iterator[None]:
    """A transform of ours runs: on our rules, and what torch's own code of it refuses is an error of ours."""
    try:
        with on_our_rules():
            yield
    except GlassgradError:
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if os.path.dirname(frame.f_code.co_filename) != _TORCH_TRANSFORMS:
            raise  # raised by the function
        kind = TransformValueError if isinstance(error, ValueError) else TransformError
        raise kind(f"{name} cannot take these arguments, options, or results of the function: {error}") from error


def _made_on_our_rules(transform: T) -> T:
    """A transform of torch's that returns a function, with that function run on our rules."""

    @functools.wraps(transform)
    def make(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        with _our_transform(transform.__name__):
            made = transform(*args, **kwargs)

        @functools.wraps(made)
        def run(*inputs: Any, **keywords: Any) -> Any:
            with _our_transform(transform.__name__):
                return made(*inputs, **keywords)

        return run

    return make  # type: ignore[return-value]


def _runs_on_our_rules(transform: T) -> T:
    """A transform of torch's that runs the function itself, on our rules."""

    @functools.wraps(transform)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _our_transform(transform.__name__):
            return transform(*args, **kwargs)

    return run  # type: ignore[return-value]


grad = _made_on_our_rules(torch.func.grad)
grad_and_value = _made_on_our_rules(torch.func.grad_and_value)
jacfwd = _made_on_our_rules(torch.func.jacfwd)
vmap = _made_on_our_rules(torch.func.vmap)
vjp = _runs_on_our_rules(torch.func.vjp)
jvp = _runs_on_our_rules(torch.func.jvp)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``torch.func.linearize``."""
    with _our_transform("linearize"):
        return torch.func.linearize(func, *primals)


def jacrev(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """``torch.func.jacrev``."""
    odd = chunk_size is not None and (
        not isinstance(chunk_size, int) or chunk_size < 1
    )  # torch says what is wrong with it
    if _preallocate_and_copy or odd:
        return _made_on_our_rules(torch.func.jacrev)(
            func, argnums, has_aux=has_aux, chunk_size=chunk_size, _preallocate_and_copy=_preallocate_and_copy
        )

    @functools.wraps(func)
    def run(*args: Any) -> Any:
        with _our_transform("jacrev"):
            return jacobian(func, args, argnums, has_aux, chunk_size)

    return run


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """``torch.func.hessian``; of a scalar function by one sweep over its gradient, which is faster than ``jacfwd`` over ``jacrev``."""
    by_columns = _made_on_our_rules(torch.func.hessian)(func, argnums)

    @functools.wraps(func)
    def run(*args: Any) -> Any:
        with _our_transform("hessian"):
            found = scalar_hessian(func, args, argnums)
        return by_columns(*args) if found is None else found

    return run
