"""Rules that are declared, not written: the gradient passes through, is zero, or comes from the kernel's own adjoint.

Each makes an ordinary rule. Its ``location`` is the line of the declaration.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from typing import Any

from ops_registry.errors import DuplicateRuleError, RuleError
from ops_registry.registry import RULES, backward, extend, file_rule, lock, op_name
from ops_registry.rule import Rule
from ops_registry.shared.conjugate import conj
from ops_registry.signatures import signature_of


def passes_through(*funcs: Callable[..., Any], wrt: str | tuple[str, ...] | None = None) -> None:
    """Declare that the result's gradient is the input's as it stands (``clone``, the summands of ``add``).

    ``wrt`` names the input, or several of which this holds each; the first argument when left out. The gradient is projected as
    always: summed over broadcast axes, cast, its real part taken.
    """

    def passes_through(grad: Any) -> Any:
        return grad

    _register(passes_through, funcs, wrt, symmetric=True)


def zero_gradient(*funcs: Callable[..., Any], wrt: str | tuple[str, ...] | None = None) -> None:
    """Declare that the result is floating and its derivative zero throughout (``floor``, what ``copy_`` overwrites).

    The result stays part of the graph, unlike one of an op of ``no_gradient``; nothing is saved for it, and no memory is taken for the
    zeros. ``wrt`` as for ``passes_through``.
    """
    _register(_zero_formula(), funcs, wrt, symmetric=True)


def self_adjoint(*kernels: Callable[..., Any], wrt: str) -> None:
    """Declare that each kernel is linear in ``wrt``, and its own adjoint there: the gradient is the same kernel applied to ``grad``.

    It holds for backward kernels that multiply each element of ``grad_output`` by a number made of the other arguments
    (``threshold_backward``, ``gelu_backward``: a diagonal Jacobian), and for those with a symmetric Jacobian
    (``_softmax_backward_data``). Complex arguments are conjugated: the adjoint of multiplying by a slope is multiplying by its
    conjugate. It does not hold for kernels that change the shape (pooling, padding), gather (``glu_backward``) or reduce (losses).
    """
    for kernel in kernels:
        _register(_adjoint_formula(kernel, wrt), (kernel,), wrt, linear=True)


def no_gradient(func: Callable[..., Any], *more: Callable[..., Any], reads_values: bool = True) -> None:
    """Declare that nothing ever flows back through the results of these functions (comparisons, ``argmax``, ``zeros_like``).

    ``reads_values=False``: they look at no value (``size``, ``zeros_like``), so that a call of theirs ends no history.
    """
    declared_at = _caller()
    for function in (func, *more):
        name, signature = op_name(function), signature_of(function)
        with lock:
            if name in RULES:
                raise DuplicateRuleError(f"{name} already has a rule, written at {RULES[name].location}")
            rule = Rule(name, signature, no_gradient=True, reads_values=reads_values, declared_at=declared_at)
            if signature.names:
                # Written in place (x.eq_(3)), such a result stands in a tensor that has a history: it goes on with a gradient of zero.
                zero = _zero_formula()
                zero.declared_at = declared_at  # type: ignore[attr-defined]
                written = signature.names[signature.self_position]
                rule.in_place_rule = extend(Rule(name, signature), zero, written, replacing=False)
            file_rule(function, rule)


def _zero_formula() -> Callable[..., Any]:
    def zero_gradient(grad: Any) -> None:
        return None

    return zero_gradient


def _adjoint_formula(kernel: Callable[..., Any], wrt: str) -> Callable[..., Any]:
    """``def self_adjoint(grad, x, ...): return kernel(grad, conj(x), ...)``, with the names of the kernel's own arguments.

    Written out, so that the names of its parameters say what is saved, and it costs what a written formula does. Tracebacks and the
    catalogue read its source as that of any other.
    """
    name, signature = op_name(kernel), signature_of(kernel)
    if wrt not in signature.names:
        raise RuleError(f"{name}({', '.join(signature.names)}) has no input '{wrt}' to be linear in")
    parameters, arguments = [], []
    for argument in signature.names:
        parameter = "grad" if argument == wrt else argument
        value = parameter if argument == wrt or argument in signature.constant else f"conj({parameter})"
        parameters.append(parameter)
        arguments.append(f"{argument}={value}" if argument in signature.keyword_only else value)
    source = f"def self_adjoint({', '.join(parameters)}):\n    return kernel({', '.join(arguments)})\n"
    file = f"<self_adjoint of {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": __name__, "kernel": kernel, "conj": conj}
    exec(compile(source, file, "exec"), names)
    formula: Callable[..., Any] = names["self_adjoint"]
    return formula


def _register(
    formula: Callable[..., Any],
    funcs: tuple[Callable[..., Any], ...],
    wrt: str | tuple[str, ...] | None,
    **words: bool,
) -> None:
    formula.declared_at = _caller()  # type: ignore[attr-defined]
    for name in wrt if isinstance(wrt, tuple) else (wrt,):
        backward(*funcs, wrt=name, **words)(formula)  # type: ignore[arg-type]


def _caller() -> str:
    """``file:line`` of the first call from outside this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
