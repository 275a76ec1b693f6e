"""The public functions: ``tracer.compile`` and ``tracer.export_graph``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer.compiled.backends import Backend
from tracer.compiled.module import compile_module
from tracer.compiled.optimizers import FullStep
from tracer.compiled.step import CompiledStep
from tracer.errors import GradientArgumentError


def compile(
    step: Callable[..., Any] | torch.nn.Module | None = None,
    *,
    modules: Iterable[torch.nn.Module] | torch.nn.Module | None = None,
    backend: Backend = None,
    dynamic: bool = False,
    check: bool = False,
    fullstep: FullStep = False,
) -> Any:
    """``step``, a function or a module, captured once for each kind of call, and from then on run as a graph of ATen ops.

    **A step**: ``step(*args, **kwargs)`` calls ``loss.backward()``, or returns gradients. A call of the result fills ``.grad`` of the real
    leaves, adds where there is one, writes what the step writes (buffers, arguments), and returns what it returned; results cannot be
    gone back through, since their history ended with the step. Also a decorator, with or without options.

    ``modules``: those that the step reaches in no way that can be seen; its closure, its globals, the ``self`` of a bound step, partials,
    containers and module arguments are looked through. ``backend``: ``"inductor"``, ``"replay"`` (the graph itself, no compiler), or a
    function of a ``torch.fx.GraphModule`` and example inputs that returns what runs it; None is inductor where a C++ compiler is found.
    ``check``: the first call of each graph is compared with the eager step (``CompiledStepError``), with symbolic sizes that of each size.

    ``dynamic=True``: sizes of tensor arguments are symbols, but those of 0 and 1. What the code asks of them (a branch, ``range(n)``,
    ``float(n)``, equality with the size of a parameter) is a condition of the graph: a call that does not fulfil the conditions gets
    another graph. With False each shape gets a graph of its own; after eight that differ in sizes alone, the sizes that varied are symbols
    in the next one. Numbers among the arguments are keys by value all the same: code may do anything with them. So are the shapes of what
    the step reaches.

    **A module** in place of a step gives a module, for use inside of a larger step that stays eager: an object with the very state of the
    given one, of a subclass of its class, whose call runs a forward graph and leaves one node in the user's graph. ``loss.backward()``, or
    whatever starts a backward pass, then runs a backward graph that was made of our rules, those of ``use`` blocks around the call among
    them. Torch's partitioner decides what is saved for it and what is computed again. Hooks on parameters and arguments, accumulation,
    ``retain_graph`` and saved-tensor hooks are the user's as ever. A backend of the user's gets both graphs. Its gradients can be
    differentiated once: ``create_graph=True`` gives them, and going back through them raises ``SecondDerivativeError``. Inside of
    transforms, other captures and anomaly mode the module itself runs. ``compiled._orig_mod`` is the module.

    Random numbers: a replayed graph takes those of torch's generator in the order of the eager step, so equal seeds give equal masks.
    Inductor draws its own, seeded from that generator.

    ``fullstep``: the step may call ``optimizer.step()`` of torch's own optimisers; those that nothing in the step leads to are given. The
    first call runs eagerly where that makes their state. Learning rates are read at each call. For steps alone, not for modules.

    Raises ``CaptureError``, an ``UnsupportedError``, at the first call, for a step that does what no graph can hold: values that leave it,
    branches and shapes that depend on values, optimiser steps, Python state that changes at each call. ``explain()`` tells of its graphs.
    """
    given = [modules] if isinstance(modules, torch.nn.Module) else modules
    if isinstance(step, torch.nn.Module):
        if fullstep is not False:
            raise GradientArgumentError(
                f"fullstep={fullstep!r} was given with a module ({type(step).__name__}): an optimiser steps inside of a step, a function "
                f"that calls backward() and optimizer.step(). Compile that."
            )
        return compile_module(step, given, backend, dynamic, check)
    if step is None:
        return functools.partial(
            compile, modules=modules, backend=backend, dynamic=dynamic, check=check, fullstep=fullstep
        )
    return CompiledStep(step, given, backend, dynamic, check, fullstep)


def export_graph(
    step: Callable[..., Any],
    *args: Any,
    modules: Iterable[torch.nn.Module] | torch.nn.Module | None = None,
    dynamic: bool = False,
    **kwargs: Any,
) -> torch.fx.GraphModule:
    """The graph of one call of ``step``, forward and backward, as ATen ops; nothing is run.

    Its inputs are the tensors that the step reaches, its tensor arguments and, where it reads or adds to ``.grad``, those that are there
    (``grad_of_...``): those that it uses, named after what they are. Its results are gradients first, then what the step returned, leaf
    by leaf, then what it would leave in a cache: ``graph.meta["results"]`` names each. ``node.meta["origin"]`` has the module and the line
    of each call; in backward those of the call that is gone back through, the rule, and where its formula is written.
    ``print_readable()`` shows them. With ``dynamic`` the sizes of arguments are symbols, and ``graph.meta["conditions"]`` says what they
    have to fulfil. Raises ``CaptureError`` as ``tracer.compile`` does.
    """
    given = [modules] if isinstance(modules, torch.nn.Module) else modules
    compiled = CompiledStep(step, given, "replay", dynamic, False)
    return compiled.graph_for(args, kwargs)
