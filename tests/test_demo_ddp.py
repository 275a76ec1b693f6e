"""The demo in two processes, under ``torchrun``: as accurate as in one, and a run that was killed goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

ROOT = Path(__file__).parent.parent


def start(checkpoint: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.Popen(
        [*torchrun, "examples/train_digits_ddp.py", "--checkpoint", str(checkpoint)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(run: subprocess.Popen[str]) -> str:
    """What it prints. Fails unless it is content with the accuracy."""
    try:
        output, _ = run.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        run.terminate()  # which ends the processes that it has started
        raise
    assert run.returncode == 0, output
    return output


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_from_its_checkpoint_to_the_same_parameters(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.pt", tmp_path / "killed.pt"
    assert "epoch  1/15" in finish(start(whole))
    run = start(killed)
    ends = time.monotonic() + 200
    while not killed.exists() and run.poll() is None and time.monotonic() < ends:
        time.sleep(0.01)
    run.terminate()
    run.communicate(timeout=60)
    done = torch.load(killed)["epoch"]
    assert 1 <= done < 15
    output = finish(start(killed))
    assert f"epoch {done + 1:>2}/15" in output and f"epoch {done:>2}/15" not in output
    first, second = torch.load(whole)["model"], torch.load(killed)["model"]
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
