"""Which nodes a sweep visits, and when: where leaves with hooks stand, and what leads to a target."""

from __future__ import annotations

from tracer.backprop.hooks import hooked_in_torch
from tracer.node import Bridge, Leaf, Node, flat


def hooked_leaves_early(order: list[Node]) -> list[Node]:
    """``order`` with each leaf that has hooks right behind the last node that sends it a gradient.

    By serial number leaves come last of all. torch fills each as soon as its gradient is complete, and hooks rely on it: they step and
    drop the gradient, or send it to other processes while backward goes on.
    """
    ends = [node for node in order if not node.parents]  # a quick question first: most nodes are no leaves
    hooked = {n for n in ends if isinstance(n, Leaf) and (n.extras is not None or n.adopted) and _has_hooks(n)}
    if not hooked:
        return order
    last: dict[Node, Node] = {}
    for node in order:
        met = [parent for parent in flat(node.parents) if parent in hooked]
        if len(met) > 1 and node.op == "linear":
            met.reverse()  # torch meets the bias first: it adds that to a product with the weight transposed
        for parent in met:
            last.pop(parent, None)  # so that leaves of one node stand in the order of its inputs
            last[parent] = node
    behind: dict[Node, list[Node]] = {}
    for leaf, node in last.items():
        behind.setdefault(node, []).append(leaf)
    early: list[Node] = []
    for node in order:
        if node not in last:
            early.append(node)
            early.extend(behind.get(node, ()))
    return early


def _has_hooks(leaf: Leaf) -> bool:
    extras = leaf.extras
    if extras is not None and (
        extras.hooks or extras.prehooks or extras.post_hooks or extras.accumulate_hooks or extras.taker
    ):
        return True
    return hooked_in_torch(leaf)


def where_its_hooks_run(leaf: Leaf, order: list[Node]) -> Leaf | Bridge:
    """``leaf``, adopted from torch; or, if it has hooks there and the sweep goes on into torch's history, a way to torch.

    More may come for it there, and hooks are to see the sum, once.
    """
    tensor = leaf.variable
    if tensor is None or not (hooked_in_torch(leaf) and any(isinstance(node, Bridge) for node in order)):
        return leaf
    return Bridge(tensor)


def nodes_needed_for(targets: set[Node], order: list[Node], through_bridges: bool) -> set[Node]:
    """The targets, and the nodes of ``order`` from which a way leads to one (or to a bridge, where that counts)."""
    if targets.issuperset([node for node in order if not node.parents]):
        return targets.union(order)  # every way ends at a target
    needed = set(targets)
    for node in reversed(order):
        if node in needed:
            continue
        parents = node.parents
        if not needed.isdisjoint(flat(parents) if tuple in map(type, parents) else parents) or (
            through_bridges and type(node) is Bridge
        ):
            needed.add(node)
    return needed
