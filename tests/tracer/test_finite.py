"""``tracer.Graph(finite=True)``: whether the result of each call was finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.leaves import leaf32

import tracer
from tracer.notes.calls import KEPT_CALLS

BIG = torch.full((10,), 3e38)


def finite_of(run: Callable[[Any], Any], x: torch.Tensor) -> bool | None:
    """What is said of the last call."""
    with tracer.Graph(finite=True) as graph:
        y = run(x)
    call = graph.calls()[-1]
    del y
    return call.finite


def tracked(value: torch.Tensor) -> tracer.Tensor:
    return tracer.tensor(value, requires_grad=True)


RESULTS: list[tuple[str, bool | None, Callable[[Any], Any], torch.Tensor]] = [
    ("finite", True, lambda x: x * 2, torch.ones(3)),
    ("nan", False, lambda x: x.log(), torch.tensor([1.0, -1.0])),
    ("inf", False, lambda x: x.log(), torch.tensor([1.0, 0.0])),
    ("plus inf", False, lambda x: 1 / x, torch.tensor([1.0, 0.0])),
    ("inf and minus inf", False, lambda x: 1 / x, torch.tensor([0.0, -0.0])),
    ("nan in a large one", False, lambda x: x.log(), torch.cat([torch.ones(9999), -torch.ones(1)])),
    ("minus inf in a large one", False, lambda x: x.log(), torch.cat([torch.ones(9999), torch.zeros(1)])),
    ("large values whose sum overflows", True, lambda x: x * 1, BIG),
    ("many of them", True, lambda x: x * 1, BIG.repeat(1000)),
    ("half precision", True, lambda x: x * 1, torch.full((5000,), 60000.0, dtype=torch.float16)),
    ("bfloat16", False, lambda x: x.log(), torch.zeros(3, dtype=torch.bfloat16)),
    ("double", True, lambda x: x * 1, torch.full((3,), 1e308, dtype=torch.float64)),
    ("complex", True, lambda x: x * 1, torch.tensor([3e38 + 3e38j])),
    ("complex nan", False, lambda x: x * 1, torch.tensor([complex(0, float("nan"))])),
    ("conjugated", False, lambda x: x.conj(), torch.tensor([complex(0, float("inf"))])),
    ("empty", True, lambda x: x * 1, torch.ones(0)),
    ("no dimension", False, lambda x: x.sum() / 0, torch.ones(2)),
    ("sparse", True, lambda x: x.to_sparse(), torch.eye(3)),
    ("sparse nan", False, lambda x: x.to_sparse(), torch.tensor([[float("nan"), 0.0]])),
    ("several results", False, lambda x: x.split(1), torch.tensor([1.0, float("nan")])),
    ("values beside indices", True, lambda x: x.sort(), torch.tensor([2.0, 1.0])),
    ("meta", None, lambda x: x * 1, torch.ones(2, device="meta")),
    ("float8", None, lambda x: x.to(torch.float8_e4m3fn), torch.ones(2)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "expected", "run", "value"), RESULTS, ids=[r[0] for r in RESULTS])
def test_it_is_right_or_says_that_it_cannot_tell(
    name: str, expected: bool | None, run: Callable[[Any], Any], value: torch.Tensor
) -> None:
    assert finite_of(run, tracked(value)) is expected


def test_a_value_that_is_mended_in_place_later_was_not_finite_at_the_call() -> None:
    x = leaf32(0.0, 1.0)
    with tracer.Graph(finite=True) as graph:
        y = x.log()
        y.clamp_(min=-10)
    assert [call.finite for call in graph.calls()][:2] == [False, True]


def test_a_call_that_is_gone_is_remembered() -> None:
    with tracer.Graph(finite=True) as graph:
        leaf32(-1.0).log()
    (call,) = graph.calls()
    assert (call.alive, call.finite) == (False, False)


def test_without_finite_it_is_unknown() -> None:
    with tracer.Graph(sites=True) as graph:
        leaf32(-1.0).log()
    assert graph.calls()[0].finite is None


def test_nothing_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("a call waited for a value")

    x = leaf32(1.0, 2.0)
    with tracer.Graph(finite=True) as graph:
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "__bool__", "__float__", "numpy"):
                patch.setattr(torch.Tensor, name, read)
            for _ in range(3000):
                x * 2
        assert all(call.finite for call in graph.calls())


def test_what_is_known_of_calls_that_are_gone_is_bounded() -> None:
    x = leaf32(1.0)
    with tracer.Graph(finite=True) as graph:
        for _ in range(4 * KEPT_CALLS):
            x * 2
        notes = graph._finite
        assert notes is not None
        graph.calls()
        assert len(notes._known) <= 2 * KEPT_CALLS + 1025
    assert all(call.finite for call in graph.calls())


def test_with_finite_alone_nothing_is_known_of_places() -> None:
    x = leaf32(1.0)
    with tracer.Graph(finite=True) as graph:
        y = x * 2
    (call,) = graph.calls()
    assert call.site.line is None and call.parents == (x._node.serial,) and graph.site_of(y._node) is None  # type: ignore
    with pytest.raises(tracer.NotNotedError, match=r"cuts\(\).*sites=True"):
        graph.cuts()


def test_calls_inside_vmap_are_told_for_the_whole_batch() -> None:
    x = leaf32(1.0, 0.0)
    with tracer.Graph(finite=True) as graph:
        y = torch.vmap(torch.log)(x)
    assert [(call.op, call.finite) for call in graph.calls()] == [("log", False), ("vmap", False)]
    del y


def test_extremes_of_many_calls_are_each_calls_own() -> None:
    """Of several dtypes, small and large: they are taken in the same room again and again."""
    kinds = [leaf32(1.0, 2.0), tracked(torch.ones(2, dtype=torch.float64)), tracked(torch.ones(5000))]
    with tracer.Graph(finite=True) as graph:
        for i in range(900):
            kinds[i % 3] * i
    assert [call.extremes for call in graph.calls()] == [(i, i * (2 if i % 3 == 0 else 1)) for i in range(900)]


def test_a_large_view_has_the_extremes_of_what_it_shows() -> None:
    """Those of a part of it, of what has been written into since, and of what nobody has noted are its own."""
    x = tracked(torch.arange(4096.0))
    with tracer.Graph(finite=True) as graph:
        doubled = (x * 2).view(64, 64)
        results = [doubled.T, doubled.unsqueeze(0).squeeze(0), doubled[:32].t(), x.view(2, -1)]
        with torch.no_grad():
            doubled[0, 0] = -torch.inf
        results.append(doubled.permute(1, 0))
    found = [call.extremes for call in graph.calls()]
    assert found == [(0, 8190)] * 5 + [(0, 4094)] * 2 + [(0, 4095), (-math.inf, 8190)]


def test_a_result_with_a_tangent_is_told() -> None:
    with tracer.Graph(finite=True) as graph, torch.autograd.forward_ad.dual_level():
        y = torch.autograd.forward_ad.make_dual(leaf32(1.0, 0.0), torch.ones(2)).log()
    assert [call.finite for call in graph.calls() if call.op == "log"] == [False]
    del y


def test_the_first_call_may_be_made_in_a_block_that_torch_runs_without_counting_writes() -> None:
    x = leaf32(1.0, 0.0)
    node = (x * 2)._node
    with tracer.Graph(finite=True) as graph:
        with torch.inference_mode():
            graph._finite.note(node, torch.ones(2))  # type: ignore[union-attr, arg-type]
        y = x.log()
    assert graph.calls()[-1].finite is False
    del y
