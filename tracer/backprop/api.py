"""``backward`` and ``grad``: the arguments and error conditions of ``torch.autograd``, in front of the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import handle_torch_function

from ops_registry.torch_private import count_modes, is_torch_function_enabled
from tracer.backprop.batched import carry_batch
from tracer.backprop.bridge import backward_into_torch
from tracer.backprop.listeners import announce
from tracer.backprop.sweep import Sweep
from tracer.backprop.weights import implicit_gradient, spread_weight
from tracer.earlier_uses import check_earlier_uses, was_used_earlier
from tracer.errors import GradientArgumentError, NoHistoryError, UnsupportedError, UnusedInputError
from tracer.graph import Graph
from tracer.node import Node
from tracer.notes.cuts import note_cut
from tracer.recording.forward_mode import refuse_dual
from tracer.recording.levels import levels
from tracer.recording.parents import any_node
from tracer.tracked_tensor import Tensor, tracked_alias

#: A tensor, or the place in the graph where its gradient arrives.
Place = torch.Tensor | GradientEdge
Places = Place | Sequence[Place]
#: What an output is weighted with: a tensor that broadcasts to its shape, a number, or None for 1.
Weight = torch.Tensor | Number | None
Weights = Weight | Sequence[Weight]


def backward(
    tensors: Places,
    grad_tensors: Weights = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Places | None = None,
) -> None:
    """Accumulate the gradients of ``tensors`` into the leaves that they depend on; ``torch.autograd.backward``.

    ``grad_tensors`` weights them: each weight is a number, or a tensor that broadcasts to the shape of its output. ``inputs`` restricts
    it to these tensors. Raises ``NoHistoryError`` for a tensor without history, ``GradientArgumentError`` for a missing or ill-fitting
    weight, ``FreedGraphError`` on a second pass without ``retain_graph``. Whatever is raised, ``.grad`` of every leaf is as it was before
    (leaves with a post-accumulate hook excepted: their hook has run).
    """
    if levels.open:
        raise UnsupportedError(
            "backward() was called inside torch.vmap, where leaves cannot be filled. Use tracer.func.grad or torch.autograd.grad there."
        )
    outputs = as_tuple(tensors)
    wanted = None if inputs is None else as_tuple(inputs.values() if isinstance(inputs, dict) else inputs)
    if wanted is not None and not wanted:
        raise GradientArgumentError("inputs= of backward() cannot be empty: leave it out to fill every leaf")
    weights = grad_tensors if grad_tensors is not None else grad_variables
    roots = roots_of(outputs, weights, create_graph)
    sweep = Sweep(keep_graph=create_graph if retain_graph is None else retain_graph, create_graph=create_graph)
    sweep.callbacks += announce(outputs, weights, tracked=True)
    with sweep:
        if wanted is None:
            sweep.run(roots)
            sweep.commit()
            return
        nodes = nodes_of_inputs(wanted)
        for tensor in wanted:
            if isinstance(tensor, Tensor):
                tensor.retain_grad()  # as in torch: this fills ``.grad`` of a tensor that is no leaf
        sweep.fill_targets = True
        sweep.run(roots, set(nodes), _may_lie_in_torch(wanted))
        natives = [(_native_tensor(wanted[i]), gradient) for i, gradient in _from_torch(sweep, wanted)]
        sweep.commit([(tensor, gradient) for tensor, gradient in natives if tensor is not None])


def backward_of(
    tensor: torch.Tensor,
    gradient: Weight = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Places | None = None,
) -> None:
    """Accumulate the gradient of this tensor into the leaves it depends on: ``torch.Tensor.backward``.

    ``gradient`` weights its elements: a number, or a tensor that broadcasts to its shape.
    """
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
    outputs: Places,
    inputs: Places,
    grad_outputs: Weights = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``; ``torch.autograd.grad``.

    ``grad_outputs`` weights the outputs: each weight is a number, or a tensor that broadcasts to the shape of its output. Only the part of
    the graph that leads to ``inputs`` is visited. With ``is_grads_batched`` the first dimension of ``grad_outputs`` counts cotangents: one
    sweep carries them all; where a rule cannot be vmapped each is swept in turn. Raises what ``backward`` raises, and ``UnusedInputError``
    for an input that the outputs do not depend on, unless ``allow_unused`` (then None) or ``materialize_grads`` (then zeros).
    """
    if materialize_grads and allow_unused is False:
        raise GradientArgumentError(
            "materialize_grads=True fills in for unused inputs: allow_unused cannot be False with it"
        )
    outs = as_tuple(outputs)
    if is_grads_batched:
        keep = create_graph if retain_graph is None else retain_graph
        return _batched(outs, inputs, grad_outputs, keep, create_graph, allow_unused, materialize_grads)
    wanted = as_tuple(inputs.values()) if isinstance(inputs, dict) else as_tuple(inputs)
    if not wanted:
        raise GradientArgumentError("grad() needs at least one input")
    roots = roots_of(outs, grad_outputs, create_graph)
    nodes = nodes_of_inputs(wanted)
    sweep = Sweep(keep_graph=create_graph if retain_graph is None else retain_graph, create_graph=create_graph)
    if not create_graph:
        note_cut("grad", "grad", outs)
        sweep.callbacks += announce(outs, grad_outputs, tracked=True)
    with sweep:
        results = gradients_of(sweep, roots, wanted, nodes)
        for i, (result, place, node) in enumerate(zip(results, wanted, nodes, strict=True)):
            if result is None and materialize_grads:
                results[i] = _zeros_for(place, node, sweep.device)
            elif result is None and not allow_unused:
                raise UnusedInputError(
                    f"input {i}, of shape {_shape_of(place, node)}, was not used to compute the outputs. Pass "
                    f"allow_unused=True to get None for it."
                )
        sweep.commit()  # Leaves are not filled by grad(); only tensors with retain_grad() are.
    if isinstance(inputs, dict):
        return dict(zip(inputs, results, strict=True))
    return tuple(results)


def gradients_of(
    sweep: Sweep, roots: list[tuple[Node, torch.Tensor]], inputs: tuple[Any, ...], nodes: list[Node]
) -> list[torch.Tensor | None]:
    """What ``sweep``, from ``roots`` on, brings to each of the ``inputs``, whose ``nodes`` are given; None where nothing arrives."""
    found = sweep.run(roots, set(nodes), _may_lie_in_torch(inputs))
    for i, gradient in _from_torch(sweep, inputs):
        found[nodes[i]] = found[nodes[i]] + gradient if nodes[i] in found else gradient
    return [found.get(node) for node in nodes]


def _batched(
    outputs: tuple[torch.Tensor, ...],
    inputs: Any,
    grad_outputs: Any,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool | None,
    materialize_grads: bool,
) -> tuple[torch.Tensor | None, ...]:
    given = tuple(grad_outputs or ()) if isinstance(grad_outputs, tuple | list | type(None)) else (grad_outputs,)
    if not all(g is None or isinstance(g, torch.Tensor) for g in given):
        raise GradientArgumentError(
            "is_grads_batched=True takes tensors as grad_outputs: their first dimension counts cotangents"
        )
    sizes = {g.shape[0] for g in given if g is not None and g.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise GradientArgumentError(
            f"is_grads_batched=True takes grad_outputs whose first dimension counts cotangents, one size throughout; got shapes "
            f"{[None if g is None else tuple(g.shape) for g in given]}"
        )
    wanted = as_tuple(inputs.values()) if isinstance(inputs, dict) else as_tuple(inputs)

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


def as_tuple(places: Any) -> tuple[Any, ...]:
    """One tensor or gradient edge, or several, as a tuple. Raises ``UnsupportedError`` for anything else."""
    single = isinstance(places, torch.Tensor | GradientEdge | Graph) or not isinstance(places, Iterable)
    given = (places,) if single else tuple(places)
    for place in given:
        if not isinstance(place, torch.Tensor | GradientEdge):
            raise UnsupportedError(f"expected tensors or gradient edges, got {type(place).__name__}")
    return given


def roots_of(outputs: tuple[Any, ...], weights: Any, recorded: bool) -> list[tuple[Node, torch.Tensor]]:
    """Where the sweep starts, each with its cotangent: the weight given, spread over the output, or 1 for a scalar.

    ``recorded``: so is what the sweep makes of a weight that torch's own autograd follows.
    """
    if weights is None:
        weights = (None,) * len(outputs)
    given = tuple(weights) if isinstance(weights, tuple | list) else (weights,)
    if len(given) != len(outputs):
        raise GradientArgumentError(f"got {len(outputs)} tensors and {len(given)} gradients for them")
    roots = []
    for i, (output, weight) in enumerate(zip(outputs, given, strict=True)):
        node = _node_at(output)
        if node is None:
            raise NoHistoryError(
                f"output {i}, of shape {_shape_of(output, node)}, does not require grad and has no history: no call on a tensor that "
                f"requires grad has led to it. It was computed under torch.no_grad(), detached, or from tensors that do not require grad."
            )
        if isinstance(output, torch.Tensor):
            refuse_dual(output)
        if recorded and isinstance(weight, torch.Tensor) and type(weight) is not Tensor and weight.requires_grad:
            weight = tracked_alias(weight, any_node(weight))
        gradient = implicit_gradient(output, node, i) if weight is None else spread_weight(weight, output, node, i)
        roots.append((node, gradient))
    return roots


def _node_at(place: Any) -> Node | None:
    """The node where the gradient of a tensor, or of an edge, arrives.

    Raises ``UnsupportedError`` for an edge of torch's own autograd, and for one of a result that nothing is known of any more.
    """
    if not isinstance(place, GradientEdge):
        return any_node(place)
    node: Any = place.node
    if isinstance(node, Node):
        node = node.at(place.output_nr)
    else:
        variable = getattr(node, "variable", None)  # torch's node of a native leaf
        node = None if variable is None else any_node(variable)
    if node is None:
        raise UnsupportedError(
            f"a gradient edge of {place.node.name()} is not of a graph recorded here, or its result is gone. Pass the tensor, or make the "
            f"edge from a tracked one (torch.autograd.graph.get_gradient_edge)."
        )
    return node


def nodes_of_inputs(inputs: tuple[Any, ...]) -> list[Node]:
    """Where the gradients of ``inputs`` arrive. Raises ``NoHistoryError`` for one that does not require grad."""
    nodes = []
    for i, place in enumerate(inputs):
        node = _node_at(place)
        if node is None:
            raise NoHistoryError(
                f"input {i}, of shape {_shape_of(place, node)}, does not require grad. Call requires_grad_() on it before it is used."
            )
        nodes.append(node)
    return nodes


def _shape_of(place: Any, node: Node | None) -> tuple[int, ...] | None:
    shape = place.shape if isinstance(place, torch.Tensor) else None if node is None else node.shape
    return None if shape is None else tuple(shape)


def _zeros_for(place: Any, node: Node, device: torch.device | None) -> torch.Tensor:
    if isinstance(place, torch.Tensor):
        return torch.zeros_like(place.detach())
    assert node.shape is not None
    return torch.zeros(node.shape, dtype=node.dtype, device=device)


def _native_tensor(place: Any) -> torch.Tensor | None:
    """The tensor of torch's own autograd that is asked for; None for a tracked one."""
    if isinstance(place, GradientEdge):
        place = getattr(place.node, "variable", None)
    return None if place is None or type(place) is Tensor else place


def _may_lie_in_torch(inputs: tuple[Any, ...]) -> bool:
    """Whether a gradient of one of ``inputs`` may come out of a history of torch's own autograd."""
    return any(_native_tensor(place) is not None or was_used_earlier(place) for place in inputs)


def _from_torch(sweep: Sweep, inputs: tuple[Any, ...]) -> list[tuple[int, torch.Tensor]]:
    """Where the sweep crossed into torch's autograd, the gradients that native inputs get there, by their positions."""
    if not sweep.bridged:
        return []
    if any(map(was_used_earlier, inputs)):
        check_earlier_uses(bridge.edge.node for bridge, _ in sweep.bridged)
    natives = [(i, tensor) for i, place in enumerate(inputs) if (tensor := _native_tensor(place)) is not None]
    gradients = backward_into_torch(sweep.bridged, [tensor for _, tensor in natives], sweep.keep_graph)
    sweep.bridged.clear()
    return [(i, g) for (i, _), g in zip(natives, gradients, strict=True) if g is not None]
