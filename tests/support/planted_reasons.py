"""Planted faults whose reason, or remedy, depends on what the call was given and not on its op alone. A line marked FAULT is the one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import nn
from support.planted import T, fault


# ---------------------------------------------------------------------- zero
@fault("zero", "softmax", "add up to 1 whatever it is given")
def the_sum_of_a_softmax(x: T, w: T) -> T:
    return torch.softmax(x, 0).sum() + w.sum()  # FAULT


@fault("zero", "softmax", "one element takes all")
def a_softmax_at_a_temperature_near_zero(x: T, w: T) -> T:
    return (torch.softmax(x / 1e-4, 0) * w).sum()  # FAULT


@fault("zero", "mul", "multiplied with the number 0")
def a_term_that_is_switched_off(x: T, w: T) -> T:
    weight = 0.0
    return w.sum() + weight * x.exp().sum()  # FAULT


@fault("zero", "round", "its derivative is 0 everywhere")
def a_term_that_keeps_a_parameter_in_the_loss_beside_the_fault(x: T, w: T) -> T:
    unused = 0 * x.sum()
    return (x.round() * w).sum() + unused  # FAULT


@fault("zero", "div", "its derivative is 0 everywhere")
def a_quotient_that_is_rounded(x: T, w: T) -> T:
    return (torch.div(x, 0.3, rounding_mode="floor") * w).sum()  # FAULT


@fault("zero", "logsumexp", "another element is so much larger")
def a_logsumexp_that_one_element_rules(x: T, w: T) -> T:
    return torch.logsumexp(torch.cat([x, w * 1e5]), 0)  # FAULT


@fault("zero", "threshold", "at or below its threshold")
def below_a_threshold(x: T, w: T) -> T:
    return (F.threshold(x, 10.0, 0.0) * w).sum()  # FAULT


@fault("zero", "hardshrink", "between -lambd and lambd")
def within_a_shrinkage(x: T, w: T) -> T:
    return (F.hardshrink(x, 10.0) * w).sum()  # FAULT


@fault("zero", "amax", "none of these elements was the chosen one")
def what_is_never_the_largest(x: T, w: T) -> T:
    return torch.stack([x, w + 10]).amax(0).sum()  # FAULT


@fault("zero", "glu", "gate is closed")
def a_closed_gate(x: T, w: T) -> T:
    return F.glu(torch.cat([x, w * 0 - 1e4]), 0).sum() + w.sum()  # FAULT


@fault("zero", "grid_sampler", "outside of what it reads")
def points_outside_of_an_image(x: T, w: T) -> T:
    grid = torch.stack([x, x], -1).reshape(1, 1, 3, 2) + 10
    return F.grid_sample(w.reshape(1, 1, 1, 3), grid, align_corners=False).sum()  # FAULT


@fault("zero", "tril", "sets to 0")
def the_other_side_of_a_triangle(x: T, w: T) -> T:
    return torch.tril(torch.stack([x, x]), diagonal=-2).sum() + w.sum()  # FAULT


@fault("zero", "Blank", "its own backward returns zeros for input 0")
def a_function_with_one_gradient_of_zeros(x: T, w: T) -> T:
    class Blank(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T, b: T) -> T:
            ctx.save_for_backward(a)
            return a * b

        @staticmethod
        def backward(ctx: Any, grad: T) -> Any:  # type: ignore[override]
            (a,) = ctx.saved_tensors
            return grad * 0, grad * a

    return Blank.apply(x, w).sum()  # FAULT


@fault("zero", "the module Linear", "planted_reasons.py")
def a_backward_hook_of_a_module(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 0,))
    return layer.weight, layer(w).sum()  # FAULT


@fault("zero", "normal", "randn_like")
def a_draw_around_a_mean(x: T, w: T) -> T:
    return (torch.normal(x, torch.ones(3)) * w).sum()  # FAULT


# ---------------------------------------------------------------------- cut
@fault("cut", "_unique2", "Integers have no gradient")
def the_places_of_unique_values(x: T, w: T) -> T:
    _, places = torch.unique(x * 2, return_inverse=True)  # FAULT
    return w[places].sum()


@fault("cut", "Marked", "ctx.mark_non_differentiable")
def a_result_marked_as_not_differentiable(x: T, w: T) -> T:
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T) -> T:
            result = a * 2
            ctx.mark_non_differentiable(result)
            return result

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:  # type: ignore[override]
            return grad

    return (Marked.apply(x) * w).sum()  # FAULT


@torch.jit.script  # type: ignore[untyped-decorator]
def scripted(x: T) -> T:
    return x.detach() * 2


@fault("cut", "scripted", "Look inside of it")
def compiled_code_that_detaches(x: T, w: T) -> T:
    return (scripted(x * 1) * w).sum()  # FAULT


@fault("cut", "sample (", "rsample()")
def a_sample_of_a_distribution(x: T, w: T) -> T:
    drawn = torch.distributions.Normal(x, 1.0).sample()  # FAULT
    return (drawn * w).sum()


@fault("cut", "detach", "Leave out detach")
def a_step_of_a_generator_after_that_of_its_critic(x: T, w: T) -> T:
    fake = x * 2
    (fake.detach() * w).sum().backward()
    w.grad = None
    loss = (fake.detach() * w).exp().sum()  # FAULT
    print(fake.detach().mean())
    return loss


@fault("zero", "float", "GradScaler")
def a_gradient_too_small_for_the_half_precision_it_goes_back_to(x: T, w: T) -> T:
    h = x.half() * 2
    return (h.float() * 1e-9 * w).sum()  # FAULT


@fault("zero", "__getitem__", "an empty batch")
def a_filter_that_leaves_nothing(x: T, w: T) -> T:
    kept = x[x > 100]  # FAULT
    return kept.exp().sum() + w.sum()


@fault("zero", "real", "Take the other part")
def an_imaginary_part_of_which_the_real_one_is_taken(x: T, w: T) -> T:
    z = torch.complex(w, x)
    return z.real.sum()  # FAULT


# ---------------------------------------------------------------------- nan
@fault("inf", "mul", "put in a large finite number")
def a_product_with_an_infinity(x: T, w: T) -> T:
    error = x - x.detach()
    return (error * float("inf") * w).sum()  # FAULT


@fault("nan", "linear", "in parameter weight")
def a_frozen_weight_that_holds_nan(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    layer.weight.requires_grad_(False).fill_(float("nan"))
    w.layer = layer  # type: ignore[attr-defined]  it lives on, as in a program
    return layer(x).sum() + w.sum()  # FAULT


@fault("nan", "batch_norm", "buffer running_var")
def running_statistics_that_hold_nan(x: T, w: T) -> Any:
    norm = nn.track(torch.nn.BatchNorm1d(3)).eval()
    norm.running_var[1] = float("nan")
    w.norm = norm  # type: ignore[attr-defined]  it lives on, as in a program
    return norm(x[None]).sum() + w.sum()  # FAULT
