"""Claim: at sizes that people train with, no rule is much slower than torch's own backward. Prints the ten slowest.

Every op of tiers A and B of ``tracer/checks/conformance/op_tiers.json`` has a call, in ``realistic_*.py``. Backward is
run again and again on one graph, glassgrad and torch in turns; forward and backward together likewise. The clock is
processor time, on one thread: other programs disturb it little. The slowest are measured a second time, longer, and
ranked by that. Calls whose backward takes torch no time to speak of (views) are left out of the ranking: there the
price of a call is all there is, and ``per_op.py`` measures that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import torch
from interleaved import Timing, compare, console
from op_calls import Call
from realistic_calls import calls
from rich.progress import track
from rich.table import Table

import tracer

#: Which tier each op belongs to.
OP_TIERS = Path(__file__).parent.parent / "tracer" / "checks" / "conformance" / "op_tiers.json"

#: Ops that are not measured, with the reason.
LEFT_OUT = {
    "__rmod__": "torch has no derivative of a number modulo a tensor",
    "nn.functional.one_hot": "no gradient",
}

#: Below this, in seconds, a backward pass of torch is nothing but the price of its calls.
NOTHING = 100e-6

#: How long one contestant runs in one round, in seconds, where a single run is shorter.
ROUND = 4e-3

#: How many of the slowest are measured again.
AGAIN = 30


@dataclass(frozen=True)
class Measured:
    """One call's timings, each relative to torch."""

    call: Call
    backward: dict[str, Timing]
    both: dict[str, Timing]

    @property
    def worth_ranking(self) -> bool:
        """Whether backward takes more than the price of its calls."""
        return self.backward["torch"].seconds > NOTHING


def prepare(call: Call, engine: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Backward alone on a graph that stays, and forward and backward together."""
    data, wanted = call.arguments()
    if engine == "torch":
        leaves = [d.requires_grad_() if w else d for d, w in zip(data, wanted, strict=True)]
    else:
        leaves = [tracer.track(d, requires_grad=True) if w else d for d, w in zip(data, wanted, strict=True)]
    inputs = [leaf for leaf, w in zip(leaves, wanted, strict=True) if w]

    def forward() -> list[torch.Tensor]:
        found = call.function(*leaves)
        return [t for t in ([found] if isinstance(found, torch.Tensor) else found) if t.requires_grad]

    outputs = forward()
    torch.manual_seed(1)
    seeds = [torch.randn(o.shape, dtype=o.dtype) for o in outputs]

    def backward() -> object:
        return torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True)

    def both() -> object:
        return torch.autograd.grad(forward(), inputs, seeds, allow_unused=True)

    return backward, both


def keep_freed_memory() -> None:
    """Have the C library hold on to freed memory: otherwise a large result costs the kernel's time for new pages."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, 1 << 30)


def measure(call: Call, rounds: int) -> Measured:
    """Time backward alone, then forward and backward, glassgrad and torch in turns."""
    prepared = {engine: prepare(call, engine) for engine in ("torch", "glassgrad")}
    timings = []
    for part in range(2):
        contestants = {engine: runs[part] for engine, runs in prepared.items()}
        contestants["torch"]()
        started = process_time()
        contestants["torch"]()
        once = process_time() - started
        calls_a_round = max(1, round(ROUND / max(once, 1e-6)))
        timings.append(compare(contestants, rounds, calls_a_round, process_time))
    return Measured(call, timings[0], timings[1])


def report(measured: list[Measured], title: str) -> None:
    """Print a table of the calls, in the order given."""
    table = Table("call", "torch ms", "backward, ratio", "quartiles", "with forward", "quartiles", title=title)
    for m in measured:
        back, both = m.backward["glassgrad"], m.both["glassgrad"]
        table.add_row(
            m.call.op,
            f"{m.backward['torch'].seconds * 1e3:.3f}",
            f"{back.ratio:.2f}",
            f"{back.low:.2f} - {back.high:.2f}",
            f"{both.ratio:.2f}",
            f"{both.low:.2f} - {both.high:.2f}",
        )
    console.print(table)


def check_complete(known: list[Call]) -> None:
    """Say which ops of the first two tiers have no call."""
    tiers = json.loads(OP_TIERS.read_text())
    missing = set(tiers["A"]) | set(tiers["B"])
    missing -= {c.op for c in known} | set(LEFT_OUT)
    if missing:
        console.print(f"without a call: {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="print every call, not only the ten slowest")
    parser.add_argument("--only", metavar="REGEX", default="", help="measure only calls whose name this is found in")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    known = calls()
    check_complete(known)
    chosen = [c for c in known if re.search(options.only, c.op)]
    measured = [measure(c, options.rounds) for c in track(chosen, "Measuring", console=console)]
    ranked = sort([m for m in measured if m.worth_ranking])
    again = [measure(m.call, 4 * options.rounds) for m in track(ranked[:AGAIN], "The slowest again", console=console)]
    ranked = sort(again) + ranked[AGAIN:]
    report(ranked if options.all else ranked[:10], f"Slowest relative to torch, of {len(ranked)} calls, one thread")
    if options.all:
        report(sort([m for m in measured if not m.worth_ranking]), "Too short to rank")


def sort(measured: list[Measured]) -> list[Measured]:
    """The slowest backward relative to torch first."""
    return sorted(measured, key=lambda m: -m.backward["glassgrad"].ratio)


if __name__ == "__main__":
    main()
