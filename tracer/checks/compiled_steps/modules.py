"""Compiled steps of every module of ``torch.nn``, from torch's database of modules, held to the same steps run eagerly."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ops_registry.torch_private import tree_flatten, tree_unflatten
from tracer.checks.compiled_steps.check import CALLS, Outcome
from tracer.checks.compiled_steps.steps import Given, changed, cotangent_of, differ
from tracer.checks.leaves import can_have_gradient, plain, requiring_grad, tensors_of, tracked_leaf, twin
from tracer.compiled.api import compile
from tracer.errors import CaptureError

MODULE_DB = "torch.testing._internal.common_modules"


@dataclass
class ModuleStep:
    """A module as a training step: its forward pass, then a backward pass from all that requires grad."""

    module: torch.nn.Module
    leaves: list[Any]
    spec: Any

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """``tensors`` take the places of the sample's. Returns the results of the module."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        arguments, keywords = tree_unflatten(leaves, self.spec)
        results = tensors_of(self.module(*arguments, **keywords))
        wanted = requiring_grad(results)
        if wanted:
            torch.autograd.backward(wanted, [cotangent_of(result) for result in wanted])
        return results

    def inputs(self, other: bool) -> list[torch.Tensor]:
        """Fresh tensors, tracked where a gradient can flow; with ``other`` other values."""
        made = [twin(leaf) for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        if other:
            made = [changed(tensor) for tensor in made]
        return [tracked_leaf(tensor, True) if can_have_gradient(tensor) else tensor for tensor in made]

    def given_by(self, step: Callable[..., Any], other: bool) -> Given:
        """What one call gives: results, gradients, parameters and buffers afterwards; gradients add up from call to call."""
        torch.default_generator.manual_seed(0)
        inputs = self.inputs(other)
        results = step(*inputs)
        state = [*self.module.parameters(), *self.module.buffers()]
        grads = [tensor.grad for tensor in (*inputs, *self.module.parameters())]
        return [None if t is None else plain(t).clone() for t in (*results, *grads, *inputs, *state)]


def module_infos() -> list[Any]:
    """The entries of torch's database of modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(importlib.import_module(MODULE_DB).module_db)


def check_module(
    info: Any, track: Callable[[torch.nn.Module], torch.nn.Module], training: bool, backend: str, most: int
) -> Outcome:
    """At most ``most`` samples of one module, made tracked by ``track``, in training or in evaluation."""
    outcome = Outcome(info.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        made = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=training)
        for sample in made[:: max(1, len(made) // most)]:
            built, called = sample.constructor_input, sample.forward_input
            module = track(info.module_cls(*built.args, **built.kwargs).double().train(training))
            leaves, spec = tree_flatten((called.args, called.kwargs))
            _hold(ModuleStep(module, leaves, spec), backend, outcome, f"{built.args} {built.kwargs}"[:200])
    return outcome


def _hold(step: ModuleStep, backend: str, outcome: Outcome, text: str) -> None:
    eager = ModuleStep(copy.deepcopy(step.module), step.leaves, step.spec)
    try:
        expected = [eager.given_by(eager, other) for other in CALLS]
    except Exception:
        outcome.counts["raises eagerly"] += 1
        return
    compiled = compile(step, modules=step.module, backend=backend)
    try:
        differences = [differ(step.given_by(compiled, other), e) for other, e in zip(CALLS, expected, strict=True)]
        difference = next((f"call {i}: {d}" for i, d in enumerate(differences) if d is not None), None)
    except CaptureError as error:
        outcome.counts["refused"] += 1
        outcome.refused.append(str(error))
        return
    except Exception as error:
        difference = f"{type(error).__name__}: {error}"
    outcome.counts["equal" if difference is None else "failed"] += 1
    if difference is not None:
        outcome.failure = outcome.failure or f"{text}: {difference}"[:800]
