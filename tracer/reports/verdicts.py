"""Verdicts: why a tensor has the gradient that it has, with the place, the reason and what to change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ops_registry.sites import Site
from tracer.errors import FreedGraphError, OverwrittenError
from tracer.node import Bridge, CallNode, Leaf, Node, OpaqueNode, Output, flat
from tracer.notes.calls import Call
from tracer.notes.cuts import Cut
from tracer.recording.parents import known_node
from tracer.reports.badness import ABSENT, FINE, INF, NAN
from tracer.reports.causes import (
    CHOOSING,
    FIX_CUT,
    OVERWRITING,
    PRODUCTS,
    REENTRANT_FIX,
    STEPS,
    WHY_ZERO,
    is_reentrant,
    name_of,
)
from tracer.reports.evidence import NUMBERS, Evidence, Origin, call_of, kind_of
from tracer.reports.gradient_births import hooked, hooks_told
from tracer.reports.not_finite import NotFinite
from tracer.reports.report import Row, place
from tracer.reports.steps import input_names
from tracer.reports.vanishing import vanishes_at
from tracer.reports.zeros import TIMES_ZERO, why_nothing_comes, why_rounded, why_zero
from tracer.tracked_tensor import Tensor

#: How the verdicts are spoken of, the most surprising first.
VERDICTS = {
    "nan": "born in",
    "inf": "born in",
    "overwritten": "by",
    "cut": "by",
    "zero": "made by",
    "not in loss": "last used by",
    "unused": "",
    "untracked": "",
    "unknown": "",
    "frozen": "by",
    "ok": "",
}


@dataclass(frozen=True)
class Cause(Row):
    """One reason why a gradient is what it is."""

    #: ``ok``, ``unused``, ``not in loss``, ``cut``, ``zero``, ``nan``, ``inf``, ``frozen`` or ``overwritten``; ``untracked`` for a tensor
    #: of torch's own autograd that no recorded call took; ``unknown``, for a parameter of a model, where no backward pass can be run.
    cause: str
    #: The op that is to blame, or the last that took the tensor; empty where there is none.
    op: str
    site: Site | None
    #: What happened there.
    reason: str
    #: What to change.
    fix: str = field(default="", repr=False)
    #: That of the gradient, for ``ok``, and for ``zero`` where it is rounding and nothing else.
    norm: float | None = field(default=None, repr=False)

    def told(self) -> str:
        """``cut: by detach at helper.py:12 in enc``."""
        by = f" {VERDICTS[self.cause]} {self.op}".rstrip() if self.op else ""
        return f"{self.cause}:{by}{f' at {place(self.site)}' if self.site is not None else ''}"

    def sentence(self) -> str:
        """``cut: by detach at helper.py:12 in enc: what came out of it has ...``."""
        told = self.told()
        return f"{told}{' ' if told.endswith(':') else ': '}{self.reason}"


def causes_of(tensor: torch.Tensor, loss: Any, evidence: Evidence, *, with_path: bool = False) -> list[Cause]:
    """Why ``tensor`` has the gradient that ``loss`` gives it, the likeliest cause first."""
    if is_lazy(tensor):
        return [Cause("unused", "", None, "it has no shape yet: its module has not run", "Run a forward pass first")]
    frozen = _frozen(tensor, evidence)
    if not tensor.requires_grad:
        return frozen or _without_history(tensor, evidence)
    node = known_node(tensor)
    if type(tensor) is not Tensor and (node is None or not _is_noted(node, evidence)):
        return [_untracked(tensor, loss, evidence)]
    assert node is not None
    if node.serial in evidence.nested:
        return _of_checkpoint(*evidence.nested[node.serial])
    serial = call_of(node).serial
    if serial not in evidence.reached:
        return _not_reached(call_of(node), loss, evidence, frozen)
    if evidence.error is not None:
        return [_failed(evidence)]
    state = evidence.came.get(node.serial, ABSENT)
    if state == FINE:
        rounding = evidence.rounded_by(node)
        judged = _ok(node, evidence, with_path) if rounding is None else _rounded(rounding, node, evidence)
        return [judged, *of_loss(evidence)]
    found = [_of_origin(origin, state, node, evidence) for origin in evidence.origins.get(node.serial, ())]
    if node.serial not in evidence.reached or not found:
        found.append(_of_unused_result(call_of(node)))
    found.sort(key=lambda cause: cause.reason == TIMES_ZERO)
    if kind_of(state) != "not finite":
        found += [_of_cut(end.cut) for end in evidence.ends(serial) if end.cut is not None and end.rank[0] == 0]
        found += of_loss(evidence)
    return _each_once(found)


def _each_once(causes: list[Cause]) -> list[Cause]:
    each: dict[tuple[str, ...], Cause] = {}
    written = {place(cause.site) for cause in causes if cause.cause == "overwritten" and cause.op != "write_region"}
    for cause in causes:
        if cause.op == "write_region" and place(cause.site) in written:
            continue  # a write through a view, told by the op that wrote
        each.setdefault((cause.cause, cause.op, place(cause.site)), cause)
    return list(each.values())


def _is_noted(node: Node, evidence: Evidence) -> bool:
    serial = call_of(node).serial
    return serial in evidence.reached or serial in evidence.users or bool(evidence.ends(serial))


# ---------------------------------------------------------------------- it came to nothing on the way forward
def _frozen(tensor: torch.Tensor, evidence: Evidence) -> list[Cause]:
    return [
        Cause(
            "frozen",
            "requires_grad_(False)",
            cut.site,
            "it did not require grad from there on",
            FIX_CUT["requires_grad_(False)"],
        )
        for cut in reversed(evidence.cuts)
        if cut.leaf is not None and cut.leaf() is tensor
    ]


def _without_history(tensor: torch.Tensor, evidence: Evidence) -> list[Cause]:
    """Of a tensor that does not require grad and was not seen to lose that."""
    if getattr(tensor, "_is_param", False) or isinstance(tensor, torch.nn.Parameter):
        reason = "it does not require grad, and did not when the graph was opened"
    else:
        reason = "it does not require grad: it is data, or came out of a call that ends histories"
    fix = "Turn it on before the forward pass: requires_grad_()"
    frozen = Cause("frozen", "", None, reason, fix)
    if isinstance(tensor, torch.nn.Parameter):
        return [frozen]
    ends = [cut for cut in reversed(evidence.cuts) if cut.leaf is None and cut.what not in NUMBERS]
    if type(tensor) is not Tensor or not tensor.is_floating_point():
        return [frozen, *[_of_cut(cut) for cut in ends[:3]]]
    # It came out of a call: most likely one that was given something of its shape. Of calls that are gone no shape is known.
    shapes = evidence.shapes()
    alike = [cut for cut in ends if any(shapes.get(serial, tensor.shape) == tensor.shape for serial in cut.parents)]
    others = [cut for cut in ends if cut not in alike]
    return [*[_of_cut(cut) for cut in alike[:3]], frozen, *[_of_cut(cut) for cut in others[: 3 - len(alike)]]]


def _untracked(tensor: torch.Tensor, loss: Any, evidence: Evidence) -> Cause:
    fix = "Track the model before the forward pass: nn.track(model)"
    if isinstance(loss, torch.Tensor) and type(loss) is not Tensor and loss.requires_grad:
        reason = "nothing was recorded: the loss has its whole history in torch's own autograd"
    elif _is_behind_torch(tensor, evidence):
        reason = "it is a tensor of torch's own autograd, and its gradient goes on there from where a recorded call took over"
    else:
        reason = "it is a tensor of torch's own autograd, and no recorded call took it"
    return Cause("untracked", "", None, reason, fix)


def _is_behind_torch(tensor: torch.Tensor, evidence: Evidence) -> bool:
    """Whether a native leaf, or a native result, stands in the histories of torch's that the loss goes on into."""
    waiting: list[Any] = [node.edge.node for node in evidence.order if isinstance(node, Bridge)]
    seen = set(waiting)
    while waiting:
        fn = waiting.pop()
        if getattr(fn, "variable", None) is tensor or (tensor.grad_fn is not None and fn is tensor.grad_fn):
            return True
        for following, _ in fn.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _not_reached(node: Node, loss: Any, evidence: Evidence, frozen: list[Cause]) -> list[Cause]:
    serial = node.serial
    if isinstance(evidence.error, FreedGraphError) and any(is_reentrant(n) for n in evidence.order):
        return [_failed(evidence)]  # its backward, which has run, may have come to this one
    found = []
    for end in evidence.ends(serial):
        if end.cut is not None:
            found.append(_of_cut(end.cut))
        elif end.serial != serial:
            call = evidence.calls[end.serial]
            held = "its result is still held, and" if call.alive else "its result"
            reason = f"{held} went into nothing that the loss was made of"
            fix = "Add what it gives to the loss, or leave the call out"
            found.append(Cause("not in loss", call.op, call.site, reason, fix))
    if not found and not frozen:
        if evidence.root is not None and not isinstance(node, Leaf) and serial > evidence.root.serial:
            reason = "it was made after the loss: an index or a view (weight[0], weight.T) is a new tensor each time"
            return [Cause("unused", node.op, node.site, reason, "Ask about the tensor that it was made of")]
        if serial in evidence.calls:
            return [_dead_end(serial, evidence)]
        fix = (
            "Call what uses it inside the graph, before the loss is taken; where a module has replaced it since "
            "(module.weight = ..., load_state_dict(assign=True)), ask about the new one. What state_dict() gives has its values alone"
        )
        return [Cause("unused", "", None, "no call that was recorded took it", fix)]
    if evidence.root is None and not frozen and all(cause.cause != "cut" for cause in found):
        found.append(_loss_without_history(loss))
    return _each_once([*frozen, *found])


def _dead_end(serial: int, evidence: Evidence) -> Cause:
    call = evidence.calls[serial]
    return Cause("not in loss", call.op, call.site, "no call took the result", "Add what it gives to the loss")


def _loss_without_history(loss: Any) -> Cause:
    what = "is a number" if not isinstance(loss, torch.Tensor) else "does not require grad"
    return Cause(
        "cut", "", None, f"the loss {what}: no recorded call has led to it", "Make it of tensors that require grad"
    )


def _of_cut(cut: Cut) -> Cause:
    op = cut.site.op
    told = (
        f"{cut.what} ({op})"
        if cut.what in ("no_grad", "inference_mode", "requires_grad_(False)", "sample")
        else cut.what
    )
    if cut.what in ("detach", "integer result", "no gradient", "conversion", "other class", "marked", "inside"):
        told = op
    reasons = {
        "no_grad": "gradients were off when the call was made (no_grad, set_grad_enabled(False))",
        "inference_mode": "gradients were off when the call was made",
        "integer result": "integers carry no gradient",
        "no gradient": "its result carries no gradient, whatever it is given",
        "sample": "what a distribution draws has no gradient towards its parameters",
        "marked": "the Function gives this result without a gradient: it is marked so, or of integers",
        "inside": "what it returned has no history in torch's own autograd, where it ran",
        "requires_grad_(False)": "a leaf on the way did not require grad from there on",
        "grad": "gradients taken without create_graph=True have no history",
        "deepcopy": "the copy is a leaf of its own",
    }
    reason = reasons.get(cut.what, "what came out of it has the values and no history")
    choice = cut.what == "integer result" and name_of(op) in CHOOSING
    return Cause("cut", told, cut.site, reason, FIX_CUT["indices" if choice else cut.what])


# ---------------------------------------------------------------------- it came, and something is wrong with it
def _ok(node: Node, evidence: Evidence, with_path: bool) -> Cause:
    value = evidence.norms.get(node.serial)
    reason = "its gradient is there" if value is None else f"its gradient has norm {value:.4g}"
    if with_path:
        way = [n.op for n in evidence.way_to_loss(node.serial) if not isinstance(n, Output)]
        shown = " -> ".join(way if len(way) <= 8 else [*way[:4], "...", *way[-3:]])
        reason += f", by {shown}" if way else ", as it is the loss itself"
    return Cause("ok", "", None, reason, _FILLS_NO_GRAD if _fills_no_grad(node) else "", norm=value)


def _rounded(rounding: Node, node: Node, evidence: Evidence) -> Cause:
    call, undone, fix = why_rounded(call_of(rounding), evidence)
    norm = evidence.norms[node.serial]
    reason = f"{undone}; what is left of its gradient, of norm {norm:.2g}, is rounding"
    return Cause("zero", call.op, call.site, reason, fix, norm)


_FILLS_NO_GRAD = (
    "A call has made it, and backward fills .grad of leaves alone: ask about the leaf, or call retain_grad() on it"
)


def _fills_no_grad(node: Node) -> bool:
    return not isinstance(node, Leaf) and (node.extras is None or node.extras.retain is None)


def _failed(evidence: Evidence) -> Cause:
    """What is told of a tensor that the backward pass would have come to."""
    error, node = evidence.error, evidence.failed_at
    site = None if node is None else node.site
    op = "" if node is None else node.op
    if isinstance(error, OverwrittenError):
        if error.site is not None:
            op, site = error.site.op, error.site
        return Cause("overwritten", op, site, f"backward raises: {error}")
    if isinstance(error, FreedGraphError):
        fix = "Ask before backward(), or pass retain_graph=True to it"
        return Cause("unknown", "", None, "the loss was made of it; backward has released the graph since", fix)
    return Cause("unknown", op, site, f"backward raises {type(error).__name__}: {error}")


def _of_checkpoint(state: int, norm: float) -> list[Cause]:
    """Of a leaf that a stretch under a checkpoint with ``use_reentrant=True`` uses, which no graph sees into."""
    inside = "by a stretch under torch.utils.checkpoint with use_reentrant=True"
    if state == FINE:
        return [Cause("ok", "", None, f"its gradient has norm {norm:.4g}, {inside}", norm=norm)]
    cause = {NAN: "nan", INF: "inf"}.get(state, "zero")
    return [Cause(cause, "", None, f"so it came {inside}", REENTRANT_FIX)]


def _of_unused_result(call: Node) -> Cause:
    return Cause(
        "not in loss",
        call.op,
        call.site,
        "another result of that call went into the loss, and this one did not",
        "Use this one",
    )


def _of_origin(origin: Origin, state: int, subject: Node, evidence: Evidence) -> Cause:
    node = call_of(origin.node)
    kind = kind_of(state)
    if kind == "not finite":
        return _not_finite(evidence.places.of_gradient(node), state)
    if origin.how == "hook":
        told = f"a hook on the result of {node.op}" if isinstance(node, CallNode | OpaqueNode) else "a hook on it"
        reason = ", ".join(filter(None, (f"{told} was given a gradient and made it so", hooks_told(origin.node))))
        return Cause(_word(state), "a hook", node.site, reason, "Look at register_hook on it")
    if origin.how == "rule" and node.extras is not None and node.extras.post_hooks:
        told = "a gradient came, and this is what the hook or the call passed on"
        reason = ", ".join(filter(None, (told, hooks_told(node))))
        fix = "Look at the hook: of the module, or of grad_fn"
        return Cause(_word(state), f"a hook on {hooked(node)}", node.site, reason, fix)
    if origin.how == "sum":
        return _cancelled(node, evidence)
    if kind == "absent":
        assert origin.parent is not None
        if is_reentrant(node):
            return Cause("cut", node.op, node.site, "the stretch that it runs sends nothing back there", REENTRANT_FIX)
        reason = (
            f"its own backward returns None for input {_input_name(node, origin.parent)} of those that require grad"
        )
        return Cause("cut", node.op, node.site, reason, "Return a gradient there, or zeros")
    return _zero(origin, node, subject, evidence)


def _word(state: int) -> str:
    return {ABSENT: "cut", INF: "inf", NAN: "nan"}.get(state, "zero")


def _uses(node: Node, evidence: Evidence) -> list[Call]:
    """The noted calls that took a tensor."""
    return [evidence.calls[serial] for serial in evidence.users.get(node.serial, ()) if serial in evidence.calls]


def _cancelled(node: Node, evidence: Evidence) -> Cause:
    uses = _uses(node, evidence)
    where = ", ".join(dict.fromkeys(place(use.site) for use in uses[-4:]))
    reason = f"what its uses{f' ({where})' if where else ''} send back adds up to exactly 0"
    op, site = (uses[-1].op, uses[-1].site) if uses else (node.op, node.site)
    return Cause("zero", op, site, reason, "Look for terms of opposite sign, as in x - x")


def _zero(origin: Origin, node: Node, subject: Node, evidence: Evidence) -> Cause:
    assert origin.parent is not None
    given = _input_name(node, origin.parent)
    told = why_nothing_comes(node, origin.parent)
    if told is not None:
        return Cause("zero", *told)
    if (name_of(node.op) not in WHY_ZERO and name_of(node.op) not in STEPS) or _overwrites(node, given):
        killer, parent = vanishes_at(origin.node, origin.parent, subject, evidence)
        if call_of(killer) is not node:
            node = call_of(killer)
            given = _input_name(node, parent)
    inside = [
        n for n in getattr(node, "inside", ()) if name_of(n.op) in STEPS or name_of(n.op) in WHY_ZERO.keys() - PRODUCTS
    ]
    if len(inside) == 1:  # of a level of torch.vmap: nothing else in it is as likely
        node = inside[0]
    if _overwrites(node, given):
        reason = "it writes other values over these: what they were does not matter to the loss"
        return Cause("overwritten", node.op, node.site, reason, "Write elsewhere, or into a part of it")
    reason, fix = why_zero(node, given)
    return Cause("zero", node.op, node.site, reason, fix)


def _overwrites(node: Node, given: str) -> bool:
    if node.op == "normal":  # torch.normal, which draws anew, and not normal_
        return False
    written = isinstance(node, CallNode) and node.plan.rule.signature.names[0] == given
    return written and (name_of(node.op) in OVERWRITING or node.op in OVERWRITING)


def _input_name(node: Node, parent: Node) -> str:
    """The name of the input that ``parent`` is, as the rule has it; where none has, its number."""
    names = input_names(node)
    return next(
        (name.lstrip("_") for name, given in zip(names, node.parents, strict=True) if parent in flat((given,))), "?"
    )


def of_loss(evidence: Evidence) -> list[Cause]:
    """Of a gradient that is finite, while the loss is not."""
    row = None if evidence.loss_is_finite or evidence.root is None else evidence.places.of_result(evidence.root)
    if row is None:
        return []
    cause = _not_finite(row, NAN if row.what == "nan" else INF)
    return [replace(cause, reason=f"that is of the loss: {cause.reason}")]


def _not_finite(row: NotFinite, state: int) -> Cause:
    told = [f"{row.origin()}" + (f": {row.values}" if row.values else "")]
    told += [] if row.harmless else [row.effect]
    return Cause(_word(state), row.op, row.site, "; ".join(told), row.repair.rstrip("."))
