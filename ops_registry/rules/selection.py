"""Choosing one of several values elementwise: bounds, conditions, the larger and the smaller."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward

# clamp: a value on a bound counts as inside; where the bounds cross the upper one wins


@backward(torch.clamp, wrt="input")
def clamp_input(grad, input, min, max):
    inside = _inside(input, min, max)
    return grad if inside is None else torch.where(inside, grad, 0)


def _inside(input, min, max):
    if min is None:
        return None if max is None else input <= max
    return input >= min if max is None else (input >= min) & (input <= max)


@backward(torch.clamp, wrt="min")
def clamp_lower(grad, input, min, max):
    below = input < min
    return torch.where(below if max is None else below & (min < max), grad, 0)


@backward(torch.clamp, wrt="max")
def clamp_upper(grad, input, min, max):
    above = input > max
    return torch.where(above if min is None else above | (max < min), grad, 0)


@backward(torch.clamp_min, wrt="input")
def clamp_min_input(grad, input, min):
    return torch.where(input >= min, grad, 0)


@backward(torch.clamp_min, wrt="min")
def clamp_min_bound(grad, input, min):
    return torch.where(input < min, grad, 0)


@backward(torch.clamp_max, wrt="input")
def clamp_max_input(grad, input, max):
    return torch.where(input <= max, grad, 0)


@backward(torch.clamp_max, wrt="max")
def clamp_max_bound(grad, input, max):
    return torch.where(input > max, grad, 0)


# A floating condition is possible in the form with one argument alone, which returns indices.
zero_gradient(torch.where, wrt="condition")


@backward(torch.where, wrt="input")
def where_input(grad, condition):
    return torch.where(condition, grad, 0)


@backward(torch.where, wrt="other")
def where_other(grad, condition):
    return torch.where(condition, 0, grad)


# maximum and minimum: at a tie each side takes half; a nan on either side is the result, and so counts as chosen


@backward(torch.maximum, wrt="input")
def maximum_input(grad, input, other):
    return _chosen(grad, input < other, input == other)


@backward(torch.maximum, wrt="other")
def maximum_other(grad, input, other):
    return _chosen(grad, input > other, input == other)


@backward(torch.minimum, wrt="input")
def minimum_input(grad, input, other):
    return _chosen(grad, input > other, input == other)


@backward(torch.minimum, wrt="other")
def minimum_other(grad, input, other):
    return _chosen(grad, input < other, input == other)


# fmax and fmin: a nan loses against a number


@backward(torch.fmax, wrt="input")
def fmax_input(grad, input, other):
    return _chosen_or_beside_nan(grad, input >= other, input, other)


@backward(torch.fmax, wrt="other")
def fmax_other(grad, input, other):
    return _chosen_or_beside_nan(grad, other >= input, other, input)


@backward(torch.fmin, wrt="input")
def fmin_input(grad, input, other):
    return _chosen_or_beside_nan(grad, input <= other, input, other)


@backward(torch.fmin, wrt="other")
def fmin_other(grad, input, other):
    return _chosen_or_beside_nan(grad, other <= input, other, input)


def _chosen_or_beside_nan(grad, wins, side, other_side):
    grad = torch.where(side == other_side, grad / 2, grad)
    return torch.where(wins | other_side.isnan(), grad, 0)


def _chosen(grad, passed_over, tie):
    return torch.where(passed_over, 0, torch.where(tie, grad / 2, grad))


@backward(torch.bincount, wrt="weights")
def bincount_weights(grad, input):
    return grad.index_select(0, input.long())
