"""``use(where=...)``: modules by path and glob, lines, predicates."""

from __future__ import annotations

import inspect
import threading

import pytest
import torch
import torch.nn.functional as F
from support.custom import mystery, ten_times
from support.leaves import leaf

import nn
import ops_registry
import tracer
from ops_registry import sites
from ops_registry.matching import matches


@pytest.mark.parametrize(
    ("where", "path", "held"),
    [
        ("layer4", "layer4", True),
        ("layer4", "layer4.0.relu", True),
        ("layer4", "layer40", False),
        ("layer4", "", False),
        ("layer4.*", "layer4", False),
        ("layer4.*", "layer4.0", True),
        ("layer4.*", "layer4.0.bn.x", True),
        ("*.attn", "blocks.3.attn", True),
        ("*.attn", "blocks.3.attn.proj", True),
        ("*.attn", "blocks.3.attention", False),
        ("blocks.[01].mlp", "blocks.1.mlp.fc", True),
        ("blocks.[01].mlp", "blocks.2.mlp.fc", False),
        ("", "anything.at.all", True),
        ("", "", True),
    ],
)
def test_a_path_is_matched_by_itself_and_by_the_modules_around_it(where: str, path: str, held: bool) -> None:
    assert matches(where, path) is held


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Tanh(), torch.nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x), self.second(x), torch.tanh(x)])


def slopes(where: object, **more: object) -> list[float]:
    """The gradient of each of three tanh at 0, where it is 1, or 10 by the replaced rule: in ``first``, in ``second``, in neither."""
    x = leaf(0.0)
    model = nn.track(Two())
    with ops_registry.use({torch.tanh: ten_times}, where=where, **more):  # type: ignore[arg-type]
        y = model(x)
    return [torch.autograd.grad(part, x, retain_graph=True)[0].item() for part in y.unbind()]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("first", [10.0, 1.0, 1.0]),
        ("second", [1.0, 10.0, 1.0]),
        ("*s*", [10.0, 10.0, 1.0]),
        (lambda site: site.module == "second", [1.0, 10.0, 1.0]),
        (lambda site: site.module == "", [1.0, 1.0, 10.0]),
        (lambda site: site.op == "tanh", [10.0, 10.0, 10.0]),
    ],
)
def test_a_rule_holds_in_its_scope_alone(where: object, expected: list[float]) -> None:
    assert slopes(where) == expected


def test_a_shared_module_is_in_scope_by_each_of_its_names() -> None:
    shared = torch.nn.Tanh()
    x, model = leaf(0.0), nn.track(torch.nn.Sequential(shared, torch.nn.Identity(), shared))
    for path in ("0", "2"):
        with ops_registry.use({torch.tanh: ten_times}, where=path):
            y = model(x)
        assert torch.autograd.grad(y, x)[0].item() == 100.0


def test_a_line_is_a_scope() -> None:
    x = leaf(0.0)
    frame = inspect.currentframe()
    assert frame is not None
    with ops_registry.use({torch.tanh: ten_times}, where=f"test_matching.py:{frame.f_lineno + 1}"):
        y = torch.tanh(x)
        z = torch.tanh(x)
    assert torch.autograd.grad(y, x)[0].item() == 10.0
    assert torch.autograd.grad(z, x)[0].item() == 1.0


def test_a_line_names_the_whole_file_name() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    with (
        pytest.raises(ops_registry.UnmatchedScopeError),
        ops_registry.use({torch.tanh: ten_times}, where=f"matching.py:{frame.f_lineno + 2}"),
    ):
        torch.tanh(leaf(0.0))


def test_a_predicate_sees_the_arguments_in_the_order_of_the_signature() -> None:
    x, seen = leaf(0.0, 1.0), []

    def where(site: ops_registry.Site) -> bool:
        seen.append(site.args[1:])
        return True

    with ops_registry.use({torch.sum: lambda grad, input: grad.expand_as(input)}, where=where):
        x.sum(0)
        torch.sum(x, dim=0, keepdim=True)
    assert [args[:2] for args in seen] == [(0, False), (0, True)]


def test_what_a_predicate_computes_is_not_recorded() -> None:
    x = leaf(0.5)
    with (
        tracer.Graph() as graph,
        ops_registry.use({torch.tanh: ten_times}, where=lambda s: bool((s.args[0] * 2 > 0).all())),
    ):
        y = torch.tanh(x)
    assert graph.counts() == {"tanh": 1} and y.requires_grad


def test_a_scope_holds_in_place_and_with_keywords() -> None:
    x = leaf(0.0)

    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.hardtanh(input=(x * 1).tanh_(), min_val=-2.0, max_val=2.0)

    with ops_registry.use({torch.tanh: ten_times, F.hardtanh: ten_times}, where="0", expect="all"):
        y = torch.nn.Sequential(InPlace())(x)
    assert torch.autograd.grad(y, x)[0].item() == 100.0


def test_a_function_without_a_rule_has_one_in_the_scope_alone() -> None:
    x = leaf(1.0)
    with ops_registry.use({mystery: lambda grad, scale: grad * scale}, where=lambda site: site.args[1] == 3.0):
        inside, outside = mystery(x, 3.0), mystery(x, 4.0)
    assert torch.autograd.grad(inside, x)[0].item() == 3.0
    with pytest.raises(tracer.MissingRuleError):
        outside.backward()


def test_a_composed_function_is_replaced_in_the_scope_and_runs_its_body_elsewhere() -> None:
    x = leaf(3.0, 4.0)

    class Normalise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.normalize(x, dim=0)

    with ops_registry.use({F.normalize: ten_times}, where="0"):
        y, z = torch.nn.Sequential(Normalise())(x), F.normalize(x, dim=0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [10.0, 10.0]
    torch.testing.assert_close(torch.autograd.grad(z.sum(), x)[0], torch.tensor([4.0, -3.0]).double() * (1 / 125))


def test_an_overload_is_replaced_in_the_scope() -> None:
    x = leaf(1.0, 2.0)

    class Largest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.max(x, 0).values

    rule = {torch.max: lambda grad, indices: torch.full((2,), 7.0, dtype=torch.float64)}
    with ops_registry.use(rule, where="0"):
        y, z = torch.nn.Sequential(Largest())(x), torch.max(x, 0).values
    assert torch.autograd.grad(y, x)[0].tolist() == [7.0, 7.0]
    assert torch.autograd.grad(z, x)[0].tolist() == [0.0, 1.0]


def test_an_inner_block_wins_where_its_scope_matches_and_the_outer_one_elsewhere() -> None:
    x, model = leaf(0.0), nn.track(Two())
    twice = {torch.tanh: lambda grad: grad * 2}
    with ops_registry.use({torch.tanh: ten_times}), ops_registry.use(twice, where="second"):
        y = model(x)
    assert [torch.autograd.grad(p, x, retain_graph=True)[0].item() for p in y.unbind()] == [10.0, 2.0, 10.0]
    with ops_registry.use({torch.tanh: ten_times}, where="first", expect=None), ops_registry.use(twice, where="*"):
        y = model(x)
    assert [torch.autograd.grad(p, x, retain_graph=True)[0].item() for p in y.unbind()] == [2.0, 2.0, 2.0]


def test_default_is_what_holds_outside_at_the_same_place() -> None:
    x, model = leaf(0.0), nn.track(Two())
    with (
        ops_registry.use({torch.tanh: ten_times}, where="first"),
        ops_registry.use({torch.tanh: lambda grad, default: 3 * default(grad)}),
    ):
        y = model(x)
    assert [torch.autograd.grad(p, x, retain_graph=True)[0].item() for p in y.unbind()] == [30.0, 3.0, 3.0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_stretch_runs_again_in_its_scope(reentrant: bool) -> None:
    class Stretch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(x).sin(), x, use_reentrant=reentrant)

    results = []
    for reached in (Stretch(), torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Identity())):
        x, model = leaf(0.5), torch.nn.Sequential(reached)
        rule = {torch.tanh: lambda grad, input: grad * input * 10}
        with ops_registry.use(rule, where="0", expect=None):
            y = model(x) if isinstance(reached, Stretch) else model(x).sin()
        y.backward()
        results.append(x.grad.item())
    assert results[0] == results[1] != 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_stretch_that_runs_again_outside_the_graph_knows_its_site(reentrant: bool) -> None:
    seen = []

    def rule(grad: torch.Tensor, site: sites.Site) -> torch.Tensor:
        seen.append(site.module)
        return grad

    x, model = leaf(0.5), torch.nn.Sequential(torch.nn.Tanh())
    with tracer.Graph(), ops_registry.use({torch.tanh: rule}, expect=None):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
    y.backward()
    assert seen == ["0"] and sites.open_graphs.count == 0


def test_a_scope_that_no_module_matches_is_named_with_what_is_near() -> None:
    with pytest.raises(
        ops_registry.UnmatchedScopeError, match=r"'frist'.*first, outside of any module, second.*'first'"
    ):
        slopes("frist")


def test_a_line_that_no_call_is_on_is_named_with_what_is_near() -> None:
    with pytest.raises(ops_registry.UnmatchedScopeError, match=r"Did you mean 'test_matching.py:\d+'"):
        slopes("test_matching.py:9999")


def test_a_predicate_that_is_never_true_is_named_with_the_places() -> None:
    with pytest.raises(ops_registry.UnmatchedScopeError, match=r"tanh at test_matching.py:\d+ in first"):
        slopes(lambda site: site.op == "sinh")


def test_a_scope_that_matched_nothing_may_be_meant() -> None:
    assert slopes("frist", expect=None) == [1.0, 1.0, 1.0]


def test_where_is_refused_where_it_is_neither_text_nor_a_predicate() -> None:
    with pytest.raises(ops_registry.RuleError, match="where=12"):
        ops_registry.use({torch.tanh: ten_times}, where=12)  # type: ignore[arg-type]


def test_a_scope_serves_several_threads() -> None:
    x, model = leaf(0.0), nn.track(Two())
    replaced = ops_registry.use({torch.tanh: ten_times}, where="second")
    found: list[list[float]] = []

    def run() -> None:
        for _ in range(20):
            with replaced:
                y = model(x)
            found.append([torch.autograd.grad(p, x, retain_graph=True)[0].item() for p in y.unbind()])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1.0, 10.0, 1.0]] * 80
