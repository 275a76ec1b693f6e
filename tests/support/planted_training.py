"""Planted faults of models and training loops: what is cut, frozen, unused or written over there. A line marked FAULT is the one."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
import torch.nn.functional as F
from stock_models import gpt2, resnet18
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import nn
from support.planted import T, fault


def net(*layers: Any) -> Any:
    return nn.track(torch.nn.Sequential(*layers))


# ---------------------------------------------------------------------- cut
@fault("cut", "item", "not its item()")
def a_running_loss_summed_as_numbers(x: T, w: T) -> T:
    total = 0.0
    for step in range(3):
        total += (x * step).pow(2).sum().item()  # FAULT
    return w.sum() + total


@fault("cut", "item", "not its item()")
def a_loss_wrapped_again(x: T, w: T) -> T:
    loss = (x * 2 - 1).pow(2).mean()
    return torch.tensor(loss.item(), requires_grad=True) + w.sum()  # FAULT


@fault("cut", "data", "not its .data")
def a_layer_given_the_data_of_the_last(x: T, w: T) -> Any:
    first, second = net(torch.nn.Linear(3, 3)), net(torch.nn.Linear(3, 1))
    h = first(x)
    return first[0].weight, second(h.data).sum()  # FAULT


@fault("cut", "data", "not its .data")
def a_weight_clipped_through_data(x: T, w: T) -> T:
    clipped = (x * 3).data.clamp(-1, 1)  # FAULT
    return (clipped * w).sum()


@fault("cut", "no_grad", "outside of torch.no_grad()")
def a_normalisation_under_no_grad(x: T, w: T) -> T:
    h = x.exp()
    with torch.no_grad():
        h = (h - h.mean()) / h.std()  # FAULT
    return (h * w).sum()


@fault("cut", "no_grad", "outside of torch.no_grad()")
def a_forward_decorated_with_no_grad(x: T, w: T) -> Any:
    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        @torch.no_grad()
        def forward(self, a: T) -> T:
            return self.layer(a)  # FAULT

    model = nn.track(torch.nn.Sequential(Embedder(), torch.nn.Linear(3, 1)))
    return model[0].layer.weight, model(w).sum()


@fault("cut", "no_grad", "outside of torch.no_grad()")
def gradients_left_off_after_validation(x: T, w: T) -> T:
    torch.set_grad_enabled(False)
    try:
        h = x * 2  # FAULT
    finally:
        torch.set_grad_enabled(True)
    return (h * w).sum()


@fault("cut", "detach_", "Leave out detach")
def a_hidden_state_detached_in_place_in_a_loop(x: T, w: T) -> T:
    state = x * 1
    for step in range(3):
        state = torch.tanh(state + w)
        if step == 1:
            state.detach_()  # FAULT
    return state.sum()


@fault("cut", "copy", "a copy is a leaf of its own")
def a_parameter_copied_before_training(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    snapshot = copy.deepcopy(layer.weight)  # FAULT
    return layer.weight, F.linear(w, snapshot).sum()


@fault("cut", "argmax", "softmax for argmax")
def a_route_by_argmax(x: T, w: T) -> T:
    expert = (x * 2).argmax()  # FAULT
    return w[expert] * 3


@fault("cut", "max", "Indices have no gradient")
def the_index_of_max(x: T, w: T) -> T:
    _, index = (x * 2).max(0)  # FAULT
    return w[index] * 3


@fault("cut", "gt", "sigmoid for a comparison")
def a_threshold_as_a_mask(x: T, w: T) -> T:
    mask = (x > 0.7).float()  # FAULT
    return (mask * w).sum()


@fault("cut", "long", "floating-point dtype")
def a_position_cast_to_integers(x: T, w: T) -> T:
    index = (x * 2).long().clamp(0, 2)  # FAULT
    return F.embedding(index, w.reshape(3, 1)).sum()


@fault("cut", "detach", "compute with torch where NumPy")
def a_metric_by_numpy_as_the_loss(x: T, w: T) -> T:
    import numpy as np

    error = np.square((x * 2).detach().numpy()).mean()  # FAULT
    return w.sum() * float(error)


@fault("cut", "detach", "Leave out detach")
def numpy_and_back_inside_a_module(x: T, w: T) -> Any:
    class Resample(torch.nn.Module):
        def forward(self, a: T) -> T:
            return torch.as_tensor(a.detach().cpu().numpy()[..., ::-1].copy())  # FAULT

    model = net(torch.nn.Linear(3, 3), Resample(), torch.nn.Linear(3, 1))
    return model[0].weight, model(w).sum()


@fault("cut", "save", "")
def features_cached_in_a_file(x: T, w: T) -> T:
    cache = io.BytesIO()
    torch.save(x.exp(), cache)  # FAULT
    cache.seek(0)
    return (torch.load(cache) * w).sum()


@fault("cut", "detach", "Leave out detach")
def a_straight_through_estimator_written_the_wrong_way(x: T, w: T) -> T:
    soft = x.sigmoid()
    hard = (soft > 0.5).float()
    return ((hard + (soft - soft.detach()).detach()) * w).sum()  # FAULT


@fault("cut", "detach", "Leave out detach")
def a_detach_in_a_resnet(x: T, w: T) -> Any:
    model = nn.track(resnet18())
    model.layer3.register_forward_hook(lambda module, given, out: out.detach())  # FAULT
    return model.conv1.weight, model(torch.randn(2, 3, 32, 32)).sum()


@fault("cut", "argmax", "softmax for argmax")
def the_chosen_tokens_of_a_gpt2_as_the_loss(x: T, w: T) -> Any:
    model = nn.track(gpt2())
    logits = model(torch.arange(6)[None]).logits
    tokens = logits.argmax(-1)  # FAULT
    return model.transformer.wte.weight, (tokens.float() * w.sum()).mean()


@fault("cut", "item", "not its item()")
def a_temperature_read_as_a_number(x: T, w: T) -> T:
    temperature = x.mean().item()  # FAULT
    return (w / temperature).softmax(0)[0]


@fault("cut", "detach", "Leave out detach")
def a_detach_under_autocast_inside_a_checkpoint(x: T, w: T) -> T:
    def stretch(a: T) -> T:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.outer(a, a).detach().float() @ w  # FAULT

    return checkpoint(stretch, x, use_reentrant=False).sum()


@fault("cut", "detach", "torch.nn.Parameter(x)")
def a_parameter_made_of_a_scaled_one(x: T, w: T) -> Any:
    module = torch.nn.Module()
    scaled = x * 2
    module.scale = torch.nn.Parameter(scaled)  # FAULT
    return (module.scale * w).sum()


# ---------------------------------------------------------------------- frozen
@fault("frozen", "requires_grad_", "before the forward pass")
def a_submodule_that_was_frozen(x: T, w: T) -> Any:
    model = net(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(False)  # FAULT
    return model[0].weight, model(w).sum()


@fault("frozen", "requires_grad_", "before the forward pass")
def frozen_by_name_in_a_loop(x: T, w: T) -> Any:
    model = net(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))
    for name, parameter in model.named_parameters():
        if not name.startswith("2"):
            parameter.requires_grad_(False)  # FAULT
    return model[1].weight, model(w).sum()


@fault("frozen", "requires_grad", "before the forward pass")
def frozen_by_assignment(x: T, w: T) -> Any:
    model = net(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    model[0].weight.requires_grad = False  # FAULT
    return model[0].weight, model(w).sum()


# ---------------------------------------------------------------------- unused, or not in the loss
@fault("unused", "")
def a_layer_of_a_module_list_that_is_never_called(x: T, w: T) -> Any:
    layers = nn.track(torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)]))
    h = w
    for layer in layers[:2]:
        h = layer(h)
    return layers[2].weight, h.sum()


@fault("unused", "")
def the_branch_not_taken_by_an_if(x: T, w: T) -> Any:
    deep, shallow = net(torch.nn.Linear(3, 1)), net(torch.nn.Linear(3, 1))
    model = deep if w.sum() < 0 else shallow
    return deep[0].weight, model(w).sum()


@fault("unused", "", "module.weight")
def a_weight_replaced_by_load_state_dict(x: T, w: T) -> Any:
    model = net(torch.nn.Linear(3, 1))
    before = model[0].weight
    model.load_state_dict({k: v.detach().clone() for k, v in model.state_dict().items()}, assign=True)
    return before, model(w).sum()


@fault("unused", "")
def the_model_of_another_loss(x: T, w: T) -> Any:
    teacher, student = net(torch.nn.Linear(3, 1)), net(torch.nn.Linear(3, 1))
    return teacher[0].weight, student(w).sum()


@fault("unused", "")
def a_dense_layer_given_a_constant_in_place_of_its_weight(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    return layer.weight, F.linear(w, torch.eye(3), layer.bias).sum()


@fault("unused", "")
def a_parametrised_weight_whose_original_is_bypassed(x: T, w: T) -> Any:
    class Double(torch.nn.Module):
        def forward(self, a: T) -> T:
            return a * 2

    layer = torch.nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Double())
    nn.track(layer)
    return layer.parametrizations.weight.original, F.linear(w, torch.eye(3), layer.bias).sum()


@fault("not in loss", "linear", "Add what it gives to the loss")
def an_auxiliary_head_that_is_forgotten(x: T, w: T) -> Any:
    body, head, auxiliary = net(torch.nn.Linear(3, 3)), net(torch.nn.Linear(3, 1)), net(torch.nn.Linear(3, 2))
    h = body(w)
    auxiliary(h)  # FAULT
    return auxiliary[0].weight, head(h).sum()


@fault("not in loss", "", "Add what it gives to the loss")
def the_states_of_an_lstm_that_nobody_takes(x: T, w: T) -> Any:
    lstm, head = nn.track(torch.nn.LSTM(3, 4)), net(torch.nn.Linear(3, 1))
    out, _ = lstm(torch.ones(5, 1, 3))  # FAULT
    del out
    return lstm.weight_ih_l0, head(w).sum()


@fault("not in loss", "sub", "Add what it gives to the loss")
def a_penalty_computed_and_dropped(x: T, w: T) -> T:
    penalty = (x.norm() - 1).pow(2)
    penalty = penalty * 10 - 1  # FAULT
    return w.sum()


@fault("not in loss", "mul", "Add what it gives to the loss")
def the_wrong_variable_is_returned(x: T, w: T) -> T:
    h = w * 2
    h_new = h + x.tanh() * 3
    scaled = h_new * 2  # FAULT
    del scaled
    return h.sum()


# ---------------------------------------------------------------------- overwritten
@fault("overwritten", "__setitem__", "out of place")
def a_whole_tensor_assigned(x: T, w: T) -> T:
    h = x.tanh()
    h[...] = w  # FAULT
    return (h * 2).sum()


@fault("overwritten", "fill", "Write elsewhere")
def a_state_reset_between_steps(x: T, w: T) -> T:
    state = x * w
    for step in range(2):
        if step == 1:
            state.fill_(0.5)  # FAULT
        state = state * 2
    return (state * w).sum()


@fault("overwritten", "write_region", "Write elsewhere")
def a_slice_copied_over(x: T, w: T) -> T:
    h = torch.stack([x, w])
    h[0].copy_(w)  # FAULT
    return h.pow(2).sum()


@fault("overwritten", "write_region", "Write elsewhere")
def rows_zeroed_through_unbind_like_views(x: T, w: T) -> T:
    h = torch.stack([x, w])
    h[0].zero_()  # FAULT
    return h.sum()


@fault("overwritten", "relu_", "out of place")
def an_inplace_relu_on_what_tanh_needs(x: T, w: T) -> T:
    h = x.tanh()
    torch.relu_(h)  # FAULT
    return (h + w).sum()


@fault("overwritten", "sub_", "out of place")
def a_parameter_stepped_between_forward_and_backward(x: T, w: T) -> T:
    loss = (x * w).sin().sum()
    with torch.no_grad():
        w.sub_(0.1)  # FAULT
    return loss


@fault("overwritten", "normal_", "Write elsewhere")
def noise_in_place_of_the_features(x: T, w: T) -> T:
    h = x * 2
    h.normal_()  # FAULT
    return (h * w).sum()


@fault("zero", "masked_fill", "mask")
def everything_masked_in_place(x: T, w: T) -> T:
    h = x * 2
    h.masked_fill_(torch.ones(3, dtype=torch.bool), 0.0)  # FAULT
    return (h * w).sum()
