"""``python -m tracer.checks.rules``: ``check_rule`` for every registered rule.

Arguments are drawn from the op's signature and taken from the calls that the samples of torch's operator database lead to, forward and
backward, so that kernels are met with the arguments they really get; the rest comes from the table in ``handmade_samples``. The exit status
is 1 when a rule is wrong that ``KNOWN`` does not name.

``--rules REGEX`` takes only the rules whose name it finds a match in, ``--examples N`` and ``--samples N`` say how many arguments of a rule
are drawn and how many taken from the database, ``--jobs N`` runs worker processes, ``--json FILE`` writes everything there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ops_registry.errors import RuleCheckError
from ops_registry.registry import RULES
from ops_registry.rule import Rule
from tracer.checks.rules.check import CHECKED_DTYPES, check_samples
from tracer.checks.rules.handmade_samples import handmade_samples
from tracer.checks.rules.harvest import Harvest, database
from tracer.checks.rules.report import CheckOptions, RuleReport
from tracer.checks.rules.samples import Sample
from tracer.checks.workers import Work, run_all

#: Rules that fail for a reason that is known: the kind of mistake that they are taken for, and the reason.
KNOWN: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        [f"{kind}{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in (".input", ".data", "_cell")],
        ("memory", "biases are kept too, which second derivatives need; nothing new is"),
    ),
    "std_mean.correction": ("result", "called as a packet with dim alone, which torch takes for another argument"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "no known shape of mistake",
        "its result and its logsumexp are arguments that depend on the others, which differences do not know",
    ),
    "cholesky_inverse": (
        "no known shape of mistake",
        "the diagonal of a Cholesky factor is real, and that of the complex matrices drawn is not",
    ),
    "embedding_bag": (
        "no known shape of mistake",
        "padding_idx and scale_grad_by_freq make the gradient another one than the derivative, on purpose",
    ),
    "_pad_packed_sequence": ("memory", "the sizes of the batches are kept as they are, a number a step"),
    "_weight_norm": (
        "memory",
        "its parts keep the length of each row beside the direction, which makes second derivatives right",
    ),
    "inner": ("memory", "a product of two vectors of one element keeps a result of one element more"),
    "polar": ("memory", "two arguments of one element; from two elements on it keeps what torch keeps"),
    "l1_loss": (
        "memory",
        "input and target are kept as they are, and nothing new; torch keeps their difference, a new tensor",
    ),
    "fused_moving_avg_obs_fake_quant": (
        "raises",
        "the arguments drawn are no call that torch's own code makes",
    ),
    "scaled_dot_product_attention": (
        "raises",
        "attention of complex numbers is refused; torch takes it where it is empty",
    ),
    **dict.fromkeys(
        ["sparse_coo_tensor", "sparse_compressed_tensor"],
        ("result", "the C function beneath torch's own never reaches interception"),
    ),
    "least_squares": ("result", "residuals that are empty, and stand for none, require grad here and not in torch"),
    "cumulative_trapezoid.x": (
        "result",
        "over an axis without elements x alone makes no result that requires grad here",
    ),
    "trapezoid.x": ("result", "the integral over an axis without elements requires grad here, with a gradient of zero"),
    "trapz.x": ("result", "the integral over an axis without elements requires grad here, with a gradient of zero"),
    "var": (
        "no known shape of mistake",
        "the variance of too few numbers is nan, and so is what is derived from it twice",
    ),
    "var_mean": (
        "no known shape of mistake",
        "the variance of too few numbers is nan, and so is what is derived from it twice",
    ),
    "var.correction": ("precision", "the variance of too few numbers is nan, and so is what is derived from it twice"),
    "var_mean.correction": (
        "precision",
        "the variance of too few numbers is nan, and so is what is derived from it twice",
    ),
}

#: Rules whose op gives what happens to lie in memory.
UNINITIALISED = ("empty_like", "new_empty", "new_empty_strided")

#: Seconds for one rule in a worker process.
SECONDS_PER_RULE = 300.0


@dataclass
class RuleOutcome:
    """What came of one rule."""

    rule: str
    kind: str
    #: ``"right"``, ``"wrong"``, ``"unchecked"`` (no arguments could be found).
    status: str
    examples: dict[str, int] = field(default_factory=dict)
    against_torch: int = 0
    against_differences: int = 0
    orders: dict[int, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    spellings: int = 0
    corners: int = 0
    torch_wrong: int = 0
    doubtful: int = 0
    unsupported: dict[str, int] = field(default_factory=dict)
    mistake: str = ""
    message: str = ""
    seconds: float = 0.0


def kind_of(rule: Rule) -> str:
    """As ``list_rules()`` says it."""
    return "no gradient" if rule.no_gradient else "decomposition" if rule.decomposition is not None else "rule"


def outcome_of(name: str, samples: Sequence[Sample], max_examples: int) -> RuleOutcome:
    """Check one rule."""
    rule = RULES[name]
    began = time.perf_counter()
    try:
        report = check_samples(rule, samples, CheckOptions(CHECKED_DTYPES), max_examples)
    except RuleCheckError as error:
        kind, message = error.kind, str(error)
    except Exception as error:  # of the check, not of the rule: it must not end the sweep
        kind, message = type(error).__name__, f"the check raised {type(error).__name__}: {error}"
    else:
        return _right(name, kind_of(rule), report)
    return RuleOutcome(name, kind_of(rule), "wrong", mistake=kind, message=message, seconds=time.perf_counter() - began)


def _right(name: str, kind: str, report: RuleReport) -> RuleOutcome:
    return RuleOutcome(
        name,
        kind,
        "right" if report.examples else "unchecked",
        dict(report.examples),
        report.against_torch,
        report.against_differences,
        dict(report.orders),
        dict(report.dtypes),
        len(report.spellings),
        report.corners,
        report.torch_wrong,
        report.doubtful,
        dict(report.unsupported),
        seconds=report.seconds,
    )


_harvested: dict[str, list[Sample]] = {}


def _start(path: str) -> None:
    """What a worker process does first."""
    _harvested.update(torch.load(path, weights_only=False))


def _work(job: tuple[str, int]) -> RuleOutcome:
    name, max_examples = job
    return outcome_of(name, _harvested.get(name, ()), max_examples)


def _lost(job: tuple[str, int], cause: str, seconds: float) -> RuleOutcome:
    name, _ = job
    return RuleOutcome(name, kind_of(RULES[name]), "wrong", mistake="lost", message=cause, seconds=seconds)


def sweep(
    names: Sequence[str], harvested: dict[str, list[Sample]], max_examples: int, jobs: int
) -> Iterator[RuleOutcome]:
    """The outcomes, as they come."""
    if jobs <= 1:
        for name in names:
            yield outcome_of(name, harvested.get(name, ()), max_examples)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "samples.pt")
        torch.save(harvested, path)
        yield from run_all(Work(_start, path, _work, _lost), [(n, max_examples) for n in names], jobs, SECONDS_PER_RULE)


def harvest(names: Sequence[str], per_rule: int) -> dict[str, list[Sample]]:
    """Calls of these rules by the samples of torch's operator database, with what ``handmade_samples`` has."""
    found = Harvest(per_rule, names).run(database(), 12).samples if per_rule else {}
    for name in names:
        found.setdefault(name, []).extend(Sample(values, "table") for values in handmade_samples(name))
    return found


def sweep_report(outcomes: Sequence[RuleOutcome], seconds: float) -> str:
    """Counts, and everything that is not right."""
    lines = []
    for kind in ("rule", "decomposition", "no gradient"):
        of = [o for o in outcomes if o.kind == kind]
        status = Counter(o.status for o in of)
        source = Counter(" and ".join(sorted(o.examples)) for o in of if o.examples)
        lines.append(
            f"{kind}: {len(of)}, {status['right']} right, {status['wrong']} wrong, {status['unchecked']} unchecked; arguments: "
            + (", ".join(f"{n} {s}" for s, n in source.most_common()) or "none")
        )
    examples: Counter[str] = Counter()
    for outcome in outcomes:
        examples.update(outcome.examples)
    lines.append(
        f"{examples.total()} examples ({', '.join(f'{n} {s}' for s, n in examples.items())}), compared "
        f"{sum(o.against_torch for o in outcomes)} times with torch and {sum(o.against_differences for o in outcomes)} times with "
        f"differences, to second order in {sum(2 in o.orders for o in outcomes)} rules; {seconds:.0f} s"
    )
    for o in sorted(outcomes, key=lambda o: o.rule):
        if o.status == "wrong":
            known = f" (known: {KNOWN[o.rule][1]})" if is_known(o) else ""
            lines += ["", f"{o.rule}{known}", *(f"  {line}" for line in o.message.splitlines())]
    for title, rows in (
        ("Torch differs, and differences are on the rule's side:", [(o.rule, o.torch_wrong) for o in outcomes]),
        ("Differences disagree, and torch is on the rule's side:", [(o.rule, o.doubtful) for o in outcomes]),
        ("Unchecked:", [(o.rule, int(o.status == "unchecked")) for o in outcomes]),
    ):
        named = sorted((rule, count) for rule, count in rows if count)
        if named:
            lines += ["", title, "  " + ", ".join(f"{r} {n}" if n > 1 else r for r, n in named)]
    passing = [o.rule for o in outcomes if o.status == "right" and o.rule in KNOWN]
    if passing:
        lines += ["", f"Known to fail, and right now: {', '.join(sorted(passing))}"]
    refusals = [(o.rule, text) for o in outcomes for text in o.unsupported]
    if refusals:
        lines += ["", "Calls that rules refuse:", *(f"  {rule}: {text}" for rule, text in sorted(refusals))]
    return "\n".join(lines)


def is_known(outcome: RuleOutcome) -> bool:
    """Whether ``KNOWN`` says that the rule fails in this way."""
    return outcome.rule in KNOWN and outcome.mistake == KNOWN[outcome.rule][0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what it returns is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tracer.checks.rules", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rules", metavar="REGEX", type=re.compile, help="only rules whose name it finds a match in")
    parser.add_argument("--examples", type=int, default=12, metavar="N", help="derived arguments a rule (default: 12)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="calls of the database a rule (default: 8)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes (default: 1, none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    names = [n for n in sorted(RULES) if options.rules is None or options.rules.search(n)]
    names = [n for n in names if n not in UNINITIALISED]
    if not names:
        print("No rule has such a name.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    outcomes = []
    for outcome in sweep(names, harvest(names, options.samples), options.examples, options.jobs):
        outcomes.append(outcome)
        text = f"[{len(outcomes)}/{len(names)}] {outcome.rule}: {outcome.status}, {sum(outcome.examples.values())} examples"
        print(f"{text}, {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - began
    print(sweep_report(outcomes, seconds))
    if options.json is not None:
        written = {"torch": torch.__version__, "seconds": seconds, "rules": [asdict(o) for o in outcomes]}
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return int(any(o.status == "wrong" and not is_known(o) for o in outcomes))
