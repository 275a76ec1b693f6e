"""Every public callable of torch that interception does not see: as torch, or an error of ours, and no gradient lost in silence.

Each call is made on a tracked leaf and on one of torch's, alone, and inside a loss with another term: a lost gradient shows only there.
"""

from __future__ import annotations

import pytest
import torch
from support.border_calls import CALLS
from support.border_names import EXCEPTED, NAMESPACES, unseen_callables
from support.border_outcomes import AS_TORCH, BOTH_RAISE, REFUSED, RIGHT, outcome

import tracer

#: What is not right today, by kind. Each list shrinks as its kind is mended, and a call that is right fails while it stands here.
NOT_YET: dict[str, tuple[str, ...]] = {}

_FAILING = {name: kind for kind, names in NOT_YET.items() for name in names}


BOTH = pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another term"])


@BOTH
@pytest.mark.parametrize("name", [name for name in CALLS if name not in _FAILING])
def test_nothing_is_lost_in_silence(name: str, beside: bool) -> None:
    found = outcome(CALLS[name], beside=beside)
    assert found in RIGHT, f"{name}: {found}"


@BOTH
@pytest.mark.parametrize("name", _FAILING)
def test_what_is_not_right_yet(name: str, beside: bool) -> None:
    found = outcome(CALLS[name], beside=beside)
    assert found not in RIGHT, f"{name} is {found} now: take it out of NOT_YET[{_FAILING[name]!r}]"
    pytest.xfail(f"{_FAILING[name]}: {found[:200]}")


def test_every_callable_has_a_call_or_a_reason_for_none() -> None:
    called = {name.partition(",")[0] for name in CALLS}
    unlisted = [name for name in unseen_callables() if name not in called and name not in EXCEPTED]
    assert not unlisted, (
        f"give each a call in support/border_calls.py, or a reason in support/border_names.py: {unlisted}"
    )


def test_what_has_a_call_has_no_reason_for_none() -> None:
    assert not {name.partition(",")[0] for name in CALLS} & set(EXCEPTED)
    assert set(_FAILING) <= set(CALLS)


def test_a_new_callable_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "brand_new", lambda x: x, raising=False)
    assert "torch.linalg.brand_new" in unseen_callables() and "torch.linalg.brand_new" not in EXCEPTED
    assert len(NAMESPACES) == 11


# ---------------------------------------------------------------- the judge
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x * x, AS_TORCH),
        (lambda x: x.detach(), AS_TORCH),
        (lambda x: torch.full_like(x, x[0, 0].item()), AS_TORCH),
        (lambda x: x[5], BOTH_RAISE),
        (lambda x: torch.add(x, x, out=torch.empty(2, 2)), REFUSED),
        (lambda x: _of_ours(x), REFUSED),
        (lambda x: x.detach() if type(x) is tracer.Tensor else x * 1, "silent"),
        (lambda x: x * 2 if type(x) is tracer.Tensor else x * 1, "silent"),
        (lambda x: x * x.detach() if type(x) is tracer.Tensor else x * x, "silent"),
        (lambda x: torch.ones(1) if type(x) is tracer.Tensor else x[5], "silent where torch raises"),
        (lambda x: _bare(x), "bare ValueError"),
    ],
    ids=[
        "recorded",
        "cut by both",
        "a number",
        "refused by both",
        "out",
        "ours",
        "cut",
        "value",
        "gradient",
        "torch raises",
        "bare",
    ],
)
def test_the_judge(call: object, expected: str) -> None:
    for beside in (False, True):
        found = outcome(call, beside=beside)  # type: ignore[arg-type]
        assert found == expected if expected in RIGHT else found.startswith(expected)


def _of_ours(x: torch.Tensor) -> torch.Tensor:
    if type(x) is tracer.Tensor:
        raise tracer.UnsupportedError("no")
    return x * 1


def _bare(x: torch.Tensor) -> torch.Tensor:
    if type(x) is tracer.Tensor:
        raise ValueError("no")
    return x * 1
