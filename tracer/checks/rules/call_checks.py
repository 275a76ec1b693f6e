"""What is checked of a call beside its values and derivatives: layouts, single results, memory, and what formulas do."""

from __future__ import annotations

from typing import Any

import torch

from ops_registry.errors import RuleResultError
from tracer.checks.derivatives import Derivatives, differentiate, first_difference
from tracer.checks.leaves import (
    SEED,
    leaves_of,
    native_leaf,
    non_contiguous,
    plain,
    random_like,
    requiring_grad,
    restart_random,
    tensors_of,
    tracked_leaf,
)
from tracer.checks.rules.checked_rule import CheckedRule, declines
from tracer.checks.rules.diagnosis import close, watched
from tracer.checks.rules.sample_call import SampleCall, our_bytes, torch_bytes
from tracer.checks.tangents import agree, products
from tracer.checks.tolerances import drawn_tolerance
from tracer.errors import Mistake

#: Of several results, so many are given a gradient alone.
SINGLE_RESULTS = 4


def check_gradient_layout(checked: CheckedRule, call: SampleCall) -> None:
    """A gradient that comes in with gaps or expanded gives what a contiguous one gives."""
    try:
        restart_random(SEED)
        leaves = leaves_of(call.leaves, call.able, tracked_leaf)
        inputs = [leaves[i] for i in call.able]
        live = requiring_grad(call(leaves))
        if not live:
            return
        usual = random_like(live, 1)
        ones = [torch.ones((), dtype=o.dtype).expand(o.shape) for o in live]
        for what, given, reference in (
            ("non-contiguous", [non_contiguous(c) for c in usual], usual),
            ("expanded", ones, [o.contiguous() for o in ones]),
        ):
            pair = [
                torch.autograd.grad(live, inputs, cotangents, retain_graph=True, allow_unused=True)
                for cotangents in (given, reference)
            ]
            for i, a, b in zip(call.able, *pair, strict=True):
                if a is not None and b is not None and not close(plain(a), plain(b)):
                    text = f"another gradient when that of the result comes in {what}"
                    checked.fail(text, "", call, name=call.names[i])
                    return
    except Exception as error:
        if not declines(error):
            checked.fail_with(error, call, when="with a gradient that comes in non-contiguous or expanded")


def check_single_results(checked: CheckedRule, call: SampleCall) -> None:
    """Of several results, each alone receives a gradient."""
    theirs = checked.by_torch(call, call.able, 1)
    if theirs is None or not checked.options.torch_agrees or sum(theirs.requires_grad) < 2:
        return
    for k in [k for k, lives in enumerate(theirs.requires_grad) if lives][:SINGLE_RESULTS]:
        if not _check_single_result(checked, call, k):
            return


def _check_single_result(checked: CheckedRule, call: SampleCall, k: int) -> bool:
    """False where the others need not be looked at: torch refuses, or the rule is wrong."""

    def one(leaves: list[Any]) -> Any:
        return tensors_of(call(leaves))[k]

    def true_one(leaves: list[Any]) -> Any:
        return tensors_of(call.truth(leaves))[k]

    pair: list[Derivatives] = []
    try:
        for leaf, function in ((native_leaf, true_one), (tracked_leaf, one)):
            pair.append(differentiate(function, leaves_of(call.leaves, call.able, leaf), call.able, 1, leaf))
    except Exception as error:
        if pair and not declines(error):
            checked.fail_with(error, call, when=f"when result {k} alone has a gradient")
        return False
    theirs, ours = pair
    found = first_difference(ours, theirs, drawn_tolerance)
    if found is None or found.what.startswith("argument"):
        return True
    if checked.differences_approve(one, call, call.able, ours, found):
        return True
    checked.fail(f"{found.cause}, when result {k} alone has a gradient", found.detail, call)
    return False


def check_memory(checked: CheckedRule, call: SampleCall) -> None:
    """No more bytes are kept for backward than torch keeps, or the rule's definition."""
    if not all(t.is_contiguous() for t in tensors_of(call.leaves) if t.layout == torch.strided):
        return  # an input with gaps keeps more than its values, one that is expanded less: which is kept would decide
    if checked.by_torch(call, call.able, 1) is None:
        return
    theirs = torch_bytes(call, call.able)
    ours = our_bytes(call, call.able)
    if ours is None:
        return
    checked.report.kept_bytes += ours
    if theirs is None or not checked.options.torch_agrees:
        return
    checked.report.torch_bytes += theirs
    if ours > theirs and checked.options.memory:
        whose = "torch" if call.definition is None else "its definition"
        detail = f"{ours} bytes, {whose} {theirs}; the rule saves {', '.join(checked.rule.saves)}"
        advice = "name less in the formulas' parameters: result in place of input, x_shape in place of x"
        checked.fail(f"keeps more memory than {whose}", detail, call, mistake=Mistake("memory", advice))


def check_tangents(checked: CheckedRule, call: SampleCall) -> None:
    """Where the rule says that its op is linear or its Jacobian symmetric: tangents that go through are those of its gradient."""
    said = checked.rule.symmetric.union(*checked.rule.linear)
    if not said or call.spelling.inplace:
        return
    for wanted in call.subsets():
        if not said.issuperset([call.names[i] for i in wanted]):
            continue  # what is transposed says nothing of the words; a replaced formula need not be linear in the gradient at all
        try:
            pair = products(call, call.leaves, wanted)
        except Exception as error:
            if isinstance(error, RuleResultError):
                checked.fail_with(error, call, when="by forward mode")
                return
            continue  # an input of which nothing is said is transposed, which takes second derivatives: compared elsewhere
        if pair is not None and not agree(pair):
            advice = "say linear or symmetric (ops_registry.backward) only of inputs of which it holds"
            checked.fail(
                "tangents: differ from the transpose of the gradient",
                f"<c, J v> is {pair[0]:.10g} by jvp, <J' c, v> is {pair[1]:.10g}",
                call,
                tuple([call.names[i] for i in wanted]),
                mistake=Mistake("tangents", advice),
            )
            return


def check_formulas(checked: CheckedRule, call: SampleCall) -> None:
    """What projection hides: a formula that computes in a narrower dtype, and one that writes into what it is given."""
    if not checked.rule.formulas or checked.rule.forward is not None:
        return
    seen: list[Mistake] = []
    try:
        with watched(checked.rule, checked.main, seen):
            differentiate(call, leaves_of(call.leaves, call.able, tracked_leaf), call.able, 1, tracked_leaf)
    except Exception:
        return  # the comparisons have seen it already
    if seen:
        checked.fail(seen[0].text, "", call, mistake=seen[0])
