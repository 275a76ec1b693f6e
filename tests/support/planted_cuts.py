"""Planted faults that leave a tensor without a gradient: cuts, results that nobody uses, what is frozen. A line marked FAULT is the one."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import nn
import tracer
from support.planted import T, fault


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


@fault("cut", "grad")
def a_gradient_penalty_without_create_graph(x: T, w: T) -> T:
    energy = (x * w).pow(2).sum()
    (slope,) = torch.autograd.grad(energy, w, retain_graph=True)  # FAULT
    return slope.pow(2).sum() + w.sum()


@fault("cut", "detach")
def a_detach_inside_vmap(x: T, w: T) -> T:
    def row(value: T) -> T:
        return value.detach() * 2  # FAULT

    return (torch.vmap(row)(x) * w).sum()


@fault("cut", "argmax")
def a_hard_choice_in_each_row(x: T, w: T) -> T:
    def row(values: T) -> T:
        return values.argmax()  # FAULT

    return (torch.vmap(row)(torch.stack([x, x * 2])) * w.sum()).sum()


@fault("cut", "float()")
def a_number_for_the_math_module(x: T, w: T) -> T:
    return w.sum() * math.exp(x[0])  # FAULT


@fault("cut", "float()")
def as_tensor_of_a_list_of_tensors(x: T, w: T) -> T:
    return (torch.as_tensor([x[0], x[1], x[2]]) * w).sum()  # FAULT


@fault("cut", "saved")
def through_a_pickle(x: T, w: T) -> T:
    return (pickle.loads(pickle.dumps(x * 2)) * w).sum()  # FAULT
