"""Every module of ``torch.nn`` in a compiled step: as eager, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import nn
from tracer.checks.compiled_steps.modules import check_module, module_infos

#: What is refused, and with which words.
REFUSED = {
    "nn.BatchNorm1d": "asks for the value",  # with momentum=None its buffer of steps becomes a number
    "nn.GaussianNLLLoss": "asks for the value",
    "nn.CTCLoss": "shape depends on values",
    **dict.fromkeys((info.name for info in module_infos() if ".Lazy" in info.name), "of a lazy module"),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("info", module_infos(), ids=lambda info: info.name)
def test_a_module_is_as_eager_or_refused_by_name(info: Any, training: bool) -> None:
    outcome = check_module(info, nn.track, training, "replay", 3)
    assert not outcome.failure
    assert outcome.counts["equal"] + outcome.counts["refused"]
    assert outcome.counts["refused"] == 0 or info.name in REFUSED, outcome.refused
    assert all(REFUSED[info.name] in text for text in outcome.refused)
