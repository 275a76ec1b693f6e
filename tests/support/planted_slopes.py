"""Planted faults in numbers: slopes of zero, nan and inf, as losses, layers and precisions make them. A line marked FAULT is the one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from stock_models import vit
from torch.utils.checkpoint import checkpoint

import nn
from support.planted import T, fault

INF = float("inf")


def net(*layers: Any) -> Any:
    return nn.track(torch.nn.Sequential(*layers))


# ---------------------------------------------------------------------- zero
@fault("zero", "embedding", "padding_idx")
def an_embedding_asked_for_padding_alone(x: T, w: T) -> Any:
    table = nn.track(torch.nn.Embedding(4, 3, padding_idx=0))
    return table.weight, (table(torch.zeros(2, dtype=torch.long)) + w).sum()  # FAULT


@fault("zero", "dropout", "Drop less")
def a_dropout_layer_that_drops_all(x: T, w: T) -> Any:
    model = net(torch.nn.Linear(3, 3), torch.nn.Dropout(1.0), torch.nn.Linear(3, 1))
    return model[0].weight, model(w).sum()  # FAULT


@fault("zero", "relu", "leaky_relu")
def a_layer_killed_by_its_bias(x: T, w: T) -> Any:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, a: T) -> T:
            return self.inner(a).relu()  # FAULT

    block = Block()
    torch.nn.init.constant_(block.inner.bias, -50.0)
    model = net(block, torch.nn.Linear(3, 1))
    return model[0].inner.weight, model(w).sum()


@fault("zero", "relu6", "Widen the range")
def features_beyond_relu6(x: T, w: T) -> T:
    h = F.relu6(x * 100)  # FAULT
    return (h * w).sum()


@fault("zero", "clamp", "Widen the range")
def a_ratio_clipped_as_in_ppo(x: T, w: T) -> T:
    ratio = (x * 5).exp()
    return -torch.min(ratio * 1.0, ratio.clamp(0.8, 1.2) * 1.0).sum() + w.sum()  # FAULT


@fault("zero", "clamp", "Widen the range")
def a_log_variance_clamped(x: T, w: T) -> T:
    variance = (x * 10).clamp(max=2.0)  # FAULT
    return (variance.exp() + w).sum()


@fault("zero", "round", "ops_registry.use")
def a_quantised_layer(x: T, w: T) -> T:
    scale = 0.1
    q = torch.round(x / scale) * scale  # FAULT
    return (q * w).sum()


@fault("zero", "sign", "ops_registry.use")
def a_sign_activation(x: T, w: T) -> T:
    h = torch.sign(x - 1)  # FAULT
    return (h * w).sum()


@fault("zero", "floor", "ops_registry.use")
def a_grid_position(x: T, w: T) -> T:
    cell = torch.floor(x * 4)  # FAULT
    return (cell * w).sum()


@fault("zero", "trunc", "ops_registry.use")
def a_truncated_value(x: T, w: T) -> T:
    return (torch.trunc(x * 3) * w).sum()  # FAULT


@fault("zero", "heaviside", "ops_registry.use")
def a_step_function(x: T, w: T) -> T:
    return (torch.heaviside(x - 1, torch.tensor(0.5)) * w).sum()  # FAULT


@fault("zero", "where", "condition")
def the_masked_branch_of_where(x: T, w: T) -> T:
    mask = torch.zeros(3, dtype=torch.bool)
    return torch.where(mask, x * 2, w).sum()  # FAULT


@fault("zero", "maximum", "")
def the_smaller_of_two(x: T, w: T) -> T:
    return torch.maximum(x * 0.1, w).sum()  # FAULT


@fault("zero", "mul", "mask")
def a_gate_that_is_closed(x: T, w: T) -> T:
    gate = torch.zeros(1)
    return (w + gate * x.tanh()).sum()  # FAULT


@fault("zero", "mul", "mask")
def a_residual_branch_scaled_by_zero(x: T, w: T) -> Any:
    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.scale = torch.nn.Parameter(torch.zeros(1))

        def forward(self, a: T) -> T:
            return a + self.scale * self.inner(a)  # FAULT

    model = net(Residual(), torch.nn.Linear(3, 1))
    return model[0].inner.weight, model(w).sum()


@fault("zero", "sigmoid", "with_logits")
def a_probability_saturated_before_the_loss(x: T, w: T) -> T:
    p = torch.sigmoid(x * 500)  # FAULT
    return (p - w).pow(2).sum()


@fault("zero", "tanh", "Scale what goes into it down")
def a_recurrent_state_that_is_saturated(x: T, w: T) -> T:
    h = x
    for step in range(3):
        h = torch.tanh(h * 100) if step == 1 else h * 2  # FAULT
    return (h * w).sum()


@fault("zero", "softmax", "cross_entropy")
def attention_scores_far_apart(x: T, w: T) -> T:
    weights = torch.softmax(x * 1000, 0)  # FAULT
    return (weights * w).sum()


@fault("zero", "hook", "hook")
def a_gradient_hook_on_a_parameter_that_masks(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 1))
    layer.weight.register_hook(lambda grad: torch.zeros_like(grad))  # FAULT
    return layer.weight, layer(w).sum()


@fault("zero", "nll_loss", "ignore_index")
def targets_that_are_all_ignored(x: T, w: T) -> T:
    targets = torch.full((2,), -100)
    return F.cross_entropy(torch.stack([x, x]), targets, reduction="sum") + w.sum()  # FAULT


@fault("zero", "mse_loss", "are equal")
def a_loss_against_itself(x: T, w: T) -> T:
    return F.mse_loss(x, x.detach()) + w.sum()  # FAULT


@fault("zero", "relu", "margin")
def a_hinge_that_is_fulfilled(x: T, w: T) -> T:
    loss = (0.1 - x.sum()).relu()  # FAULT
    return loss + w.sum()


@fault("zero", "max_pool2d", "no window")
def pixels_that_no_pool_takes(x: T, w: T) -> T:
    image = torch.stack([x, x + 10, x + 20])[None, None]
    rows = torch.cat([x.reshape(1, 1, 1, 3), image[:, :, 1:].detach()], 2)
    return F.max_pool2d(rows, (3, 1)).sum() + w.sum()  # FAULT


@fault("zero", "__getitem__", "")
def the_first_token_is_read_alone(x: T, w: T) -> T:
    sequence = torch.stack([w, x.exp(), x.sin()])
    return sequence[0].sum()  # FAULT


@fault("zero", "mul", "half precision")
def a_gradient_that_underflows_in_float16(x: T, w: T) -> T:
    h = x.half()
    y = (h * 1e-3).float() * 1e-6  # FAULT
    return (y * w).sum()


@fault("zero", "pow", "base of 0")
def a_square_at_zero(x: T, w: T) -> T:
    error = x - x.detach()
    return (error**2).sum() + w.sum()  # FAULT


@fault("zero", "abs", "")
def an_absolute_error_of_zero(x: T, w: T) -> T:
    error = x - x.detach()
    return error.abs().sum() + w.sum()  # FAULT


@fault("zero", "layer_norm", "nothing is left")
def an_input_before_a_norm_over_one_value(x: T, w: T) -> T:
    rows = x.reshape(3, 1)
    return F.layer_norm(rows, (1,)).sum() + w.sum()  # FAULT


@fault("zero", "sum", "opposite sign")
def a_shift_taken_back(x: T, w: T) -> T:
    h = w + 1.0
    return (h - x.sum() + x.sum()).sum()  # FAULT


@fault("zero", "linear", "in heads.head")
def a_head_of_a_vit_that_starts_at_zero(x: T, w: T) -> Any:
    model = vit()
    torch.nn.init.zeros_(model.heads.head.weight)
    nn.track(model)
    return model.conv_proj.weight, model(torch.randn(1, 3, 32, 32)).sum() + w.sum()


# ---------------------------------------------------------------------- nan and inf, in forward
@fault("nan", "softmax", "finfo(dtype).min")
def an_attention_row_of_minus_infinity(x: T, w: T) -> T:
    mask = torch.tensor([[-INF, -INF, -INF], [0.0, -INF, -INF]])
    scores = torch.stack([x, x]) + mask
    return (scores.softmax(-1) @ w).sum()  # FAULT


@fault("nan", "log_softmax", "finfo(dtype).min")
def log_probabilities_under_a_full_mask(x: T, w: T) -> T:
    scores = x.masked_fill(torch.ones(3, dtype=torch.bool), -INF) + x * 2
    return (scores.log_softmax(0) * w).sum()  # FAULT


@fault("nan", "mul", "finfo(dtype).min")
def a_mask_multiplied_with_log_zero(x: T, w: T) -> T:
    logp = torch.log_softmax(x.masked_fill(torch.tensor([True, False, False]), -INF) + 0 * x, 0)
    return -(torch.tensor([0.0, 1.0, 0.0]) * logp * x).sum() + w.sum()  # FAULT


@fault("inf", "log", "Clamp before the log")
def an_entropy_with_a_zero(x: T, w: T) -> T:
    p = x - 0.5
    return (torch.log(p) * 1.0).sum() + w.sum()  # FAULT


@fault("nan", "div", "denominator")
def normalised_by_a_sum_of_zero(x: T, w: T) -> T:
    h = torch.relu(-x)
    return ((h / h.sum()) * w * x).sum()  # FAULT


@fault("nan", "nll_loss", "ignore_index")
def a_mean_over_ignored_targets(x: T, w: T) -> T:
    targets = torch.full((2,), -100)
    return F.cross_entropy(torch.stack([x, x]), targets) * x.sum() + w.sum()  # FAULT


@fault("nan", "var", "more than one element")
def the_variance_of_one_sample(x: T, w: T) -> T:
    batch = (x * 2)[None]
    return (batch / batch.var(0)).sum() + w.sum()  # FAULT


@fault("inf", "exp", "largest exponent")
def a_softmax_written_by_hand(x: T, w: T) -> T:
    e = torch.exp(x * 100)  # FAULT
    return (e * w).sum()


@fault("inf", "pow", "grow too large")
def a_high_power(x: T, w: T) -> T:
    h = (x * 10).pow(40)  # FAULT
    return (h * w).sum()


@fault("nan", "exp", "largest exponent")
def infinity_minus_infinity(x: T, w: T) -> T:
    big = torch.exp(x * 1000)  # FAULT
    return ((big - big * 2) * x * w).sum()


@fault("inf", "mul", "65504")
def a_square_in_float16(x: T, w: T) -> T:
    h = x.half() * 300
    square = h * h  # FAULT
    return (square.float() * square.float() * w).sum()


@fault("inf", "matmul", "65504")
def scores_that_overflow_under_autocast(x: T, w: T) -> T:
    with torch.autocast("cpu", dtype=torch.float16):
        scores = (x * 400)[None] @ (x * 400)[:, None]  # FAULT
    return (scores.float().sum() * x).sum() + w.sum()


@fault("nan", "acos", "1 - eps")
def an_angle_of_a_cosine_above_one(x: T, w: T) -> T:
    cosine = x * 1.0001
    return (torch.acos(cosine) * w).sum()  # FAULT


@fault("nan", "sqrt", "eps inside the root")
def a_distance_from_a_negative_square(x: T, w: T) -> T:
    squared = x @ x - 2 * (x @ w) - 1e-3
    return torch.sqrt(squared) + w.sum()  # FAULT


@fault("nan", "log1p", "Clamp before the log")
def log1p_below_minus_one(x: T, w: T) -> T:
    return (torch.log1p(-x * 3) * x).sum()  # FAULT


@fault("nan", "pow", "base away from 0")
def a_root_as_a_power_of_a_negative_base(x: T, w: T) -> T:
    return (((x - 3) ** 0.5) * w).sum()  # FAULT


@fault("nan", "logdet", "diagonal")
def the_log_determinant_of_a_matrix_that_is_not_positive(x: T, w: T) -> T:
    matrix = torch.diag(x - 1.5)
    return torch.logdet(matrix[[1, 0, 2]]) * x.sum() + w.sum()  # FAULT


@fault("nan", "rsqrt", "eps inside the root")
def an_rms_norm_without_eps(x: T, w: T) -> T:
    h = x * 0
    return (torch.rsqrt(h.pow(2).mean()) + w).sum()  # FAULT


@fault("nan", "mean", "no element")
def a_mean_over_an_empty_selection(x: T, w: T) -> T:
    chosen = x[x > 100]
    return chosen.mean() * x.sum() + w.sum()  # FAULT


@fault("nan", "sqrt", "eps inside the root")
def a_nan_probability(x: T, w: T) -> T:
    p = torch.sqrt(x - 1)  # FAULT
    return (p * w).sum()


# ---------------------------------------------------------------------- nan and inf, in backward
@fault("nan", "sqrt", "double where")
def a_norm_behind_where(x: T, w: T) -> T:
    h = x - x.detach()
    return torch.where(h > 0, torch.sqrt(h), torch.zeros(3)).sum() + w.sum()  # FAULT


@fault("nan", "div", "double where")
def a_quotient_behind_where(x: T, w: T) -> T:
    d = x - x.detach()
    ratio = w / d  # FAULT
    return torch.where(d > 0, ratio, 0.0).sum()


@fault("nan", "log", "double where")
def a_log_behind_masked_fill(x: T, w: T) -> T:
    p = x - x.detach()
    logs = torch.log(p)  # FAULT
    return (logs.masked_fill(p == 0, 0.0) * w).sum()


@fault("nan", "log", "double where")
def a_log_behind_nan_to_num(x: T, w: T) -> T:
    p = x - x.detach()
    logs = p.log()  # FAULT
    return (logs.nan_to_num(0.0, 0.0, 0.0) * w).sum()


@fault("zero", "atan2", "origin")
def an_angle_at_the_origin(x: T, w: T) -> T:
    zero = x - x.detach()
    return torch.atan2(zero, zero * 2).sum() + w.sum()  # FAULT


@fault("inf", "acos", "1 - eps")
def an_angle_of_equal_vectors(x: T, w: T) -> T:
    one = x / x.detach()
    return (torch.acos(one) * w).sum()  # FAULT


@fault("inf", "asin", "1 - eps")
def asin_at_one(x: T, w: T) -> T:
    one = x / x.detach()
    return (one.asin() * w).sum()  # FAULT


@fault("zero", "std", "spread of 0")
def the_spread_of_equal_values(x: T, w: T) -> T:
    equal = x - x.detach()
    return equal.std() + w.sum()  # FAULT


@fault("nan", "sqrt", "eps inside the root")
def a_norm_by_hand_at_zero(x: T, w: T) -> T:
    difference = x - x.detach()
    return (difference * difference).sum().sqrt() + w.sum()  # FAULT


@fault("inf", "pow", "base away from 0")
def a_fractional_power_inside_a_checkpoint(x: T, w: T) -> T:
    def stretch(a: T) -> T:
        return (a - a.detach()).pow(0.3) * w  # FAULT

    return checkpoint(stretch, x, use_reentrant=False).sum()


@fault("nan", "eigh", "Equal or vanishing")
def eigenvectors_of_equal_eigenvalues(x: T, w: T) -> T:
    matrix = torch.eye(3) * x.mean()
    _, vectors = torch.linalg.eigh(matrix)  # FAULT
    return (vectors @ w).sum()


@fault("inf", "float", "GradScaler")
def a_loss_scaled_too_far(x: T, w: T) -> T:
    h = x.half() * 256
    return (h.float() * 65536 * w).sum()  # FAULT


@fault("nan", "Safe", "Safe")
def a_function_that_divides_in_backward(x: T, w: T) -> T:
    class Safe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: T) -> T:
            ctx.save_for_backward(a)
            return a.abs()

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:  # type: ignore[override]
            (a,) = ctx.saved_tensors
            return grad * (a - a) / (a - a)

    return (Safe.apply(x) * w).sum()  # FAULT


@fault("nan", "linear", "nan in a gradient goes into the parameter")
def weights_that_an_optimiser_made_nan(x: T, w: T) -> Any:
    layer = nn.track(torch.nn.Linear(3, 3))
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    h = torch.tanh(layer(w))  # FAULT
    return layer.weight, h.sum()


@fault("nan", "hook", "hook")
def gradients_scaled_by_a_norm_of_zero_in_a_hook(x: T, w: T) -> T:
    h = x * 0  # FAULT
    h.register_hook(lambda grad: (grad - grad) / (grad - grad).norm())
    return (h * w).sum()


@fault("inf", "div", "denominator")
def a_ratio_with_a_denominator_that_vanishes_in_a_loop(x: T, w: T) -> T:
    total = w.sum() * 0
    for step in range(3):
        d = (x - x.detach()) if step == 2 else x
        total = total + (w / d).sum()  # FAULT
    return total


@fault("nan", "softmax", "finfo(dtype).min")
def attention_of_a_padded_sequence(x: T, w: T) -> Any:
    attention = nn.track(torch.nn.MultiheadAttention(4, 2, batch_first=True))
    padding = torch.ones(1, 3, dtype=torch.bool)
    out, _ = attention(*[torch.randn(1, 3, 4)] * 3, key_padding_mask=padding)  # FAULT
    return attention.in_proj_weight, out.sum() + w.sum()


@fault("nan", "log", "Clamp before the log")
def a_log_that_is_clamped_afterwards(x: T, w: T) -> T:
    logs = torch.log(x - x.detach())  # FAULT
    return (logs.clamp(min=-10) * w).sum()


@fault("nan", "layer_norm", "an eps above 0")
def a_norm_layer_without_eps(x: T, w: T) -> T:
    return (F.layer_norm(x - x.detach(), (3,), eps=0.0) * w).sum()  # FAULT


@fault("zero", "cdist", "distance of 0")
def distances_of_a_point_to_itself(x: T, w: T) -> T:
    return torch.cdist(x[None], x[None]).sum() + w.sum()  # FAULT
