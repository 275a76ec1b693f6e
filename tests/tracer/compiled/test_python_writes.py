"""What a step leaves in Python's objects: caches that it fills and settings that it makes up once, not what each call writes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nn
import tracer


@functools.lru_cache(maxsize=4)
def table(length: int) -> torch.Tensor:
    return torch.arange(length).float()


class Slotted:
    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: torch.Tensor | None = None


class Lazy(torch.nn.Module):
    """A layer, and things that are made when they are wanted for the first time."""

    def __init__(self, read: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.read = torch.nn.Linear(4, 4), read
        self.register_buffer("scale", torch.ones(4))
        self.kept: Any = None
        self.shape: Any = None
        self.kind, self.calls, self.length = "", 0, 0
        self.cache: dict[int, Any] = {}
        self.seen: list[int] = []
        self.slotted = Slotted()
        self.options = type("Options", (), {"kind": None})()

    @functools.cached_property
    def constants(self) -> tuple[torch.Tensor, float]:
        return torch.arange(4).float(), 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self, x) * self.linear(x)


def grows(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if len(x) > m.length:
        m.length, m.kept = len(x), (torch.arange(len(x)).cos()[:, None], "as it was made")
    return m.kept[0][: len(x)]


def depends_on_values(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    """Its first call writes a buffer, and the others do not."""
    if not m.kind:
        with torch.no_grad():
            m.scale.copy_(x.std(0) + 1)
        m.kind, m.kept = "done", x.detach().mean(0)
    return m.scale * m.kept


def draws(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if m.kept is None:
        m.kept = torch.rand(4)
    return m.kept * torch.rand(4)


def by_length(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if len(x) not in m.cache:
        m.cache[len(x)] = {"mask": torch.ones(len(x), 1) * 2}
    return m.cache[len(x)]["mask"]


def in_a_buffer(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(m, "late"):
        m.register_buffer("late", torch.arange(4).float())
    return m.late


def in_an_object(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    m.options.kind = m.options.kind or ("single" if m.training else "other")
    return x * len(m.options.kind)


def in_slots(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if m.slotted.kept is None:
        m.slotted.kept = torch.arange(4).float()
    return m.slotted.kept


def notes_the_shape(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    m.shape, m.kind = x.shape, f"{len(x)} rows"
    return x


def looks_at_grad(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    """Such a step is captured once more, and must not find then what it has written."""
    before = m.linear.weight.grad
    if not m.kind:
        with torch.no_grad():
            m.scale.add_(1)
        m.kind = "done"
    return m.scale + (0 if before is None else before.mean())


LEFT = {
    "cached property": lambda m, x: m.constants[0] * m.constants[1],
    "lru_cache": lambda m, x: table(4),
    **{f.__name__: f for f in (grows, depends_on_values, draws, by_length, in_a_buffer, in_an_object, in_slots, notes_the_shape,
                               looks_at_grad)},
}  # fmt: skip


def run(call: Callable[[torch.Tensor], Any], model: Lazy) -> list[Any]:
    """What calls of several lengths give, and what they leave in ``model``."""
    found = list[Any]()
    for seed, length in enumerate((3, 3, 5, 3, 5)):
        torch.manual_seed(seed)
        found += [call(torch.randn(length, 4)).detach(), model.linear.weight.grad.clone()]
    state = {
        name: value
        for name, value in vars(model).items()
        if name not in ("linear", "read", "options", "slotted") and name[0] != "_"
    }
    return [*found, state, model.options.kind, model.slotted.kept, dict(model.named_buffers())]


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        assert_same(list(got.values()), list(expected.values()))
    elif isinstance(expected, list | tuple) and not isinstance(expected, torch.Size):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b)
    else:
        assert got == expected


@pytest.mark.parametrize(
    ("name", "check"), [(name, False) for name in LEFT] + [("depends_on_values", True), ("draws", True)]
)
def test_what_the_first_call_leaves_is_left(name: str, check: bool) -> None:
    model = nn.track(Lazy(LEFT[name]))

    def step_of(model: Lazy) -> Callable[[torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().sum()
            loss.backward()
            return loss

        return step

    twin = copy.deepcopy(model)
    table.cache_clear()
    got = run(tracer.compile(step_of(model), backend="replay", check=check), model)
    table.cache_clear()
    assert_same(got, run(step_of(twin), twin))
    assert type(table(4)) is torch.Tensor and table(4).sum() == 6


def appends(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    m.seen.append(1)
    return x * len(m.seen)


def counts(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return x * m.calls


def turns(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    m.training = not m.training
    return x


def keeps(value: Callable[[torch.Tensor], Any]) -> Callable[[Lazy, torch.Tensor], torch.Tensor]:
    def read(m: Lazy, x: torch.Tensor) -> torch.Tensor:
        m.kept = value(x)
        return x

    return read


def views_a_parameter(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    """A copy would stay as it is when the parameter is trained."""
    if m.kept is None:
        m.kept = m.linear.weight.detach().t()
    return m.kept[0]


def makes_a_parameter(m: Lazy, x: torch.Tensor) -> torch.Tensor:
    if m.kept is None:
        m.kept = torch.nn.Parameter(torch.ones(4))
    return m.kept * x


REFUSED = {
    "its argument": keeps(lambda x: x),
    "its argument in a tuple": keeps(lambda x: (x, 1)),
    "a result": keeps(lambda x: x.detach() * 2),
    **{f.__name__: f for f in (appends, counts, turns, views_a_parameter, makes_a_parameter)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_each_call_would_write_is_refused_and_not_written(name: str) -> None:
    model = nn.track(Lazy(REFUSED[name]))

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    compiled = tracer.compile(step, backend="replay")
    for _ in range(2):
        with pytest.raises(tracer.CaptureError, match=r"changes|keeps a tensor|makes a tensor that requires grad"):
            compiled(torch.randn(3, 4))
    assert (model.kept, model.calls, model.seen, model.training) == (None, 0, [], True)
    assert model.linear.weight.grad is None and not compiled.explain().rows


def test_a_compiled_module_makes_up_a_setting_at_its_first_call() -> None:
    model = nn.track(Lazy(in_an_object))
    compiled = tracer.compile(model, backend="replay")
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x).detach(), (x * 6 * model.linear(x)).detach())
        assert model.options.kind == "single"


def test_what_is_kept_may_be_returned_and_may_not_share_memory_with_a_result() -> None:
    def step_with(keep: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
        model = nn.track(Lazy(in_slots))

        def step(x: torch.Tensor) -> Any:
            loss = model(x).square().sum()
            loss.backward()
            if model.kept is None:
                model.kept = keep(loss.detach())
            return loss, model.kept

        return tracer.compile(step, backend="replay")

    with pytest.raises(tracer.CaptureError, match=r"two\. Keep a copy \(x\.clone\(\)\)"):
        step_with(lambda loss: loss)(torch.ones(3, 4))
    compiled = step_with(torch.clone)
    loss, kept = compiled(torch.ones(3, 4))
    assert torch.equal(loss, kept)
    assert compiled(torch.zeros(3, 4))[1] is kept


def test_a_setting_that_is_put_back_is_made_up_again() -> None:
    model = nn.track(Lazy(in_an_object))
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="replay")
    for _ in range(3):
        model.options.kind = None
        compiled(torch.randn(3, 4))
        assert model.options.kind == "single"
    assert len(compiled.explain().rows) == 2
    model.options = type("Options", (), {"kind": None})()  # equal, and another one
    compiled(torch.randn(3, 4))
    assert model.options.kind == "single"


def test_what_has_fixed_sizes_is_left_with_symbolic_ones_too() -> None:
    model = nn.track(Lazy(in_slots))
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="replay", dynamic=True)
    for length in (3, 5, 9):
        compiled(torch.randn(length, 4))
        assert torch.equal(model.slotted.kept, torch.arange(4).float())
    assert len(compiled.explain().rows) == 2
