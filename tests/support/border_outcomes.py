"""What becomes of a call at a border of torch: as torch, an error of ours, or a gradient lost in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tracer
from ops_registry import GlassgradError

AS_TORCH, REFUSED, BOTH_RAISE = "as torch", "refused", "torch raises too"
#: The outcomes in which nothing is lost; every other one says what is wrong.
RIGHT = (AS_TORCH, REFUSED, BOTH_RAISE)

START = torch.tensor([[0.5, 0.25], [0.75, 0.125]])


@dataclass
class Run:
    """What one call gave: its results, which of them require grad, and the gradient of the leaf; or an error."""

    values: list[Tensor]
    wanting: list[bool]
    grad: Tensor | None
    error: Exception | None = None


def outcome(call: Callable[[Any], Any], *, beside: bool) -> str:
    """The call on a tracked leaf held against the same on one of torch's; ``beside``: inside a loss with another term."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = _run(call, START.clone().requires_grad_(), beside)
        ours = _run(call, tracer.tensor(START, requires_grad=True), beside)
    if ours.error is not None:
        if is_ours(ours.error):
            return REFUSED
        return BOTH_RAISE if theirs.error is not None else f"bare {type(ours.error).__name__}: {ours.error}"
    if theirs.error is not None:
        return (
            AS_TORCH
            if all(ours.wanting)
            else f"silent where torch raises {type(theirs.error).__name__}: {theirs.error}"
        )
    if ours.wanting != theirs.wanting:
        return f"silent: results require grad {ours.wanting}, in torch {theirs.wanting}"
    pairs = zip([*ours.values, ours.grad], [*theirs.values, theirs.grad], strict=True)
    wrong = [f"{a} is not {b}" for a, b in pairs if not _equal(a, b)]
    return f"silent: {wrong[0]}" if wrong else AS_TORCH


def is_ours(error: BaseException | None) -> bool:
    """Whether an error is of our own classes, or of torch's wrapped around one of ours."""
    while error is not None:
        if isinstance(error, GlassgradError):
            return True
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return False


def _run(call: Callable[[Any], Any], x: Any, beside: bool) -> Run:
    torch.manual_seed(0)
    try:
        parts = [p.to_dense() if p.layout is not torch.strided else p for p in _tensors(call(x))]
        parts = [p for p in parts if p.is_floating_point() or p.is_complex()]
        wanting = [p.requires_grad for p in parts]
        terms = [torch.view_as_real(p).sum() if p.is_complex() else p.sum() for p in parts]
        if beside or any(wanting):
            loss = 0 * x.sum() if beside else 0
            for term in terms:
                loss = loss + term
            loss.backward()  # type: ignore[union-attr]
        return Run([p.detach() for p in parts], wanting, x.grad)
    except Exception as error:
        return Run([], [], None, error)


def _tensors(nest: Any) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        yield from _tensors(list(nest.values()))
    elif isinstance(nest, tuple | list):
        for item in nest:
            yield from _tensors(item)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    plain = [torch.as_tensor(t.detach().tolist(), dtype=torch.complex128) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(*plain, rtol=1e-4, atol=1e-6, equal_nan=True)
