"""Choosing one of several values elementwise: between bounds, by a condition."""

import torch

from ops_registry.declare import zero_gradient
from ops_registry.registry import backward

# clamp: a value on a bound counts as inside; where the bounds cross the upper one wins


@backward(torch.clamp, wrt="input", symmetric=True)
def clamp_input(grad, input, min, max):
    inside = _inside(input, min, max)
    return grad if inside is None else torch.where(inside, grad, 0)


def _inside(input, min, max):
    if min is None:
        return None if max is None else input <= max
    return input >= min if max is None else (input >= min) & (input <= max)


@backward(torch.clamp, wrt="min", symmetric=True)
def clamp_lower(grad, input, min, max):
    below = input < min
    return torch.where(below if max is None else below & (min < max), grad, 0)


@backward(torch.clamp, wrt="max", symmetric=True)
def clamp_upper(grad, input, min, max):
    above = input > max
    return torch.where(above if min is None else above | (max < min), grad, 0)


@backward(torch.clamp_min, wrt="input", symmetric=True)
def clamp_min_input(grad, input, min):
    return torch.where(input >= min, grad, 0)


@backward(torch.clamp_min, wrt="min", symmetric=True)
def clamp_min_bound(grad, input, min):
    return torch.where(input < min, grad, 0)


@backward(torch.clamp_max, wrt="input", symmetric=True)
def clamp_max_input(grad, input, max):
    return torch.where(input <= max, grad, 0)


@backward(torch.clamp_max, wrt="max", symmetric=True)
def clamp_max_bound(grad, input, max):
    return torch.where(input > max, grad, 0)


# A floating condition is possible in the form with one argument alone, which returns indices.
zero_gradient(torch.where, wrt="condition")


@backward(torch.where, wrt="input", symmetric=True)
def where_input(grad, condition):
    return torch.where(condition, grad, 0)


@backward(torch.where, wrt="other", symmetric=True)
def where_other(grad, condition):
    return torch.where(condition, 0, grad)
