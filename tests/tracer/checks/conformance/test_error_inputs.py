"""Calls that torch refuses, by its own list: they are refused with tracked tensors as well."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._pytree import tree_map

import tracer
from tracer.checks.leaves import can_have_gradient, native_leaf


def refused(call: Any, arguments: Any, leaf: Any) -> bool:
    def fresh(value: Any) -> Any:
        return leaf(value.detach().clone()) if can_have_gradient(value) else value

    args, kwargs = tree_map(fresh, arguments)
    try:
        call(*args, **kwargs)
    except Exception:
        return True
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_refuses_is_refused_with_tracked_tensors() -> None:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    from torch.testing._internal.common_methods_invocations import op_db

    compared, silent = 0, []
    for op in op_db:
        for given in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
            sample = given.sample_input
            arguments = ((sample.input, *sample.args), sample.kwargs)
            if not refused(op, arguments, lambda t: native_leaf(t, True)):
                continue
            compared += 1
            if not refused(op, arguments, lambda t: tracer.track(t, True)):
                silent.append(f"{op.name}: {given.error_regex}")
    assert compared > 500
    assert silent == []
