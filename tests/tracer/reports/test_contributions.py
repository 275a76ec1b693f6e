"""``tracer.contributions``: what each use of a tensor adds to its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.leaves import leaf, tracked

import tracer


def shares(parameter: torch.Tensor, loss: torch.Tensor) -> list[tuple[str, list[float]]]:
    return [(row.op, row.grad.flatten().tolist()) for row in tracer.contributions(parameter, loss).rows]


def test_each_use_has_a_row_largest_first() -> None:
    x = leaf(2.0)
    assert shares(x, x.exp() * 0 + 3 * x + x * x * 10) == [
        ("mul", [20.0]),
        ("mul", [20.0]),
        ("mul", [3.0]),
        ("exp", [0.0]),
    ]


def test_each_time_step_of_a_shared_weight_has_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    w, inputs = torch.randn(3, 3, generator=generator).double(), torch.randn(4, 2, 3, generator=generator).double()

    def unrolled(weights: list[torch.Tensor]) -> torch.Tensor:
        h = torch.zeros(2, 3, dtype=torch.float64)
        for weight, x in zip(weights, inputs, strict=True):
            h = torch.tanh(F.linear(h, weight) + x)
        return h.square().sum()

    copies = [w.clone().requires_grad_() for _ in inputs]
    wanted = torch.autograd.grad(unrolled(copies), copies)
    weight = tracked(w.tolist())
    found = [row.grad for row in tracer.contributions(weight, unrolled([weight] * 4)).rows]
    assert len(found) == 4
    for expected in wanted:
        assert any(torch.allclose(grad, expected) for grad in found)


def test_a_use_through_a_view_counts_as_that_use() -> None:
    w, x = tracked([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, dtype=torch.float64)
    turned = w.t()
    found = shares(w, (turned @ x).sum() + 2 * (x @ turned).sum())
    assert found == [("t, matmul", [2.0] * 4), ("t, matmul", [1.0] * 4)]


def test_a_view_of_a_view_is_followed() -> None:
    x = leaf(1.0, 2.0, 3.0, 4.0)
    part = x.view(2, 2)[0]
    assert shares(x, part.sum() + 5 * part.sum()) == [
        ("view, getitem, sum", [5.0, 5.0, 0.0, 0.0]),
        ("view, getitem, sum", [1.0, 1.0, 0.0, 0.0]),
    ] or shares(x, part.sum() + 5 * part.sum())[0][1] == [5.0, 5.0, 0.0, 0.0]


def test_a_list_that_holds_the_tensor_twice_uses_it_twice() -> None:
    x = leaf(1.0)
    assert shares(x, (torch.cat([x, x]) * torch.tensor([2.0, 3.0]).double()).sum()) == [("cat", [3.0]), ("cat", [2.0])]


def test_a_tensor_that_is_no_leaf_has_its_uses_too() -> None:
    h = leaf(1.0) * 2
    assert shares(h, 3 * h + 4 * h) == [("mul", [4.0]), ("mul", [3.0])]


def test_the_rows_add_up_to_the_gradient() -> None:
    x = leaf(0.3, 0.7)
    loss = (x.sin() * x).sum() + x.softmax(0)[0] + torch.stack([x, x.flip(0)]).prod()
    torch.testing.assert_close(sum(row.grad for row in tracer.contributions(x, loss)), torch.autograd.grad(loss, x)[0])


def test_grad_outputs_weight_the_loss() -> None:
    x = leaf(1.0, 2.0)
    (row,) = tracer.contributions(x, x * 3, torch.tensor([1.0, 10.0]).double()).rows
    assert row.grad.tolist() == [3.0, 30.0]


def test_an_unused_tensor_is_said_to_be_so() -> None:
    report = tracer.contributions(leaf(1.0), leaf(2.0).exp())
    assert not report.rows and "not used" in str(report)


def test_a_tensor_that_requires_no_grad_is_refused() -> None:
    with pytest.raises(tracer.NoHistoryError, match=r"shape \(1,\)"):
        tracer.contributions(torch.ones(1), leaf(1.0))


def test_the_text_names_op_input_and_site() -> None:
    with tracer.Graph(sites=True):
        x = leaf(2.0)
        loss = x.exp()
    text = str(tracer.contributions(x, loss))
    assert "1 use adds" in text and "exp" in text and "test_contributions.py:" in text
