"""Where a value was first not finite, as far as the calls of a graph still know their values."""

from __future__ import annotations

from tracer.node import CallNode, Leaf, Node, flat
from tracer.reports.evidence import FINE, INF, Evidence, call_of, state_of
from tracer.reports.steps import input_names


def birth_in_forward(node: Node, evidence: Evidence) -> Node | None:
    """The call whose result was the first that is not finite, on the way to ``node``; None where what ``node`` worked on was finite.

    Known are the saved tensors of the calls, and with ``finite`` every result.
    """
    if not _works_on_bad_values(node, evidence):
        return None
    seen = {node.serial}
    while True:
        bad = next((p for p in _bad_parents(node, evidence) if p.serial not in seen), None)
        if bad is None:
            return node
        seen.add(bad.serial)
        node = bad


def _works_on_bad_values(node: Node, evidence: Evidence) -> bool:
    return (
        _result_is_bad(node, evidence)
        or any(_is_bad(value) for _, value in _saved(node))
        or bool(_bad_parents(node, evidence))
    )


def given_bad_values(node: Node, evidence: Evidence) -> list[str]:
    """The names of those arguments of a call that are not finite and came from no recorded call: data, or a leaf."""
    made = {name for name, parent in zip(input_names(node), node.parents, strict=True) if not isinstance(parent, Leaf)}
    return [name for name, value in _saved(node) if name != "result" and name not in made and _is_bad(value)]


def _result_is_bad(node: Node, evidence: Evidence) -> bool:
    call = evidence.calls.get(node.serial)
    if call is not None and call.finite is not None:
        return not call.finite
    # Of a call that did not save its result: what works on a NaN gives one.
    return any(state_of(value) > (FINE if name == "result" else INF) for name, value in _saved(node))


def _bad_parents(node: Node, evidence: Evidence) -> list[Node]:
    """The calls that gave ``node`` a value that is not finite."""
    found = []
    saved = dict(_saved(node))
    for name, parent in zip(input_names(node), node.parents, strict=True):
        bad = name in saved and _is_bad(saved[name])
        for one in flat((parent,)):
            call = call_of(one)
            if not isinstance(call, Leaf) and (bad or _result_is_bad(call, evidence)):
                found.append(call)
    return found


def _saved(node: Node) -> list[tuple[str, object]]:
    """What a call saved, by name; nothing where it would have to be unpacked, or was let go of."""
    if not isinstance(node, CallNode) or node.packed or node.saved is None:
        return []
    return list(zip(node.saved_names, node.saved, strict=False))


def _is_bad(value: object) -> bool:
    return state_of(value) > FINE
