"""``tracer.install`` is the one list of what glassgrad changes in torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tracer
from tracer.install import ANSWERED, CHANGES, LATER_CHANGES, Change, LaterChange
from tracer.tracked_tensor import HANDLERS


def place(change: Change) -> str:
    return f"{getattr(change.owner, '__qualname__', change.owner.__name__)}.{change.name}"


@pytest.mark.parametrize("change", CHANGES, ids=place)
def test_each_change_is_in_force_and_gives_its_reason(change: Change) -> None:
    there = vars(change.owner)
    found = there[change.name] if change.name in there else getattr(change.owner, change.name)
    assert found is change.value or found == change.value
    assert len(change.reason.split()) > 5


def test_no_place_is_changed_twice() -> None:
    assert len({place(change) for change in CHANGES}) == len(CHANGES)
    assert len({(change.module, change.owner, change.name) for change in LATER_CHANGES}) == len(LATER_CHANGES)


@pytest.mark.parametrize("change", LATER_CHANGES, ids=lambda change: f"{change.owner}.{change.name}")
def test_what_is_changed_later_is_there_when_its_module_is_loaded(change: LaterChange) -> None:
    module = pytest.importorskip(change.module)
    owner = getattr(module, change.owner, None)
    if change.name not in vars(owner or object):
        pytest.skip("another release of torch")
    method = vars(owner)[change.name]
    assert getattr(method, "__func__", method).__wrapped__ is not None
    assert len(change.reason.split()) > 5


def test_torchs_functions_are_answered_by_ours() -> None:
    assert all(HANDLERS[theirs] is ours for theirs, ours in ANSWERED.items())


#: What differs in torch's classes and modules before and after the import of every module of glassgrad.
SCRIPT = """
import sys, types
import torch, torch.utils.checkpoint, torch.nested._internal.nested_tensor, torch.distributed, torch.fx

def names():
    found = {}
    for module in [m for n, m in list(sys.modules.items()) if n.split(".")[0] == "torch" and m is not None]:
        for name, value in list(vars(module).items()):
            found[module.__name__, name] = id(value)
            if isinstance(value, type) and str(getattr(value, "__module__", "")).startswith("torch"):
                for attribute, inner in list(vars(value).items()):
                    found[f"{value.__module__}.{value.__qualname__}", attribute] = id(inner)
    return found

before = names()
import ops_registry, tracer, nn
import tracer.checks.gradcheck, tracer.checks.rules.check, ops_registry.catalogue.page
after = names()
from tracer.install import CHANGES, LATER_CHANGES
allowed = {change.name for change in (*CHANGES, *LATER_CHANGES)}
print(sorted(key for key in before if key in after and before[key] != after[key] and key[1] not in allowed))
"""


def test_nothing_else_of_torchs_is_changed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    changed = [key for key in eval(done.stdout) if not key[1].startswith("__")]
    assert changed == []


def test_the_class_gets_what_stands_above_it() -> None:
    assert tracer.Tensor.backward is not torch.Tensor.backward
    assert tracer.Tensor.__torch_function__.__func__ is not torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
