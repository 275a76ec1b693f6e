"""Views and in-place writes: one memory, several tensors, each with the right gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.memory import live_tensors, no_collector

import tracer
from tracer.recording import views

Program = Callable[[torch.Tensor], torch.Tensor]


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[0].mul_(x[1])
    return y


def through_a_view_of_a_view(x: torch.Tensor) -> torch.Tensor:
    # pytorch/pytorch#8874
    y = x.clone()
    tail = y[1:]
    first = tail[0]
    tail.mul_(3)
    return first * y.sum(0)


def view_made_before_a_write_to_its_base(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    view = y.view(-1)
    y[0] = 0.0
    return view * 2


def parts_made_one_after_another(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    first, second = y.tensor_split(2)
    first.mul_(x[:1])
    left, right = y.hsplit((1,))
    right.mT.mul_(second.sum())
    return first.sum(0) * second + left * y.sin()


def view_made_after_a_write(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.mul_(x)
    return y.view(-1) * y.flatten()


def sibling_views(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row, column = y[1], y[:, 1]
    row.mul_(x[0])
    column.exp_()
    return y.sum() * row + column[:1]


def transposed_and_strided(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t()[1:].tanh_()
    y[:, ::2].mul_(x[:, 1:])
    return y


def diagonal_write(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    y.diagonal().mul_(x[0, :2])
    return y


def write_of_a_value_that_reads_the_base(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[0].copy_(y[1] * x[1])
    return y


def into_a_buffer_through_a_view(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, 3, dtype=x.dtype)
    out[0].copy_(x[0] * 3)
    out[1].add_(x[1])
    return out * out


def earlier_plain_view_of_a_buffer(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, 3, dtype=x.dtype)
    view = out[1]
    out.copy_(x * x)
    return view * 2


def buffer_filled_step_by_step(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, 3, dtype=x.dtype)
    rows = [out[0], out[1]]
    for i in range(2):
        out[i] = x[i] * (i + 1)
        rows[i].tanh_()
    return rows[0] + rows[1] * out.sum()


def geometry_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y[0]
    y.t_()
    view.mul_(x[0])
    return y.t() + view.unsqueeze_(0)


def written_twice_through_two_views(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    a, b = y[0], y[:, 0]
    a.mul_(b[1])
    b.mul_(a[2])
    return y


PROGRAMS: list[Program] = [
    parts_made_one_after_another,
    through_a_view,
    through_a_view_of_a_view,
    view_made_before_a_write_to_its_base,
    view_made_after_a_write,
    sibling_views,
    transposed_and_strided,
    diagonal_write,
    write_of_a_value_that_reads_the_base,
    into_a_buffer_through_a_view,
    earlier_plain_view_of_a_buffer,
    buffer_filled_step_by_step,
    geometry_in_place,
    written_twice_through_two_views,
]

#: torch raises, and so may we, in words of our own.
REFUSED_BY_TORCH: list[Program] = [
    transposed_and_strided,
    write_of_a_value_that_reads_the_base,
    buffer_filled_step_by_step,
    written_twice_through_two_views,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_gradients_and_second_derivatives_do_as_torchs(program: Program) -> None:
    data = torch.tensor([[0.5, 1.0, -0.7], [1.2, -0.3, 0.8]], dtype=torch.float64)
    found = []
    for x in (tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()):
        try:
            y = program(x)
            (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
        except RuntimeError as error:
            found.append(error)
        else:
            found.append([t.detach().as_subclass(torch.Tensor) for t in (y, first, second)])
    ours, theirs = found
    if isinstance(theirs, RuntimeError):
        assert isinstance(ours, tracer.OverwrittenError | tracer.InPlaceError), ours
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert isinstance(theirs, RuntimeError) == (program in REFUSED_BY_TORCH)


def matrix() -> torch.Tensor:
    return tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)


def test_a_view_of_a_leaf_may_not_be_written() -> None:
    with pytest.raises(tracer.InPlaceError, match=r"view.*of a leaf"):
        matrix()[0].mul_(2)


@pytest.mark.parametrize("call", [lambda y: y.unbind(), lambda y: y.split(1), lambda y: y.chunk(2)])
def test_one_of_several_views_may_not_be_written(call: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    y = matrix() * 2
    with pytest.raises(tracer.InPlaceError, match="one of several views"):
        call(y)[0].mul_(2)


def test_nor_a_view_of_one_of_them() -> None:
    part = (matrix() * 2).unbind()[0]
    with pytest.raises(tracer.InPlaceError, match="one of several views"):
        part.view_as(part).mul_(2)


def test_one_of_several_views_may_not_be_used_after_their_base_was_written() -> None:
    y = matrix() * 2
    part = y.unbind()[0]
    y.mul_(2)
    y.sum().backward(retain_graph=True)
    with pytest.raises(tracer.InPlaceError, match="unbind"):
        part.sum().backward()


def test_a_view_made_under_no_grad_may_not_be_written_with_gradients_enabled() -> None:
    x = matrix()
    y = x * 2
    with torch.no_grad():
        view = y[0]
    with pytest.raises(tracer.InPlaceError, match="no_grad"):
        view.mul_(x[0])


def test_a_view_made_under_no_grad_does_not_require_grad() -> None:
    y = matrix() * 2
    with torch.no_grad():
        views = [y[0], y.view(-1), y.t()]
    assert not any(view.requires_grad for view in views)


def test_memory_that_may_overlap_is_refused() -> None:
    y = matrix() * 2
    windows = y.view(-1).unfold(0, 3, 1)
    with pytest.raises(tracer.UnsupportedError, match="share memory"):
        windows.fill_(1.0)


def test_a_real_view_of_a_complex_tensor_is_refused() -> None:
    z = tracer.tensor([1 + 2j], requires_grad=True) * 2
    with pytest.raises(tracer.UnsupportedError, match="shows as"):
        torch.view_as_real(z).mul_(2)


def test_a_saved_argument_that_shares_memory_with_the_target_is_noticed() -> None:
    y = matrix() * 2
    with pytest.raises(tracer.OverwrittenError, match="mul"):
        y[0].mul_(y[0])
        y.sum().backward()


def test_hooks_and_retain_grad_on_a_view_that_is_written_later() -> None:
    x = matrix()
    y = x * 2
    view = y[0]
    seen: list[list[float]] = []
    view.register_hook(lambda g: seen.append(g.tolist()))
    view.retain_grad()
    view.mul_(3)
    (view * 5).sum().backward()
    assert view.grad is not None and view.grad.tolist() == [5.0, 5.0]
    assert seen == [[15.0, 15.0]]


def test_writes_through_views_leave_nothing_behind() -> None:
    x = matrix()

    def attempt() -> None:
        y = x * 1
        a, b = y[0], y[:, 0]
        a.mul_(x[1])
        b.add_(x[0])
        (y.sum() + a.sum()).backward()
        z = x * 1
        z[0].mul_(x[1])

    attempt()
    with no_collector():
        before = live_tensors()
        with tracer.Graph() as graph:
            attempt()
            assert len(graph) == 0
        assert live_tensors() == before


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_an_empty_base_is_written_through_its_views(shape: tuple[int, int]) -> None:
    x = tracer.track(torch.zeros(shape), requires_grad=True)
    base = x * 1
    base.diagonal().mul_(2)
    (grad,) = torch.autograd.grad((base * base).sum(), x)
    assert grad.shape == shape


def test_views_of_a_plain_tensor_are_forgotten_with_it() -> None:
    known = len(views._of_plain)
    base = torch.zeros(2, 3)
    views.note_view(shown := base[0], base, base)
    assert views.live_views(base)[0] is shown and len(views._of_plain) == known + 1
    del shown, base
    assert len(views._of_plain) == known
