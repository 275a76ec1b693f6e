"""``python -m tracer``: scripts as users write them, each run by a fresh interpreter, beside the same run without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

TRAINS = """
    import argparse, sys, torch
    from torch import nn
    from beside import DRAWS

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(4, 8)
            self.dropout = nn.Dropout(0.3)
            self.head = nn.Linear(8, 1)
            self.spare = nn.Linear(2, 2)

        def forward(self, x):
            h = torch.relu(self.encoder(x)).detach()  # planted
            return self.head(self.dropout(h))

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=9)
        epochs = parser.parse_args().epochs
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(epochs):
            loss = net(torch.randn(5, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()))
        print(torch.randn(DRAWS).tolist(), sum(p.sum() for p in net.parameters()).item())

    if __name__ == "__main__":
        print(sys.argv[0], sys.path[0])
        main()
"""

CHECKPOINTED = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
    out = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*block.parameters(), *out.parameters()], lr=0.1)
    for _ in range(3):
        loss = out(checkpoint(block, torch.randn(8, 4), use_reentrant=False)).logsumexp(1).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item(), block[1].running_mean.tolist(), int(block[1].num_batches_tracked))
"""

FROM_SCRATCH = """
    import torch
    torch.manual_seed(0)
    x, y = torch.randn(20, 3), torch.randn(20)
    w = torch.randn(3, requires_grad=True)
    b = torch.zeros(()).requires_grad_()
    scale = torch.nn.Parameter(torch.ones(1))
    spare = torch.zeros(2)
    spare.requires_grad = True
    for _ in range(3):
        loss = ((x @ w + b * scale - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in [w, b, scale]:
                p -= 0.1 * p.grad
                p.grad = None
        print(loss.item())
"""

MAKES_NAN = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    for step in range(5):
        value = layer(torch.ones(2, 3)).sum()
        if step == 2:
            value = value + (layer.weight.sum() - layer.weight.sum()).sqrt()  # planted
        value.backward()
"""

FAILS = """
    import torch
    from torch import nn

    class Unlucky(RuntimeError):
        pass

    def step(layer, x):
        loss = layer(x).log().mean()
        if not torch.isfinite(loss):
            raise Unlucky("loss is not finite")
        loss.backward()

    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0); layer.bias.zero_()
    step(layer, torch.ones(1, 2))
    step(layer, -torch.ones(1, 2))
"""

WITHOUT_BACKWARD = """
    import torch
    print(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)
    if {named}:
        layer = torch.nn.Linear(2, 1)
        loss = layer(torch.ones(1, 2)).clamp(min=1e6).sum()
"""

TRAINED = "import torch\nw = torch.ones(2, requires_grad=True)\nfor _ in range(2):\n    (w * w).sum().backward()\n"


LOSES_ITS_HISTORY = """
    import torch
    from torch import nn
    net = nn.Linear(2, 3)
    if {backward}:
        (net(torch.ones(4, 2)).argmax(1).float() - 1).square().mean().backward()  # planted
    loss = torch.tensor(net(torch.ones(4, 2)).mean().item())  # planted
"""


class Runs:
    """Scripts in one folder, each command run once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        (folder / "beside.py").write_text("DRAWS = 3\n")
        self.run = cache(self._run)

    def script(self, text: str, name: str = "train.py") -> str:
        """Its path, as a user would give it."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )

    def report(self, report: str, *command: str) -> subprocess.CompletedProcess[str]:
        """``python -m tracer REPORT ...``."""
        return self.run("-m", "tracer", report, *command)

    def told(self, report: str, *command: str) -> dict[str, object]:
        """The report as JSON."""
        run = self.report(report, "--json", *command)
        return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("scripts"))


# ---------------------------------------------------------------------- a script that trains
@pytest.mark.parametrize("report", ["explain", "why", "nan", "memory", "timings", "audit"])
def test_a_script_prints_what_it_prints_without_us(runs: Runs, report: str) -> None:
    script = runs.script(TRAINS)
    plain = runs.run(script, "--epochs", "3")
    assert plain.returncode == 0, plain.stderr
    run = runs.report(report, "--track", script, "--epochs", "3")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{plain.stdout}\n{report} of train.py: backward pass 3, at train.py:28 (")
    assert run.stderr == ""


def test_why_names_the_planted_detach_and_what_was_never_used(runs: Runs) -> None:
    told = runs.told("why", "--track", runs.script(TRAINS), "--epochs", "3")
    rows = {row["parameter"]: row for row in told["rows"]}
    assert {name: row["cause"] for name, row in rows.items()} == {
        **dict.fromkeys(("encoder.weight", "encoder.bias"), "cut"),
        **dict.fromkeys(("spare.weight", "spare.bias"), "unused"),
        **dict.fromkeys(("head.weight", "head.bias"), "ok"),
    }
    assert rows["encoder.weight"]["site"]["line"].endswith("train.py:15")
    assert told["about"] == "backward pass 3, at train.py:28"


def test_json_is_the_last_line_of_stdout_and_the_script_keeps_the_others(runs: Runs) -> None:
    script = runs.script(TRAINS)
    lines = runs.report("why", "--json", "--track", script, "--epochs", "3").stdout.splitlines()
    assert lines[:-1] == runs.run(script, "--epochs", "3").stdout.splitlines()
    assert json.loads(lines[-1])["report"] == "why"


def test_step_asks_at_that_pass(runs: Runs) -> None:
    told = runs.told("memory", "--step", "2", "--track", "--by", "line", runs.script(TRAINS), "--epochs", "3")
    assert told["about"].startswith("backward pass 2,")
    assert [row["what"].rpartition("/")[2] for row in told["rows"]][:1] == ["train.py:16"]


def test_a_page_needs_no_network(runs: Runs) -> None:
    script = runs.script(TRAINS)
    run = runs.report("explain", "--html", "page.html", "--track", script, "--epochs", "1")
    page = (runs.folder / "page.html").read_text()
    assert (page.startswith("<!DOCTYPE html>") and "<svg" in page) or "mermaid" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert run.stdout.endswith("The page is in page.html.\n")


def test_timings_tell_both_passes_of_a_step(runs: Runs) -> None:
    told = runs.told("timings", "--track", runs.script(TRAINS), "--epochs", "3")
    linear = next(row for row in told["rows"] if row["what"] == "linear")
    assert linear["calls"] == 2 and linear["forward_ms"] > 0 and linear["backward_ms"] > 0
    assert all(row["calls"] or row["what"].startswith("(between") for row in told["rows"])


def test_a_module_runs_as_with_python_m(runs: Runs) -> None:
    runs.script("", "package/__init__.py")
    runs.script(
        "from . import own\nimport sys\nprint(__name__, __package__, sys.argv[1:], own.X)\n" + TRAINED,
        "package/__main__.py",
    )
    runs.script("X = 4\n", "package/own.py")
    plain, run = runs.run("-m", "package", "a", "--b"), runs.report("why", "--track", "-m", "package", "a", "--b")
    assert plain.stdout and run.stdout.startswith(plain.stdout) and "  ok     w " in run.stdout


# ---------------------------------------------------------------------- what is left as it was
def test_a_checkpoint_run_once_more_leaves_statistics_and_random_numbers_alone(runs: Runs) -> None:
    script = runs.script(CHECKPOINTED, "checkpointed.py")
    assert runs.report("why", "--track", script).stdout.startswith(runs.run(script).stdout)


# ---------------------------------------------------------------------- leaves that no module holds
def test_leaves_of_a_script_without_modules_are_tracked(runs: Runs) -> None:
    script = runs.script(FROM_SCRATCH, "scratch.py")
    run = runs.report("why", "--json", "--track", script)
    assert run.stdout.startswith(runs.run(script).stdout)
    rows = {row["parameter"].split(" = ")[0]: row["cause"] for row in json.loads(run.stdout.splitlines()[-1])["rows"]}
    assert rows == {"w": "ok", "b": "ok", "scale": "ok", "spare": "unused"}


# ---------------------------------------------------------------------- nan
def test_nan_stops_at_the_first_pass_that_has_any_and_says_so_at_once(runs: Runs) -> None:
    run = runs.report("nan", "--track", runs.script(MAKES_NAN, "nan.py"))
    assert run.returncode == 0
    assert "nan of nan.py: backward pass 3, at nan.py:10" in run.stdout
    assert "sqrt" in run.stdout and "nan.py:9" in run.stdout
    assert run.stderr.startswith("tracer: backward pass 3") and run.stderr.count("\n") == 1


# ---------------------------------------------------------------------- scripts that end before their time
def test_a_script_that_fails_has_its_traceback_its_status_and_a_report_on_where_it_failed(runs: Runs) -> None:
    script = runs.script(FAILS, "fails.py")
    run = runs.report("nan", "--track", script)
    assert run.returncode == 1
    assert run.stderr == runs.run(script).stderr
    assert "what is alive when the script failed, its loss included" in run.stdout
    assert "nan is born in forward, in log at fails.py:9" in run.stdout


@pytest.mark.parametrize(("code", "status"), [("3", 3), ("'no luck'", 1), ("None", 0)])
def test_a_script_that_exits_keeps_its_status_and_gets_its_report(runs: Runs, code: str, status: int) -> None:
    script = runs.script(f"import sys\n{TRAINED}sys.exit({code})\n", f"exits{status}.py")
    run = runs.report("why", "--track", script)
    assert (run.returncode, run.stderr) == (status, runs.run(script).stderr)
    assert "backward pass 2" in run.stdout and "  ok     w " in run.stdout


def test_an_interrupted_script_gets_its_report(runs: Runs) -> None:
    # Python leaves the signal alone where it was started with it ignored, as shells do behind an ``&``.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = runs.script(
        f"import os, signal\n{heard}\n{TRAINED}os.kill(os.getpid(), signal.SIGINT)\n", "interrupted.py"
    )
    run = runs.report("why", "--track", script)
    assert run.returncode == 130 and run.stderr.endswith("KeyboardInterrupt\n")
    assert "backward pass 2" in run.stdout and "  ok     w " in run.stdout


def test_the_loss_that_a_script_names_is_asked_about_where_backward_was_never_called(runs: Runs) -> None:
    told = runs.told("why", "--track", runs.script(WITHOUT_BACKWARD.format(named=True), "named.py"))
    assert told["about"] == "what is alive at the end of the script, its loss included"
    assert "zero: made by clamp at named.py:6" in told["verdict"]


# ---------------------------------------------------------------------- nothing to tell
@pytest.mark.parametrize(("backward", "op", "line"), [(True, "argmax", 6), (False, "item", 7)])
def test_a_loss_that_has_lost_its_history_is_asked_about_where_it_ended(
    runs: Runs, backward: bool, op: str, line: int
) -> None:
    run = runs.report("why", "--track", runs.script(LOSES_ITS_HISTORY.format(backward=backward), f"{op}.py"))
    assert run.returncode == int(backward), run.stderr
    assert f"cut: by {op} at {op}.py:{line} (2 of 2 parameters)" in run.stdout
    assert ("backward pass 1, at argmax.py:6" in run.stdout) == backward and "without a history" in run.stdout


def test_a_script_that_trains_untracked_is_told_of_track(runs: Runs) -> None:
    run = runs.report("why", runs.script(TRAINED, "untracked.py"))
    assert "Nothing is tracked: 2 backward passes, all of torch's own autograd" in run.stdout
    assert "python -m tracer why --track untracked.py" in run.stdout and run.returncode == 0


def test_a_script_without_backward_is_told_so(runs: Runs) -> None:
    run = runs.report("why", "--track", runs.script(WITHOUT_BACKWARD.format(named=False), "unasked.py"))
    assert "backward() was never called" in run.stdout


def test_a_pass_that_never_came_is_told(runs: Runs) -> None:
    run = runs.report("why", "--track", "--step", "5", runs.script(TRAINED, "short.py"))
    assert "There was no backward pass 5: the script had 2 backward passes." in run.stdout


def test_a_script_that_cannot_be_started_is_told_in_a_line(runs: Runs) -> None:
    assert (
        runs.report("why", "missing.py").stderr
        == "python -m tracer why: missing.py cannot be read: No such file or directory\n"
    )
    assert runs.report("why", "-m", "missing.module").returncode == 2


def test_help_tells_what_each_report_answers(runs: Runs) -> None:
    told = runs.run("-m", "tracer", "--help").stdout
    assert all(report in told for report in ("explain", "why", "nan", "memory", "timings", "audit"))
    assert "why each parameter has the gradient that it has" in told
