"""``grad``, ``vjp`` and forward mode on our own rules: what the public names of ``torch.func`` come to where tracked tensors take part.

One tape serves all nestings. A transform gives the function fresh aliases of its inputs, which nothing else has seen: a gradient with
respect to them is the derivative along this transform alone. It is recorded itself where something besides these inputs wants a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    batch_dim_of,
    batch_level_of,
    is_batched,
    transform_parts,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
    unwrapped,
)
from tracer.backprop.batched import refused_by_vmap
from tracer.backprop.sweep import Sweep
from tracer.errors import TransformError
from tracer.func.vmapped import batched
from tracer.graph import backward_order
from tracer.node import Leaf, Node
from tracer.recording.levels import levels, physical
from tracer.recording.parents import DIFFERENTIABLE, any_node
from tracer.tracked_tensor import Tensor, become_tracked, plain_alias, tracked_alias


def fresh(tensor: Any, transform: str) -> Tensor:
    """An alias of an input that this transform alone differentiates with respect to; the history of the input goes on behind it."""
    if not isinstance(tensor, torch.Tensor):
        raise TransformError(f"{transform} differentiates with respect to tensors, and got {type(tensor).__name__}")
    if tensor.dtype not in DIFFERENTIABLE:
        raise TransformError(
            f"{transform} was asked for the derivative with respect to a tensor of {tensor.dtype}: only floating point and complex tensors "
            f"have one. Convert it, or leave it out (argnums)."
        )
    if type(tensor) is not Tensor:
        refuse_followed_by_torch([tensor])
    if any_node(tensor) is not None:
        return tensor.view_as(tensor if type(tensor) is Tensor else tracked_alias(tensor))
    with DisableTorchFunctionSubclass():
        alias = plain_alias(tensor)
        shape, dtype = alias.shape, alias.dtype
        tracked = become_tracked(alias)
        tracked._node = Leaf(tracked, shape, dtype)
        return tracked


def refuse_followed_by_torch(tensors: Sequence[torch.Tensor]) -> None:
    """Raise ``TransformError`` for a batch that torch's own autograd follows inside ``torch.vmap``: what depends on it there is lost."""
    for tensor in tensors if levels.open else ():
        if is_batched(tensor) and physical(tensor).requires_grad:
            raise TransformError(
                f"a transform inside torch.vmap came to a tensor of shape {tuple(tensor.shape)} that torch's own autograd follows, which "
                f"cannot be followed together with tracked tensors there. Track it before (tracer.track), or detach it."
            )


class Taped:
    """One run of a function on fresh inputs, and the sweeps through what it recorded."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.nodes = [_node(x) for x in inputs]
        self._asked: list[Node] = []
        self._order: list[Node] = []

    def reaches_beyond(self, outputs: Sequence[Any]) -> bool:
        """Whether the outputs depend on something that wants a gradient besides the inputs."""
        if any(node.parents for node in self.nodes):
            return True
        roots = [n for o in outputs if isinstance(o, torch.Tensor) and (n := any_node(o)) is not None]
        return not set(self.nodes).issuperset([node for node in self._order_from(roots) if not node.parents])

    def _order_from(self, roots: list[Node]) -> list[Node]:
        """``backward_order`` of the roots; one question is mostly asked again."""
        if self._asked != roots:
            self._asked, self._order = roots, backward_order(roots)
        return self._order

    def leads_to(self, output: torch.Tensor) -> bool:
        """Whether an output depends on an input."""
        node = any_node(output)
        return node is not None and not set(self.nodes).isdisjoint(backward_order([node]))

    def pull(
        self, outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor], *, keep: bool, recorded: bool
    ) -> list[torch.Tensor]:
        """The gradients of the inputs; zeros for one that the outputs do not depend on."""
        refuse_followed_by_torch(outputs)
        roots = [(node, c) for o, c in zip(outputs, cotangents, strict=True) if (node := any_node(o)) is not None]
        try:
            with Sweep(keep_graph=keep or bool(levels.open), create_graph=recorded) as sweep:
                found = sweep.run(roots, set(self.nodes), order=self._order_from([node for node, _ in roots]))
        except RuntimeError as error:
            if not levels.open or not refused_by_vmap(error):
                raise
            return self._pull_one_by_one(error, outputs, cotangents, recorded)
        return [
            found[node] if node in found else torch.zeros_like(plain_alias(x))
            for node, x in zip(self.nodes, self.inputs, strict=True)
        ]

    def _pull_one_by_one(
        self, error: Exception, outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor], recorded: bool
    ) -> list[torch.Tensor]:
        """``pull`` for each of the batch of the innermost level in turn: a rule on the way cannot be vmapped."""
        level = levels.open[-1]
        if not any(is_batched(c) and batch_level_of(c) == level.number for c in cotangents):
            raise error
        if any(is_batched(o) and batch_level_of(o) == level.number for o in outputs):
            raise TransformError(
                "a transform inside torch.vmap needs the gradient of a call whose rule cannot be vmapped (it decides by values). Call the "
                "transform in a loop, or write the rule without such a decision."
            ) from error
        rows = [
            self.pull(outputs, [_row(c, i, level.number) for c in cotangents], keep=True, recorded=recorded)
            for i in range(level.batch_size)
        ]
        return [batched(torch.stack(column), 0, level) for column in zip(*rows, strict=True)]


@dataclass
class Run:
    """A run of a function, with the structures of its inputs and outputs."""

    tape: Taped
    spec: Any
    outputs: list[torch.Tensor]
    out_spec: Any
    #: Whether the outputs depend on something besides the inputs that wants a gradient.
    beyond: bool


def _row(cotangent: torch.Tensor, index: int, number: int) -> torch.Tensor:
    """The cotangent at ``index`` of the batch of a level; one and the same for all where it is no batch there."""
    if not is_batched(cotangent) or batch_level_of(cotangent) != number:
        return cotangent
    if any_node(cotangent) is not None:
        raise TransformError(
            "a transform inside torch.vmap needs the gradient of a call whose rule cannot be vmapped (it decides by values), with respect "
            "to a cotangent that wants a gradient itself. Call the transform in a loop."
        )
    return unwrapped(cotangent).select(batch_dim_of(cotangent), index)


def _node(tensor: Tensor) -> Node:
    assert tensor._node is not None
    return tensor._node


def detached(nest: Any) -> Any:
    """``nest`` with tracked tensors that have no history in place of those that have one."""
    return tree_map_only(Tensor, lambda t: t.detach(), nest)


def split_aux(output: Any, has_aux: bool, transform: str) -> tuple[Any, Any]:
    """What a function returned, and its aux. Raises ``TransformError`` where ``has_aux`` and it returned no pair."""
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        raise TransformError(
            f"{transform}: with has_aux=True the function has to return a tuple (output, aux), and it returned {type(output).__name__}"
        )
    for a in tree_flatten(output[1])[0]:
        if not isinstance(a, torch.Tensor):
            raise TransformError(
                f"{transform}: with has_aux=True aux has to hold tensors alone, and it holds {type(a).__name__}"
            )
    return output


def scalar_gradients(
    func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any], title: str
) -> tuple[list[torch.Tensor], Any, Any, Any]:
    """The gradients of the scalar that ``func`` returns, their structure, that scalar, and aux."""
    check_argnums(argnums, len(args), title)
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        tape, spec, returned = taped(func, args, kwargs, argnums, title)
        output, aux = split_aux(returned, has_aux, title)
        if not isinstance(output, torch.Tensor):
            raise TransformError(f"{title}: expected f(*args) to return a tensor, got {type(output).__name__}")
        if output.ndim != 0:
            raise TransformError(
                f"{title}: expected f(*args) to return a scalar tensor, got one of shape {tuple(output.shape)}. Reduce it, or use vjp or "
                f"jacrev."
            )
        if output.is_complex():
            raise TransformError(
                f"{title}: expected f(*args) to return a real tensor, got one of {output.dtype}. Return its real part, or its absolute "
                f"value."
            )
        recorded = recording and tape.reaches_beyond([output, *tree_flatten(aux)[0]] if has_aux else [output])
        with DisableTorchFunctionSubclass():
            one = torch.ones_like(plain_alias(output))
        grads = tape.pull([output], [one], keep=recorded, recorded=recorded)
    if not recorded:
        output = output.detach()
        aux = detached(aux) if has_aux else None
    return grads, spec, output, aux


def grad_and_value(
    func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """The gradients of the scalar that ``func`` returns, and that scalar (with aux): ``torch.func.grad_and_value``."""
    title = "grad_and_value(f)(*args)"
    grads, spec, output, aux = scalar_gradients(func, argnums, has_aux, args, kwargs, title)
    return tree_unflatten(grads, spec), ((output, aux) if has_aux else output)


def with_replaced(args: tuple[Any, ...], argnums: Any, new: Any) -> tuple[Any, ...]:
    """``args`` with the tensors of ``new`` at ``argnums``; None stands for all of them."""
    if argnums is None:
        return new
    return transform_parts._replace_args(
        args,
        (new,) if isinstance(argnums, int) else new,
        transform_parts._validate_and_wrap_argnums(argnums, len(args)),
    )


def check_argnums(argnums: Any, count: int, transform: str) -> None:
    """Raise ``TransformError`` for ``argnums`` that are neither one of ``count`` arguments nor a tuple of several different ones."""
    listed = argnums if isinstance(argnums, tuple) else (argnums,)
    if not listed or not all(isinstance(n, int) for n in listed):
        raise TransformError(
            f"{transform}: argnums has to be an int, or a tuple of ints that is not empty; got {argnums!r}"
        )
    if not all(-count <= n < count for n in listed):
        raise TransformError(f"{transform}: argnums={argnums!r}, and there are {count} positional arguments")
    if len({n % count for n in listed}) < len(listed):
        raise TransformError(f"{transform}: argnums={argnums!r} names an argument twice")


@cache
def _structure_of_tuple(length: int) -> Any:
    return tree_flatten((0,) * length)[1]


def _flattened(nest: Any) -> tuple[list[Any], Any]:
    """``tree_flatten``, which walks through a tuple of tensors slowly."""
    if type(nest) is tuple and all(isinstance(x, torch.Tensor) for x in nest):
        return list(nest), _structure_of_tuple(len(nest))
    return tree_flatten(nest)


def sliced(args: tuple[Any, ...], argnums: Any) -> Any:
    """Those of ``args`` that are differentiated: all for None."""
    return args if argnums is None else transform_parts._slice_argnums(args, argnums, as_tuple=False)


def taped(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Any, title: str
) -> tuple[Taped, Any, Any]:
    """Run ``func`` on fresh inputs at ``argnums`` (all for None): the run, the structure of those inputs, and what ``func`` returned."""
    listed, spec = _flattened(sliced(args, argnums))
    tape = Taped([fresh(x, title) for x in listed])
    returned = func(*with_replaced(args, argnums, tree_unflatten(tape.inputs, spec)), **kwargs)
    refuse_writes(tape.inputs, tape.nodes, title)
    return tape, spec, returned


def refuse_writes(inputs: Sequence[Tensor], nodes: Sequence[Any], title: str) -> None:
    """Raise ``TransformError`` where a function has written into one of its ``inputs``, which had these ``nodes``."""
    if any(x._node is not node for x, node in zip(inputs, nodes, strict=True)):
        raise TransformError(
            f"{title}: cannot follow a function that writes in place into what it differentiates with respect to, or into memory "
            f"that this shares. Write into a clone."
        )


def output_tensors(output: Any, transform: str) -> tuple[list[torch.Tensor], Any]:
    """The tensors that a function returned, and their structure. Raises ``TransformError`` for anything else."""
    listed, spec = tree_flatten(output)
    if not listed:
        raise TransformError(f"{transform}: the function returned no tensor")
    for o in listed:
        if not isinstance(o, torch.Tensor):
            raise TransformError(
                f"{transform}: expected the function to return tensors alone, got {type(o).__name__}. Return other things by has_aux=True."
            )
    return listed, spec


def run_for_cotangents(
    func: Callable[..., Any], primals: tuple[Any, ...], argnums: Any, has_aux: bool, title: str
) -> tuple[Run, Any]:
    """Run ``func`` for a sweep from all its outputs: the run, and aux."""
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        tape, spec, returned = taped(func, primals, {}, argnums, title)
        output, aux = split_aux(returned, has_aux, title)
        outputs, out_spec = output_tensors(output, title)
        for o in outputs:
            if o.dtype not in DIFFERENTIABLE:
                raise TransformError(
                    f"{title}: all outputs of f must be floating point or complex tensors, got one of {o.dtype}"
                )
        beyond = recording and tape.reaches_beyond([*outputs, *tree_flatten(aux)[0]])
        refuse_followed_by_torch(outputs)
    return Run(tape, spec, outputs, out_spec, beyond), aux if beyond else detached(aux)


def vjp(func: Callable[..., Any], *primals: Any, argnums: Any = None, has_aux: bool = False) -> tuple[Any, ...]:
    """The outputs of ``func`` and a function from cotangents to gradients (and aux): ``torch.func.vjp``."""
    run, aux = run_for_cotangents(func, primals, argnums, has_aux, "vjp(f, *primals)")
    tape, outputs = run.tape, run.outputs
    # What is returned may be written in place before vjp_fn is called.
    ends = [tracked_alias(o, any_node(o)) for o in outputs]

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given, given_spec = tree_flatten(cotangents)
        if given_spec != run.out_spec:
            raise TransformError(
                f"vjp_fn was given cotangents of structure {given_spec}, and the outputs of the function have structure {run.out_spec}"
            )
        for o, c in zip(ends, given, strict=True):
            if not isinstance(c, torch.Tensor):
                raise TransformError(f"vjp_fn takes tensors as cotangents, and was given {type(c).__name__}")
            if c.shape != o.shape or c.is_complex() != o.is_complex():
                raise TransformError(
                    f"vjp_fn was given a cotangent of shape {tuple(c.shape)} and {c.dtype} for an output of shape {tuple(o.shape)} and "
                    f"{o.dtype}"
                )
        wanted = torch.is_grad_enabled() if create_graph is None else create_graph
        recorded = wanted and (run.beyond or any(any_node(c) is not None for c in given))
        with torch.enable_grad():
            return tree_unflatten(tape.pull(ends, given, keep=retain_graph or recorded, recorded=recorded), run.spec)

    value = tree_unflatten(outputs, run.out_spec)
    if not run.beyond:
        value = detached(value)
    return (value, vjp_fn, aux) if has_aux else (value, vjp_fn)


def laid_out_as(output: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """The tangent of an output, sparse where that is."""
    if tangent.layout is torch.strided and output.layout is not torch.strided:
        return tangent.to_sparse(layout=output.layout)
    return tangent


def _zeros_for(output: torch.Tensor) -> torch.Tensor:
    """A cotangent of zeros; strided also for a sparse output, since no gradient would pass the empty pattern of a sparse one."""
    if output.layout is torch.strided:
        return torch.zeros_like(plain_alias(output))
    return torch.zeros(output.shape, dtype=output.dtype, device=output.device)


class Linear:
    """The derivative of a function at a point as a linear map of tangents, by transposing its backward pass.

    The gradients of the inputs are a linear function of the cotangents: the derivative of that function along ``tangents`` is ``J v``.
    """

    def __init__(self, tape: Taped, outputs: Sequence[torch.Tensor], recorded: bool) -> None:
        self.tape = tape
        self.outputs = outputs
        self.recorded = recorded
        self._followed = [o for o in outputs if o.dtype in DIFFERENTIABLE]
        self._cotangents = [tracked_alias(_zeros_for(o)).requires_grad_() for o in self._followed]
        self._gradients = tape.pull(self._followed, self._cotangents, keep=True, recorded=True)

    def push(self, tangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tangents of the outputs."""
        recorded = self.recorded or (torch.is_grad_enabled() and any(any_node(t) is not None for t in tangents))
        pushed = iter(Taped(self._cotangents).pull(self._gradients, tangents, keep=True, recorded=recorded))
        return [
            laid_out_as(o, next(pushed)) if o.dtype in DIFFERENTIABLE else torch.zeros_like(o) for o in self.outputs
        ]


def checked_tangents(primals: Any, tangents: Any, title: str) -> list[torch.Tensor]:
    """The tangents one by one. Raises ``TransformError`` where their structure, shapes or dtypes are not those of ``primals``."""
    flat_primals, spec = _flattened(primals)
    if not isinstance(primals, tuple) and isinstance(tangents, tuple) and len(tangents) == 1:
        (tangents,) = tangents
    given, given_spec = _flattened(tangents)
    if given_spec != spec:
        raise TransformError(f"{title}: primals and tangents must have the same structure; got {spec} and {given_spec}")
    if not flat_primals:
        raise TransformError(f"{title}: primals holds no tensor")
    for p, t in zip(flat_primals, given, strict=True):
        if not isinstance(p, torch.Tensor) or not isinstance(t, torch.Tensor):
            raise TransformError(f"{title}: primals and tangents have to be tensors")
        if p.shape != t.shape or (t.is_complex() and not p.is_complex()):
            raise TransformError(
                f"{title}: a tangent has the shape of its primal, and is complex only where that is; got {tuple(t.shape)}, {t.dtype} for "
                f"{tuple(p.shape)}, {p.dtype}"
            )
    return [t.to(p.dtype) for p, t in zip(flat_primals, given, strict=True)]


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The outputs of ``func`` and its derivative at ``primals`` as a function of tangents: ``torch.func.linearize``.

    By transposition, which leaves a linear map behind: the tangents of ``jvp`` would go through a run of the function each time.
    """
    title = "linearize(f, *primals)"
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        tape, _, output = taped(func, primals, {}, None, title)
        outputs, out_spec = output_tensors(output, title)
        recorded = recording and tape.reaches_beyond(outputs)
        linear = Linear(tape, outputs, recorded)
    value = tree_unflatten(outputs, out_spec)

    def jvp_fn(*tangents: Any) -> Any:
        given = checked_tangents(primals, tangents, title)
        for p, t in zip(tree_flatten(primals)[0], tree_flatten(tangents)[0], strict=True):
            if p.dtype != t.dtype:
                raise TransformError(f"{title}: a tangent has the dtype of its primal; got {t.dtype} for {p.dtype}")
        return tree_unflatten(linear.push(given), out_spec)

    return (value if recorded else detached(value)), jvp_fn
