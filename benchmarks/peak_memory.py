"""Peak memory of a training step, in a fresh process.

It is the growth of the resident set above what the model and its optimiser need at rest.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable


def resident(field: str) -> int:
    """A memory figure of this process in bytes, from the kernel."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def print_peak(step: Callable[[], object]) -> None:
    """Print by how many bytes the resident set grows in a training step, above its size at rest."""
    step()
    at_rest = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the kernel's high-water mark starts anew
    step()
    step()
    print(resident("VmHWM") - at_rest)


def peak(script: str, arguments: list[str], runs: int) -> float:
    """The median of what ``script --peak *arguments`` prints."""
    # Freed memory goes back to the kernel at once, so that the high-water mark is that of what is alive.
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, script, "--peak", *arguments]
    found = [
        int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(runs)
    ]
    return statistics.median(found)
