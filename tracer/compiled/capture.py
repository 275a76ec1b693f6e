"""A step captured: forward, our backward, its writes and what it returns, as one graph of ATen ops on plain tensors.

The step runs once on tensors without values, which stand in for the real ones. Exporting and compiling both begin here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ops_registry.torch_private import DisableTorchFunctionSubclass, cudnn_off, storage_key
from tracer.compiled.around import Around, noting
from tracer.compiled.functional import functionalised
from tracer.compiled.key import key_of_tensor
from tracer.compiled.layouts import DenseAlone
from tracer.compiled.memory_order import MemoryOrder
from tracer.compiled.nests import Rebuild, flatten
from tracer.compiled.observed import Observer, run_observed
from tracer.compiled.optimizers import Hyperparameters, stepping
from tracer.compiled.origins import Origins, name_nodes
from tracer.compiled.python_writes import PythonWrites
from tracer.compiled.random_numbers import random_numbers
from tracer.compiled.refusals import refusing
from tracer.compiled.respelled import Respelled
from tracer.compiled.simplify import simplified, written_inputs
from tracer.compiled.standing_in import Original, standing_in
from tracer.compiled.symbolic import Dims, Stage
from tracer.compiled.turns import capturing
from tracer.errors import CaptureError
from tracer.graph import Graph
from tracer.recording.compilers import as_written
from tracer.tracked_tensor import Tensor, plain_alias

_GRAD: Any = torch.Tensor.grad
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Returned:
    """One leaf of what the step returned."""

    #: "input": the tensor given there, itself; "result": one of the graph's; "grad": the ``.grad`` that the call fills there; "kept": one
    #: that somebody keeps from then on; "value"; "again": the very object that is returned there.
    kind: str
    at: Any
    tracked: bool = False
    #: It had a history when the step returned it.
    history: bool = False
    #: Of a tensor that the step made, the position of its ``.grad`` among the results.
    grad: int | None = None
    #: Of a part of a tensor that was given, or of its ``.grad``.
    region: Region | None = None


class Region(NamedTuple):
    """Where a tensor lies in one that was given, or in its ``.grad``."""

    position: int
    of_grad: bool
    #: The strides that the whole has in the graph; in others the part would be another.
    whole: tuple[int, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class Handed:
    """Gradients that somebody takes once the graph has run."""

    give: Callable[[Sequence[list[Any]]], None]
    #: As in ``Captured``, of the time before.
    grads: list[tuple[int, int]]
    cleared: list[int]
    #: Positions among the results; None where no gradient came.
    taken: list[int | None]
    #: Tensors whose ``.grad`` was filled by such before: what the step adds to it is added.
    filled: frozenset[int]


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
    #: Whether it looks at where in their memory tensors begin.
    looks_at_offset: bool
    #: What looked on.
    observer: Observer
    #: What is done before each run.
    around: Around
    #: Who takes gradients after it, in order, and whose ``.grad`` these fill.
    handed: list[Handed]
    filled: frozenset[int]
    #: Its tensors without values, and what is known of symbolic sizes.
    stage: Stage
    #: Tensors that the step has made and that somebody keeps, with their positions among the results, and whether they share their memory
    #: with another, or with one that is given or returned; in the graph they are two.
    kept: list[tuple[torch.Tensor, int, bool]] = field(default_factory=list)
    #: The results of the graph that are inputs of it, or that it gives once more (``loss, loss.detach()``).
    passed_on: frozenset[int] = frozenset()
    #: Tensors that came from nowhere: neither arguments nor found in anything that the step reaches.
    strangers: list[torch.Tensor] = field(default_factory=list)
    #: What the step leaves in Python's objects.
    writes: PythonWrites | None = None

    def offered(self, tensors: Sequence[torch.Tensor], strangers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All that inputs are taken of: ``tensors``, those from elsewhere, and the gradients that are there."""
        return [*tensors, *strangers, *(_GRAD.__get__(tensors[i]) for i in self.given)]

    def results(self, names: Sequence[str]) -> list[str]:
        """What each result of the graph is, in words; ``names`` are those of the tensors that were offered."""
        grads = [pair for handed in self.handed for pair in handed.grads] + self.grads
        told = {at: f"gradient of {names[position]}" for position, at in grads}
        for handed in self.handed:
            told |= {at: "a gradient that is handed on" for at in handed.taken if at is not None}
        for number, leaf in enumerate(self.returned):
            if leaf.kind == "result":
                told[leaf.at] = f"returned[{number}]"
                if leaf.grad is not None:
                    told[leaf.grad] = f"gradient of returned[{number}]"
        told |= {at: "kept by the step" for _, at, _ in self.kept}
        return [told[at] for at in sorted(told)]

    def looks(self, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
        """What there is of that which few steps look at: ``.grad`` of each tensor, and where in its memory it begins."""
        seen = list[Any]()
        with DisableTorchFunctionSubclass():
            if self.looks_at_grad:
                grads = [_GRAD.__get__(tensor) for tensor in tensors]
                seen += [None if grad is None else key_of_tensor(grad) for grad in grads]
            if self.looks_at_offset:
                seen += [tensor.storage_offset() for tensor in tensors]
        return (self.looks_at_grad, self.looks_at_offset, *seen)


@dataclass
class _Run:
    """What one run on stand-ins has left behind."""

    results: list[Any] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    rebuild: Rebuild = lambda leaves: leaves[0]
    grads: list[tuple[int, int]] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    filled: frozenset[int] = frozenset()
    turned: list[tuple[int, bool]] = field(default_factory=list)
    looks_at_grad: bool = False
    looks_at_offset: bool = False
    kept: list[tuple[torch.Tensor, int, bool]] = field(default_factory=list)

    def gradients(self) -> list[int]:
        """Which results are gradients."""
        found = [at for _, at in self.grads]
        for handed in self.handed:
            found += [at for _, at in handed.grads] + [at for at in handed.taken if at is not None]
        return found


class LooksAtGrad(Exception):
    """The step has raised after it looked at ``.grad``: with another one there it may do otherwise."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self.raised = raised


def capture_step(
    call: Callable[[], Any],
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    grads: Sequence[torch.Tensor | None],
    dims: Dims,
    keep: Callable[[], list[torch.Tensor]] = list,
    optimizers: Sequence[Hyperparameters] | None = None,
) -> Captured:
    """Run ``call`` once with stand-ins for ``tensors``, and return its graph. Raises ``CaptureError`` for what no graph can hold.

    ``grads``: the ``.grad`` of each that is to be there at the start. ``dims``: which sizes are symbolic. ``keep`` finds tensors that
    somebody keeps; those that the step has made are results too. ``optimizers``: those that may step inside.
    """
    run, written, observer, around = _Run(), list[int](), Observer(), Around()
    given = {i: grad for i, grad in enumerate(grads) if grad is not None}

    def joint(wrappers: list[torch.Tensor]) -> list[torch.Tensor]:
        with standing_in(tensors, wrappers[: len(tensors)]) as originals:
            _fill_at_first(tensors, before := dict(zip(given, wrappers[len(tensors) :], strict=True)))
            with _watched(tensors, around, run, optimizers, stage.shapes):
                value = run_observed(call, observer)
            with DisableTorchFunctionSubclass():
                _check_originals(originals, names)
                _collect(run, value, around, originals, before)
                _collect_kept(run, keep(), value, originals)
        return run.results

    stage = Stage(dims)
    all_names = [*names, *(f"grad_of_{names[i]}" for i in given)]
    with DisableTorchFunctionSubclass():
        pairs = zip([*tensors, *given.values()], all_names, strict=True)
        examples = [stage.without_values(i, *pair) for i, pair in enumerate(pairs)]
    # A graph of its own: the calls of a capture are no calls of the user's, and backward nodes are named after their sites.
    # cuDNN's recurrent layers draw their dropout, and save for backward, in a way that no graph shows: torch's own steps are taken.
    with capturing(), Graph(sites=True), cudnn_off(), as_written():
        trace = make_fx(functionalised(joint, written), tracing_mode=stage.mode_of_tracing, _allow_non_fake_inputs=True)
        graph = trace(*examples)
    run.looks_at_offset |= any(map(_looks_at_offset, graph.graph.nodes))
    strangers = _strangers(graph)
    graph, used = simplified(graph, run.gradients())
    name_nodes(graph.graph, [all_names[i] for i in used])
    graph.recompile()
    return Captured(
        graph,
        used,
        [examples[i] for i in used],
        run.returned,
        run.rebuild,
        run.grads,
        [*given],
        run.turned,
        run.cleared,
        sorted({*written, *written_inputs(graph.graph, used)}),
        run.looks_at_grad,
        run.looks_at_offset,
        observer,
        around,
        run.handed,
        run.filled,
        stage,
        run.kept,
        _passed_on(graph.graph),
        strangers,
    )


@contextmanager
def _watched(
    tensors: Sequence[torch.Tensor],
    around: Around,
    run: _Run,
    optimizers: Sequence[Hyperparameters] | None,
    shapes: ShapeEnv,
) -> Iterator[None]:
    """While the step runs: what is refused, and what sees its calls on their way into the graph."""
    order = MemoryOrder()
    may_step, looking_on = stepping(optimizers, shapes, around.stepped), refusing(tensors, order, around.handed)
    try:
        with (
            may_step,
            looking_on as watch,
            random_numbers(),
            Respelled(),
            order,
            Origins(),
            DenseAlone(),
            noting(around),
        ):
            try:
                yield
            finally:
                run.looks_at_grad, run.looks_at_offset = watch.looked_at_grad, watch.looked_at_offset
    except Exception as error:
        if run.looks_at_grad:
            raise LooksAtGrad(error) from error
        raise


def _fill_at_first(tensors: Sequence[torch.Tensor], grads: dict[int, torch.Tensor]) -> None:
    with DisableTorchFunctionSubclass():
        for i, grad in grads.items():
            _GRAD.__set__(tensors[i], grad)


def _passed_on(graph: torch.fx.Graph) -> frozenset[int]:
    """The results that are inputs, or that come once more."""
    outputs: Any = graph.output_node().args[0]
    first = {node: at for at, node in reversed(list(enumerate(outputs)))}
    return frozenset(at for at, node in enumerate(outputs) if node.op == "placeholder" or first[node] != at)


def _looks_at_offset(node: torch.fx.Node) -> bool:
    return getattr(node.target, "_opname", "").startswith("as_strided")


def _check_originals(originals: Sequence[Original], names: Sequence[str]) -> None:
    for original, name in zip(originals, names, strict=True):
        if original.has_new_history:
            raise CaptureError(
                f"the step writes a value with a history into {name}, of shape {tuple(original.tensor.shape)}, and leaves it there: the "
                f"next step would go back into this one. Write x.detach(), or under torch.no_grad()."
            )
        if original.has_other_hooks:
            raise CaptureError(
                f"the step leaves other hooks on {name}, of shape {tuple(original.tensor.shape)}, than there were: a graph would not, and "
                f"each later call would find them. Register and remove hooks outside of the step, or remove them in it again."
            )
        if original.is_another:
            raise CaptureError(
                f"the step gives {name} other memory or another shape (.data =, set_, resize_, t_, unsqueeze_), and a graph only writes "
                f"values. Write them in place (x.copy_(y)), or make a tensor of your own (x = x.t())."
            )


def _collect_handed(run: _Run, around: Around, originals: Sequence[Original], given: dict[int, torch.Tensor]) -> None:
    """Note the gradients that somebody takes, pass by pass. From then on what ``.grad`` was at the start says nothing of a leaf."""
    places = {id(original.tensor): position for position, original in enumerate(originals)}
    for handing in around.handings:
        handed = Handed(handing.give, [], [], [], run.filled)
        for leaf, grad in handing.before:
            position = places.get(id(leaf))
            if position is None:
                raise CaptureError(
                    f"a parameter of shape {tuple(leaf.shape)} of a wrapped module is not reached by the step as one of a module: name its "
                    f"module (modules=[...])."
                )
            before = given.pop(position, None)
            if grad is not None and grad is not before:
                handed.grads.append((position, len(run.results)))
                run.results.append(plain_alias(grad))
            elif grad is None and before is not None:
                handed.cleared.append(position)
        for gradient in handing.gradients:
            handed.taken.append(None if gradient is None else len(run.results))
            if gradient is not None:
                run.results.append(plain_alias(gradient))
        run.handed.append(handed)
        run.filled |= {places[id(leaf)] for leaf, _ in handing.before}
    around.handings.clear()


def _collect(
    run: _Run, value: Any, around: Around, originals: Sequence[Original], given: dict[int, torch.Tensor]
) -> None:
    """Note what came out: gradients first, then what was returned, which may be the same tensors."""
    _collect_handed(run, around, originals, given)
    of_grad: dict[int, int] = {}
    inputs = {storage_key(original.tensor) for original in originals}
    wholes: dict[Any, tuple[int, bool, torch.Tensor]] = {
        storage_key(original.tensor): (position, False, original.tensor) for position, original in enumerate(originals)
    }
    for position, original in enumerate(originals):
        if original.requires_grad != original.required_grad:
            run.turned.append((position, original.requires_grad))
        grad = original.grad
        if grad is None:
            if position in given:
                run.cleared.append(position)
            continue
        if grad is not given.get(position):
            if id(grad) in of_grad or storage_key(grad) in inputs:
                raise CaptureError(
                    f"the step sets .grad of a leaf of shape {tuple(original.tensor.shape)} to a tensor that is given to it, or is .grad "
                    f"of another leaf: in a graph they are two. Set a copy there (x.clone())."
                )
            run.grads.append((position, len(run.results)))
            run.results.append(plain_alias(grad))
        of_grad[id(grad)] = position
        wholes[storage_key(grad)] = position, True, grad
    places = {id(original.tensor): position for position, original in enumerate(originals)}
    leaves, run.rebuild = flatten(value)
    met: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and met.setdefault(id(leaf), number) != number:
            run.returned.append(Returned("again", met[id(leaf)]))
        elif isinstance(leaf, torch.SymBool):
            run.returned.append(Returned("value", bool(leaf)))
        elif isinstance(leaf, torch.SymInt | torch.SymFloat):
            run.returned.append(Returned("result", len(run.results)))
            run.results.append(leaf)
        elif not isinstance(leaf, torch.Tensor):
            if not isinstance(leaf, (*_SIMPLE, enum.Enum)):
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
            tracked, at, grad = type(leaf) is Tensor, len(run.results), _GRAD.__get__(leaf)
            run.results += [plain_alias(value) for value in (leaf, grad) if value is not None]
            history = tracked and leaf.requires_grad
            region = None if history else _region_of(wholes.get(storage_key(leaf)), leaf)
            run.returned.append(Returned("result", at, tracked, history, None if grad is None else at + 1, region))


def shows_as_it_is(base: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether ``leaf``, in the memory of ``base``, shows the same values there."""
    return base.dtype is leaf.dtype and base.is_conj() == leaf.is_conj() and base.is_neg() == leaf.is_neg()


def _region_of(whole: tuple[int, bool, torch.Tensor] | None, leaf: torch.Tensor) -> Region | None:
    """Where ``leaf`` lies in ``whole``; None where it is in no such memory, shows other values there, or sizes are symbols."""
    if whole is None:
        return None
    position, of_grad, base = whole
    if not shows_as_it_is(base, leaf):
        return None
    offset: Any = leaf.storage_offset() - base.storage_offset()
    numbers = (*base.stride(), *leaf.shape, *leaf.stride(), offset)
    if not all(isinstance(number, int) for number in numbers):
        return None
    return Region(position, of_grad, tuple(base.stride()), tuple(leaf.shape), tuple(leaf.stride()), offset)


def _collect_kept(run: _Run, kept: Sequence[torch.Tensor], value: Any, originals: Sequence[Original]) -> None:
    """Note the tensors that the step has made and that somebody keeps. They are given memory of their own."""
    known = set(map(id, [original.tensor for original in originals]))
    kept = [tensor for tensor in kept if id(tensor) not in known]
    places = {id(tensor): place for place, tensor in enumerate(kept)}
    returned = list[torch.Tensor]()
    for at, leaf in enumerate(flatten(value)[0] if kept else []):
        if id(leaf) in places:
            run.returned[at] = Returned("kept", places[id(leaf)])
        elif isinstance(leaf, torch.Tensor):
            returned.append(leaf)
    taken = {storage_key(tensor) for tensor in [*(original.tensor for original in originals), *returned]}
    for tensor in kept:
        run.kept.append((tensor, len(run.results), storage_key(tensor) in taken))
        taken.add(storage_key(tensor))
        run.results.append(plain_alias(tensor))


def _strangers(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Tensors that the step took from somewhere, each once, and did not make itself (``torch.tensor(2.0)``)."""
    made = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)
    taken = (
        getattr(graph, node.target)
        for node in graph.graph.nodes
        if node.op == "get_attr" and not all(user.target in made for user in node.users)
    )
    return list({id(tensor): tensor for tensor in taken}.values())
