"""A step captured: forward, our backward, its writes and what it returns, as one graph of ATen ops on plain tensors.

The step runs once on tensors without values, which stand in for the real ones. Exporting and compiling both begin here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ops_registry.torch_private import DisableTorchFunctionSubclass, FakeTensorMode, vendor_kernels_off
from tracer.compiled.functional import functionalised
from tracer.compiled.layouts import DenseAlone
from tracer.compiled.nests import Rebuild, flatten
from tracer.compiled.origins import Origins, name_nodes
from tracer.compiled.random_numbers import random_numbers
from tracer.compiled.refusals import refusing
from tracer.compiled.respelled import Respelled
from tracer.compiled.simplify import simplified, written_inputs
from tracer.compiled.standing_in import Original, standing_in
from tracer.errors import CaptureError
from tracer.graph import Graph
from tracer.tracked_tensor import Tensor, plain_alias

_GRAD: Any = torch.Tensor.grad
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Returned:
    """One leaf of what the step returned."""

    #: "input": the tensor given there, itself; "result": one of the graph's; "grad": the ``.grad`` that the call fills there; "value".
    kind: str
    at: Any
    tracked: bool = False
    #: It had a history when the step returned it.
    history: bool = False


@dataclass
class Captured:
    """A graph, and what its inputs and results mean."""

    graph: torch.fx.GraphModule
    #: The input tensors, which positions of those that were offered they are, and tensors like them without values.
    used: list[int]
    examples: list[torch.Tensor]
    #: What the step returned, leaf by leaf, and what makes its nest again.
    returned: list[Returned]
    rebuild: Rebuild
    #: Gradients: position of the tensor, position among the results.
    grads: list[tuple[int, int]]
    #: Tensors whose ``.grad`` at the start is an input as well, behind all others.
    given: list[int]
    #: Tensors that the step makes require grad, or no longer.
    turned: list[tuple[int, bool]]
    #: Tensors whose ``.grad`` the step has set to None.
    cleared: list[int]
    #: Tensors that the step writes into.
    written: list[int]
    #: Whether the step looks at ``.grad``: then those that were there are inputs too, and ``grads`` are what they are in the end.
    looks_at_grad: bool
    #: Tensors that came from nowhere: neither arguments nor found in anything that the step reaches.
    strangers: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Run:
    """What one run on stand-ins has left behind."""

    results: list[torch.Tensor] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    rebuild: Rebuild = lambda leaves: leaves[0]
    grads: list[tuple[int, int]] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    turned: list[tuple[int, bool]] = field(default_factory=list)
    looks_at_grad: bool = False


def capture_step(
    call: Callable[[], Any], tensors: Sequence[torch.Tensor], names: Sequence[str], grads: Sequence[torch.Tensor | None]
) -> Captured:
    """Run ``call`` once with stand-ins for ``tensors``, and return its graph.

    ``grads``: the ``.grad`` of each that is to be there at the start. Raises ``CaptureError`` for what no graph can hold.
    """
    run, written = _Run(), list[int]()
    given = [(i, grad) for i, grad in enumerate(grads) if grad is not None]

    def joint(wrappers: list[torch.Tensor]) -> list[torch.Tensor]:
        with standing_in(tensors, wrappers[: len(tensors)]) as originals:
            with DisableTorchFunctionSubclass():
                for (i, _), wrapper in zip(given, wrappers[len(tensors) :], strict=True):
                    _GRAD.__set__(tensors[i], wrapper)
            with refusing() as watch, random_numbers(), Respelled(), Origins(), DenseAlone():
                value = call()
            run.looks_at_grad = watch.looked_at_grad
            with DisableTorchFunctionSubclass():
                _check_histories(originals, names)
                _collect(run, value, originals, dict(zip((i for i, _ in given), wrappers[len(tensors) :], strict=True)))
        return run.results

    fake = _fake_mode()
    with DisableTorchFunctionSubclass():
        examples = [fake.from_tensor(_bare(tensor)) for tensor in (*tensors, *(grad for _, grad in given))]
    # A graph of its own: the calls of a capture are no calls of the user's, and backward nodes are named after their sites. The
    # recurrent layers of oneDNN and cuDNN give what their backward needs in no graph: the steps of the sequence are written out.
    with Graph(sites=True), vendor_kernels_off():
        graph = make_fx(functionalised(joint, written), tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    strangers = _strangers(graph)
    graph, used = simplified(graph, [at for _, at in run.grads])
    all_names = [*names, *(f"grad_of_{names[i]}" for i, _ in given)]
    name_nodes(graph.graph, [all_names[i] for i in used])
    graph.recompile()
    return Captured(
        graph,
        used,
        [examples[i] for i in used],
        run.returned,
        run.rebuild,
        run.grads,
        [i for i, _ in given],
        run.turned,
        run.cleared,
        sorted({*written, *written_inputs(graph.graph, used)}),
        run.looks_at_grad,
        strangers,
    )


def _fake_mode() -> Any:
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes, static_shapes=True)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor of the same memory, without history."""
    return plain_alias(tensor)


def _check_histories(originals: Sequence[Original], names: Sequence[str]) -> None:
    for original, name in zip(originals, names, strict=True):
        if original.has_new_history:
            raise CaptureError(
                f"the step writes a value with a history into {name}, of shape {tuple(original.tensor.shape)}, and leaves it there: the "
                f"next step would go back into this one. Write x.detach(), or under torch.no_grad()."
            )


def _collect(run: _Run, value: Any, originals: Sequence[Original], given: dict[int, torch.Tensor]) -> None:
    """Note what came out: gradients first, then what was returned, which may be the same tensors."""
    of_grad: dict[int, int] = {}
    for position, original in enumerate(originals):
        if original.requires_grad != original.required_grad:
            run.turned.append((position, original.requires_grad))
        grad = original.grad
        if grad is None:
            if position in given:
                run.cleared.append(position)
        elif grad is not given.get(position):
            of_grad[id(grad)] = position
            run.grads.append((position, len(run.results)))
            run.results.append(plain_alias(grad))
    places = {id(original.tensor): position for position, original in enumerate(originals)}
    leaves, run.rebuild = flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            if not isinstance(leaf, _SIMPLE):
                raise CaptureError(
                    f"the step returns a {type(leaf).__qualname__}, of which a graph knows nothing. Return tensors and plain values, in "
                    f"tuples, lists, dictionaries or dataclasses."
                )
            run.returned.append(Returned("value", leaf))
        elif id(leaf) in places:
            run.returned.append(Returned("input", places[id(leaf)]))
        elif id(leaf) in of_grad:
            run.returned.append(Returned("grad", of_grad[id(leaf)]))
        else:
            tracked = type(leaf) is Tensor
            run.returned.append(Returned("result", len(run.results), tracked, tracked and leaf.requires_grad))
            run.results.append(plain_alias(leaf))


def _strangers(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Tensors that the step took from somewhere, and did not make itself (``torch.tensor(2.0)``)."""
    made = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)
    return [
        getattr(graph, node.target)
        for node in graph.graph.nodes
        if node.op == "get_attr" and not all(user.target in made for user in node.users)
    ]
