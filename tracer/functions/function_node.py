"""The node of a custom Function's call: the user's ``backward`` is where its gradients come from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ops_registry.rule import LISTS
from ops_registry.scopes import as_now, replaced, run_unreplaced
from ops_registry.torch_private import DisableTorchFunctionSubclass, SingleLevelFunction, storage_key
from tracer.errors import FunctionError, InPlaceError, SecondDerivativeError
from tracer.functions.context import FunctionContext
from tracer.functions.dependencies import DependencyTracker
from tracer.graph import enter
from tracer.node import OpaqueNode, RaisingNode
from tracer.recording.saved import version_of
from tracer.tracked_tensor import Tensor, tracked_alias

#: Marks a ``backward`` that torch's decorator has wrapped.
_ONCE = once_differentiable(lambda ctx: None).__code__


class FunctionNode(OpaqueNode):
    """One call of a custom Function. Attributes of its ``ctx`` can be read from it, as from torch's ``grad_fn``."""

    __slots__ = ("again", "backward", "cls", "ctx", "results", "strict")

    #: As in torch, what the user's ``backward`` leaves out is no gradient, not one of zero.
    none_is_zero = False

    def __init__(
        self, cls: Any, ctx: FunctionContext, parents: tuple[Any, ...], results: list[Any], strict: bool
    ) -> None:
        super().__init__(cls.__name__, parents, None, None)
        self.cls = cls
        self.ctx = ctx
        #: Shape, dtype and device of each result, and whether a gradient comes for it; None for one that is no tensor.
        self.results = results
        self.backward = user_backward(cls)
        #: The same under the replaced rules of the forward pass, a part of which it may run again: a checkpoint of somebody's own.
        self.again = as_now(self.backward) if replaced() else None
        #: ``backward`` may not write into the gradient it is given, not even where nobody else holds it.
        self.strict = strict

    @property
    def zero_gradient(self) -> Any:
        """Its answer to a gradient of zero need not be zero: ``backward`` is run."""
        return (None,) * len(self.results)

    @property
    def title(self) -> str:
        """How errors name the Function."""
        return title_of(self.cls)

    @property
    def origin(self) -> str:
        code = inspect.unwrap(self.backward).__code__
        return f"'{self.backward.__name__}' ({code.co_filename}:{code.co_firstlineno}) of {self.title}"

    def name(self) -> str:
        return f"{self.cls.__name__}Backward"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    @property
    def gradient_places(self) -> list[tuple[int, int | None] | None]:
        # torch has an entry for each argument of a custom Function that is a tensor, also for those that want no gradient.
        places: list[tuple[int, int | None] | None] = []
        wanting = 0
        for is_tensor, needed in zip(self.ctx._is_tensor, self.ctx.needs_input_grad, strict=True):
            if is_tensor:
                places.append((wanting, None) if needed else None)
            wanting += needed
        return places

    def refuse(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """An alias of an unrecorded value, which raises when a gradient comes to it."""
        return self._raising(
            tensor, f"unrecorded:{self.op}", lambda: self._unrecorded(what, tensor.shape), self.parents
        )

    def _raising(
        self, tensor: torch.Tensor, op: str, error: Callable[[], Exception], parents: tuple[Any, ...]
    ) -> torch.Tensor:
        node = enter(RaisingNode(op, error, parents, tensor.shape, tensor.dtype))
        node.place = self.place  # the user's line is that of the Function's call
        return tracked_alias(tensor, node)

    def _unrecorded(self, what: str, shape: torch.Size) -> Exception:
        return SecondDerivativeError(
            f"second derivative through {self.title}: {what}, of shape {tuple(shape)}, depends on an input in a way that was not recorded, "
            f"so its part in the second derivative would be lost. In backward, compute it from saved inputs or outputs, with gradients "
            f"enabled; or return it from forward as one more output."
        )

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        ctx = self.ctx
        grads = grad if isinstance(grad, tuple) else self._alone(grad)
        if ctx.materialize_grads:
            grads = tuple(
                [
                    torch.zeros(meta[0], dtype=meta[1], device=meta[2]) if g is None and meta is not None else g
                    for g, meta in zip(grads, self.results, strict=True)
                ]
            )
        versions = [(g, version_of(g)) for g in grads if g is not None]
        backward = self.backward
        if not recorded:
            results = run_unreplaced(backward, ctx, *grads) if self.again is None else self.again(ctx, *grads)
        elif getattr(backward, "__code__", None) is _ONCE:
            with torch.no_grad():
                results = self._once(backward.__wrapped__(ctx, *grads), grads)  # type: ignore[attr-defined]
        else:
            results = self._tracked(backward, grads)
        for g, version in versions:
            if version_of(g) != version and (self.strict or _shares_memory(g, in_flight())):
                raise InPlaceError(
                    f"backward of {self.title} wrote in place into the gradient it was given, of shape {tuple(g.shape)}: others may hold "
                    f"the same memory. Write into a clone."
                )
        return self._checked(results)

    def _alone(self, grad: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of all results where one alone is differentiable."""
        position = next(i for i, meta in enumerate(self.results) if meta is not None and meta[3])
        return tuple([grad if i == position else None for i in range(len(self.results))])

    def _tracked(self, backward: Callable[..., Any], grads: tuple[Any, ...]) -> Any:
        """The user's ``backward``, recorded: what is computed there without a record cannot pass for a constant."""
        what = "a value that backward computes under no_grad or detached"
        with DependencyTracker((), lambda tensor: self.refuse(tensor, what)) as tracker:
            results = backward(self.ctx, *grads)
        what = "a gradient that backward computes under no_grad or detached"
        return tuple(
            [
                self.refuse(r, what) if tracker.depends(r) and getattr(r, "_node", None) is None else r
                for r in _listed(results)
            ]
        )

    def _once(self, results: Any, grads: tuple[Any, ...]) -> Any:
        """The gradients of a ``backward`` that may be differentiated once."""
        parents = (*self.parents, *(g._node for g in grads if type(g) is Tensor and g._node is not None))

        def error() -> Exception:
            return SecondDerivativeError(
                f"second derivative through {self.title}, whose backward is marked with @once_differentiable"
            )

        return tuple(
            [None if r is None else self._raising(r, f"once:{self.op}", error, parents) for r in _listed(results)]
        )

    def _checked(self, results: Any) -> tuple[Any, ...]:
        """What ``backward`` returned, held against the arguments of ``forward``."""
        needs = self.ctx.needs_input_grad
        given = _listed(results)
        if len(given) > len(needs) and all(r is None for r in given[len(needs) :]):
            given = given[: len(needs)]  # as torch does
        if len(given) != len(needs):
            raise FunctionError(
                f"backward of {self.title} returned {len(given)} gradients, and its forward took {len(needs)} arguments. Return one for "
                f"each, None for those that want none."
            )
        wanted = []
        for position, (result, is_tensor) in enumerate(zip(given, self.ctx._is_tensor, strict=True)):
            if result is not None and not is_tensor:
                raise FunctionError(
                    f"backward of {self.title} returned a gradient for argument {position}, which is no tensor. Return None there."
                )
            if result is not None and not isinstance(result, torch.Tensor):
                raise FunctionError(
                    f"backward of {self.title} returned {type(result).__name__} as the gradient of argument {position}. Return a tensor "
                    f"or None."
                )
            if needs[position]:
                wanted.append(result)
        return tuple(wanted)


def _listed(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, LISTS) else (results,)


def title_of(cls: Any) -> str:
    """How errors name a Function."""
    return f"the Function {cls.__qualname__}"


def user_backward(cls: Any) -> Callable[..., Any]:
    """``backward``, or ``vjp``, which is another name for it."""
    has_backward, has_vjp = cls.backward is not SingleLevelFunction.backward, cls.vjp is not SingleLevelFunction.vjp
    if has_backward and has_vjp:
        raise FunctionError(f"{title_of(cls)} defines both backward and vjp, which are two names for one thing")
    return cls.vjp if has_vjp else cls.backward


def _shares_memory(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    with DisableTorchFunctionSubclass():
        storage = storage_key(tensor)
        return any(storage_key(other) == storage for other in others)
