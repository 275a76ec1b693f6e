"""Recurrent networks: layers over the steps of a sequence, and networks of several layers and directions.

A layer is one op with one rule. Its input weights are applied to all steps at once; only what depends on the step before is computed
step by step, in backward as well.
"""

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.rules.recurrent_steps import (
    Weights,
    add_output_grad,
    backward_steps,
    gru_step,
    in_order,
    input_and_weight_grads,
    lstm_step,
    replace_first_rows,
    rnn_relu_step,
    rnn_tanh_step,
    run_steps,
    states_before,
    zeros_if_none,
)
from ops_registry.shared.onednn_lstm import onednn_lstm, onednn_lstm_backward
from ops_registry.shared.recorded import recorded
from ops_registry.torch_private import onednn_takes_bfloat16

aten = torch.ops.aten


# A plain network: h' = f(x + W h), with f' = 1 - h'^2 of tanh, and 0 or 1 of relu.


def rnn_layer(input, h, w_ih, w_hh, b_ih, b_hh, relu, sizes, reverse):
    """The outputs of all steps, and the last h."""
    tensors = (input, h, w_ih, w_hh, b_ih, b_hh)
    if has_torch_function(tensors):
        return handle_torch_function(rnn_layer, tensors, *tensors, relu, sizes, reverse)
    step = rnn_relu_step if relu else rnn_tanh_step
    output, state, _ = run_steps(step, input, (h,), Weights(w_ih, w_hh, b_ih, b_hh), sizes, reverse)
    return output, *state


@backward(rnn_layer, wrt=("input", "w_ih", "w_hh", "b_ih", "b_hh", "h"))
def rnn_layer_all(grad, input, h, w_ih, w_hh, b_ih, b_hh, relu, sizes, reverse, result, needs):
    output = result[0]
    if recorded():
        output = rnn_layer(input, h, w_ih, w_hh, b_ih, b_hh, relu, sizes, reverse)[0]
    slopes = aten.threshold_backward(torch.ones_like(output), output, 0) if relu else 1 - output * output
    grad_output, grad_h = grad
    grad_h, grad_steps = zeros_if_none(grad_h, h), []
    for rows, grad_out, slope in backward_steps(sizes, reverse, grad_output, slopes):
        grad_x = add_output_grad(grad_h, rows, grad_out) * slope
        grad_h = replace_first_rows(grad_h, grad_x @ w_hh)
        grad_steps.append(grad_x)
    grad_x = torch.cat(in_order(grad_steps, not reverse))
    h_before = states_before(output, h, sizes, reverse)
    return *input_and_weight_grads(grad_x, grad_x, input, h_before, w_ih, needs), grad_h


# An LSTM: c' = f c + i g and h' = o tanh(c'), with the sigmoids i, f, o and the tanh g of x + W h.
# Its last states are not saved, nor those of a GRU: they belong to the caller, who may write into them.


def lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    weights = Weights(w_ih, w_hh, b_ih, b_hh, w_hr)
    output, state, saved = run_steps(lstm_step, input, (h, c), weights, sizes, reverse)
    return (output, *state), saved


def lstm_forward(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    if has_onednn_kernel(input, w_hr, sizes):
        arguments = onednn_arguments(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes)
        output, h, c, workspace = onednn_lstm(*arguments, reverse)
        output = output.flatten(0, 1)
        return (output, h, c), {"output": output, "saved": (workspace, h.clone(), c.clone())}
    results, saved = lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse)
    return results, {"output": results[0], "saved": saved}


def has_onednn_kernel(input, w_hr, sizes):
    """Whether oneDNN has one kernel for all steps."""
    usable = torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available()
    plain = w_hr is None and all(size == sizes[0] for size in sizes) and type(sizes[0]) is int and input.numel() > 0
    known = input.dtype == torch.float32 or (input.dtype == torch.bfloat16 and onednn_takes_bfloat16())
    return usable and plain and input.device.type == "cpu" and known


def onednn_arguments(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes):
    """The tensors that the kernel takes."""
    biases = [torch.zeros_like(w_ih[:, 0]) if b is None else b for b in (b_ih, b_hh)]
    return input.unflatten(0, (len(sizes), sizes[0])), w_ih, w_hh, *biases, h, c


def onednn_gradients(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, sizes, reverse, result, workspace):
    """``result`` lists the outputs, and the last h and c."""
    arguments = onednn_arguments(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes)
    grads = [zeros_if_none(g, r) for g, r in zip(grad, result, strict=True)]
    by_step = [part.unflatten(0, (len(sizes), sizes[0])) for part in (result[0], grads[0])]
    grad_input, grad_w_ih, grad_w_hh, grad_bias, grad_h, grad_c = onednn_lstm_backward(
        *arguments, reverse, by_step[0], *result[1:], by_step[1], *grads[1:], workspace
    )
    return grad_input.flatten(0, 1), grad_w_ih, grad_w_hh, grad_bias, grad_bias, grad_h, grad_c, None


def lstm_layer(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    """The outputs of all steps, and the last h and c."""
    tensors = (input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)
    if has_torch_function(tensors):
        return handle_torch_function(lstm_layer, tensors, *tensors, sizes, reverse)
    return lstm_forward(*tensors, sizes, reverse)[0]


@backward(lstm_layer, wrt=("input", "w_ih", "w_hh", "b_ih", "b_hh", "h", "c", "w_hr"), forward=lstm_forward)
def lstm_layer_all(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse, output, saved, needs):
    if recorded():  # what was saved is a constant: compute it again, and record that
        (output, *_), saved = lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse)
    elif len(saved) == 3:
        workspace, *ends = saved
        result = output, *ends
        return onednn_gradients(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, sizes, reverse, result, workspace)
    grad_steps, grad_h, grad_c, grad_w_hr = lstm_gates(grad, h, c, w_hh, w_hr, saved, sizes, reverse, needs)
    grad_x = torch.cat(grad_steps)
    del grad_steps  # they take as much memory again
    h_before = states_before(output, h, sizes, reverse)
    return *input_and_weight_grads(grad_x, grad_x, input, h_before, w_ih, needs), grad_h, grad_c, grad_w_hr


def lstm_gates(grad, h, c, w_hh, w_hr, saved, sizes, reverse, needs):
    """The gradients of x + W h at each step, of h and c before the first, and of w_hr. What it computes on the way goes with its return."""
    i_f, g, o, cells = saved
    i, f = i_f.chunk(2, -1)
    m = cells.tanh()
    # dh'/dc', and dh'/do and dc'/d(i, f, g) with respect to the arguments of the gates' sigmoids and tanh.
    slope_c = o * (1 - m * m)
    slope_o = m * o * (1 - o)
    c_before = states_before(cells, c, sizes, reverse)
    slope_ifg = torch.stack((g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)), 1)
    grad_output, grad_h, grad_c = grad
    grad_h, grad_c = zeros_if_none(grad_h, h), zeros_if_none(grad_c, c)
    grad_steps, grad_outputs = [], []
    for rows, grad_out, *slopes, forget in backward_steps(sizes, reverse, grad_output, slope_c, slope_o, slope_ifg, f):
        c_slope, o_slope, ifg_slope = slopes
        step_h = add_output_grad(grad_h, rows, grad_out)
        grad_outputs.append(step_h)
        step_h = step_h if w_hr is None else step_h @ w_hr
        step_c = torch.addcmul(grad_c[:rows], step_h, c_slope)
        grad_x = torch.cat(((step_c.unsqueeze(1) * ifg_slope).flatten(1), step_h * o_slope), 1)
        grad_h = replace_first_rows(grad_h, grad_x @ w_hh)
        grad_c = replace_first_rows(grad_c, step_c * forget)
        grad_steps.append(grad_x)
    grad_w_hr = torch.cat(in_order(grad_outputs, not reverse)).t() @ (o * m) if needs.w_hr else None
    return in_order(grad_steps, not reverse), grad_h, grad_c, grad_w_hr


# A GRU: h' = n + z (h - n), n = tanh(x_n + r h_n), with h_n of W h + b and the sigmoids r, z of x + W h + b.


def gru_forward(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse):
    weights = Weights(w_ih, w_hh, b_ih, b_hh)
    output, state, (r_z, n, h_n) = run_steps(gru_step, input, (h,), weights, sizes, reverse)
    return (output, *state), {"output": output, "r_z": r_z, "n": n, "h_n": h_n}


def gru_layer(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse):
    """The outputs of all steps, and the last h."""
    tensors = (input, h, w_ih, w_hh, b_ih, b_hh)
    if has_torch_function(tensors):
        return handle_torch_function(gru_layer, tensors, *tensors, sizes, reverse)
    return gru_forward(*tensors, sizes, reverse)[0]


@backward(gru_layer, wrt=("input", "w_ih", "w_hh", "b_ih", "b_hh", "h"), forward=gru_forward)
def gru_layer_all(grad, input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse, output, r_z, n, h_n, needs):
    if recorded():
        _, again = gru_forward(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse)
        output, r_z, n, h_n = again.values()
    h_before = states_before(output, h, sizes, reverse)
    grad_ih, grad_hh, grad_h = gru_gates(grad, h, h_before, w_hh, r_z, n, h_n, sizes, reverse)
    return *input_and_weight_grads(grad_ih, grad_hh, input, h_before, w_ih, needs), grad_h


def gru_gates(grad, h, h_before, w_hh, r_z, n, h_n, sizes, reverse):
    """The gradients of W_ih x + b_ih and of W_hh h + b_hh at all steps, and of h before the first."""
    r, z = r_z.chunk(2, -1)
    slope_n = (1 - z) * (1 - n * n)
    slope_gates = torch.stack((slope_n * h_n * r * (1 - r), (h_before - n) * z * (1 - z), slope_n * r, slope_n), 1)
    size = h.shape[-1]
    grad_output, grad_h = grad
    grad_h, grad_steps = zeros_if_none(grad_h, h), []
    for rows, grad_out, slopes, update in backward_steps(sizes, reverse, grad_output, slope_gates, z):
        step_h = add_output_grad(grad_h, rows, grad_out)
        grad_gates = (step_h.unsqueeze(1) * slopes).flatten(1)  # of r, z and h_n; then of x_n
        grad_h = replace_first_rows(grad_h, torch.addmm(step_h * update, grad_gates[:, : 3 * size], w_hh))
        grad_steps.append(grad_gates)
    grad_r_z, grad_h_n, grad_x_n = torch.cat(in_order(grad_steps, not reverse)).split((2 * size, size, size), 1)
    return torch.cat((grad_r_z, grad_x_n), 1), torch.cat((grad_r_z, grad_h_n), 1), grad_h


def run_layer(step, input, state, weights, sizes, reverse):
    """The outputs of one layer in one direction, and its last state."""
    # Step by step under autocast, which casts each product on its own, and for complex numbers, as the rules are those of real ones.
    if torch.is_autocast_enabled(input.device.type) or input.is_complex():
        output, state, _ = run_steps(step, input, state, weights, sizes, reverse)
    elif step is lstm_step:
        output, *state = lstm_layer(input, *state, *weights, sizes, reverse)
    elif step is gru_step:
        output, *state = gru_layer(input, *state, *weights[:4], sizes, reverse)
    else:
        output, *state = rnn_layer(input, *state, *weights[:4], step is rnn_relu_step, sizes, reverse)
    return output, tuple(state)


def run_layers(step, input, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional):
    """The outputs of the last layer, and the last states of all cells stacked, part by part."""
    directions = (False, True) if bidirectional else (False,)
    count = num_layers * len(directions)
    if not sizes:
        raise UnsupportedCallError("a recurrent network was given a sequence of no steps")
    if any(part.dim() != 3 or part.shape[:2] != (count, sizes[0]) for part in hx):
        shapes = ", ".join(str(tuple(part.shape)) for part in hx)
        raise UnsupportedCallError(f"a state of shape {shapes} was given to {count} cells and {sizes[0]} sequences")
    cells = zip(cell_weights(params, has_biases, count), zip(*hx, strict=True), strict=True)
    ends = []
    for layer in range(num_layers):
        if layer and train and dropout:
            input = torch.dropout(input, dropout, True)
        outputs = []
        for reverse in directions:
            weights, state = next(cells)
            output, end = run_layer(step, input, state, weights, sizes, reverse)
            outputs.append(output)
            ends.append(end)
        input = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return input, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def cell_weights(params, has_biases, count):
    """The parameters of ``count`` cells, given one after another."""
    each = len(params) // count
    if each * count != len(params) or each not in ((4, 5) if has_biases else (2, 3)):
        raise UnsupportedCallError(f"a recurrent network of {count} cells was given {len(params)} parameters")
    for w_ih, w_hh, *others in zip(*[iter(params)] * each, strict=True):
        yield Weights(w_ih, w_hh, *others) if has_biases else Weights(w_ih, w_hh, w_hr=others[0] if others else None)


def define(packet, step, cell):
    """Define the network ``packet`` and the op of one ``cell`` by ``step``."""
    has_c = step is lstm_step

    @decomposition(packet.input)
    def run(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        if has_c and autocast_casts_the_network(input, hx):
            device = input.device.type
            dtype = torch.get_autocast_dtype(device)
            input, hx, params = input.to(dtype), [h.to(dtype) for h in hx], [p.to(dtype) for p in params]
            with torch.autocast(device, enabled=False):
                return run(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        input = input.transpose(0, 1) if batch_first else input
        hx = hx if has_c else (hx,)
        steps, rows = input.shape[:2]
        output, *ends = run_layers(
            step, input.flatten(0, 1), [rows] * steps, hx, params, has_biases, num_layers, dropout, train, bidirectional
        )
        output = output.unflatten(0, (steps, rows))
        return output.transpose(0, 1) if batch_first else output, *ends

    @decomposition(packet.data)
    def run_packed(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional):
        hx = hx if has_c else (hx,)
        sizes = batch_sizes.tolist()
        return run_layers(step, data, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)

    @overloaded(getattr(torch, packet.__name__))
    def choose(*args, **named):
        packed = "batch_sizes" in named or (len(args) > 1 and getattr(args[1], "dtype", None) is torch.int64)
        return packet.data if packed else packet.input

    @decomposition(cell)
    def run_cell(input, hx, w_ih, w_hh, b_ih, b_hh):
        rows, state = input.shape[0], hx if has_c else (hx,)
        if any(part.shape[0] != rows for part in state):
            raise UnsupportedCallError(f"{cell.__name__}: the input has {rows} rows, its state has not")
        _, state = run_layer(step, input, state, Weights(w_ih, w_hh, b_ih, b_hh), [rows], False)
        return state if has_c else state[0]


def autocast_casts_the_network(input, hx):
    """Whether autocast casts a whole LSTM at once: where torch has one kernel for all steps, which autocast knows as an op."""
    if not torch.is_autocast_enabled(input.device.type) or hx[0].shape != hx[1].shape:
        return False
    if input.device.type != "cpu":
        return input.dtype != torch.double
    return torch.backends.mkldnn.enabled and input.dtype in (torch.float, torch.bfloat16) and input.numel() > 0


define(aten.rnn_tanh, rnn_tanh_step, torch.rnn_tanh_cell)
define(aten.rnn_relu, rnn_relu_step, torch.rnn_relu_cell)
define(aten.lstm, lstm_step, torch.lstm_cell)
define(aten.gru, gru_step, torch.gru_cell)
