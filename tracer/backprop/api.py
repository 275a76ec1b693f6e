"""``backward`` and ``grad``: the arguments and error conditions of ``torch.autograd``, in front of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function

from ops_registry.torch_private import DisableTorchFunctionSubclass, count_modes, is_torch_function_enabled
from tracer.backprop.batched import carry_batch
from tracer.backprop.bridge import backward_into_torch
from tracer.backprop.sweep import Sweep
from tracer.errors import GradientArgumentError, NoHistoryError, UnsupportedError, UnusedInputError
from tracer.node import Node
from tracer.recording.levels import levels
from tracer.recording.parents import any_node
from tracer.tracked_tensor import Tensor

Tensors = torch.Tensor | Sequence[torch.Tensor]


def backward(
    tensors: Tensors,
    grad_tensors: Tensors | Sequence[torch.Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensors | None = None,
) -> None:
    """Accumulate the gradients of ``tensors`` into the leaves that they depend on; ``torch.autograd.backward``.

    ``inputs`` restricts it to these tensors. Raises ``NoHistoryError`` for a tensor without history, ``GradientArgumentError`` for a
    missing or ill-fitting gradient, ``FreedGraphError`` on a second pass without ``retain_graph``. Whatever is raised, ``.grad`` of every
    leaf is as it was before (leaves with a post-accumulate hook excepted: their hook has run).
    """
    if levels.open:
        raise UnsupportedError(
            "backward() was called inside torch.vmap, where leaves cannot be filled. Use tracer.func.grad or torch.autograd.grad there."
        )
    outputs = _as_tuple(tensors)
    wanted = None if inputs is None else _as_tuple(inputs)
    if wanted is not None and not wanted:
        raise GradientArgumentError("inputs= of backward() cannot be empty: leave it out to fill every leaf")
    grads = _root_gradients(outputs, grad_tensors if grad_tensors is not None else grad_variables)
    roots = _roots(outputs, grads)
    sweep = Sweep(keep_graph=create_graph if retain_graph is None else retain_graph, create_graph=create_graph)
    if wanted is None:
        sweep.run(roots)
        sweep.commit()
        return
    nodes = _nodes_of_inputs(wanted)
    found = sweep.run(roots, set(nodes), any(type(t) is not Tensor for t in wanted))
    _carry_over(sweep, wanted, nodes, found)
    sweep.commit([(tensor, found.pop(node)) for tensor, node in zip(wanted, nodes, strict=True) if node in found])


def backward_of(
    tensor: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Accumulate the gradient of this tensor into the leaves it depends on: ``torch.Tensor.backward``."""
    if count_modes() and is_torch_function_enabled():
        # A TorchFunctionMode sees this one call, as in torch, and nothing that the backward pass does.
        handle_torch_function(
            torch.Tensor.backward,
            (tensor,),
            tensor,
            gradient=gradient,
            retain_graph=retain_graph,
            create_graph=create_graph,
            inputs=inputs,
        )
        return
    backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | Sequence[torch.Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``; ``torch.autograd.grad``.

    Only the part of the graph that leads to ``inputs`` is visited. With ``is_grads_batched`` the first dimension of ``grad_outputs`` counts
    cotangents: one sweep carries them all; where a rule cannot be vmapped each is swept in turn. Raises what ``backward`` raises, and
    ``UnusedInputError`` for an input that the outputs do not depend on, unless ``allow_unused`` (then None) or ``materialize_grads``
    (then zeros).
    """
    if materialize_grads and allow_unused is False:
        raise GradientArgumentError(
            "materialize_grads=True fills in for unused inputs: allow_unused cannot be False with it"
        )
    outs = _as_tuple(outputs)
    if is_grads_batched:
        keep = create_graph if retain_graph is None else retain_graph
        return _batched(outs, inputs, grad_outputs, keep, create_graph, allow_unused, materialize_grads)
    wanted = _as_tuple(inputs.values()) if isinstance(inputs, dict) else _as_tuple(inputs)
    if not wanted:
        raise GradientArgumentError("grad() needs at least one input")
    roots = _roots(outs, _root_gradients(outs, grad_outputs))
    nodes = _nodes_of_inputs(wanted)
    sweep = Sweep(keep_graph=create_graph if retain_graph is None else retain_graph, create_graph=create_graph)
    found = sweep.run(roots, set(nodes), any(type(t) is not Tensor for t in wanted))
    _carry_over(sweep, wanted, nodes, found)
    results = [found.get(node) for node in nodes]
    for i, (result, tensor) in enumerate(zip(results, wanted, strict=True)):
        if result is None and materialize_grads:
            results[i] = torch.zeros_like(tensor.detach())
        elif result is None and not allow_unused:
            raise UnusedInputError(
                f"input {i}, of shape {tuple(tensor.shape)}, was not used to compute the outputs. Pass "
                f"allow_unused=True to get None for it."
            )
    sweep.commit()  # Leaves are not filled by grad(); only tensors with retain_grad() are.
    if isinstance(inputs, dict):
        return dict(zip(inputs, results, strict=True))  # type: ignore[return-value]
    return tuple(results)


def _batched(
    outputs: tuple[torch.Tensor, ...],
    inputs: Any,
    grad_outputs: Any,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
) -> tuple[torch.Tensor | None, ...]:
    given = (grad_outputs,) if isinstance(grad_outputs, torch.Tensor) else tuple(grad_outputs or ())
    sizes = {g.shape[0] for g in given if g is not None and g.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise GradientArgumentError(
            f"is_grads_batched=True takes grad_outputs whose first dimension counts cotangents, one size throughout; got shapes "
            f"{[None if g is None else tuple(g.shape) for g in given]}"
        )
    wanted = _as_tuple(inputs.values()) if isinstance(inputs, dict) else _as_tuple(inputs)

    def sweep(cotangents: Sequence[torch.Tensor | None], retain: bool) -> tuple[torch.Tensor | None, ...]:
        return grad(
            outputs,
            wanted,
            cotangents,
            retain,
            create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )

    results = carry_batch(sweep, given, retain_graph)
    return dict(zip(inputs, results, strict=True)) if isinstance(inputs, dict) else results  # type: ignore[return-value]


def _as_tuple(tensors: Any) -> tuple[torch.Tensor, ...]:
    given = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
    for tensor in given:
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(f"expected tensors, got {type(tensor).__name__}")
    return given


def _root_gradients(outputs: tuple[torch.Tensor, ...], given: Any) -> list[torch.Tensor]:
    """The cotangents that the sweep starts with: those given, or 1 for a scalar."""
    if given is None:
        given = (None,) * len(outputs)
    gradients = tuple(given) if isinstance(given, tuple | list) else (given,)
    if len(gradients) != len(outputs):
        raise GradientArgumentError(f"got {len(outputs)} tensors and {len(gradients)} gradients for them")
    with DisableTorchFunctionSubclass():
        return [_root_gradient(o, g, i) for i, (o, g) in enumerate(zip(outputs, gradients, strict=True))]


def _root_gradient(output: torch.Tensor, gradient: torch.Tensor | None, position: int) -> torch.Tensor:
    if gradient is None:
        if output.numel() != 1:
            raise GradientArgumentError(
                f"a gradient can be created implicitly only for scalar outputs, and output {position} has shape {tuple(output.shape)}. "
                f"Pass gradient=, or reduce it (.sum(), .mean())."
            )
        if not output.dtype.is_floating_point:
            raise GradientArgumentError(
                f"a gradient can be created implicitly only for real scalar outputs, and output {position} is "
                f"{output.dtype}. Pass gradient=."
            )
        return torch.ones_like(output, memory_format=torch.preserve_format, requires_grad=False)
    if not isinstance(gradient, torch.Tensor):
        raise GradientArgumentError(
            f"gradients are tensors or None; the one for output {position} is {type(gradient).__name__}"
        )
    if gradient.shape != output.shape:
        raise GradientArgumentError(
            f"the gradient given for output {position} has shape {tuple(gradient.shape)}, and the output {tuple(output.shape)}"
        )
    if gradient.dtype.is_complex != output.dtype.is_complex:
        raise GradientArgumentError(
            f"output {position} is {output.dtype} and the gradient given for it {gradient.dtype}: both are complex, or none"
        )
    return gradient


def _roots(outputs: tuple[torch.Tensor, ...], gradients: list[torch.Tensor]) -> list[tuple[Node, torch.Tensor]]:
    roots = []
    for i, (output, gradient) in enumerate(zip(outputs, gradients, strict=True)):
        node = any_node(output)
        if node is None:
            raise NoHistoryError(
                f"output {i}, of shape {tuple(output.shape)}, does not require grad and has no history: no call on a tensor that "
                f"requires grad has led to it. It was computed under torch.no_grad(), detached, or from tensors that do not require grad."
            )
        roots.append((node, gradient if gradient.dtype == output.dtype else gradient.to(output.dtype)))
    return roots


def _nodes_of_inputs(inputs: tuple[torch.Tensor, ...]) -> list[Node]:
    nodes = []
    for i, tensor in enumerate(inputs):
        node = any_node(tensor)
        if node is None:
            raise NoHistoryError(
                f"input {i}, of shape {tuple(tensor.shape)}, does not require grad. Call requires_grad_() on it before it is used."
            )
        nodes.append(node)
    return nodes


def _carry_over(
    sweep: Sweep, inputs: tuple[torch.Tensor, ...], nodes: list[Node], found: dict[Node, torch.Tensor]
) -> None:
    """Where the sweep crossed into torch's autograd, add the gradients that native inputs get there."""
    if not sweep.bridged:
        return
    natives = [(t, n) for t, n in zip(inputs, nodes, strict=True) if type(t) is not Tensor]
    for (_, node), gradient in zip(natives, backward_into_torch(sweep.bridged, [t for t, _ in natives]), strict=True):
        if gradient is not None:
            found[node] = found[node] + gradient if node in found else gradient
    sweep.bridged.clear()
