"""Choosing one of several values elementwise: bounds, conditions, the larger and the smaller."""

import torch

from ops_registry.registry import backward

# clamp: the bound counts as inside, and wins where the two bounds cross


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


@backward(torch.where, wrt="condition")
def where_condition(grad):
    return None  # numbers as a condition are a matter of the one-argument form, which returns indices


@backward(torch.where, wrt="input")
def where_input(grad, condition):
    return torch.where(condition, grad, 0)


@backward(torch.where, wrt="other")
def where_other(grad, condition):
    return torch.where(condition, 0, grad)


# maximum and minimum: at a tie each side takes half; a nan on either side is passed on, and so counts as chosen


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


@backward(torch.fmax, wrt=("input", "other"))
def fmax(grad, input, other, needs):
    return _kept(grad, input, other, input >= other, other >= input, needs)


@backward(torch.fmin, wrt=("input", "other"))
def fmin(grad, input, other, needs):
    return _kept(grad, input, other, input <= other, other <= input, needs)


def _kept(grad, input, other, input_wins, other_wins, needs):
    grad = torch.where(input == other, grad / 2, grad)
    own = torch.where(input_wins | other.isnan(), grad, 0) if needs[0] else None
    return own, torch.where(other_wins | input.isnan(), grad, 0) if needs[1] else None


def _chosen(grad, passed_over, tie):
    return torch.where(passed_over, 0, torch.where(tie, grad / 2, grad))


@backward(torch.bincount, wrt="weights")
def bincount_weights(grad, input):
    return grad.index_select(0, input.long())
