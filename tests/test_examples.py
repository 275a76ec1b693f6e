"""The worked examples of custom Functions do what they say."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nn
import tracer
from tracer.reports.report import place


def load_example(name: str) -> ModuleType:
    """A file of ``examples/``, under a name that no other module has."""
    path = Path(__file__).parents[1] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


functions = load_example("functions")


def random_leaf(*shape: int) -> tracer.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return tracer.tensor(torch.randn(shape, generator=generator, dtype=torch.float64), requires_grad=True)


@pytest.mark.parametrize(
    ("apply", "inputs"),
    [
        (functions.Swish.apply, lambda: (random_leaf(3, 4), random_leaf())),
        (functions.LogSumExp.apply, lambda: (random_leaf(3, 4),)),
        (functions.LinearReLU.apply, lambda: (random_leaf(3, 4), random_leaf(2, 4), random_leaf(2))),
    ],
    ids=["Swish", "LogSumExp", "LinearReLU"],
)
def test_gradients_and_second_gradients_are_the_derivatives(apply: Any, inputs: Any) -> None:
    assert tracer.gradcheck(apply, inputs())
    assert tracer.gradgradcheck(apply, inputs())


def test_swish_is_torchs_silu_at_beta_1() -> None:
    x = random_leaf(5)
    torch.testing.assert_close(functions.Swish.apply(x, torch.ones(())), F.silu(x))


def test_logsumexp_is_torchs() -> None:
    x = random_leaf(3, 4)
    torch.testing.assert_close(functions.LogSumExp.apply(x), x.logsumexp(-1, keepdim=True))


def test_linear_relu_keeps_one_byte_an_output_beside_its_inputs() -> None:
    x, w, b = random_leaf(30, 4), random_leaf(20, 4), random_leaf(20)
    with tracer.Graph() as graph:
        y = functions.LinearReLU.apply(x, w, b)
    assert graph.kept_bytes() == 8 * (x.numel() + w.numel()) + y.numel()


def gradient_at_four_points(apply: Any, *more: Any) -> list[float]:
    x = tracer.tensor([-2.0, -0.5, 0.5, 2.0], requires_grad=True)
    (g,) = torch.autograd.grad(apply(x, *more).sum(), x)
    return g.tolist()


def test_the_straight_through_sign_passes_what_is_inside() -> None:
    assert gradient_at_four_points(functions.StraightThroughSign.apply) == [0.0, 1.0, 1.0, 0.0]


def test_the_gradient_is_reversed_and_scaled() -> None:
    assert gradient_at_four_points(functions.ReverseGradient.apply) == [-1.0] * 4
    assert gradient_at_four_points(functions.ReverseGradient.apply, 3.0) == [-3.0] * 4
    assert gradient_at_four_points(functions.ScaleGradient.apply, 0.5) == [0.5] * 4


def test_the_gradient_is_stopped() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    y = x * 2
    assert torch.autograd.grad(functions.StopGradient.apply(y).sum(), x, allow_unused=True) == (None,)
    (y + functions.StopGradient.apply(y)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0]


def test_they_work_on_plain_tensors_too() -> None:
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    functions.ReverseGradient.apply(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [-1.0, -1.0]


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    functions.main()
    assert capsys.readouterr().out.count("\n") == 7


@pytest.mark.slow
def test_the_physics_informed_network_finds_the_solution() -> None:
    _, error = load_example("pinn").train(300)
    assert error < 0.05


# ---------------------------------------------------------------- on networks of other packages, by replaced rules
@pytest.fixture(scope="module")
def guided_backpropagation() -> ModuleType:
    return load_example("guided_backpropagation")


@pytest.mark.slow
def test_a_stock_resnet_under_replaced_rules_equals_one_edited_by_hand_to_the_last_bit(
    guided_backpropagation: ModuleType,
) -> None:
    example = guided_backpropagation
    image = example.photograph()
    model = nn.track(example.resnet18())
    assert all(m.inplace for m in model.modules() if isinstance(m, torch.nn.ReLU))
    shown = example.pictures(model, image)
    expected = example.pictures_by_hand(example.resnet18(), image)
    assert shown.keys() == expected.keys() == {"gradient", "guided", "deconvnet", "guided in layer4"}
    for name, picture in shown.items():
        assert torch.equal(picture, expected[name]), name
    as_rows = torch.stack([picture.flatten() for picture in shown.values()])
    apart = torch.cdist(as_rows, as_rows) / as_rows.norm(dim=1)
    assert (apart + torch.eye(4) > 0.3).all(), "two of the rules gave the same"


@pytest.mark.slow
def test_the_pictures_are_written(
    guided_backpropagation: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "pictures.png"
    monkeypatch.setattr("sys.argv", ["guided_backpropagation.py", "--pictures", str(file)])
    guided_backpropagation.main()
    assert capsys.readouterr().out.count("equal to the last bit") == 4
    from PIL import Image

    with Image.open(file) as written:
        assert written.format == "PNG" and written.width > 5 * written.height * 0.9


@pytest.mark.slow
def test_the_quantised_network_learns_in_its_quantised_layers_by_the_straight_through_rule_alone() -> None:
    example = load_example("quantised_network")
    data = example.load()
    accuracy, moved = example.train(data, nullcontext(), epochs=2)
    assert accuracy < 0.4 and set(moved.values()) == {0.0} and len(moved) == 3
    accuracy, moved = example.train(data, example.straight_through())
    assert accuracy > 0.95 and min(moved.values()) > 0.1


@pytest.mark.slow
def test_gradient_reversal_confuses_the_domain_classifier_and_helps_the_target() -> None:
    example = load_example("domain_adaptation")
    data = example.load()
    alone, reversed_ = (example.measure(example.train(data, strength), data) for strength in (0.0, 1.0))
    assert alone.source > 0.99 and reversed_.source > 0.99
    assert alone.domain > 0.95 and reversed_.domain < 0.65
    assert alone.target < 0.4 and reversed_.target > 0.7


@pytest.mark.slow
def test_a_rule_that_misses_the_activation_of_a_stock_network_is_reported() -> None:
    example = load_example("which_activation")
    composed = example.complaint(example.gpt2(), example.TOKENS, {F.gelu: example.halved})
    assert "gelu was not called" in composed and "tanh was called" in composed and "tanh x2" in composed
    hidden = "softmax runs inside scaled_dot_product_attention, 2 calls"
    for model, argument in ((example.bert(), example.TOKENS), (example.vit(), example.IMAGE)):
        assert hidden in example.complaint(model, argument, {torch.softmax: example.halved})
        assert not example.complaint(model, argument, {F.scaled_dot_product_attention: example.halved_in_attention})
    assert not example.complaint(example.one_gelu(), example.TOKENS, {F.gelu: example.halved})
    assert example.moved(example.gpt2(), {torch.tanh: example.halved}) < 0.05
    assert example.moved(example.one_gelu(), {F.gelu: example.halved}) > 0.1


@pytest.mark.slow
def test_an_audit_names_the_calls_of_a_stock_network_that_a_scope_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("which_activation")
    report, missing = example.audited("transformer.h.0")
    used = {(row.op, row.count, row.status) for row in report.rows}
    assert {("tanh", 1, "replaced"), ("tanh", 1, "shipped"), ("pow", 2, "shipped")} == used
    assert [row.site.module for row in missing.rows] == ["transformer.h.1.mlp.act"]
    example.main()
    shown = capsys.readouterr().out
    assert "in transformer.h.1.mlp.act" in shown and shown.count("no complaint") == 3


# ---------------------------------------------------------------- on networks of other packages, asked why
@pytest.fixture(scope="module")
def asking() -> ModuleType:
    return load_example("asking_stock_models")


def planted_line(example: ModuleType, text: str) -> str:
    """``asking_stock_models.py:12`` of the line with a planted fault that has ``text`` in it."""
    assert example.__file__ is not None
    lines = enumerate(Path(example.__file__).read_text().splitlines(), 1)
    (number,) = [i for i, line in lines if "# planted" in line and text in line]
    return f"asking_stock_models.py:{number}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "much"), [("ResNet-18", 400_000), ("ViT", 90_000), ("GPT-2", 400_000)])
def test_checkpoints_of_a_stock_network_give_back_what_was_foretold(asking: ModuleType, name: str, much: int) -> None:
    saving = asking.save_memory(asking.STOCK[name])
    assert saving.given_back() == saving.foretold > much


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "line", "effect"),
    [
        ("ResNet-18", "div", "features.norm", "comes to the loss"),
        ("ViT", "sqrt", ".sqrt()", "comes to the gradient of"),
        ("GPT-2", "log", "p.log()", "comes to the loss"),
    ],
)
def test_a_nan_planted_into_a_stock_network_is_found(
    asking: ModuleType, name: str, op: str, line: str, effect: str
) -> None:
    first = asking.find_nan(asking.WITH_NAN[name]).rows[0]
    assert first.op == op and place(first.site).startswith(planted_line(asking, line))
    assert effect in first.effect and ("eps" in first.repair or "clamp" in first.repair)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "line", "cut"),
    [
        ("ResNet-18", "detach", "result.detach())", 30),
        ("GPT-2", "detach", ".numpy()", 13),
        ("ViT", "no_grad (add)", "", 30),
    ],
)
def test_a_cut_planted_into_a_stock_network_is_found(
    asking: ModuleType, name: str, op: str, line: str, cut: int
) -> None:
    report = asking.find_cut(asking.WITH_CUT[name])
    rows = [row for row in report if row.cause == "cut"]
    where = planted_line(asking, line) if line else "vision_transformer.py:"
    assert rows[0].op == op and place(rows[0].site).startswith(where)
    assert len(rows) == cut and {row.cause for row in report} == {"cut", "ok"} and len(report.advice) == 1


@pytest.mark.slow
def test_a_stock_network_computes_nothing_twice_and_sharing_saves_what_was_foretold(asking: ModuleType) -> None:
    for stock in asking.STOCK.values():
        assert asking.find_repeats(lambda stock=stock: (stock.make(), stock.step)).report.rows == []
    apart, shared = asking.find_repeats(asking.recurrent_cell), asking.find_repeats(asking.recurrent_cell_cached)
    assert sum(row.redundant for row in apart.report) == 19 * 6 and shared.report.rows == []
    assert apart.kept - shared.kept == sum(row.bytes for row in apart.report) > 0.5 * apart.kept


@pytest.mark.slow
def test_the_example_that_asks_stock_networks_runs(asking: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    asking.main()
    shown = capsys.readouterr().out
    assert shown.count("were foretold") == 3 and shown.count("is born in") == 3 and shown.count("    cut: by") == 6
    assert "in transformer.h.0" in shown and shown.count(" calls, ") == len(asking.STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "backend", "tolerance"),
    [
        ("resnet", "replay", 1e-6), ("vit", "replay", 1e-5), ("bert", "replay", 1e-6), ("gpt2", "replay", 1e-6),
        pytest.param("vit", "inductor", 1e-4, marks=pytest.mark.inductor),
        pytest.param("gpt2", "inductor", 1e-4, marks=pytest.mark.inductor),
    ],
)  # fmt: skip
def test_a_stock_network_trains_by_compiled_steps_with_the_losses_of_eager_ones(
    network: str, backend: str, tolerance: float
) -> None:
    eager, compiled = load_example("compiled_training").train(network, backend)
    assert len(eager) == 50 and eager[-1] < eager[0] - 0.3
    assert compiled == pytest.approx(eager, rel=tolerance)
