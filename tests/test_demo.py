"""The main job runs from end to end and is content with itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_demo_exits_with_zero_and_shows_its_three_points() -> None:
    # One thread, as the other workers of the suite have: threads that wait for a core spin.
    run = subprocess.run(
        [sys.executable, "examples/train_digits.py"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for point in ("Test accuracy", "Largest relative difference", "The graph of one forward pass", "Guided relu"):
        assert point in run.stdout
