"""Symbolic sizes: one graph for arguments of many shapes, and the conditions on their sizes under which it holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv, StatelessSymbolicContext

from ops_registry.torch_private import sources_of_sizes
from tracer.compiled.specialised import OfOneThread, Specialising
from tracer.tracked_tensor import plain_alias

#: Which dimensions of a tensor are symbolic, by the tensor's position.
Dims = Mapping[int, Collection[int]]


class Stage:
    """The tensors without values of one capture. Sizes at ``dims`` are symbols, but those of 0 and 1, as in torch; all others are fixed."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        # Without duck_shape equal sizes are symbols of their own: otherwise a batch as large as a layer would be tied to it.
        self.shapes = ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        make = Specialising if dims else OfOneThread
        self.mode = make(allow_non_fake_inputs=True, shape_env=self.shapes, static_shapes=True)
        self._symbolic: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    @property
    def mode_of_tracing(self) -> Literal["fake", "symbolic"]:
        """With symbols, torch takes its Python code for ops whose C++ code asks for numbers."""
        return "symbolic" if self.dims else "fake"

    def without_values(self, position: int, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """A tensor like ``tensor``. Called with interception off."""
        if self.dims or tensor.storage_offset():
            # torch forgets offsets of results that it knows from an earlier capture; and with symbols looking for them takes longer.
            self.mode.cache_enabled = False
        dims = self.dims.get(position, ())
        if not dims or tensor.is_conj() or tensor.is_neg():
            twin: torch.Tensor = self.mode.from_tensor(plain_alias(tensor))
        else:
            kinds = [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(tensor.dim())]
            context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
            source, _ = sources_of_sizes(f"t{position}", tensor.dim())
            shape, strides, _ = self.shapes.create_symbolic_sizes_strides_storage_offset(
                tensor, source, symbolic_context=context
            )
            with self.mode:
                twin = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        if position in self.dims:
            self._symbolic[position], self._names[position] = twin, name
        return twin

    def conditions(self) -> Conditions:
        """What the sizes and strides of the tensors at ``dims`` have to be for what was captured, and what a compiler made of it."""
        numbers: list[Any] = []
        sources: list[Any] = []
        names: list[str] = []
        for position, twin in self._symbolic.items():
            numbers += [*twin.shape, *twin.stride()]
            sources += sources_of_sizes(f"t{position}", twin.dim())[1]
            for kind in ("shape", "stride()"):
                names += [f"{self._names[position]}.{kind}[{dim}]" for dim in range(twin.dim())]
        variables = {source: f"n{at}" for at, source in enumerate(sources)}
        found = self.shapes.produce_guards(
            numbers, sources, source_ref=lambda source: variables[source], ignore_static=False
        )
        return Conditions(list(self._symbolic), found, names)


class Conditions:
    """What sizes have to be for a graph."""

    def __init__(self, positions: Sequence[int], texts: Sequence[str], names: Sequence[str]) -> None:
        self._positions = positions
        self._texts = texts
        self._names = names
        self._given = ", ".join(f"n{at}" for at in range(len(names)))
        self._all = self._test(" and ".join(f"({text})" for text in texts) or "True")

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the graph is one for these tensors. Called with interception off."""
        return self._all(*self._numbers(tensors))

    def broken(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        """Those that do not hold, in words."""
        numbers = self._numbers(tensors)
        return [self._told(text) for text in self._texts if not self._test(text)(*numbers)]

    @property
    def told(self) -> list[str]:
        """All of them in words."""
        return [self._told(text) for text in self._texts]

    def _numbers(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        known = [tensors[position] for position in self._positions]
        return list(chain.from_iterable([part for tensor in known for part in (tensor.shape, tensor.stride())]))

    def _test(self, text: str) -> Callable[..., bool]:
        test = eval(f"lambda {self._given}: {text}", dict(SYMPY_INTERP))

        def holds(*numbers: int) -> bool:
            try:
                return bool(test(*numbers))
            except ZeroDivisionError:  # a size of 0, by which another is divided
                return False

        return holds

    def _told(self, text: str) -> str:
        return re.sub(r"\bn(\d+)\b", lambda found: self._names[int(found[1])], text)
