"""``tracer.contributions``: what each use of a tensor adds to its gradient."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import tracer


def leaf(*shape: int) -> torch.Tensor:
    return tracer.tensor(torch.randn(*shape, dtype=torch.float64), requires_grad=True)


def summed(report: object) -> torch.Tensor:
    return sum(row.grad for row in report.rows)  # type: ignore[attr-defined]


def test_each_time_step_of_a_loop_is_one_use() -> None:
    x, w = torch.randn(5, 3, 4, dtype=torch.float64), leaf(4, 4)
    copies = [w.detach().clone().requires_grad_() for _ in range(5)]

    def unrolled(weights: list[torch.Tensor]) -> torch.Tensor:
        h = torch.zeros(3, 4, dtype=torch.float64)
        for t, weight in enumerate(weights):
            h = torch.tanh(F.linear(h, weight) + x[t])
        return h.pow(2).sum()

    right = torch.autograd.grad(unrolled(copies), copies)
    report = tracer.contributions(w, unrolled([w] * 5))
    assert len(report.rows) == 5 and w.grad is None
    for wanted in right:
        assert any(torch.allclose(row.grad, wanted) for row in report)
    norms = [row.norm for row in report]
    assert norms == sorted(norms, reverse=True)


def test_uses_through_views_are_told_apart() -> None:
    w, x = leaf(3, 3), torch.randn(2, 3, dtype=torch.float64)
    turned = w.t()
    loss = (x @ turned).sum() + (x @ turned).pow(2).sum() + (w[0] * 3).sum()
    report = tracer.contributions(w, loss)
    assert sorted(row.op for row in report) == ["matmul", "matmul", "mul"]
    assert all(row.through for row in report)
    (right,) = torch.autograd.grad(loss, w)
    assert torch.allclose(summed(report), right)


def test_two_uses_in_one_call_are_two_rows() -> None:
    x = leaf(3, 3)
    loss = (x @ x.T).sum()
    report = tracer.contributions(x, loss)
    assert {(row.op, row.input, tuple(row.through)) for row in report} == {
        ("matmul", "input", ()),
        ("matmul", "other", ("T",)),
    }
    assert torch.allclose(summed(report), torch.autograd.grad(loss, x)[0])


def test_each_place_in_a_list_is_a_use() -> None:
    x = leaf(3)
    report = tracer.contributions(x, (torch.cat([x, x * 1]) ** 2).sum())
    assert {row.op for row in report} == {"cat", "mul"}


def test_pieces_of_a_tensor_are_views_of_it() -> None:
    x = leaf(4)
    a, b = x.chunk(2)
    loss = (a.exp() * b).sum()
    report = tracer.contributions(x, loss)
    assert sorted(row.op for row in report) == ["exp", "mul"]
    assert torch.allclose(summed(report), torch.autograd.grad(loss, x)[0])


def test_a_write_into_a_buffer_is_a_use() -> None:
    w = leaf(3)
    buffer = torch.zeros(2, 3, dtype=torch.float64)
    buffer[0] = w
    buffer[1].add_(w * w)
    loss = (buffer * torch.arange(6).reshape(2, 3)).sum()
    report = tracer.contributions(w, loss)
    assert len(report) == 3
    assert torch.allclose(summed(report), torch.autograd.grad(loss, w)[0])


def test_a_tensor_that_calls_made_has_uses_after_its_last_write() -> None:
    x = leaf(3)
    h = x * 2
    before = h.sum()
    h.mul_(3)
    loss = before + h.exp().sum() + h.sin().sum()
    report = tracer.contributions(h, loss)
    assert sorted(row.op for row in report) == ["exp", "sin"]
    assert torch.allclose(summed(report), h.detach().exp() + h.detach().cos())


def test_the_output_itself_is_a_use() -> None:
    x = leaf(3)
    report = tracer.contributions(x, x[1])
    (row,) = report.rows
    assert row.op == "output" and row.grad.tolist() == [0.0, 1.0, 0.0]


def test_a_view_with_a_hook_is_a_use_itself_and_hooks_on_the_tensor_are_not_asked() -> None:
    w, calls = leaf(3, 3), []
    w.register_hook(lambda g: calls.append(1) or g * 100)
    turned = w.t()
    turned.register_hook(lambda g: g.clamp(max=1.0))
    loss = (turned * 3).sum() + (turned * 4).sum() + w.sum()
    report = tracer.contributions(w, loss)
    assert {row.op for row in report} == {"t", "sum"}
    assert torch.equal(summed(report), torch.full((3, 3), 2.0, dtype=torch.float64))


def test_a_leaf_of_torch_is_asked_about_on_both_sides() -> None:
    native = torch.randn(3, dtype=torch.float64, requires_grad=True)
    loss = (leaf(3) * native).sum() + (leaf(3) * (native * 2)).sum()
    right = torch.autograd.grad(loss, native, retain_graph=True)[0]
    report = tracer.contributions(native, loss)
    assert {row.op for row in report} == {"mul", "torch"} and torch.allclose(summed(report), right)


def test_no_use_is_an_answer() -> None:
    report = tracer.contributions(leaf(3), leaf(3).sum())
    assert report and report.rows == [] and "no use" in str(report)


def test_a_tensor_that_wants_no_gradient_is_refused() -> None:
    with pytest.raises(tracer.NoHistoryError):
        tracer.contributions(torch.ones(3), leaf(3).sum())


def test_the_report_can_be_dumped() -> None:
    x = leaf(3)
    report = tracer.contributions(x, (x * x).sum())
    assert json.loads(json.dumps(report.to_dict()))["columns"] == ["op", "input", "through", "norm", "site"]
    assert "mul" in str(report)
