"""The rule that the error of a missing one proposes is Python, for every function that a call can arrive as, and names that function."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import get_ignored_functions, get_testing_overrides

import ops_registry
import tracer
from tracer.naming import qualified
from tracer.recording.missing_rule import rule_to_write

_library = torch.library.Library("glassgrad_names", "DEF")
_library.define("lambda(Tensor x) -> Tensor")
_library.define("plain.from(Tensor from, Tensor grad, Tensor result) -> Tensor")
_library.impl("lambda", lambda x: x * 2, "CPU")


def overloads() -> Iterator[Callable[..., Any]]:
    """Every op that torch has, as packet and as overload."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, op = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), op.partition(".")[0], None)
        if packet is not None:
            yield packet
            yield from (getattr(packet, overload) for overload in packet.overloads())


def functions() -> list[Callable[..., Any]]:
    """Every function that interception can see, and those that it never does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [*get_testing_overrides(), *get_ignored_functions(), *overloads()]
        for name in dir(torch.Tensor):
            kind = getattr(torch.Tensor, name)
            if hasattr(type(kind), "__get__") and not callable(kind):
                found += [getattr(kind, way) for way in ("__get__", "__set__", "__delete__") if hasattr(kind, way)]
    return list(dict.fromkeys(f for f in found if callable(f)))


def test_the_proposed_rule_is_python_for_every_function() -> None:
    tried = functions()
    assert len(tried) > 3000
    for func in tried:
        code = rule_to_write(func)
        compile(code, qualified(func), "exec")
        (rule,) = ast.parse(code).body
        assert isinstance(rule, ast.FunctionDef) and rule.args.args[0].arg == "grad"


def test_the_proposed_rule_names_the_very_function() -> None:
    wrong = []
    for func in functions():
        try:
            found = eval(qualified(func), {"torch": torch})
        except (AttributeError, NameError):
            found = None
        if found != func and getattr(found, "__name__", None) != getattr(func, "__name__", ""):
            wrong.append(qualified(func))
    # What only torch's inside can reach has no name at all.
    assert not [name for name in wrong if "torch.ops" in name or "torch.Tensor" in name]
    assert len(wrong) < 20, wrong


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (
            getattr(torch.ops.glassgrad_names, "lambda"),
            '@ops_registry.backward(getattr(torch.ops.glassgrad_names, "lambda"))\ndef rule_of_lambda(grad, x, result):',
        ),
        (
            getattr(torch.ops.glassgrad_names.plain, "from"),
            '@ops_registry.backward(getattr(torch.ops.glassgrad_names.plain, "from"))\ndef plain(grad, result):',
        ),
        (torch.cdist, "@ops_registry.backward(torch.cdist)\ndef cdist(grad, x1, x2, p, compute_mode, result):"),
        (torch.Tensor.__getitem__, "@ops_registry.backward(torch.Tensor.__getitem__)\ndef getitem(grad, "),
        (torch.Tensor.T.__get__, "@ops_registry.backward(torch.Tensor.T.__get__)\ndef T(grad, "),
    ],
    ids=["keyword", "overload", "function", "operator", "property"],
)
def test_names_that_cannot_stand_in_python_are_written_otherwise(func: Callable[..., Any], expected: str) -> None:
    assert rule_to_write(func).startswith(expected)


def test_the_rule_in_the_error_can_be_pasted(clean_registry: None) -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    op = getattr(torch.ops.glassgrad_names, "lambda")
    with pytest.raises(tracer.MissingRuleError) as raised:
        (op(x).sum() + x.sum()).backward()
    code = str(raised.value).split("\n\n")[1].replace("    return ...", "    return 2 * grad")
    exec("if True:\n" + code, {"torch": torch, "ops_registry": ops_registry})
    (op(x).sum() + x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [3.0]
