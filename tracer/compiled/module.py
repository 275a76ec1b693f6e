"""A compiled module: it behaves as the module in all, and its call runs a compiled graph, forward and, from the user's backward, back."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    saved_tensors_hooks,
    transform_level,
    tree_map,
)
from tracer.compiled.aside import steps_aside
from tracer.compiled.backends import Backend
from tracer.compiled.check import checked_module_call
from tracer.compiled.families import Family
from tracer.compiled.module_graph import ModuleGraph, make_module_graph
from tracer.compiled.reached import Reached
from tracer.compiled.report import CompiledStepReport
from tracer.compiled.step import CompiledStep
from tracer.compiled.turns import runs
from tracer.errors import CaptureError, UnsupportedError
from tracer.node import Leaf
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias


def compile_module(
    module: torch.nn.Module, modules: Iterable[torch.nn.Module] | None, backend: Backend, dynamic: bool, check: bool
) -> torch.nn.Module:
    """What ``tracer.compile`` returns for a module: one more object with the very state of ``module``, of a subclass of its class.

    Its attributes, parameters, hooks and modes are those of ``module``, whichever of the two they are set on.
    """
    base = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError(
            f"tracer.compile got {base.__name__}, a scripted module, whose code is compiled already. Give it the module that was scripted."
        )
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise UnsupportedError(
            f"tracer.compile got {base.__name__}, which has lazy parameters, and becomes another class at its first call. Call it once "
            f"before, on data of the right shape."
        )

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if vars(self) is not vars(module):  # a copy with other parameters: a replica of DataParallel
            return base.__call__(self, *args, **kwargs)
        return calls(*args, **kwargs)

    def explain(self: torch.nn.Module) -> CompiledStepReport:
        return calls.explain()

    def reduce(self: torch.nn.Module, protocol: Any) -> Any:
        return compile_module, (module, modules, backend, dynamic, check)

    body = {"__call__": call, "explain": explain, "__reduce_ex__": reduce, "_orig_mod": module, "__module__": __name__}
    kind: Any = type(f"Compiled{base.__name__}", (base,), body)
    twin: torch.nn.Module = object.__new__(kind)
    object.__setattr__(twin, "__dict__", vars(module))
    calls = _Calls(types.MethodType(base.__call__, twin), twin, modules, backend, dynamic, check)
    return twin


class _Calls(CompiledStep):
    """The calls of one compiled module."""

    leaf_hooks = False

    def __init__(
        self, eager: Any, module: torch.nn.Module, modules: Any, backend: Backend, dynamic: bool, check: bool
    ) -> None:
        if dynamic:
            raise CaptureError(
                "dynamic=True: the graphs of a module have fixed sizes. Leave dynamic=False: each shape gets its own; or compile "
                "the whole step, whose graph may be one for many sizes."
            )
        super().__init__(eager, modules, backend, dynamic, check)
        self._signature = module.forward
        self.__name__ = type(module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if transform_level() is not None or steps_aside():
            return self._step(*args, **kwargs)
        hooks = []  # on saved tensors: they see what a call saves, and are no part of its graph
        while (pair := saved_tensors_hooks(False)) is not None:
            hooks.append(pair)
            pop_saved_tensors_hooks()
        originals: dict[int, torch.Tensor] = {}
        try:
            args, kwargs = _cut_off(args, kwargs, originals)
            with runs:
                found = self.known(args, kwargs)
            graph, tensors, is_new = self.find(args, kwargs) if found is None else (*found, False)
        finally:
            for pair in reversed(hooks):
                push_saved_tensors_hooks(*pair)
        if is_new and self._check:
            checked_module_call(graph, lambda: self._step(*args, **kwargs), tensors)
        with runs:
            return graph(tensors, [originals.get(id(tensor), tensor) for tensor in tensors])

    def _make(
        self, reached: Reached, tensors: list[torch.Tensor], args: Any, kwargs: Any, family: Family
    ) -> ModuleGraph:
        names = self._names(reached, tensors, args, kwargs)
        return make_module_graph(
            lambda: self._step(*args, **kwargs), self.__name__, reached, tensors, names, self._backend
        )


def _cut_off(args: tuple[Any, ...], kwargs: dict[str, Any], originals: dict[int, torch.Tensor]) -> Any:
    """The arguments with leaves in place of the tensors that want a gradient: where their history comes from is no matter to a graph.

    ``originals`` gets, by the id of each leaf, the tensor that it stands for.
    """
    made: dict[int, torch.Tensor] = {}

    def leaf_of(value: Any) -> Any:
        wants = (
            value._node is not None
            if type(value) is Tensor
            else isinstance(value, torch.Tensor) and value.requires_grad
        )
        if not wants:
            return value
        if id(value) not in made:
            alias = plain_alias(value)
            made[id(value)] = become_tracked(alias, Leaf(alias, alias.shape, alias.dtype))
            originals[id(alias)] = value
        return made[id(value)]

    with DisableTorchFunctionSubclass():
        if not kwargs and all(isinstance(value, torch.Tensor) for value in args):  # most calls: a nest would take 8 us
            return tuple(map(leaf_of, args)), kwargs
        return tree_map(leaf_of, (args, kwargs))
