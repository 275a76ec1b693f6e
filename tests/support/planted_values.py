"""Planted faults that give a gradient of zero, infinity or NaN. A line marked FAULT is the one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import nn
from support.planted import T, fault


# ---------------------------------------------------------------------- zero
@fault("zero", "relu")
def a_dead_relu(x: T, w: T) -> T:
    h = torch.relu(x - 100)  # FAULT
    return (h * w).sum()


@fault("zero", "relu")
def a_dead_layer(x: T, w: T) -> Any:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Identity(), torch.nn.Linear(3, 1)))
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    h = F.relu(net[0](torch.ones(2, 3)))  # FAULT
    return net[0].weight, net[2](h).sum()


@fault("zero", "clamp")
def clamped_away(x: T, w: T) -> T:
    h = (x * 100).clamp(0, 1)  # FAULT
    return (h * w).sum()


@fault("zero", "hardtanh")
def outside_of_hardtanh(x: T, w: T) -> T:
    return (F.hardtanh(x + 10) * w).sum()  # FAULT


@fault("zero", "sigmoid")
def a_saturated_sigmoid(x: T, w: T) -> T:
    gate = torch.sigmoid(x * 1000)  # FAULT
    return (gate * w).sum()


@fault("zero", "tanh")
def a_saturated_tanh(x: T, w: T) -> T:
    h = torch.tanh(x * 1000)  # FAULT
    return (h * w).sum()


@fault("zero", "mul")
def a_mask_of_zeros(x: T, w: T) -> T:
    mask = torch.zeros(3)
    return (x.exp() * mask).sum() + w.sum()  # FAULT


@fault("zero", "mul")
def a_term_with_weight_zero(x: T, w: T) -> T:
    return w.sum() + 0.0 * x.exp().sum()  # FAULT


@fault("zero", "where")
def the_other_branch_of_where(x: T, w: T) -> T:
    return torch.where(x < 0, x.exp(), w).sum()  # FAULT


@fault("zero", "masked_fill")
def masked_altogether(x: T, w: T) -> T:
    scores = (x * w).masked_fill(torch.ones(3, dtype=torch.bool), 0.0)  # FAULT
    return scores.sum() + w.sum()


@fault("zero", "round")
def rounded(x: T, w: T) -> T:
    levels = torch.round(x * 10)  # FAULT
    return (levels * w).sum()


@fault("zero", "sign")
def binarised(x: T, w: T) -> T:
    return (torch.sign(x) * w).sum()  # FAULT


@fault("zero", "floor_divide")
def divided_without_rest(x: T, w: T) -> T:
    return ((x // 0.3) * w).sum()  # FAULT


@fault("zero", "dropout")
def everything_dropped(x: T, w: T) -> T:
    return (F.dropout(x, 1.0) * w).sum()  # FAULT


@fault("zero", "hook")
def a_hook_that_kills_the_gradient(x: T, w: T) -> T:
    h = x * 2  # FAULT
    h.register_hook(lambda grad: grad * 0)  # type: ignore[no-untyped-call]
    return (h * w).sum()


@fault("zero", "sub")
def two_uses_that_cancel(x: T, w: T) -> T:
    return (x - x).sum() + w.sum()  # FAULT


@fault("zero", "linear")
def a_layer_that_starts_at_zero(x: T, w: T) -> Any:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()))
    last = nn.track(torch.nn.Linear(3, 1))
    torch.nn.init.zeros_(last.weight)
    h = net(torch.ones(3))
    return net[0].weight, last(h).sum()  # FAULT


@fault("zero", "relu")
def a_dead_relu_inside_a_checkpoint(x: T, w: T) -> T:
    def stretch(values: T) -> T:
        return torch.relu(values.exp() - 1000) * w  # FAULT

    return checkpoint(stretch, x, use_reentrant=False).sum()


@fault("zero", "relu")
def a_dead_relu_in_a_loop(x: T, w: T) -> T:
    h = x
    for step in range(4):
        h = h * 2
        if step == 2:
            h = torch.relu(-h)  # FAULT
    return (h * w).sum()


@fault("zero", "relu")
def a_part_that_dies_after_it_was_joined(x: T, w: T) -> T:
    joined = torch.cat([-x, w]).reshape(2, 3)
    h = joined.relu()  # FAULT
    return (h * 2).sum()


@fault("zero", "__getitem__")
def a_row_that_nobody_takes(x: T, w: T) -> T:
    rows = torch.stack([x.exp(), w.exp()])
    return rows[1].sum()  # FAULT


@fault("zero", "Quantise")
def a_function_whose_backward_gives_zeros(x: T, w: T) -> T:
    class Quantise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T) -> T:
            return a.round()

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:  # type: ignore[override]
            return torch.zeros_like(grad)

    return (Quantise.apply(x) * w).sum()  # FAULT


# ---------------------------------------------------------------------- overwritten
@fault("overwritten", "zero_")
def zeroed_in_place(x: T, w: T) -> T:
    h = x * 2
    h.zero_()  # FAULT
    return (h + w).sum()


@fault("overwritten", "fill")
def filled_in_place(x: T, w: T) -> T:
    h = x * 2
    h.fill_(3.0)  # FAULT
    return (h + w).sum()


@fault("overwritten", "copy_")
def copied_over(x: T, w: T) -> T:
    h = x * 2
    h.copy_(w)  # FAULT
    return h.sum()


@fault("overwritten", "__setitem__")
def assigned_over(x: T, w: T) -> T:
    h = x * 2
    h[:] = w  # FAULT
    return h.sum()


@fault("overwritten", "__setitem__")
def a_slot_of_a_buffer_written_twice(x: T, w: T) -> T:
    buffer = torch.zeros(2, 3)
    buffer[0] = x.exp()
    buffer[0] = w.exp()  # FAULT
    return buffer.sum()


@fault("overwritten", "add_")
def what_backward_needs_was_written_over(x: T, w: T) -> T:
    h = x.exp()
    h += 1  # FAULT
    return (h + w).sum()


@fault("overwritten", "mul_")
def written_over_under_no_grad(x: T, w: T) -> T:
    h = torch.sigmoid(x)
    with torch.no_grad():
        h.mul_(2)  # FAULT
    return (h + w).sum()


# ---------------------------------------------------------------------- nan and inf
@fault("nan", "sqrt")
def the_root_of_a_negative_number(x: T, w: T) -> T:
    y = torch.sqrt(x - 100)  # FAULT
    y = torch.sqrt(y)
    return (y * w).sum()


@fault("inf", "sqrt")
def the_root_at_zero(x: T, w: T) -> T:
    h = x - x.detach()
    return (torch.sqrt(h) + w).sum()  # FAULT


@fault("nan", "log")
def a_log_of_a_negative_number(x: T, w: T) -> T:
    h = torch.log(-x)  # FAULT
    return (h * w * x).sum()


@fault("nan", "div")
def zero_by_zero(x: T, w: T) -> T:
    h = x - x.detach()
    return (h / h * w).sum()  # FAULT


@fault("nan", "exp")
def the_branch_that_where_left_out(x: T, w: T) -> T:
    return torch.where(x < 0, torch.exp(x * 1000), x * w).sum()  # FAULT


@fault("nan", "softmax")
def a_row_that_is_masked_altogether(x: T, w: T) -> T:
    scores = x.masked_fill(torch.ones(3, dtype=torch.bool), -torch.inf) + x
    return (scores.softmax(0) * w).sum()  # FAULT


@fault("nan", "div")
def a_function_of_the_norm_at_zero(x: T, w: T) -> T:
    h = x - x.detach()
    norm = h.pow(2).sum().sqrt()
    return (h / norm * w).sum()  # FAULT


@fault("inf", "pow")
def a_power_below_one_at_zero(x: T, w: T) -> T:
    h = (x - x.detach()).pow(0.5)  # FAULT
    return (h + w).sum()


@fault("inf", "exp")
def an_overflow(x: T, w: T) -> T:
    h = torch.exp(x * 1000)  # FAULT
    return (h + w).sum()


@fault("nan", "hook")
def a_hook_that_divides_by_zero(x: T, w: T) -> T:
    h = x * 2  # FAULT
    h.register_hook(lambda grad: grad * float("nan"))  # type: ignore[no-untyped-call]
    return (h * w).sum()


@fault("nan", "std")
def a_spread_of_one_value(x: T, w: T) -> T:
    return x[:1].std() + w.sum()  # FAULT


@fault("nan", "sqrt")
def a_root_in_a_module(x: T, w: T) -> Any:
    class Distance(torch.nn.Module):
        def forward(self, h: T) -> T:
            return torch.sqrt(h - 100)  # FAULT

    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), Distance(), torch.nn.BatchNorm1d(3)))
    return net[0].weight, net(torch.randn(4, 3)).pow(2).sum()


# ---------------------------------------------------------------------- in stock modules and other corners
@fault("zero", "batch_norm")
def the_gain_of_a_norm_of_equal_rows(x: T, w: T) -> Any:
    norm = nn.track(torch.nn.BatchNorm1d(3))
    out = norm(torch.ones(4, 3))  # FAULT
    return norm.weight, (out * w).sum() + w.sum()


@fault("cut", "argmax")
def a_hard_choice_of_an_lstm(x: T, w: T) -> Any:
    lstm = nn.track(torch.nn.LSTM(3, 4, batch_first=True))
    out, _ = lstm(torch.ones(1, 5, 3))
    token = out[:, -1].argmax(-1)  # FAULT
    return lstm.weight_hh_l0, F.embedding(token, w.reshape(3, 1).expand(3, 2) * torch.ones(3, 2)).sum()


@fault("zero", "mul")
def a_transformer_layer_with_its_output_masked(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    out = layer(torch.randn(1, 3, 4))
    mask = torch.zeros(1, 3, 1)
    return layer.self_attn.in_proj_weight, (out * mask).sum() + w.sum()  # FAULT


@fault("nan", "sqrt")
def a_root_behind_attention(x: T, w: T) -> Any:
    attention = nn.track(torch.nn.MultiheadAttention(4, 2, batch_first=True))
    out, _ = attention(*[torch.ones(1, 3, 4)] * 3)
    return attention.out_proj.weight, torch.sqrt(out - 100).sum()  # FAULT


@fault("zero", "clamp")
def a_clamp_inside_vmap(x: T, w: T) -> T:
    def row(value: T) -> T:
        return value.clamp(10, 20) * 2  # FAULT

    return (torch.vmap(row)(x) * w).sum()


@fault("zero", "mul")
def too_small_for_half_precision(x: T, w: T) -> T:
    h = x.half() * 1e-7  # FAULT
    return (h.float() * 1e-6 * w).sum()


@fault("cut", "detach")
def a_target_network(x: T, w: T) -> Any:
    online, target = nn.track(torch.nn.Linear(3, 1)), nn.track(torch.nn.Linear(3, 1))
    goal = target(torch.ones(3)).detach()  # FAULT
    return target.weight, (online(torch.ones(3)) - goal).pow(2).sum()


@fault("cut", "detach")
def a_running_average_beside_the_detach(x: T, w: T) -> T:
    average = torch.zeros(3)
    with torch.no_grad():
        average.mul_(0.9).add_(x, alpha=0.1)
    h = (x * 2).detach()  # FAULT
    return (h * w).sum()


@fault("cut", "eq")
def a_count_of_hits(x: T, w: T) -> T:
    hits = (x * 2).eq(2.0).sum()  # FAULT
    return w.sum() - hits


@fault("cut", "searchsorted")
def a_bin_number(x: T, w: T) -> T:
    bins = torch.searchsorted(torch.tensor([0.0, 1.0]), x)  # FAULT
    return w[bins].sum()


@fault("cut", "no_grad")
def a_function_that_computes_beside_its_arguments(x: T, w: T) -> T:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T) -> T:
            return a * x  # FAULT

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:  # type: ignore[override]
            return grad

    return Scale.apply(w).sum()


@fault("cut", "numpy")
def a_result_given_to_numpy(x: T, w: T) -> T:
    import numpy as np

    h = torch.from_numpy(np.exp(x.numpy(force=True)))  # FAULT
    return (h * w).sum()


@fault("cut", "no_grad")
def a_list_filled_in_a_loop_under_no_grad(x: T, w: T) -> T:
    states = []
    for step in range(3):
        with torch.set_grad_enabled(step > 5):
            states.append(x * step)  # FAULT
    return (torch.stack(states) * w).sum()


@fault("zero", "hook")
def a_module_hook_that_kills_the_gradient(x: T, w: T) -> Any:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()))
    net[1].register_full_backward_hook(lambda module, grad_inputs, grads: tuple(g * 0 for g in grad_inputs))
    return net[0].weight, net(x).sum()  # FAULT


@fault("overwritten", "copy_")
def a_view_written_over(x: T, w: T) -> T:
    h = x * 2
    h.view(3).copy_(w)  # FAULT
    return h.sum()


@fault("nan", "linear")
def a_nan_in_the_data(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    rows = torch.tensor([[1.0, torch.nan, 2.0]])
    return layer.weight, torch.tanh(layer(rows)).sum()  # FAULT


@fault("inf", "mul")
def an_overflow_in_half_precision(x: T, w: T) -> T:
    h = x.half() * 6e4  # FAULT
    return (h * w.half()).float().sum()


@fault("zero", "softmax")
def a_softmax_over_one_element(x: T, w: T) -> T:
    return (x.reshape(3, 1).softmax(1)[:, 0] * w).sum()  # FAULT


@fault("zero", "__getitem__")
def a_time_step_that_is_not_read(x: T, w: T) -> T:
    states = torch.zeros(2, 3)
    states[0] = x.tanh()
    states[1] = w.tanh()
    last = states * 3
    return last[1].sum()  # FAULT


@fault("overwritten", "__setitem__")
def a_slot_written_twice_and_read_alone(x: T, w: T) -> T:
    states = torch.zeros(2, 3)
    states[0] = x.tanh()
    states[0] = w.tanh()  # FAULT
    return (states * 3)[0].sum()


@fault("zero", "mul")
def a_mask_over_one_of_the_parts(x: T, w: T) -> T:
    parts = torch.cat([x.exp(), w.exp()])
    mask = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    return (parts * mask).sum()  # FAULT
