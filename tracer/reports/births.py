"""Where nan and inf are born in the forward pass: the calls whose result is worse than all that they were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.sites import named_modules
from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.func.vmapped import VmapNode
from tracer.graph import Graph
from tracer.node import CallNode, Leaf, Node, OpaqueNode, Output, flat
from tracer.notes.calls import Call, serials
from tracer.recording.parents import any_node
from tracer.reports.badness import FINE, INF, NAN, of_extremes, state_of
from tracer.reports.causes import PRODUCTS
from tracer.reports.known_values import bad_buffers, known_values
from tracer.reports.repairs import makes_bad
from tracer.reports.steps import input_names

#: Ops that only place what they are given: of finite numbers they make nothing else.
_PLACING = frozenset(
    (
        "__getitem__", "__setitem__", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy_", "expand", "fill",
        "gather", "hstack", "index_copy", "index_fill", "index_put", "masked_fill", "masked_scatter", "max.other", "maximum", "min.other",
        "minimum", "nan_to_num", "pad", "put", "scatter.src", "scatter.value", "select_scatter", "slice_scatter", "stack", "vstack",
        "where", "write_region",
    )
)  # fmt: skip
#: Ops whose result is at most as far out as the sum of what they are given.
_ADDING = frozenset(("add", "rsub", "sub"))
#: Ops that add something to a product of two others, and how many terms the product is thought to have at most.
_ADDING_A_PRODUCT = frozenset(("addmm", "addmv", "addbmm", "baddbmm"))
_TERMS = 1e5
#: Ops that make nothing else of finite numbers, short of what their dtype holds, and nothing finite of others.
_HANDING_ON = _ADDING | frozenset(
    (
        "clone", "contiguous", "double", "expand", "flatten", "float", "log_softmax", "mean", "movedim", "neg", "permute", "reshape",
        "squeeze", "sum", "t", "transpose", "unflatten", "unsqueeze", "view",
    )
)  # fmt: skip
#: Ops that besides these make nothing else of finite numbers.
_BOUNDED = {"abs", "cos", "dropout", "elu", "embedding", "gelu", "leaky_relu", "max_pool2d"}
_BOUNDED |= {"relu", "sigmoid", "silu", "sin", "softplus", "tanh"}
#: Ops whose rules keep what they are given and not the result, which is computed again of that: by the number of their arguments.
_COMPUTED_AGAIN = {
    **dict.fromkeys(
        ("acos", "acosh", "asin", "atanh", "digamma", "erfinv", "lgamma", "log", "log10", "log1p", "log2"), 1
    ),
    **dict.fromkeys(
        ("bmm", "div", "float_power", "fmod", "logit", "matmul", "mm", "mul", "pow", "remainder", "xlogy"), 2
    ),
}
#: Far from where a sum overflows in any dtype but float16.
_MODERATE = 1e37


@dataclass(eq=False)
class Birth:
    """One call at which nan or inf came up."""

    call: Call
    state: int
    #: ``forward``: the call made it of finite inputs. ``parameter``: a leaf that requires grad held it. ``data``: a constant did.
    #: ``constant``: an infinity that the program puts in, as masks do. ``before``: its input was made outside of the graph. ``dropped``:
    #: the notes of what it was given are gone.
    source: str
    #: The leaf that held it, and the names of the arguments that did; of nan made in ``forward``, those that are infinite.
    leaf: torch.Tensor | None = None
    arguments: list[str] = field(default_factory=list)
    #: A call made by the same function of torch's, whose other parts put it in on its behalf: it stands for that function.
    within: Call | None = None
    #: The call that put in the infinities that became nan here.
    infinities: Call | None = None
    #: The call that made nan of the inf that was born here.
    turned: Call | None = None
    #: Whether it comes to the loss; without a loss, whether it comes to a result that no call took.
    reaches: bool = False
    #: The first call that took what is bad and gave finite numbers.
    stopped: Call | None = None
    #: It stands for itself in no row: it is told with what it led to.
    told: bool = False
    #: Nothing tells that what the call was given was finite.
    unsure: bool = False


class Forward:
    """The calls of a graph, how bad the result of each is, and where that began."""

    def __init__(self, graph: Graph, loss: torch.Tensor | None) -> None:
        end = None if loss is None else any_node(loss)
        self.calls = {call.serial: call for call in sorted(graph.calls(), key=lambda call: call.serial)}
        self.nodes = {node.serial: node for node in graph.nodes()}
        self.dropped, self._last_dropped = graph.dropped()
        self._leaves = self._find_leaves(end)
        #: For what a call inside of torch.vmap was given from outside: the number of that.
        self._outside: dict[int, int] = {}
        for node in self.nodes.values():
            if isinstance(node, VmapNode):
                for limit, parent in zip(node.limits, node.parents, strict=False):
                    self._outside.update(zip(serials((limit,)), serials((parent,)), strict=False))
        #: By number: whether a result is finite, as far as that is known.
        self.states = {s: of_extremes(c.finite, c.extremes) for s, c in self.calls.items()}
        if not graph.notes_finite:
            self._read_saved(loss, end)
        #: The calls of which it is known whether their results are finite.
        self._sure = set(self.states)
        self.births: list[Birth] = []
        #: By the number of a call whose result is bad: where that began.
        self.origin: dict[int, Birth] = {}
        #: By the number of a leaf: the last call that took it and gave finite numbers.
        self.was_fine: dict[int, Call] = {}
        for call in self.calls.values():
            self._look_at(call)
        self._follow(end)

    def _read_saved(self, loss: torch.Tensor | None, end: Node | None) -> None:
        """Of a graph that does not note ``finite``: learn from what calls have saved, and from there on towards the leaves."""
        known = {} if loss is None or end is None else {_home(end).serial: state_of(loss)}
        for node in self.nodes.values():
            parents = {"result": node, **dict(zip(input_names(node), node.parents, strict=False))}
            for name, value in known_values(node).items():
                owner = parents.get(name)
                pairs = zip(owner, value, strict=False) if type(owner) is tuple else [(owner, value)]
                for one, part in pairs:
                    for serial in serials((one,)):
                        known[serial] = max(known.get(serial, FINE), state_of(part))
            again = _computed_again(node)
            if again is not None:
                known.setdefault(node.serial, again)
        for call in reversed(self.calls.values()):
            if call.serial in known:
                known.update((s, state) for s, state in self._told_by(call, known).items() if s in self.calls)
        self.states = {serial: max(known[serial], FINE) for serial in self.calls if serial in known}

    def _told_by(self, call: Call, known: Mapping[int, int]) -> dict[int, int]:
        """What the result of a call tells of those inputs of which nothing is known."""
        state, hands_on = known[call.serial], call.op in _HANDING_ON
        unknown = [serial for serial in self.parents(call) if serial not in known]
        if state <= FINE:
            return dict.fromkeys(unknown, FINE) if hands_on or (call.op in PRODUCTS and call.op != "div") else {}
        given = [known[serial] for serial in self.parents(call) if serial in known]
        if max(given, default=FINE) >= state or (makes_bad(call.op, state == NAN) and not hands_on):
            return {}
        guilty = [s for s in unknown if s in self.calls and makes_bad(self.calls[s].op, state == NAN)]
        if not self._can_make(call, state):
            guilty += unknown
        return dict.fromkeys(guilty[:1], state)

    def _can_make(self, call: Call, state: int) -> bool:
        """Whether a call can have made a result so bad of finite inputs, as far as its op and shapes tell."""
        node = self.nodes.get(call.serial)
        if isinstance(node, OpaqueNode) or _holds_bad_constant(node):
            return True
        if call.op == "mean":
            return node is not None and any(p.shape is not None and not p.shape.numel() for p in flat(node.parents))
        if state == INF:
            return not (call.op in _HANDING_ON or call.op in _PLACING) or (call.op == "sum" and _is_half(node))
        return makes_bad(call.op, nan=True)

    def _find_leaves(self, loss: Node | None) -> dict[int, torch.Tensor]:
        ends = [parent for node in self.nodes.values() for parent in flat(node.parents)]
        ends += [n for _, m in named_modules() for p in m._parameters.values() if p is not None and (n := any_node(p))]
        ends += [] if loss is None else [loss]
        return {n.serial: n.variable for n in ends if isinstance(n, Leaf) and n.variable is not None}

    def parents(self, call: Call) -> Iterator[int]:
        """The numbers of what a call was given; of a level of torch.vmap also those of what it returns."""
        for serial in call.parents:
            yield self._outside.get(serial, serial)
        node = self.nodes.get(call.serial)
        if isinstance(node, VmapNode):
            yield from serials(node.roots)

    def _look_at(self, call: Call) -> None:
        if call.serial not in self.states:  # as far as is known, what came in goes on
            self.states[call.serial] = max((self.states.get(s, FINE) for s in self.parents(call)), default=FINE)
            if call.op in _HANDING_ON or call.op in _PLACING or call.op in _BOUNDED:
                self._sure.update((call.serial,) if self._is_sure_of_parents(call) else ())
        bad = self.states[call.serial]
        if bad <= FINE:
            if call.finite:
                self.was_fine.update((serial, call) for serial in call.parents if serial in self._leaves)
            return
        given = [serial for serial in self.parents(call) if self.states.get(serial, FINE) > FINE]
        worst = max((self.states[serial] for serial in given), default=FINE)
        if worst >= bad:
            self.origin[call.serial] = self.origin[next(s for s in given if self.states[s] >= bad)]
            return
        made = [self.origin[serial] for serial in given]
        before = next((birth for birth in made if birth.source != "constant"), None)
        if before is not None:
            before.turned = before.turned or call  # inf - inf, 0 * inf
            self.origin[call.serial] = before
            return
        birth = self._born(call, bad)
        birth.unsure = birth.source == "forward" and not self._is_sure_of_parents(call)
        if birth.source in ("data", "constant"):
            near = [self.calls[s] for s in self._given(call, 2) if s in self.calls]
            birth.within = next((c for c in near if makes_bad(c.op, bad == NAN) and _made_together(c, call)), None)
            birth.source = "forward" if birth.within is not None else birth.source
        if made:
            birth.infinities = made[0].call
            for one in made:
                one.told = True
        self.births.append(birth)
        self.origin[call.serial] = birth

    def _is_sure_of_parents(self, call: Call) -> bool:
        return all(serial in self._sure or serial not in self.calls for serial in self.parents(call))

    def _born(self, call: Call, bad: int) -> Birth:
        """What is known of how a call came by a result that is worse than those of the calls before."""
        node = self.nodes.get(call.serial)
        given = {name: value for name, value in known_values(node).items() if name != "result"}
        held = {name: b for name, value in given.items() if (b := state_of(value)) >= bad}
        parents = {} if node is None else dict(zip(input_names(node), node.parents, strict=False))
        for name in held:
            parent = parents.get(name)
            if isinstance(parent, Leaf):
                if self._held(call, node, parent.variable, name):
                    return Birth(call, bad, "parameter", parent.variable, [name])
            elif isinstance(parent, Node) and _home(parent).serial not in self.calls:
                return Birth(call, bad, "before", None, [name])
        constants = [name for name in held if _is_constant(parents.get(name), given[name], bad)]
        if constants:
            return Birth(call, bad, "data" if bad == NAN else "constant", None, constants)
        infinities = [name for name in given if bad == NAN and _is_constant(parents.get(name), given[name], INF)]
        infinities = [name for name in infinities if state_of(given[name]) == INF]
        if infinities:
            return Birth(call, bad, "forward", None, infinities)
        if node is None:
            for serial in call.parents:
                leaf = self._leaves.get(serial)
                if leaf is not None and state_of(leaf) >= bad and self._held(call, None, leaf, None):
                    return Birth(call, bad, "parameter", leaf)
        if self._only_places(call):
            return Birth(call, bad, "data" if bad == NAN else "constant")
        if any(s not in self.calls and s not in self._leaves and s <= self._last_dropped for s in call.parents):
            return Birth(call, bad, "dropped")
        return Birth(call, bad, "data" if bad == NAN and _reads_bad_buffer(call) else "forward")

    def _given(self, call: Call, depth: int) -> list[int]:
        """The numbers of what a call was given, and of what that was made of."""
        found = list(self.parents(call))
        if depth > 1:
            found += [s for one in list(found) if one in self.calls for s in self._given(self.calls[one], depth - 1)]
        return found

    @staticmethod
    def _held(call: Call, node: Node | None, leaf: torch.Tensor | None, name: str | None) -> bool:
        """Whether a leaf that is bad now was so when the call took it: an optimiser's step may have made it so since."""
        if leaf is None or leaf._version == 0 or not makes_bad(call.op, nan=False):
            return True
        return node is not None and (node.values is not None or name in node.saved_names or leaf.grad is None)

    def _only_places(self, call: Call) -> bool:
        """Whether the op cannot have made it of finite numbers itself: a constant held it."""
        if call.op in _PLACING:
            return True
        if call.op not in _ADDING and call.op not in _ADDING_A_PRODUCT:
            return False
        known = [self.calls[s].extremes for s in self.parents(call) if s in self.calls]
        known += [
            None if (leaf := self._leaves.get(s)) is None else _extent(leaf)
            for s in call.parents
            if s not in self.calls
        ]
        node = self.nodes.get(call.serial)
        limit = 1e4 if _is_half(node) else _MODERATE
        if any(extremes is None for extremes in known):
            return False
        largest = [max(abs(extremes[0]), abs(extremes[1])) for extremes in known if extremes is not None]
        if call.op in _ADDING_A_PRODUCT:
            return len(largest) == 2 and largest[0] * largest[1] * _TERMS < limit
        return len(largest) < 2 and all(one < limit for one in largest)

    def _follow(self, loss: Node | None) -> None:
        """Find out where what was born comes to."""
        end = None if loss is None else _home(loss).serial
        end = end if end in self.calls else None
        reaching: set[int] = set()
        taken: set[int] = set()
        for call in reversed(self.calls.values()):
            bad = self.states[call.serial] > FINE
            if bad and (call.serial == end or (end is None and call.serial not in taken)):
                reaching.add(call.serial)
            for serial in self.parents(call):
                if self.states.get(serial, FINE) > FINE:
                    taken.add(serial)
                    if bad and call.serial in reaching:
                        reaching.add(serial)
                    if not bad:
                        self.origin[serial].stopped = call
        for birth in self.births:
            birth.reaches = birth.call.serial in reaching

    def origin_of_gradient(self, node: Node) -> Birth | None:
        """Where the numbers came from that a rule cannot use: the result of the call, or one that it was given."""
        inside: list[Any] = list(node.inside) if isinstance(node, VmapNode) else []
        for one in (node, *inside):
            for serial in (one.serial, *serials(one.parents)):
                if serial in self.origin:
                    return self.origin[serial]
        return None


def _reads_bad_buffer(call: Call) -> bool:
    """Whether a buffer of the very module that made the call holds nan: running statistics are no argument that a rule keeps."""
    module = f"{call.site.module}." if call.site.module else ""
    return any(title.removeprefix("buffer ").rpartition(".")[0] == module[:-1] for title in bad_buffers(NAN))


def _holds_bad_constant(node: Node | None) -> bool:
    """Whether a call is known to have been given nan or an infinity by none of its parents."""
    if node is None:
        return False
    parents = dict(zip(input_names(node), node.parents, strict=False))
    given = [(name, value) for name, value in known_values(node).items() if name != "result"]
    return any(_is_constant(parents.get(name), value, INF) and state_of(value) > FINE for name, value in given)


def _computed_again(node: Node) -> int | None:
    """How bad the result of a call is of which all arguments are known; None where they are not, or where that is known anyway."""
    count = _COMPUTED_AGAIN.get(node.op)
    if count is None or not isinstance(node, CallNode):
        return None
    values, names = known_values(node), node.plan.rule.signature.names[:count]
    if "result" in values or not all(name in values for name in names):
        return None
    with DisableTorchFunctionSubclass(), torch.no_grad():
        try:
            result = getattr(torch, node.op)(*[values[name] for name in names])
            return state_of(result) if result.dtype is node.dtype else None  # autocast has computed it in another
        except RuntimeError:  # inside of torch.vmap its arguments may stand for others
            return None


def _is_constant(parent: Any, value: Any, bad: int) -> bool:
    """Whether what is bad in an argument came from no call and no leaf; ``parent`` has the nodes of a list of tensors."""
    if type(parent) is not tuple:
        return parent is None
    return any(p is None and state_of(v) >= bad for p, v in zip(parent, value, strict=False))


def _made_together(one: Call, other: Call) -> bool:
    """Whether one call of the user's made both."""
    return one.site.line is not None and one.site.instruction == other.site.instruction


def _home(node: Node) -> Node:
    """The call that a node is a result of."""
    return node.parents[0] if isinstance(node, Output) and node.parents else node


def _is_half(node: Node | None) -> bool:
    return node is not None and node.dtype is torch.float16


def _extent(leaf: torch.Tensor) -> tuple[float, float] | None:
    if state_of(leaf) > FINE or not leaf.is_floating_point() or not leaf.numel():
        return None
    largest = float(leaf.detach().abs().max())
    return -largest, largest
