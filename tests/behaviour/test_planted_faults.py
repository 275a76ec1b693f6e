"""Faults as people make them, each in a few lines of ordinary torch code: ``tracer.why`` names the kind, the op and the line of each.

They stand in ``tests/support/planted_cuts.py`` and ``planted_values.py``. The gradient itself is asked for too: the verdict has to fit it.
"""

from __future__ import annotations

import pytest
import torch
from support import (  # noqa: F401  what they plant
    planted_cuts,
    planted_reasons,
    planted_slopes,
    planted_training,
    planted_values,
)
from support.planted import FAULTS, T

import tracer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_with_its_op_and_line(name: str) -> None:
    torch.manual_seed(0)
    planted = FAULTS[name]
    x = tracer.tensor([0.5, 1.0, 2.0], requires_grad=True)
    w = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        made = planted.program(x, w)
    subject, loss = made if isinstance(made, tuple) else (x, made)
    answer = tracer.why(subject, loss, graph)
    assert answer.verdict.startswith(f"{planted.cause}:"), answer
    assert planted.op in answer.rows[0].op, answer
    if planted.cause == "unused":
        assert answer.rows[0].site is None, answer
    elif planted.line is None:  # in the code of a stock model
        assert "site-packages/torchvision" in str(answer.rows[0].site.line), answer
    else:
        assert f" at {planted.line}" in answer.verdict, answer
    assert planted.advice in str(answer), answer
    assert subject.grad is None and x.grad is None and w.grad is None
    _check_gradient(planted.cause, subject, loss)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, planted in FAULTS.items() if planted.cause in ("nan", "inf")])
def test_find_nan_and_why_name_one_place_and_repair(name: str) -> None:
    torch.manual_seed(0)
    planted = FAULTS[name]
    x = tracer.tensor([0.5, 1.0, 2.0], requires_grad=True)
    w = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with tracer.Graph(sites=True, finite=True) as graph:
        made = planted.program(x, w)
    subject, loss = made if isinstance(made, tuple) else (x, made)
    cause, place = tracer.why(subject, loss, graph).rows[0], tracer.find_nan(graph, loss).rows[0]
    assert cause.site is not None and place.site is not None
    assert (cause.op, cause.site.line, f"{cause.fix}.") == (place.op, place.site.line, place.repair)
    assert planted.op in cause.op and str(planted.line) in str(cause.site), "as without the notes of all results"


def _check_gradient(cause: str, subject: T, loss: T) -> None:
    """What torch would give: the verdict is about that."""
    if not loss.requires_grad or not subject.requires_grad:
        assert cause in ("cut", "frozen")
        return
    try:
        (grad,) = torch.autograd.grad(loss, subject, allow_unused=True)
    except tracer.OverwrittenError:
        assert cause == "overwritten"
        return
    if grad is None:
        assert cause in ("cut", "not in loss", "unused", "frozen")
    elif not bool(grad.any()):
        assert cause in ("zero", "overwritten")
    else:
        assert cause == ("nan" if bool(grad.isnan().any()) else "inf" if bool(grad.isinf().any()) else "ok")


def test_there_are_at_least_sixty() -> None:
    assert len(FAULTS) >= 60
