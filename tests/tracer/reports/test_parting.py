"""``tracer.compare``: the first call at which two runs part."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nn
import tracer

Kept = tuple[tracer.Graph, torch.Tensor]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 2)]
    return nn.track(torch.nn.Sequential(*layers))


def run(
    seed: int = 0, *, change: Callable[[torch.nn.Module], Any] = lambda net: None, scale: float = 1.0, **options: bool
) -> Kept:
    """A network on the same data. The loss is given back: the values live as long as it does."""
    net = network()
    change(net)
    x = torch.linspace(-1, 1, 12).view(3, 4) * scale
    torch.manual_seed(seed)
    with tracer.Graph(sites=True, **options) as graph:
        loss = net(x).square().sum()
    return graph, loss


def parting(report: Any) -> Any:
    return next(row for row in report if row.parts)


def test_the_same_run_is_alike() -> None:
    a, b = run(values=True), run(values=True)
    assert tracer.compare(a[0], b[0]).verdict == "the runs are alike: 6 calls agree in op and place, 6 in all elements"


@pytest.mark.parametrize("options", [{"values": True}, {"finite": True}], ids=str)
def test_another_seed_parts_at_the_dropout(options: dict[str, bool]) -> None:
    a, b = run(0, **options), run(1, **options)
    report = tracer.compare(a[0], b[0])
    row = parting(report)
    assert (row.call, row.op) == (2, "dropout") and row.difference > 0.1
    assert "at call 2: dropout" in report.verdict and "2 calls agree" in report.verdict
    assert ("random numbers" in str(report)) == ("values" in options)


def test_the_calls_around_stand_beside_it() -> None:
    a, b = run(0, values=True), run(1, values=True)
    report = tracer.compare(a[0], b[0])
    assert [row.op for row in report] == ["linear", "relu", "dropout", "linear", "square", "sum"]
    assert [row.difference for row in report][:2] == [0.0, 0.0]


def test_another_weight_is_told_as_an_argument_that_differed() -> None:
    def change(net: torch.nn.Module) -> None:
        with torch.no_grad():
            net[3].bias[1] += 0.25

    a, b = run(values=True), run(values=True, change=change)
    report = tracer.compare(a[0], b[0])
    assert (parting(report).call, parting(report).op) == (3, "linear")
    assert "argument differed already (bias[1]" in str(report)


def test_other_data_parts_at_the_first_call() -> None:
    a, b = run(values=True), run(values=True, scale=1.001)
    report = tracer.compare(a[0], b[0])
    assert parting(report).call == 0 and "(input[" in str(report) and "no call before" in report.verdict


def test_rounding_is_no_parting_and_more_than_rounding_is() -> None:
    a, near, far = run(values=True), run(values=True, scale=1 + 1e-6), run(values=True, scale=1 + 1e-4)
    assert tracer.compare(a[0], near[0]).verdict.startswith("the runs are alike")
    assert tracer.compare(a[0], far[0]).verdict.startswith("the runs part at call 0")


def half(x: torch.Tensor, dtype: torch.dtype) -> Kept:
    with tracer.Graph(sites=True, values=True) as graph:
        y = tracer.tensor(x, dtype=dtype, requires_grad=True).exp()
    return graph, y


def test_of_two_dtypes_the_coarser_says_how_far_is_too_far() -> None:
    x = torch.tensor([1.0, 2.0])
    one, other = half(x, torch.float32), half(x, torch.bfloat16)
    assert tracer.compare(one[0], other[0]).verdict.startswith("the runs are alike")
    off = half(x * 1.1, torch.bfloat16)
    assert tracer.compare(one[0], off[0]).verdict.startswith("the runs part")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_in_both_is_alike_and_in_one_is_not(value: float) -> None:
    a, b, c = (half(torch.tensor([1.0, v]), torch.float32) for v in (value, value, 1.0))
    assert tracer.compare(a[0], b[0]).verdict.startswith("the runs are alike")
    assert tracer.compare(a[0], c[0]).verdict.startswith("the runs part")


def test_another_shape_is_a_parting() -> None:
    a, b = half(torch.ones(2), torch.float32), half(torch.ones(3), torch.float32)
    assert "shape (2,) against (3,)" in tracer.compare(a[0], b[0]).verdict


def chain(*ops: str) -> Kept:
    with tracer.Graph(sites=True, values=True) as graph:
        h = tracer.tensor([1.0, 2.0], requires_grad=True)
        for op in ops:
            h = getattr(h, op)()
    return graph, h


def test_another_op_is_a_parting() -> None:
    a, b = chain("sin", "cos", "exp"), chain("sin", "tanh", "exp")
    report = tracer.compare(a[0], b[0])
    assert "part at call 1: cos" in report.verdict and "against tanh" in report.verdict
    assert (parting(report).op, parting(report).other_op) == ("cos", "tanh")


def test_a_call_more_is_told_as_one() -> None:
    a, b = chain("sin", "cos", "exp", "sum"), chain("sin", "tanh", "cos", "exp", "sum")
    assert "the second has 1 call more there" in tracer.compare(a[0], b[0]).verdict
    assert "the first has 1 call more there" in tracer.compare(b[0], a[0]).verdict


def test_a_run_that_goes_on_is_told_so() -> None:
    a, b = chain("sin", "cos"), chain("sin", "cos", "exp")
    report = tracer.compare(a[0], b[0])
    assert "part at call 2: the second has 1 call more, exp" in report.verdict and parting(report).other_op == "exp"


@pytest.mark.parametrize("values", [False, True])
def test_two_blocks_of_one_script_are_the_same_run(values: bool) -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph(sites=True, values=values) as a:
        y = x.exp()
    with tracer.Graph(sites=True, values=values) as b:
        z = x.exp()
    told = "the runs are alike: 1 call" if values else "the runs are alike, as far as is known: 1 call"
    assert tracer.compare(a, b).verdict.startswith(told)
    del y, z


def test_another_line_in_place_of_one_that_both_have_run_is_a_parting() -> None:
    def run(first: bool) -> Kept:
        x = tracer.tensor([1.0], requires_grad=True)
        with tracer.Graph(sites=True) as graph:
            for use_first in (True, first):
                h = x
                if use_first:
                    x = h.exp()
                else:
                    x = x.exp()
        return graph, x

    a, b = run(True), run(False)
    assert "part at call 1: exp" in tracer.compare(a[0], b[0]).verdict
    assert "alike" in tracer.compare(a[0], run(True)[0]).verdict


def test_other_results_are_told_with_both_places() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with tracer.Graph(sites=True, values=True) as a:
        y = x * 2
    with tracer.Graph(sites=True, values=True) as b:
        z = x * 3
    assert "in the second run at test_parting.py:" in tracer.compare(a, b).verdict
    del y, z


def test_without_values_it_says_that_none_were_compared() -> None:
    a, b = run(0), run(1)
    report = tracer.compare(a[0], b[0])
    assert report.verdict == "the runs are alike, as far as is known: 6 calls agree in op and place"
    assert "no values were compared" in str(report) and "values=True" in str(report)


def test_values_that_are_gone_are_not_said_to_agree() -> None:
    graphs = []
    for seed in (0, 1):
        graph, loss = run(seed, values=True)
        del loss
        graphs.append(graph)
    assert "no values were compared" in str(tracer.compare(*graphs))


# ---------------------------------------------------------------------- saved runs
def test_a_fingerprint_stands_for_its_graph() -> None:
    a, b = run(0, values=True), run(1, values=True)
    saved = json.loads(json.dumps(tracer.fingerprint(b[0])))
    for report in (tracer.compare(a[0], saved), tracer.compare(tracer.fingerprint(a[0]), saved)):
        assert (parting(report).call, parting(report).op) == (2, "dropout") and "random numbers" in str(report)
    assert tracer.compare(saved, saved).verdict.endswith("6 in five numbers of the result")


def test_elements_that_changed_places_are_seen_in_a_fingerprint() -> None:
    a, b = half(torch.tensor([1.0, 2.0, 3.0]), torch.float32), half(torch.tensor([2.0, 1.0, 3.0]), torch.float32)
    assert "mean times a wave" in tracer.compare(tracer.fingerprint(a[0]), tracer.fingerprint(b[0])).verdict


def test_a_run_of_another_process_is_compared(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys\nimport torch, tracer\n"
        "x = tracer.tensor([1.0, 2.0], requires_grad=True)\n"
        "with tracer.Graph(sites=True, values=True) as graph:\n"
        "    y = (x * 2).exp() + float(sys.argv[1])\n"
        "    y = y.sum()\n"
        "json.dump(tracer.fingerprint(graph), open(sys.argv[2], 'w'))\n"
    )
    for name, shift in (("a", "0"), ("b", "0"), ("c", "1")):
        subprocess.run([sys.executable, script, shift, tmp_path / name], check=True)
    a, b, c = (json.loads((tmp_path / name).read_text()) for name in "abc")
    assert tracer.compare(a, b).verdict.startswith("the runs are alike: 4 calls")
    report = tracer.compare(a, c)
    assert parting(report).op == "add" and "train.py:5" in report.verdict
    a["torch"] = "2.9.0"
    assert "first ran under torch 2.9.0" in str(tracer.compare(a, b))


def test_finite_alone_gives_a_fingerprint_too() -> None:
    a, b = run(0, finite=True), run(1, finite=True)
    assert parting(tracer.compare(tracer.fingerprint(a[0]), b[0])).op == "dropout"


# ---------------------------------------------------------------------- borders
def test_runs_whose_notes_were_dropped_unevenly_are_not_lined_up() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    graphs = []
    for count in (100, 9000):
        with tracer.Graph(sites=True) as graph:
            for _ in range(count):
                x * 2
        graphs.append(graph)
    assert "cannot be lined up" in tracer.compare(*graphs).verdict


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(tracer.ReportError, match="fingerprint"):
        tracer.compare(tracer.Graph(sites=True), [1, 2])  # type: ignore[arg-type]
    with pytest.raises(tracer.NotNotedError, match="sites=True"):
        tracer.compare(tracer.Graph(), tracer.Graph())


def test_the_report_can_be_dumped() -> None:
    a, b = run(0, values=True), run(1, values=True)
    assert json.loads(json.dumps(tracer.compare(a[0], b[0]).to_dict()))["columns"][0] == "call"


def test_sparse_complex_and_integer_results_are_compared() -> None:
    def program(value: complex) -> Kept:
        with tracer.Graph(sites=True, values=True) as graph:
            z = tracer.tensor([[1 + 1j, value]], requires_grad=True) * 1
            y = z.abs().to_sparse().to_dense().sort()[0]
        return graph, y

    a, b, c = program(2j), program(2j), program(-2j)
    assert tracer.compare(a[0], b[0]).verdict.startswith("the runs are alike")
    assert tracer.compare(a[0], c[0]).verdict.startswith("the runs part at call 0")


@pytest.mark.slow
def test_100_000_calls_are_compared() -> None:
    runs = []
    for _ in range(2):
        with tracer.Graph(sites=True, values=True) as graph:
            h = tracer.tensor([1.0], requires_grad=True)
            for _ in range(100_000):
                h = h * 1
        runs.append((graph, h))
    assert tracer.compare(runs[0][0], runs[1][0]).verdict.startswith("the runs are alike: 100,000 calls")
