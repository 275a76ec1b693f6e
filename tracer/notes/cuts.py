"""The places where a history ended: what came out of the call there has none, so no gradient comes back through it.

Cuts are noted for a graph with ``sites`` alone. Nothing on the way of a recorded call asks for them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

from ops_registry.sites import Site, find_site
from tracer.node import Node, next_serial
from tracer.notes.calls import serials

#: So many different cuts are kept, the latest.
KEPT_CUTS = 2048

#: What stands in a model's own books, an optimiser's work and a rule's formula: no user has cut anything there.
_HOUSEKEEPING = (
    "torch.optim",
    "torch.nn.modules.module",
    "ops_registry",
    "torch.distributions.constraints",
    "torch.distributions.distribution",
)
#: What is cut there, short of looking at arguments, is a sample.
_SAMPLING = "torch.distributions"

#: Ops without a gradient that are known under another name than that.
_NAMES = {"item": "item", "tolist": "tolist", "new_tensor": "conversion"}
_NAMES |= dict.fromkeys(("bool", "byte", "char", "int", "long", "short"), "integer result")
#: What asks a tensor for its one value.
NUMBERS = {"__float__", "__int__", "__bool__", "__index__", "__complex__"}


@dataclass(frozen=True)
class Cut:
    """A place where a history ended.

    ``what`` is one of ``detach``, ``data`` (also ``x.data = y``), ``no_grad``, ``inference_mode``, ``numpy``, ``dlpack``, ``item``,
    ``tolist``, ``float()``, ``int()``, ``bool()``, ``complex()``, ``index()``, ``integer result``, ``no gradient`` (an op whose results
    never carry one), ``sample`` (drawn by ``torch.distributions``), ``marked`` (a result of a Function that is none to differentiate),
    ``inside`` (compiled code whose result has no history), ``requires_grad_(False)``, ``grad`` (gradients taken without
    ``create_graph``), ``conversion`` (``torch.tensor(x)`` and its like), ``deepcopy``, ``saved`` (copied,
    pickled, saved to a file) and ``other class``. ``site.op`` is the op.
    """

    what: str
    site: Site
    #: Serial numbers of the calls and leaves whose history ended, as in ``Call``.
    parents: tuple[int, ...]
    #: Of ``requires_grad_(False)``: the leaf, which knows its number no more.
    leaf: weakref.ref[torch.Tensor] | None = field(default=None, repr=False, compare=False)
    #: Above the numbers of the calls that were made before, below those of the calls after it.
    serial: int = field(default=-1, repr=False, compare=False)


#: All that tells one cut from another: what, op, paths of the module, instruction, parents.
_Key = tuple[str, str, tuple[str, ...], tuple[int, int], tuple[int, ...]]


class CutNotes:
    """The cuts of one graph, latest last; one that comes again, for the same calls at the same place, is kept once."""

    def __init__(self) -> None:
        #: The user's code, and the number of the cut.
        self._cuts: dict[_Key, tuple[CodeType | None, int]] = {}
        self._frozen: dict[_Key, weakref.ref[torch.Tensor]] = {}

    def add(self, what: str, site: Site, parents: tuple[int, ...], frozen: torch.Tensor | None = None) -> None:
        """Note a cut, or that it was made again. ``frozen`` is the leaf that is to require no gradient any more."""
        key = what, site.op, site.modules, site.instruction, parents
        self._cuts.pop(key, None)
        self._cuts[key] = site.code[0], next_serial()
        if frozen is not None:
            self._frozen[key] = weakref.ref(frozen)
        if len(self._cuts) > KEPT_CUTS:
            oldest = next(iter(self._cuts))
            del self._cuts[oldest]
            self._frozen.pop(oldest, None)

    def cuts(self) -> list[Cut]:
        """All that are kept."""
        return [
            Cut(
                what,
                Site(op, modules, code, at),
                parents,
                self._frozen.get((what, op, modules, (of, at), parents)),
                number,
            )
            for (what, op, modules, (of, at), parents), (code, number) in self._cuts.items()
        ]

    def clear(self) -> None:
        """Forget all cuts."""
        self._cuts.clear()
        self._frozen.clear()


class _Noting(threading.local):
    """Where this thread's cuts go, and the nodes whose end is none, since the call that runs is to have a node itself."""

    cuts: CutNotes | None = None
    covered: frozenset[int] = frozenset()


class _Asked:
    """How many graphs with sites are open in all threads: a question that costs less than one to a thread."""

    __slots__ = ("_lock", "graphs")

    def __init__(self) -> None:
        self.graphs = 0
        self._lock = threading.Lock()

    def add(self, graphs: int) -> None:
        """So many more are open."""
        with self._lock:
            self.graphs += graphs


noting = _Noting()
asked = _Asked()


def note_cut(what: str, op: str, given: Any) -> None:
    """Note that the histories of the tracked tensors in the nest ``given`` end here, in ``op``."""
    if asked.graphs and noting.cuts is not None:
        _note(what, op, nodes_among(given))


def note_frozen(tensor: torch.Tensor) -> None:
    """Note that a leaf is to require no gradient any more; also where torch does it for a whole module."""
    if asked.graphs and noting.cuts is not None:
        site = find_site("requires_grad_", 2)
        noting.cuts.add("requires_grad_(False)", site, tuple(serials(nodes_among(tensor))), tensor)


def note_unrecorded(op: str, given: Any) -> None:
    """Note a call that is not recorded though it was given tensors that require grad: gradients are off."""
    if noting.cuts is not None and not torch.is_grad_enabled():
        _note("inference_mode" if torch.is_inference_mode_enabled() else "no_grad", op, nodes_among(given))


def note_without_gradient(op: str, given: Any) -> None:
    """Note a call of an op whose results never carry a gradient."""
    if noting.cuts is not None:
        _note(_NAMES.get(op, "no gradient"), op, nodes_among(given))


def note_no_tensor(op: str, given: Any) -> None:
    """Note a call of a function without a rule that read the values and gave no tensor that could carry a gradient."""
    if noting.cuts is not None:
        _note(f"{op.strip('_')}()" if op in NUMBERS else "no gradient", op, nodes_among(given))


def note_integers(op: str, parents: tuple[Any, ...]) -> None:
    """Note a recorded call that gave integers: no gradient comes through those."""
    if noting.cuts is not None:
        _note("integer result", op, parents)


def _note(what: str, op: str, nodes: Iterable[Any]) -> None:
    assert noting.cuts is not None
    parents = tuple([s for s in dict.fromkeys(serials(tuple(nodes))) if s not in noting.covered])
    caller = _caller(sys._getframe(2)) if parents else ""
    if parents and not caller.startswith(_HOUSEKEEPING):
        noting.cuts.add("sample" if caller.startswith(_SAMPLING) else what, find_site(op, 3), parents)


def _caller(frame: FrameType | None) -> str:
    """The module of the first frame that is none of recording's."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("tracer."):
            return str(name)
        frame = frame.f_back
    return ""


def nodes_among(nest: Any) -> list[Node]:
    """The nodes of the tracked tensors in a nest of tuples, lists and dicts."""
    if isinstance(nest, torch.Tensor):
        node = getattr(nest, "_node", None)
        return [] if node is None else [node]
    if isinstance(nest, dict):
        nest = tuple(nest.values())
    return [node for item in nest for node in nodes_among(item)] if isinstance(nest, tuple | list) else []


class covering:  # used as a statement
    """Inside the block the end of a history of ``nodes`` is no cut: the call that runs there becomes their history."""

    def __init__(self, nodes: Iterable[Node | None]) -> None:
        self._nodes = nodes

    def __enter__(self) -> None:
        self._outer = noting.covered
        if noting.cuts is not None:
            noting.covered = self._outer | set(serials(tuple(self._nodes)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        noting.covered = self._outer
