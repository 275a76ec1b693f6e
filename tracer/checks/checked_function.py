"""A function under ``gradcheck``: its inputs and their memory, its results, and the gradients that backward gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer.checks.leaves import plain
from tracer.errors import GradcheckError, Mistake, UnsupportedError

TensorFunction = Callable[..., torch.Tensor | Sequence[torch.Tensor]]


@dataclass(frozen=True)
class GradcheckOptions:
    """Those of ``gradcheck``, by its names."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_grad_dtypes: bool
    fast_mode: bool
    check_batched_grad: bool


def requires_grad(value: Any) -> bool:
    """Whether it is a tensor that requires grad."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def as_tuple(result: Any) -> tuple[Any, ...]:
    """What a function returned, as a tuple also where it is one thing."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def differentiable(result: Any) -> tuple[torch.Tensor, ...]:
    """The results that require grad."""
    return tuple(o for o in as_tuple(result) if requires_grad(o))


def random_cotangent(like: torch.Tensor, with_gaps: bool = False) -> torch.Tensor:
    """Uniform between -1 and 1, lying in memory with gaps where that is asked for."""
    return torch.testing.make_tensor(
        tuple(like.shape),
        dtype=like.dtype,
        device=like.device,
        low=-1,
        high=1,
        noncontiguous=with_gaps and like.numel() > 1,
    )


class CheckedFunction:
    """One function at one set of inputs."""

    def __init__(
        self,
        func: TensorFunction,
        inputs: tuple[Any, ...],
        names: list[str],
        options: GradcheckOptions,
        prefix: str,
        title: str,
    ) -> None:
        self.func, self.inputs, self.options = func, inputs, options
        self.prefix, self.title = prefix, title
        self.names = names
        self.wanted = [i for i, x in enumerate(inputs) if requires_grad(x)]
        self.leaves = [inputs[i] for i in self.wanted]
        #: The memory of those, to move elements in.
        self.data = [x.data for x in self.leaves]
        results = as_tuple(func(*inputs))
        #: Positions of the differentiable results.
        self.positions = [i for i, o in enumerate(results) if requires_grad(o)]
        self.outputs = [results[i] for i in self.positions]
        if any(o.layout != torch.strided for o in self.outputs):
            raise UnsupportedError(f"{title}: a result is sparse. Return result.to_dense().")

    def named(self, k: int) -> str:
        """What reports call the input of the k-th gradient."""
        return self.names[self.wanted[k]]

    def output_named(self, o: int) -> str:
        """What reports call the o-th differentiable result."""
        return f"{self.prefix}{self.positions[o]}"

    def error(self, text: str, mistake: Mistake | None = None) -> GradcheckError:
        """A ``GradcheckError`` under the title of this check."""
        return GradcheckError(f"{self.title}: {text}", mistake)

    def call(self) -> list[torch.Tensor]:
        """The differentiable results at the present values of the inputs, plain."""
        results = as_tuple(self.func(*self.inputs))
        return [plain(results[i]) for i in self.positions]

    def backward(
        self, outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs, plain."""
        found = torch.autograd.grad(list(outputs), self.leaves, list(cotangents), retain_graph=True, allow_unused=True)
        return [None if g is None else plain(g) for g in found]

    def rows(self, output: torch.Tensor, cotangents: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """For each input, the gradients that it gets for each cotangent; checked to be gradients of it, and the same twice."""
        found: list[list[torch.Tensor]] = [[] for _ in self.leaves]
        for cotangent in cotangents:
            once, again = (self.backward([output], [cotangent.clone()]) for _ in range(2))
            for k, (first, second) in enumerate(zip(once, again, strict=True)):
                first, second = self.as_gradient(first, k), self.as_gradient(second, k)
                self.check_kind(first, k)
                self._check_deterministic(first, second, k)
                found[k].append(first.to_dense() if first.layout != torch.strided else first.clone())
        return found

    def as_gradient(self, found: torch.Tensor | None, k: int) -> torch.Tensor:
        """What backward gave the k-th input; zeros where it gave nothing."""
        return torch.zeros_like(self.data[k]) if found is None else found

    def agree(self, analytic: torch.Tensor, numerical: torch.Tensor, atol: float | None = None) -> bool:
        """Whether both are the same within the tolerances, whatever their dtypes."""
        kind = torch.promote_types(analytic.dtype, numerical.dtype)
        atol = self.options.atol if atol is None else atol
        return torch.allclose(analytic.to(kind), numerical.to(kind), self.options.rtol, atol)

    def close(self, found: torch.Tensor, wanted: torch.Tensor) -> bool:
        """Whether two gradients of backward are the same within the tolerances, nan at the same places."""
        return torch.allclose(found, wanted, self.options.rtol, self.options.atol, equal_nan=True)

    def _check_deterministic(self, first: torch.Tensor, second: torch.Tensor, k: int) -> None:
        change = (first - second).abs()
        change[first.isnan() & second.isnan()] = 0
        if not bool((change <= self.options.nondet_tol).all()):
            raise self.error(
                f"backward is not deterministic: the same gradient of the result gave {self.named(k)} different "
                f"gradients, up to {float(change.max()):.3g} apart; nondet_tol is {self.options.nondet_tol}"
            )

    def check_kind(self, gradient: torch.Tensor, k: int) -> None:
        """Raise where it cannot be a gradient of the k-th input: by its shape, dtype, device or layout."""
        data = self.data[k]
        wrong = ""
        if gradient.shape != data.shape:
            wrong = f"shape {tuple(gradient.shape)}, and the input {tuple(data.shape)}"
        elif self.options.check_grad_dtypes and gradient.dtype != data.dtype:
            wrong = f"dtype {gradient.dtype}, and the input {data.dtype}"
        elif gradient.device != data.device:
            wrong = f"device {gradient.device}, and the input {data.device}"
        elif gradient.layout != data.layout and gradient.layout != torch.strided:
            wrong = f"layout {gradient.layout}, and the input {data.layout}"
        if wrong:
            raise self.error(f"the gradient of {self.named(k)} has {wrong}")
