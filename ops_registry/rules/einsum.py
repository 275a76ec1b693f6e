"""Einstein summation: sums of products, told apart by their indices.

``einsum`` is taken apart into steps of one or two operands (``einsum_one``, ``einsum_two``), which have a rule each:
the gradient of one operand is the Einstein sum of the result's gradient and the other operand, over the indices that
the operand itself lacks.
"""

import functools
import string

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition
from ops_registry.shared.conjugate import conj

#: The C function behind ``torch.einsum``.
einsum = torch._C._VariableFunctions.einsum


def einsum_one(equation, operand):
    """``einsum`` of one operand: diagonals, sums, a permutation. The equation has an arrow and letters only."""
    if has_torch_function((operand,)):
        return handle_torch_function(einsum_one, (operand,), equation, operand)
    return einsum(equation, (operand,))


def einsum_two(equation, left, right):
    """``einsum`` of two operands. The equation has an arrow and letters only."""
    if has_torch_function((left, right)):
        return handle_torch_function(einsum_two, (left, right), equation, left, right)
    return einsum(equation, (left, right))


@backward(einsum_one, wrt="operand", linear=True)
def einsum_one_operand(grad, equation, operand_shape):
    operand, result = equation.split("->")
    labelled = _distinct(operand, within=result)
    return _with_all_labels(einsum_one(f"{result}->{labelled}", grad), labelled, operand, operand_shape)


@backward(einsum_two, wrt="left", cast_to_grad="right", linear=True)
def einsum_two_left(grad, equation, left_shape, right):
    operands, result = equation.split("->")
    left_labels, right_labels = operands.split(",")
    return _towards(left_labels, left_shape, grad, result, right, right_labels)


@backward(einsum_two, wrt="right", cast_to_grad="left", linear=True)
def einsum_two_right(grad, equation, left, right_shape):
    operands, result = equation.split("->")
    left_labels, right_labels = operands.split(",")
    return _towards(right_labels, right_shape, grad, result, left, left_labels)


def _towards(labels, shape, grad, result, other, other_labels):
    labelled = _distinct(labels, within=result + other_labels)
    product = einsum_two(f"{result},{other_labels}->{labelled}", grad, conj(other))
    return _with_all_labels(product, labelled, labels, shape)


def _distinct(labels, within):
    return "".join(label for label in dict.fromkeys(labels) if label in within)


def _with_all_labels(grad, labelled, labels, shape):
    """``grad``, whose axes are ``labelled``, as the gradient of an operand with ``labels``.

    Along labels that were summed out of that operand alone the gradient is constant; off a diagonal (a repeated label)
    it is zero.
    """
    if labelled == labels and grad.shape == shape:
        return grad
    distinct = "".join(dict.fromkeys(labels))
    sizes = dict(zip(labels, shape, strict=True))
    for axis, label in enumerate(distinct):
        if label not in labelled:
            grad = grad.unsqueeze(axis)
    full = [sizes[label] if sizes[label] != 1 else have for label, have in zip(distinct, grad.shape, strict=True)]
    grad = grad.expand(full)
    if distinct == labels:
        return grad
    for axis, label in enumerate(distinct):
        if sizes[label] == 1 and grad.shape[axis] != 1:  # was broadcast against the other operand
            grad = grad.sum(axis, keepdim=True)
    for axis, label in enumerate(labels):  # one repetition after the other, each beside its first occurrence
        first = labels.index(label)
        if first != axis:
            grad = torch.diag_embed(grad.movedim(first, -1), dim1=first, dim2=axis)
    return grad


@decomposition(einsum)
def einsum_many(equation, tensors, path):
    operands, result = explicit_labels(equation, tuple([t.ndim for t in tensors]))
    if len(tensors) == 1:
        return einsum_one(f"{operands[0]}->{result}", tensors[0])
    remaining = list(zip(operands, tensors, strict=True))
    steps = iter(path or ())
    while len(remaining) > 1:
        i, j = sorted((next(steps), next(steps))) if path else (0, 1)
        right_labels, right = remaining.pop(j)
        left_labels, left = remaining.pop(i)
        wanted = result + "".join(labels for labels, _ in remaining)
        labels = result if not remaining else _distinct(left_labels + right_labels, within=wanted)
        remaining.append((labels, einsum_two(f"{left_labels},{right_labels}->{labels}", left, right)))
    return remaining[0][1]


@functools.lru_cache
def explicit_labels(equation, ranks):
    """The labels of each operand and of the result, with the ellipses spelled out and an implicit result made explicit.

    ``explicit_labels("...ij, ...jk", (3, 2))`` is ``(["aij", "jk"], "aik")``.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum(): the equation '{equation}' has {len(terms)} operands, {len(ranks)} were given")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    for term, count in zip(terms, hidden, strict=True):
        if count < 0 or (count > 0 and "..." not in term):
            raise ValueError(f"einsum(): '{term}' in '{equation}' does not fit the rank of its operand")
    width = max((count for term, count in zip(terms, hidden, strict=True) if "..." in term), default=0)
    free = [letter for letter in string.ascii_letters if letter not in equation]
    if width > len(free):
        raise UnsupportedCallError(f"einsum(): '{equation}' needs more than {len(string.ascii_letters)} labels")
    ellipsis = "".join(free[:width])
    spelled = [term.replace("...", ellipsis[width - count :]) for term, count in zip(terms, hidden, strict=True)]
    if arrow:
        return spelled, right.replace("...", ellipsis)
    named = "".join(terms).replace("...", "")
    once = "".join(sorted(label for label in set(named) if named.count(label) == 1))
    return spelled, ellipsis + once
