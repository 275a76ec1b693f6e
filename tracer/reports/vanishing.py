"""The call at which a gradient vanished element by element, where the call that passed the zeros on only hands parts of it along.

A call like ``cat`` passes on what came for each part. Where that is zero for one part alone, another call nearer to the loss has made it
so. It is found by asking, from calls nearer and nearer to the loss: does a gradient of no particular values come through from there?
"""

from __future__ import annotations

import torch

from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.replay import Replay
from tracer.graph import Graph
from tracer.node import Node
from tracer.reports.badness import ZERO, state_of
from tracer.reports.evidence import Evidence

#: So many ways are searched for one report: each pass of a search costs in proportion to what lies below.
SEARCHES = 16


def vanishes_at(node: Node, parent: Node, subject: Node, evidence: Evidence) -> tuple[Node, Node]:
    """The first call, on a way from ``node`` to the loss, from which no gradient comes to ``subject``, and that one's parent on the way.

    ``node`` passed zeros on to ``parent``, by which the way goes on to ``subject``. After so many searches it is one
    that was found before on the same way, if there is one, else ``node`` itself.

    A pass from each of a few calls on the way finds it, by halving.
    """
    key = node.serial, parent.serial
    if key not in evidence.vanished and len(evidence.vanished) < SEARCHES:
        evidence.vanished[key] = _search(node, parent, subject, evidence)
    if key in evidence.vanished:
        return evidence.vanished[key]
    known = {found.serial: (found, before) for found, before in evidence.vanished.values()}
    way = evidence.way_to_loss(node.serial)
    return next((known[n.serial] for n in way if n.serial in known), (node, parent))


def _search(node: Node, parent: Node, subject: Node, evidence: Evidence) -> tuple[Node, Node]:
    way = [n for n in (node, *evidence.way_to_loss(node.serial)) if n.shape is not None]
    if not way or not _comes_through(way[0], subject, evidence.device):
        return node, parent
    alive, dead = 0, len(way) - 1
    while dead - alive > 1:
        middle = (alive + dead) // 2
        if _comes_through(way[middle], subject, evidence.device):
            alive = middle
        else:
            dead = middle
    return way[dead], way[dead - 1]


def _comes_through(root: Node, target: Node, device: torch.device) -> bool:
    """Whether a gradient with random elements, at the result of ``root``, leaves one that is not zero at ``target``."""
    assert root.shape is not None
    with Graph(), leaving_grad_alone(), torch.random.fork_rng(devices=[]):
        seed = (torch.rand(root.shape, dtype=root.dtype) + 0.5).to(device)
        found = Replay({}).run([(root, seed)], {target})  # as steps(): from kept values where the graph was released
    return any(state_of(grad) > ZERO for grad in found.values())
