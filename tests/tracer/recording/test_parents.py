"""Which tensors of a call a gradient is wanted for: the edges of its node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.leaves import leaf

import tracer

A, B, CONSTANT = leaf(1.0, 2.0), leaf(3.0, 4.0), torch.ones(2, dtype=torch.float64)

#: A call, and which leaves its node leads to, one for each edge.
CALLS: dict[str, tuple[Callable[[], torch.Tensor], list[torch.Tensor]]] = {
    "two leaves": (lambda: A * B, [A, B]),
    "a leaf used twice": (lambda: A * A, [A, A]),
    "a constant on the right": (lambda: A * CONSTANT, [A]),
    "a constant on the left": (lambda: CONSTANT * A, [A]),
    "a number": (lambda: 2 * A, [A]),
    "a tracked constant": (lambda: A * tracer.track(CONSTANT), [A]),
    "a detached tensor": (lambda: A * B.detach(), [A]),
    "a list": (lambda: torch.cat([B, CONSTANT, A]), [B, A]),
    "by keyword": (lambda: torch.mul(other=B, input=A), [A, B]),
    "three, one constant": (lambda: torch.addcmul(CONSTANT, A, B), [A, B]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_node_leads_to_what_wants_a_gradient(name: str) -> None:
    call, wanted = CALLS[name]
    with tracer.Graph() as graph:
        y = call()
    digraph = graph.digraph
    (node,) = (i for i in digraph.node_indices() if digraph[i].op != "leaf")
    assert len(digraph.in_edges(node)) == len(wanted)
    assert digraph.num_nodes() == 1 + len({id(leaf) for leaf in wanted})
    found = torch.autograd.grad(y.sum(), [A, B], allow_unused=True)
    assert [g is not None for g in found] == [any(leaf is w for w in wanted) for leaf in (A, B)]


@pytest.mark.parametrize(
    "call", [lambda: CONSTANT * 2, lambda: tracer.track(CONSTANT) * CONSTANT, lambda: A.detach() * 2]
)
def test_a_call_on_constants_has_no_node(call: Callable[[], torch.Tensor]) -> None:
    with tracer.Graph() as graph:
        y = call()
    assert len(graph) == 0 and not y.requires_grad


def test_all_uses_of_a_native_leaf_meet_in_one_node() -> None:
    native = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    with tracer.Graph() as graph:
        y = A * native + native * B
    assert [n.op for n in graph.digraph.nodes()].count("leaf") == 3
    (found,) = torch.autograd.grad(y.sum(), native)
    assert found.tolist() == [4.0, 6.0]
