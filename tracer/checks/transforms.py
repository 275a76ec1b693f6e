"""``python -m tracer.checks.transforms``: the transforms over torch's operator database, in float64.

Of every sample of every operator that torch can differentiate, four things are held:

- one sweep for three cotangents gives what three sweeps give (how many rules cannot be vmapped, and take three sweeps, is counted);
- ``<c, J v> = <J' c, v>`` for ``jvp`` and ``vjp`` along random ``v`` and ``c`` (in how many samples some op had to be transposed is
  counted);
- ``jacrev`` gives what ``jacfwd`` gives, and what ``torch.func.jacrev`` gives on native tensors, where the Jacobian is small;
- ``torch.vmap`` over two samples gives the values and the gradients of a loop over them.

``--ops REGEX`` takes only operators whose name it finds a match in, ``--samples N`` at most N samples an operator (6 unless said). The exit
status is 1 when something does not hold that ``KNOWN`` does not name.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ops_registry.registry import RULES
from ops_registry.rule import Rule
from ops_registry.torch_private import tree_unflatten
from tracer import func
from tracer.backprop.batched import refused_by_vmap
from tracer.checks.conformance.operators import Way, operators, ways
from tracer.checks.conformance.samples import OpSample, first_samples, seed_call
from tracer.checks.leaves import can_have_gradient, native_leaf, random_like, tensors_of, tracked_leaf, twin
from tracer.checks.over_operators import run_over_operators
from tracer.checks.tolerances import database_tolerance
from tracer.func.forward import Forward

#: How many cotangents one sweep carries.
ROWS = 3

#: Jacobians of more numbers than these are not built.
MOST_NUMBERS = 400

_FORWARD_NAN = "nan in a row that is masked throughout, as torch's own forward mode gives"
_LOOKS_PAST = "a view by strides of one sample looks into the memory of the next: a loop is no measure"

#: What does not hold, by claim and operator, and why.
KNOWN = {
    ("<c, J v> = <J' c, v>", "masked.softmax"): _FORWARD_NAN,
    ("<c, J v> = <J' c, v>", "masked.log_softmax"): _FORWARD_NAN,
    ("<c, J v> = <J' c, v>", "masked.softmin"): _FORWARD_NAN,
    ("<c, J v> = <J' c, v>", "chalf"): "torch has no sum of half precision complex numbers to measure it by",
    (
        "jacrev = jacfwd = torch's",
        "nn.functional.rrelu",
    ): "torch.vmap does not know it, and jacfwd runs the function inside",
    ("jacrev = jacfwd = torch's", "__rpow__"): "the nan of a power of a negative number stands elsewhere, as in torch",
    ("jacrev = jacfwd = torch's", "as_strided_scatter"): "torch's own derivative is wrong",
    ("vmap = a loop", "as_strided"): _LOOKS_PAST,
    ("vmap = a loop", "as_strided.partial_views"): _LOOKS_PAST,
    ("vmap = a loop", "as_strided_copy"): _LOOKS_PAST,
}


class NotComparable(Exception):
    """A sample that says nothing about the claim."""


@dataclass
class Problem:
    """One sample of an operator: its call as a function of the tensors that want a gradient."""

    way: Way
    sample: OpSample
    places: list[int]

    @property
    def inputs(self) -> list[torch.Tensor]:
        """Those tensors, as fresh plain ones."""
        return [twin(self.sample.leaves[i]) for i in self.places]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The differentiable results of the call on ``tensors`` in the places of its own."""
        leaves = [v.detach() if isinstance(v, torch.Tensor) else v for v in self.sample.leaves]
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        arguments, keywords = tree_unflatten(leaves, self.sample.spec)
        seed_call()
        results = tensors_of(self.sample.process(self.way(arguments, keywords)))
        if any(r.layout is not torch.strided for r in results):
            raise NotComparable
        return tuple([r for r in results if can_have_gradient(r)])


def _tracked(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tracked_leaf(t, True) for t in tensors]


def _differ(ours: Any, theirs: Any) -> str | None:
    """How two lists of gradients differ; None stands for zeros."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a is None or b is None:
            given = b if a is None else a
            if given is not None and bool((given != 0).any()):
                return f"gradient {i} is missing on one side"
            continue
        a, b = a.detach().as_subclass(torch.Tensor), b.detach().as_subclass(torch.Tensor)
        # A Jacobian has the dtype of the input by rows, and of the output by columns: the wider the less is lost.
        rtol, atol = max(database_tolerance(a), database_tolerance(b))
        wide = torch.promote_types(a.dtype, b.dtype)
        if a.shape != b.shape or not torch.allclose(a.to(wide), b.to(wide), rtol=rtol, atol=atol, equal_nan=True):
            return f"result {i}: {a.flatten()[:3].tolist()} and {b.flatten()[:3].tolist()}"
    return None


def batched_sweep(problem: Problem, counts: Counter[str]) -> str | None:
    """One sweep for three cotangents, beside three sweeps."""
    inputs = _tracked(problem.inputs)
    outputs = [o for o in problem(*inputs) if o.requires_grad]
    if not outputs:
        raise NotComparable
    cotangents = [torch.stack([random_like([o], seed)[0] for seed in range(ROWS)]) for o in outputs]

    def sweep(cots: Sequence[torch.Tensor], **options: Any) -> Any:
        return torch.autograd.grad(outputs, inputs, cots, retain_graph=True, allow_unused=True, **options)

    rows = [sweep([c[i] for c in cotangents]) for i in range(ROWS)]
    try:
        torch.vmap(lambda *cots: tuple([g for g in sweep(cots) if g is not None]))(*cotangents)
    except RuntimeError as error:
        if not refused_by_vmap(error):
            raise
        counts["cannot be vmapped"] += 1
    stacked = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return _differ(sweep(cotangents, is_grads_batched=True), stacked)


def transposition(problem: Problem, counts: Counter[str]) -> str | None:
    """``<c, J v> = <J' c, v>``."""
    primals = tuple(problem.inputs)
    tangents = tuple(random_like(primals, 1))
    outputs, pushed, *_ = func.jvp(problem, primals, tangents)
    counts["with an op that is transposed" if _transposed_ops(problem, primals, tangents) else "pushed"] += 1
    cotangents = tuple(random_like(outputs, 2))
    _, vjp_fn, *_ = func.vjp(problem, *primals)
    pulled = vjp_fn(cotangents)
    there = sum((c.conj() * p).sum().real for c, p in zip(cotangents, pushed, strict=True))
    back = sum((p.conj() * t).sum().real for p, t in zip(pulled, tangents, strict=True))
    narrow = min((t.dtype for t in (*primals, *outputs)), key=lambda dtype: torch.finfo(dtype).bits)
    return _differ([torch.as_tensor(there).to(narrow.to_real())], [torch.as_tensor(back).to(narrow.to_real())])


def _transposed_ops(problem: Problem, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> set[str]:
    """The ops that tangents do not go through by themselves."""
    forward = Forward()
    with forward:
        inputs = _tracked(primals)
        forward.start(primals, inputs, tangents)  # type: ignore[arg-type]
        outputs = problem(*inputs)
        forward.tangents_of(outputs)
    return forward.transposed


def jacobians(problem: Problem, counts: Counter[str]) -> str | None:
    """``jacrev`` beside ``jacfwd`` and beside ``torch.func.jacrev``."""
    primals = tuple(problem.inputs)
    outputs = problem(*primals)
    numbers = sum(o.numel() for o in outputs) * sum(p.numel() for p in primals)
    if not 0 < numbers <= MOST_NUMBERS or any(t.is_complex() for t in (*outputs, *primals)):
        raise NotComparable
    everywhere = tuple(range(len(primals)))
    by_rows = tensors_of(func.jacrev(problem, everywhere)(*primals))
    by_columns = tensors_of(func.jacfwd(problem, everywhere, randomness="same")(*primals))
    differ = _differ(by_rows, by_columns)
    if differ is not None:
        return f"jacrev and jacfwd: {differ}"
    try:
        native = tensors_of(torch.func.jacrev(problem, everywhere)(*primals))
    except Exception:
        counts["torch raises"] += 1
        return None
    return _differ(by_rows, native)


def vmapped(problem: Problem, counts: Counter[str]) -> str | None:
    """``torch.vmap`` over two samples, beside a loop by torch's own autograd."""
    stacks = [torch.stack((t, t.flip(0) if t.dim() else t * 0.75)) for t in problem.inputs]
    try:
        torch.vmap(problem)(*stacks)
    except Exception:
        counts["torch raises"] += 1  # it cannot be vmapped, or is random
        raise NotComparable from None
    native = [native_leaf(s.clone(), True) for s in stacks]
    loop = [torch.stack(rows) for rows in zip(*(problem(*(x[i] for x in native)) for i in range(2)), strict=True)]
    wanted = [i for i, o in enumerate(loop) if o.requires_grad]
    if not wanted:
        raise NotComparable
    inputs = _tracked(stacks)
    outputs = torch.vmap(problem)(*inputs)
    cotangents = random_like([loop[i] for i in wanted], 3)
    theirs = torch.autograd.grad([loop[i] for i in wanted], native, cotangents, allow_unused=True)
    ours = torch.autograd.grad([outputs[i] for i in wanted], inputs, cotangents, allow_unused=True)
    return _differ([*outputs, *ours], [*loop, *theirs])


CLAIMS: dict[str, Callable[[Problem, Counter[str]], str | None]] = {
    "one sweep for a batch": batched_sweep,
    "<c, J v> = <J' c, v>": transposition,
    "jacrev = jacfwd = torch's": jacobians,
    "vmap = a loop": vmapped,
}


@dataclass
class Outcome:
    """What was found of one claim."""

    operators: int = 0
    samples: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    #: By operator, the first thing that did not hold.
    failures: dict[str, str] = field(default_factory=dict)


def problems(op: Any, samples: int | None) -> list[Problem]:
    """The samples of an operator, for the tensors that the database marks."""
    function = next(way for way in ways(op) if way.name == "function")
    found = []
    for sample in first_samples(op, samples):
        places = [i for i, v in enumerate(sample.leaves) if can_have_gradient(v) and v.requires_grad]
        strided = all(sample.leaves[i].layout is torch.strided for i in places)
        if places and strided and len({id(sample.leaves[i]) for i in places}) == len(places):
            found.append(Problem(function, sample, places))
    return found


def check(pattern: str, samples: int | None) -> dict[str, Outcome]:
    """Hold every claim for the operators in whose name ``pattern`` finds a match."""
    outcomes = {claim: Outcome() for claim in CLAIMS}
    for name, op in operators(pattern).items():
        given = problems(op, samples)
        for claim, hold in CLAIMS.items():
            _check_operator(name, given, hold, outcomes[claim])
    return outcomes


def _check_operator(
    name: str, given: list[Problem], hold: Callable[[Problem, Counter[str]], str | None], outcome: Outcome
) -> None:
    compared = 0
    for problem in given:
        try:
            differ = hold(problem, outcome.counts)
        except NotComparable:
            continue
        except Exception as error:
            differ = f"{type(error).__name__}: {error}"
        compared += 1
        if differ is not None:
            outcome.failures.setdefault(name, f"{problem.sample.text}: {differ}"[:400])
    outcome.operators += compared > 0
    outcome.samples += compared


def report(outcomes: dict[str, Outcome]) -> int:
    """Print what was found; the exit status."""
    unexpected = 0
    with_formulas = [rule for rule in RULES.values() if rule.inputs]
    pushing = sum(_pushes(rule) for rule in with_formulas)
    print(f"{pushing} of {len(with_formulas)} rules let the tangents of all their inputs through, over real numbers")
    for claim, outcome in outcomes.items():
        counts = "".join(f", {count} {what}" for what, count in outcome.counts.items())
        failed = len(outcome.failures)
        print(
            f"{claim}: {outcome.operators - failed} of {outcome.operators} operators, {outcome.samples} samples{counts}"
        )
        for name, text in outcome.failures.items():
            why = KNOWN.get((claim, name))
            unexpected += why is None
            print(f"  {name}: {why or text}")
    return int(unexpected > 0)


def _pushes(rule: Rule) -> bool:
    """Whether a rule says of each input that the op is linear in it, or its Jacobian symmetric."""
    return {name for _, name in rule.inputs} <= rule.symmetric.union(*rule.linear)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    assert __doc__ is not None
    return run_over_operators("tracer.checks.transforms", __doc__, 6, check, report, arguments)


if __name__ == "__main__":
    sys.exit(main())
