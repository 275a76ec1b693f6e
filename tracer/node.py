"""The nodes that recorded calls leave behind.

Ownership is acyclic: a tensor owns its node, a node owns its parents and plain aliases of the tensors that it saved, and a leaf's
node holds its tensor weakly. So everything is freed by reference counts.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ops_registry.rule import LISTS, CallPlan
from ops_registry.shared.descriptors import dtype_of, shape_of
from ops_registry.sites import Site

#: Serial numbers grow with every node made, so a node's number is above those of all its ancestors.
next_serial = itertools.count().__next__

Hook = Callable[[torch.Tensor], torch.Tensor | None]
#: Each saved tensor, as a plain alias, with torch's version counter at the time.
Versions = Sequence[tuple[torch.Tensor, int]]


class Extras:
    """What only some nodes have. A node that has one of these is visited in the general lane of a sweep."""

    __slots__ = (
        "accumulate_hooks",
        "hooks",
        "level",
        "metadata",
        "output_hooks",
        "output_kinds",
        "packed",
        "post_hooks",
        "prehooks",
        "removed",
        "retain",
        "taker",
        "trace",
    )

    def __init__(self) -> None:
        #: Hooks on the result's tensor, hooks before the rule and hooks after it, in the order in which a sweep runs them.
        self.hooks: OrderedDict[int, Hook] = OrderedDict()
        self.prehooks: OrderedDict[int, Callable[..., Any]] | None = None
        self.post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        #: Hooks on a leaf that run once its ``.grad`` is filled.
        self.accumulate_hooks: OrderedDict[int, Callable[[torch.Tensor], None]] | None = None
        #: Who takes the gradient of a leaf on its way to ``.grad`` (``tracer/backprop/takers.py``): gives None once nobody does any more.
        self.taker: Callable[[], Any] | None = None
        #: The tensor whose ``.grad`` backward is to fill though it is not a leaf.
        self.retain: weakref.ref[torch.Tensor] | None = None
        #: By position among several results: the hooks on that result, which outlive its tensor, and its shape and dtype, where asked for.
        self.output_hooks: dict[int, OrderedDict[int, Hook]] | None = None
        self.output_kinds: dict[int, tuple[torch.Size, torch.dtype]] | None = None
        #: What the user notes on the node.
        self.metadata: dict[str, Any] | None = None
        #: Saved-tensor hooks have packed what the node saved.
        self.packed = False
        #: The user has taken the node out of its graph.
        self.removed = False
        #: The stack of the call, where anomaly mode was on.
        self.trace: Any = None
        #: The level of ``torch.vmap`` in which the node was recorded, once that has ended.
        self.level: Any = None


class Node:
    """A place that gradients come to on their way back.

    What ``Tensor.grad_fn`` returns has more, all that torch's own have (``tracer/recording/grad_fn.py``).
    """

    __slots__ = (
        "__weakref__",
        "dtype",
        "extras",
        "outputs",
        "parents",
        "place",
        "saved",
        "saved_versions",
        "serial",
        "shape",
        "values",
    )

    #: Of what a function under ``torch.vmap`` sees of its argument: the node of the argument outside.
    outer: Node | None = None

    def __init__(self, parents: tuple[Any, ...], shape: torch.Size | None, dtype: torch.dtype | None) -> None:
        #: One entry per input that wants a gradient: its node, or a tuple of nodes (with None) for a list of tensors.
        self.parents = parents
        #: Shape and dtype of the result; None for a call with several.
        self.shape = shape
        self.dtype = dtype
        #: What is saved for backward; None once a sweep has released it.
        self.saved: tuple[Any, ...] | None = ()
        self.saved_versions: Versions = ()
        self.extras: Extras | None = None
        #: The Output nodes of a call with several differentiable results; None for a call with one.
        self.outputs: list[weakref.ref[Output] | None] | None = None
        #: Where the call was made, if a graph with sites was open: op, paths of the module, code and instruction, which ``site`` is
        #: made of, and the numbers of its parents. A tuple of what the garbage collector need not look at, for there are many.
        self.place: tuple[Any, ...] | None = None
        #: Arguments and result, if a graph with values was open.
        self.values: Any = None
        self.serial = next_serial()

    @property
    def op(self) -> str:
        """The op's name."""
        raise NotImplementedError

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The rule's names for what is saved."""
        return ()

    def name(self) -> str:
        """As torch's ``grad_fn.name()``."""
        return f"{''.join(part.capitalize() for part in self.op.split('_'))}Backward0"

    def extra(self) -> Extras:
        """The rarely used attributes, made when first asked for."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def site(self) -> Site | None:
        """Where the call was made, if a graph with sites was open."""
        return None if self.place is None else Site(*self.place[:4])

    @property
    def packed(self) -> bool:
        """Whether saved-tensor hooks have packed what is saved."""
        return self.extras is not None and self.extras.packed

    def set_results(self, results: Sequence[Any], positions: Sequence[int], *, several: bool = False) -> None:
        """Say which of the ``results`` of this call, given by ``positions``, a gradient can come for.

        One alone shares this node, with its shape and dtype, unless the op returns ``several`` on principle. Of several, each gets an
        ``Output``.
        """
        if len(positions) == 1 and not several:
            only = results[positions[0]]
            self.shape, self.dtype = shape_of(only), dtype_of(only)
        else:
            self.outputs = [None] * len(results)

    def of_result(self, index: int, result: torch.Tensor) -> Node:
        """The node of result ``index``: this one, or its ``Output``, made anew when nobody holds it any more."""
        outputs = self.outputs
        if outputs is None:
            return self
        reference = outputs[index]
        node = None if reference is None else reference()
        if node is None:
            node = self._new_output(index, result.shape, result.dtype)
        return node

    def _new_output(self, index: int, shape: torch.Size, dtype: torch.dtype) -> Output:
        assert self.outputs is not None
        node = Output(self, index, shape, dtype)
        self.outputs[index] = weakref.ref(node)
        extras = self.extras
        if extras is not None and extras.output_hooks is not None and index in extras.output_hooks:
            node.extra().hooks = extras.output_hooks[index]
        return node

    def at(self, index: int) -> Node | None:
        """The node of result ``index`` without its tensor; None where that is gone and nobody has asked for ``grad_fn`` of it before."""
        outputs = self.outputs
        if outputs is None:
            return self
        reference = outputs[index]
        node = None if reference is None else reference()
        kinds = None if self.extras is None else self.extras.output_kinds
        if node is None and kinds is not None and index in kinds:
            node = self._new_output(index, *kinds[index])
        return node

    @property
    def gradient_places(self) -> list[tuple[int, int | None] | None]:
        """Where each gradient that hooks see belongs: position among the parents, and within a list of tensors; None for nowhere.

        As in torch there is one entry for each input that a gradient could go to.
        """
        return [place for position in range(len(self.parents)) for place in self._places_of(position)]

    def _places_of(self, position: int) -> list[tuple[int, int | None] | None]:
        parent = self.parents[position]
        if type(parent) is tuple:
            return [(position, i) if p is not None else None for i, p in enumerate(parent)]
        return [(position, None)]

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(grad_inputs, grad_outputs)`` is called when the gradients of this call's inputs are there; it may return others."""
        hooks = self.extra().post_hooks
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(grad_outputs)`` is called before the rule; it may return other gradients."""
        extras = self.extra()
        if extras.prehooks is None:
            extras.prehooks = OrderedDict()
        handle = RemovableHandle(extras.prehooks)
        extras.prehooks[handle.id] = hook
        return handle

    def add_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook`` with the gradient of this node's result, once it is complete."""
        hooks = self.extra().hooks
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def __repr__(self) -> str:
        return f"<{self.name()} #{self.serial}>"


class CallNode(Node):
    """One recorded call of an op that has a rule, with what the rule needs of it."""

    __slots__ = ("plan",)

    def __init__(
        self,
        plan: CallPlan,
        parents: tuple[Any, ...],
        shape: torch.Size | None,
        dtype: torch.dtype | None,
        saved: tuple[Any, ...] = (),
        saved_versions: Versions = (),
        packed: bool = False,
    ) -> None:
        # Written out, not handed to the base class: this runs for every recorded call.
        self.plan = plan
        self.parents = parents
        self.shape = shape
        self.dtype = dtype
        self.saved = saved
        self.saved_versions = saved_versions
        self.extras = None
        self.outputs = None
        self.place = None
        self.values = None
        self.serial = next_serial()
        if packed:
            self.extra().packed = True

    @property
    def op(self) -> str:
        return self.plan.rule.name

    @property
    def saved_names(self) -> tuple[str, ...]:
        return self.plan.saved_names

    @property
    def gradient_places(self) -> list[tuple[int, int | None] | None]:
        places: list[tuple[int, int | None] | None] = []
        position = 0
        for bit in range(len(self.plan.rule.inputs)):
            if self.plan.mask >> bit & 1:
                places += self._places_of(position)
                position += 1
            else:
                places.append(None)
        return places


class Output(Node):
    """One of several differentiable results of a call; its only parent is the call's node."""

    __slots__ = ("index",)

    def __init__(self, node: Node, index: int, shape: torch.Size, dtype: torch.dtype) -> None:
        # Written out, as in a call's node: a call with a list of results makes many.
        self.parents = (node,)
        self.shape = shape
        self.dtype = dtype
        self.saved = ()
        self.saved_versions = ()
        self.extras = None
        self.outputs = None
        self.place = None
        self.values = None
        self.serial = next_serial()
        self.index = index

    @property
    def op(self) -> str:
        return self.parents[0].op if self.parents else "result"

    def name(self) -> str:
        return self.parents[0].name() if self.parents else super().name()

    def add_hook(self, hook: Hook) -> RemovableHandle:
        handle = super().add_hook(hook)
        if self.parents:
            # The call knows them too: where no gradient comes for this result, they hear of that when the call is visited.
            extras = self.parents[0].extra()
            if extras.output_hooks is None:
                extras.output_hooks = {}
            extras.output_hooks[self.index] = self.extra().hooks
        return handle


class Leaf(Node):
    """Where a gradient ends: a tensor made by the user that requires grad. Holds the tensor weakly."""

    __slots__ = ("adopted", "tensor")

    def __init__(self, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype, *, adopted: bool = False) -> None:
        super().__init__((), shape, dtype)
        self.tensor = weakref.ref(tensor)
        #: It was made for a leaf of torch's own autograd, whose hooks torch holds.
        self.adopted = adopted

    @property
    def op(self) -> str:
        return "leaf"

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    @property
    def variable(self) -> torch.Tensor | None:
        """The tensor, if it is still alive."""
        return self.tensor()


class Bridge(Node):
    """A tensor with a history in torch's own autograd: the gradient that arrives here is handed on to torch."""

    __slots__ = ("edge", "native")

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__((), tensor.shape, tensor.dtype)
        self.native = tensor
        #: Where its history begins now: a write in place gives the tensor another one.
        self.edge = get_gradient_edge(tensor)

    @property
    def op(self) -> str:
        return "torch"

    def root(self) -> torch.Tensor | GradientEdge:
        """Where torch's pass begins: at the tensor, or at the history that it had, if it has been written into since."""
        native, edge = self.native, self.edge
        return native if native.requires_grad and get_gradient_edge(native)[:2] == edge[:2] else edge

    def name(self) -> str:
        return "TorchBackward"


class OpaqueNode(Node):
    """A call whose gradients come from no rule: the node finds them itself."""

    __slots__ = ("_op",)

    #: Whether None among its gradients means a gradient of zero, as from a rule; else it means that there is none.
    none_is_zero = True
    #: What it is given in place of a gradient of zero; None where zero is passed on without asking it.
    zero_gradient: Any = None
    #: The calls whose own rules run inside this one's backward.
    inside: Sequence[Node] = ()

    def __init__(self, op: str, parents: tuple[Any, ...], shape: torch.Size | None, dtype: torch.dtype | None) -> None:
        super().__init__(parents, shape, dtype)
        self._op = op

    @property
    def op(self) -> str:
        return self._op

    @property
    def origin(self) -> str:
        """What errors name as the source of a gradient that does not fit."""
        raise NotImplementedError

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        """The gradients of the parents, in their order.

        ``grad`` is the gradient of the result (a tuple with None for several). ``recorded``: the sweep is recorded (``create_graph``).
        ``in_flight()`` gives all other gradients that the sweep holds.
        """
        raise NotImplementedError

    def let_go(self) -> None:
        """Let go of what it holds beside saved tensors: no backward pass is to come again."""


class RaisingNode(OpaqueNode):
    """Stands where a derivative is not to be had: backward raises when a gradient comes through, and not before."""

    __slots__ = ("error",)

    def __init__(
        self,
        op: str,
        error: Callable[[], Exception],
        parents: tuple[Any, ...],
        shape: torch.Size | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(op, parents, shape, dtype)
        self.error = error

    def grad_inputs(self, grad: Any, recorded: bool, in_flight: Callable[[], Sequence[torch.Tensor]]) -> Sequence[Any]:
        raise self.error()


def flat(parents: tuple[Any, ...]) -> list[Node]:
    """The nodes among ``parents``, those of lists of tensors included."""
    nodes = []
    for parent in parents:
        if type(parent) is tuple:
            nodes.extend(flat(parent))
        elif parent is not None:
            nodes.append(parent)
    return nodes


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a tensor is stored in: its indices and values where it is sparse; none where torch does not show them."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in a nest of tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, LISTS):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
