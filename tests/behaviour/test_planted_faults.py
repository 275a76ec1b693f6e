"""Faults as people make them, each in a few lines of ordinary torch code: ``tracer.why`` names the kind, the op and the line of each.

A line marked FAULT is the one that is to be named. The gradient itself is asked for too: the verdict has to fit it.
"""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import nn
import tracer

T = torch.Tensor


@dataclass(frozen=True)
class Fault:
    cause: str
    op: str
    #: Given two leaves of three positive elements, returns the loss, for the verdict on the first; or what to ask about, and the loss.
    program: Callable[[T, T], Any]


FAULTS: dict[str, Fault] = {}


def fault(cause: str, op: str) -> Callable[[Callable[[T, T], Any]], Callable[[T, T], Any]]:
    def enter(program: Callable[[T, T], Any]) -> Callable[[T, T], Any]:
        FAULTS[program.__name__] = Fault(cause, op, program)
        return program

    return enter


# ---------------------------------------------------------------------- cut, in functional code
@fault("cut", "detach")
def a_helper_detaches(x: T, w: T) -> T:
    h = torch.exp(x).detach()  # FAULT
    return (h * w).sum()


@fault("cut", "data")
def data_in_place_of_the_tensor(x: T, w: T) -> T:
    h = torch.exp(x)
    return (h.data * w).sum()  # FAULT


@fault("cut", "data")
def values_put_in_by_data(x: T, w: T) -> T:
    h = w * 2
    h.data = x * 2  # FAULT
    return h.sum()


@fault("cut", "no_grad")
def a_stretch_under_no_grad(x: T, w: T) -> T:
    with torch.no_grad():
        h = torch.tanh(x)  # FAULT
    return (h * w).sum()


@fault("cut", "no_grad")
def all_under_no_grad(x: T, w: T) -> T:
    with torch.no_grad():
        return (x * w).sum()  # FAULT


@fault("cut", "no_grad")
def a_function_decorated_with_no_grad(x: T, w: T) -> T:
    def project(values: T) -> T:
        return torch.sigmoid(values)  # FAULT

    return (torch.no_grad()(project)(x.exp()) * w).sum()


@fault("cut", "inference_mode")
def a_stretch_in_inference_mode(x: T, w: T) -> T:
    with torch.inference_mode():
        h = x * 2  # FAULT
    return (h.clone() + w).sum()


@fault("cut", "exp")
def gradients_switched_off(x: T, w: T) -> T:
    with torch.set_grad_enabled(False):
        h = x.exp()  # FAULT
    return (h * w).sum()


@fault("cut", "detach")
def through_numpy(x: T, w: T) -> T:
    h = torch.from_numpy(x.exp().detach().numpy() * 2)  # FAULT
    return (h * w).sum()


@fault("cut", "numpy")
def through_numpy_by_force(x: T, w: T) -> T:
    h = torch.from_numpy(x.exp().numpy(force=True))  # FAULT
    return (h * w).sum()


@fault("cut", "item")
def a_factor_taken_as_a_number(x: T, w: T) -> T:
    scale = x.sum().item()  # FAULT
    return (w * scale).sum()


@fault("cut", "tolist")
def a_tensor_made_of_a_list(x: T, w: T) -> T:
    values = (x * 2).tolist()  # FAULT
    return (torch.tensor(values) * w).sum()


@fault("cut", "item")
def a_list_rebuilt_from_items(x: T, w: T) -> T:
    values = [v.item() for v in x.exp()]  # FAULT
    return (torch.tensor(values) * w).sum()


@fault("cut", "float()")
def a_float_of_a_tensor(x: T, w: T) -> T:
    scale = float(x.max())  # FAULT
    return (w / scale).sum()


@fault("cut", "float()")
def a_tensor_of_a_list_of_tensors(x: T, w: T) -> T:
    parts = [x[0] * 2, x[1] * 3, x[2]]
    return (torch.tensor(parts) * w).sum()  # FAULT


@fault("cut", "float()")
def a_legacy_constructor(x: T, w: T) -> T:
    parts = [x[0] * 2, x[1] * 3, x[2]]
    return (torch.FloatTensor(parts) * w).sum()  # FAULT


@fault("cut", "int()")
def a_length_from_a_tensor(x: T, w: T) -> T:
    n = int(x.sum())  # FAULT
    return (w * n).sum()


@fault("cut", "bool()")
def a_branch_on_a_value(x: T, w: T) -> T:
    if x.sum():  # FAULT
        return (w * 2).sum()
    return w.sum()


@fault("cut", "argmax")
def a_hard_choice(x: T, w: T) -> T:
    best = (x * 2).argmax()  # FAULT
    return w[best] * 3


@fault("cut", "gt")
def a_comparison(x: T, w: T) -> T:
    mask = (x > 0.5).float()  # FAULT
    return (mask * w).sum()


@fault("cut", "long")
def a_cast_to_integers(x: T, w: T) -> T:
    steps = (x * 10).long()  # FAULT
    return (steps * w).sum()


@fault("cut", "to")
def a_conversion_to_an_integer_dtype(x: T, w: T) -> T:
    steps = (x * 10).to(torch.int32)  # FAULT
    return (steps * w).sum()


@fault("cut", "topk")
def the_indices_of_topk(x: T, w: T) -> T:
    _, kept = x.topk(2)  # FAULT
    return w[kept].sum()


@fault("zero", "bernoulli")
def a_sample(x: T, w: T) -> T:
    drawn = torch.bernoulli(x / 10)  # FAULT
    return (drawn * w).sum()


@fault("cut", "multinomial")
def a_drawn_index(x: T, w: T) -> T:
    picked = torch.multinomial(x.softmax(0), 2)  # FAULT
    return w[picked].sum()


@fault("cut", "tensor")
def torch_tensor_of_a_tensor(x: T, w: T) -> T:
    h = torch.tensor(x * 2)  # FAULT
    return (h * w).sum()


@fault("cut", "new_tensor")
def new_tensor_of_a_tensor(x: T, w: T) -> T:
    h = w.new_tensor(x * 2)  # FAULT
    return (h * w).sum()


@fault("cut", "deepcopy")
def a_deep_copy(x: T, w: T) -> T:
    twin = copy.deepcopy(x)  # FAULT
    return (twin * w).sum()


@fault("cut", "save")
def through_a_file(x: T, w: T) -> T:
    file = io.BytesIO()
    torch.save(x * 2, file)  # FAULT
    file.seek(0)
    return (torch.load(file) * w).sum()


@fault("cut", "detach")
def a_parameter_made_of_a_result(x: T, w: T) -> T:
    weight = torch.nn.Parameter(x * 2)  # FAULT
    return (weight * w).sum()


@fault("cut", "deepcopy")
def a_copy_that_is_frozen(x: T, w: T) -> T:
    twin = copy.deepcopy(x).requires_grad_(False)  # FAULT
    return (twin * w).sum()


@fault("cut", "histc")
def an_op_without_gradient(x: T, w: T) -> T:
    counts = torch.histc(x, bins=3)  # FAULT
    return (counts * w).sum()


@fault("cut", "track")
def tracked_a_second_time(x: T, w: T) -> T:
    again = tracer.track(x)  # FAULT
    return (again * w).sum()


@fault("cut", "detach_")
def detached_in_place(x: T, w: T) -> T:
    h = x * 2
    h.detach_()  # FAULT
    return (h * w).sum()


# ---------------------------------------------------------------------- cut, where more is around it
@fault("cut", "detach")
def a_detach_between_stock_layers(x: T, w: T) -> Any:
    class Bridge(torch.nn.Module):
        def forward(self, h: T) -> T:
            return h.detach()  # FAULT

    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), Bridge(), torch.nn.Linear(4, 1)))
    return net[0].weight, net(torch.ones(2, 3)).sum()


@fault("cut", "detach")
def a_log_and_an_accuracy_beside_the_detach(x: T, w: T) -> T:
    logits = x * 3
    print(logits.mean().item(), bool((logits > 0).all()))
    accuracy = (logits.argmax() == 0).float()
    h = logits.exp().detach()  # FAULT
    print(float(h.sum()), accuracy.item())
    return (h * w).sum()


@fault("cut", "detach")
def truncated_in_a_loop(x: T, w: T) -> T:
    h = torch.zeros(3)
    for _ in range(4):
        h = torch.tanh(x + h).detach()  # FAULT
    return (h * w).sum()


@fault("cut", "detach")
def a_detach_inside_a_checkpoint(x: T, w: T) -> T:
    def stretch(values: T) -> T:
        return torch.tanh(values.exp().detach() * w)  # FAULT

    return checkpoint(stretch, x, use_reentrant=False).sum()


@fault("cut", "Blind")
def a_function_whose_backward_gives_none(x: T, w: T) -> T:
    class Blind(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T, b: T) -> T:
            return a * b

        @staticmethod
        def backward(ctx: Any, grad: T) -> Any:  # type: ignore[override]
            return None, grad

    return Blind.apply(x * 2, w).sum()  # FAULT


@fault("cut", "data")
def a_hidden_state_kept_by_data(x: T, w: T) -> Any:
    lstm = nn.track(torch.nn.LSTM(3, 4))
    _, (h, c) = lstm(torch.ones(2, 1, 3))
    h, c = h.data, c.data  # FAULT
    later = nn.track(torch.nn.LSTM(3, 4))
    out, _ = later(torch.ones(2, 1, 3), (h, c))
    return lstm.weight_ih_l0, out.sum()


@fault("cut", "no_grad")
def a_frozen_backbone_under_no_grad(x: T, w: T) -> Any:
    backbone = nn.track(torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).train())
    head = nn.track(torch.nn.Linear(4, 1))
    with torch.no_grad():
        features = backbone(torch.ones(1, 3, 4))  # FAULT
    return backbone.linear2.weight, head(features).sum()


@fault("cut", "detach")
def attention_weights_that_were_detached(x: T, w: T) -> Any:
    attention = nn.track(torch.nn.MultiheadAttention(4, 2, batch_first=True))
    _, weights = attention(torch.ones(1, 3, 4), torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    return attention.in_proj_weight, (weights.detach() * w.sum()).sum()  # FAULT


# ---------------------------------------------------------------------- not in the loss, unused, frozen
@fault("not in loss", "log_softmax")
def a_loss_that_was_not_added(x: T, w: T) -> T:
    auxiliary = torch.log_softmax(x * 2, 0)  # FAULT
    main = (w * 2).sum()
    assert auxiliary.requires_grad
    return main


@fault("not in loss", "mean")
def a_variable_that_was_replaced(x: T, w: T) -> T:
    loss = (x * 2).mean()  # FAULT
    loss = (w * 2).mean()
    assert loss > 0
    return loss


@fault("not in loss", "linear")
def a_branch_whose_result_is_dropped(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    layer(torch.ones(3))  # FAULT
    return layer.weight, w.sum()


@fault("not in loss", "chunk")
def one_of_two_results_is_dropped(x: T, w: T) -> Any:
    kept, dropped = (w * 2).chunk(2)  # FAULT
    return dropped, kept.sum()


@fault("unused", "")
def a_parameter_that_no_call_takes(x: T, w: T) -> T:
    return (w * 2).sum()


@fault("unused", "")
def a_layer_that_forward_skips(x: T, w: T) -> Any:
    net = nn.track(torch.nn.ModuleDict({"used": torch.nn.Linear(3, 3), "skipped": torch.nn.Linear(3, 3)}))
    return net["skipped"].weight, net["used"](torch.ones(3)).sum()


@fault("frozen", "requires_grad_(False)")
def a_weight_that_was_frozen(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    layer.weight.requires_grad_(False)  # FAULT
    return layer.weight, layer(torch.ones(3)).sum()


@fault("frozen", "requires_grad_(False)")
def a_module_frozen_as_a_whole(x: T, w: T) -> Any:
    net = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)))
    for parameter in net[0].parameters():
        parameter.requires_grad = False  # FAULT
    return net[0].bias, net(torch.ones(3)).sum()


@fault("frozen", "requires_grad_(False)")
def frozen_during_forward_and_thawed_too_late(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    layer.requires_grad_(False)  # FAULT
    loss = layer(torch.ones(3)).sum() + w.sum()
    layer.requires_grad_(True)
    return layer.weight, loss


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


def line_of(program: Callable[..., Any]) -> str | None:
    lines, first = inspect.getsourcelines(program)
    return next(
        (f"test_planted_faults.py:{first + i}" for i, text in enumerate(lines) if text.endswith("# FAULT\n")), None
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_with_its_op_and_line(name: str) -> None:
    torch.manual_seed(0)
    planted = FAULTS[name]
    x = tracer.tensor([0.5, 1.0, 2.0], requires_grad=True)
    w = tracer.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        made = planted.program(x, w)
    subject, loss = made if isinstance(made, tuple) else (x, made)
    answer = tracer.why(subject, loss, graph)
    line = line_of(planted.program)
    assert answer.verdict.startswith(f"{planted.cause}:"), answer
    assert planted.op in answer.rows[0].op, answer
    assert (line or "") in answer.verdict and (line is None) == (planted.cause == "unused"), answer
    assert subject.grad is None and x.grad is None and w.grad is None
    _check_gradient(planted.cause, subject, loss)


def _check_gradient(cause: str, subject: T, loss: T) -> None:
    """What torch would give: the verdict is about that."""
    if not loss.requires_grad or not subject.requires_grad:
        assert cause in ("cut", "frozen")
        return
    try:
        (grad,) = torch.autograd.grad(loss, subject, allow_unused=True)
    except tracer.OverwrittenError:
        assert cause == "overwritten"
        return
    if grad is None:
        assert cause in ("cut", "not in loss", "unused", "frozen")
    elif not bool(grad.any()):
        assert cause in ("zero", "overwritten")
    else:
        assert cause == ("nan" if bool(grad.isnan().any()) else "inf" if bool(grad.isinf().any()) else "ok")


def test_there_are_at_least_sixty() -> None:
    assert len(FAULTS) >= 60
