"""Views that were made of a plain tensor before it became tracked: they are found, and nobody is asked where there can be none."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.func import vmap

import tracer
from tracer.errors import UnsupportedError

Made = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The generations of the garbage collector that were searched."""
    found: list[object] = []
    get_objects = gc.get_objects

    def noted(generation: int | None = None) -> list[object]:
        found.append(generation)
        return get_objects(generation)

    monkeypatch.setattr(gc, "get_objects", noted)
    return found


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def leaf(*values: float) -> torch.Tensor:
    return tracer.tensor(list(values), requires_grad=True)


def gradient_through(view: torch.Tensor, x: torch.Tensor) -> list[float]:
    (grad,) = torch.autograd.grad((view * view).sum() + 0 * x.sum(), x)
    return grad.tolist()


@pytest.mark.parametrize(
    "made",
    [
        lambda base: base[1:],
        lambda base: base[1:].view(2),
        lambda base: base.unsqueeze(0)[:, 1:],
        lambda base: base.as_strided((2,), (1,), 1),
        lambda base: base.split([1, 2])[1],
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_a_view_of_any_age_has_the_history_of_a_later_write(made: Made, old: bool) -> None:
    x = leaf(2.0, 3.0, 4.0)
    base = torch.zeros(3)
    view = made(base)
    if old:
        gc.collect()
    base.copy_(x)
    assert gradient_through(view, x) == [0.0, 6.0, 8.0]


def test_views_of_several_ages_are_all_found() -> None:
    x = leaf(2.0, 3.0)
    base = torch.zeros(2)
    old = base[:1]
    gc.collect()
    young = base[1:]
    base.copy_(x)
    assert gradient_through(old, x) == [4.0, 0.0]
    assert gradient_through(young, x) == [0.0, 6.0]


def test_a_view_written_through_finds_the_others() -> None:
    x = leaf(2.0, 3.0)
    base = torch.zeros(2)
    views = list(base.view(2, 1))
    other = base[1:]
    base[:].copy_(x)
    assert gradient_through(other, x) == [0.0, 6.0]
    assert views[0].requires_grad


@pytest.mark.parametrize(
    "write",
    [
        lambda base, x: base.copy_(x),
        lambda base, x: base.__setitem__(slice(1), x[:1]),
        lambda base, x: base[:1].mul_(x[:1]),
        lambda base, x: base.data.mul_(0.5).add_(x),  # .data shares the memory and is no view
        lambda base, x: torch.nn.functional.linear(base.expand(1, 1, 2), torch.ones(2, 2)).mul_(x),  # a product's view
        lambda base, x: [base.add_(x) for _ in range(3)],
    ],
)
def test_nobody_is_asked_where_nobody_else_holds_the_tensor(
    write: Callable[[torch.Tensor, torch.Tensor], object], searches: list[object]
) -> None:
    x, base = leaf(2.0, 3.0), torch.ones(2)
    aliases = base.detach(), (x * base).sum()  # what is saved shares the memory and is no view either
    write(base, x)
    assert not searches
    del aliases


def test_young_views_are_found_without_a_look_at_what_is_old(searches: list[object]) -> None:
    x, base = leaf(2.0, 3.0), torch.zeros(2)
    gc.collect()
    view = base[1:]
    base.copy_(x)
    assert gradient_through(view, x) == [0.0, 6.0]
    assert None not in searches


def test_a_search_is_made_once_for_a_tensor(searches: list[object]) -> None:
    x, base = leaf(2.0, 3.0), torch.zeros(2)
    view = base[1:]
    gc.collect()
    base.copy_(x)
    made = len(searches)
    base.mul_(x)
    view.mul_(x[1:])
    assert len(searches) == made > 0


def test_a_view_that_the_collector_hides_is_refused(unfrozen: None) -> None:
    x, base = leaf(2.0, 3.0), torch.zeros(2)
    view = base[1:]
    gc.freeze()
    with pytest.raises(UnsupportedError, match=r"gc\.freeze"):
        base.copy_(x)
    assert not view.requires_grad
    assert base.tolist() == [0.0, 0.0]


def test_what_is_frozen_and_nobody_else_holds_is_written(unfrozen: None) -> None:
    x, base = leaf(2.0, 3.0), torch.zeros(2)
    gc.freeze()
    base.copy_(x)
    assert gradient_through(base, x) == [4.0, 6.0]


def test_a_view_inside_a_level_is_found_whatever_its_age() -> None:
    x = leaf(2.0, 3.0)

    def written(a: torch.Tensor) -> torch.Tensor:
        base = torch.zeros_like(torch.ones(2, 2)[0]).expand(2) + a.detach()
        view = base[1:]
        gc.collect()
        base.copy_(x * a)
        return view * view

    a = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    (grad,) = torch.autograd.grad(vmap(written)(a).sum(), x)
    assert grad.tolist() == [0.0, 2 * 3.0 * (1 + 4)]


def test_nobody_is_asked_inside_a_level_either(searches: list[object]) -> None:
    x = leaf(2.0, 3.0)

    def written(a: torch.Tensor) -> torch.Tensor:
        base = a * 0
        base.add_(x * a)
        base[1:].add_(x[1:])
        return base

    vmap(written)(torch.ones(3, 2)).sum().backward()
    assert not searches


def test_two_nested_levels() -> None:
    x = leaf(2.0, 3.0)

    def written(b: torch.Tensor) -> torch.Tensor:
        base = b * 0
        view = base[1:]
        gc.collect()
        base.add_(x * b)
        return view * view

    (grad,) = torch.autograd.grad(vmap(vmap(written))(torch.ones(2, 3, 2)).sum(), x)
    assert grad.tolist() == [0.0, 36.0]
