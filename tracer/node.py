"""The nodes that recorded calls leave behind.

Ownership is acyclic: a tensor owns its node, a node owns its parents and plain aliases of what its rule keeps, and a leaf's
node holds its tensor weakly. So everything is freed by reference counts.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ops_registry.rule import CallPlan, Formula, Rule, Step, make_needs
from ops_registry.signatures import Signature

#: Serial numbers grow with every node made, so a node's number is above those of all its ancestors.
next_serial = itertools.count().__next__

Hook = Callable[[torch.Tensor], torch.Tensor | None]


class Extras:
    """What few nodes have: hooks, a tensor that retains its gradient, several results, the user's line."""

    __slots__ = ("hooks", "line", "outputs", "post_hooks", "retain")

    def __init__(self) -> None:
        self.hooks: OrderedDict[int, Hook] = OrderedDict()
        self.post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        #: The tensor whose ``.grad`` backward is to fill though it is not a leaf.
        self.retain: weakref.ref[torch.Tensor] | None = None
        #: The Output nodes of a call with several differentiable results.
        self.outputs: list[weakref.ref[Output] | None] | None = None
        self.line: str | None = None


class Node:
    """One recorded call, with what backward needs of it. What ``Tensor.grad_fn`` returns."""

    __slots__ = ("__weakref__", "dtype", "extras", "kept", "parents", "plan", "saved", "serial", "shape")

    def __init__(
        self,
        plan: CallPlan,
        parents: tuple[Any, ...],
        shape: torch.Size | None,
        dtype: torch.dtype | None,
        kept: tuple[Any, ...] = (),
        saved: Sequence[tuple[torch.Tensor, int]] = (),
    ) -> None:
        self.plan = plan
        #: One entry per input that wants a gradient: its node, or a tuple of nodes (with None) for a list of tensors.
        self.parents = parents
        self.shape = shape
        self.dtype = dtype
        #: Values kept for the rule; None once backward has released them.
        self.kept: tuple[Any, ...] | None = kept
        #: The tensors among what is kept, each with torch's version counter at the time.
        self.saved = saved
        self.extras: Extras | None = None
        self.serial = next_serial()

    def extra(self) -> Extras:
        """The rarely used attributes, made when first asked for."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def line(self) -> str | None:
        """``file:line`` of the user's call, where lines are recorded."""
        return None if self.extras is None else self.extras.line

    @property
    def outputs(self) -> list[weakref.ref[Output] | None] | None:
        """The Output nodes of a call with several differentiable results; None for a call with one."""
        return None if self.extras is None else self.extras.outputs

    @property
    def op(self) -> str:
        """The op's name."""
        return self.plan.rule.name

    def name(self) -> str:
        """As torch's ``grad_fn.name()``."""
        return f"{''.join(part.capitalize() for part in self.op.split('_'))}Backward"

    @property
    def next_functions(self) -> tuple[tuple[Node, int], ...]:
        """The nodes that backward goes to next, each with the index of the output it stands for, as in torch."""
        return tuple((p.parents[0], p.index) if isinstance(p, Output) else (p, 0) for p in flat(self.parents))

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(grad_inputs, grad_outputs)`` is called when the gradients of this call's inputs are there; it may return others."""
        hooks = self.extra().post_hooks
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(grad_outputs)`` is called before the rule; it may return other gradients."""

        def before(grad: Any) -> Any:
            several = isinstance(grad, tuple)
            new = hook(grad if several else (grad,))
            return new if several or not isinstance(new, tuple | list) else new[0]

        return self.add_hook(before)

    def add_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook`` with the gradient of this node's result, once it is complete."""
        hooks = self.extra().hooks
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def output(self, index: int, shape: torch.Size | None = None, dtype: torch.dtype | None = None) -> Output:
        """The node of result ``index`` of this call, made anew when nobody holds it any more."""
        outputs = self.outputs
        assert outputs is not None
        reference = outputs[index]
        node = None if reference is None else reference()
        if node is None:
            assert shape is not None and dtype is not None
            node = Output(self, index, shape, dtype)
            outputs[index] = weakref.ref(node)
        return node

    def __repr__(self) -> str:
        return f"<{self.name()} #{self.serial}>"


class Output(Node):
    """One of several differentiable results of a call; its only parent is the call's node."""

    __slots__ = ("index",)

    def __init__(self, node: Node, index: int, shape: torch.Size, dtype: torch.dtype) -> None:
        super().__init__(node.plan, (node,), shape, dtype)
        self.index = index

    def name(self) -> str:
        return self.parents[0].name()


class Leaf(Node):
    """Where a gradient ends: a tensor made by the user that requires grad. Holds the tensor weakly."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
        super().__init__(LEAF, (), shape, dtype)
        self.tensor = weakref.ref(tensor)

    def name(self) -> str:
        return "AccumulateGrad"

    @property
    def variable(self) -> torch.Tensor | None:
        """The tensor, if it is still alive."""
        return self.tensor()


class Bridge(Node):
    """A tensor with a history in torch's own autograd: the gradient that arrives here is handed on to torch."""

    __slots__ = ("native",)

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(BRIDGE, (), tensor.shape, tensor.dtype)
        self.native = tensor

    def name(self) -> str:
        return "TorchBackward"


def joint_plan(
    name: str,
    call: Callable[..., Any],
    count: int,
    *,
    written: Callable[..., Any] | None = None,
    returns_list: bool = False,
) -> CallPlan:
    """The plan of a call that is not in the registry: ``call(grad, kept, needs)`` gives the gradients of its ``count`` inputs at once.

    ``written`` is the function that errors name, where it is another one.
    """
    inputs = tuple(f"input{i}" for i in range(count))
    formula = Formula(written or call, inputs, True, ("grad",))
    step = Step(formula, call, tuple(range(count)), make_needs(inputs, (True,) * count), 0, True)
    return CallPlan(Rule(name, Signature(inputs, {}, returns_list=returns_list), (formula,)), (step,), (), None, ())


def _marker(name: str) -> CallPlan:
    return CallPlan(Rule(name, Signature((), {})), (), (), None, ())


LEAF = _marker("leaf")
BRIDGE = _marker("torch")


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
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
