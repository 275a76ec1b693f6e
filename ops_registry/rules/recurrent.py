"""Recurrent networks: the cells as in a textbook, layers of them over the steps of a sequence.

A layer is one op with one rule. Its input weights are applied to all steps at once; only what depends on the step before is done
step by step, and backward as well. ``input`` lists the steps one after another, ``sizes`` says how many rows each has: as many as
there are sequences, or fewer where some have ended (packed sequences, longest first). A state is a tuple of tensors whose first,
h, is what the layer gives out: ``(h,)``, or ``(h, c)`` of an LSTM.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function, has_torch_function

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded

aten = torch.ops.aten


class Weights(NamedTuple):
    """What one cell learns. ``w_hr`` makes the h of an LSTM smaller."""

    w_ih: torch.Tensor
    w_hh: torch.Tensor
    b_ih: torch.Tensor | None = None
    b_hh: torch.Tensor | None = None
    w_hr: torch.Tensor | None = None


# One step each: the next state, from ``x = from_input(step, input, weights)`` and the state before; and what backward needs of it.


def rnn_tanh_step(x, state, weights):
    return (torch.addmm(x, state[0], weights.w_hh.t()).tanh(),), ()


def rnn_relu_step(x, state, weights):
    return (torch.addmm(x, state[0], weights.w_hh.t()).relu(),), ()


def lstm_step(x, state, weights):
    h, c = state
    size = c.shape[-1]
    i_f, g, o = torch.addmm(x, h, weights.w_hh.t()).split((2 * size, size, size), -1)
    i_f, g, o = i_f.sigmoid(), g.tanh(), o.sigmoid()
    i, f = i_f.chunk(2, -1)
    c = torch.addcmul(f * c, i, g)
    h = o * c.tanh()
    return (h if weights.w_hr is None else F.linear(h, weights.w_hr), c), (i_f, g, o, c)


def gru_step(x, state, weights):
    (h,) = state
    r_z_and_n = (2 * h.shape[-1], h.shape[-1])
    x_gates, x_n = x.split(r_z_and_n, -1)
    h_gates, h_n = F.linear(h, weights.w_hh, weights.b_hh).split(r_z_and_n, -1)
    r_z = (x_gates + h_gates).sigmoid()
    r, z = r_z.chunk(2, -1)
    n = torch.addcmul(x_n, r, h_n).tanh()
    return (torch.addcmul(n, z, h - n),), (r_z, n, h_n)


def from_input(step, input, weights):
    """W_ih input + b_ih + b_hh; in a GRU without b_hh, on which its reset gate r acts."""
    if step is gru_step or weights.b_ih is None:
        return F.linear(input, weights.w_ih, weights.b_ih)
    return F.linear(input, weights.w_ih, weights.b_ih + weights.b_hh)


# Over the steps of a sequence, from the last to the first where ``reverse``. Rows of a state that take no part in a step stay as they are.


def in_order(steps, reverse):
    return steps[::-1] if reverse else steps


def replaced(state, part):
    """``state`` with ``part`` in place of its first rows."""
    rows = part.shape[0]
    return part if rows == state.shape[0] else torch.cat((part, state[rows:]))


def run_steps(step, input, state, weights, sizes, reverse):
    """The outputs of all steps, the state after the last, and what each step saved, listed as the input is."""
    outputs, saved = [], []
    for x in in_order(from_input(step, input, weights).split(sizes), reverse):
        rows = x.shape[0]
        new, kept = step(x, [part[:rows] for part in state], weights)
        state = tuple(replaced(part, n) for part, n in zip(state, new, strict=True))
        outputs.append(new[0])
        saved.append(kept)
    listed = [torch.cat(in_order(parts, reverse)) for parts in (outputs, *zip(*saved, strict=True))]
    return listed[0], state, listed[1:]


def before(states, first, sizes, reverse):
    """The states from which the steps started, given those in which they ended and the very first."""
    steps, parts = in_order(states.split(sizes), reverse), []
    for state, rows in zip((None, *steps[:-1]), in_order(sizes, reverse), strict=True):
        known = first[:0] if state is None else state[:rows]
        parts.append(known if known.shape[0] == rows else torch.cat((known, first[known.shape[0] : rows])))
    return torch.cat(in_order(parts, reverse))


def back(sizes, reverse, *tensors):
    """The steps' parts of the tensors, in the order in which backward comes through; None for each part of None."""
    split = [(None,) * len(sizes) if t is None else in_order(t.split(sizes), not reverse) for t in tensors]
    return zip(in_order(sizes, not reverse), *split, strict=True)


def arrived(grad, rows, given):
    """The gradient of the h of a step, from the steps after it and from what was given out."""
    return grad[:rows] if given is None else grad[:rows] + given


def of_weights(by_x, by_h, input, h_before, w_ih, needs):
    """The gradients of input, w_ih, w_hh, b_ih, b_hh, from those of W_ih input + b_ih and of W_hh h + b_hh."""
    if by_x.is_complex():
        raise UnsupportedCallError(
            "the formulas of recurrent layers and cells are those of real numbers: write complex ones out"
        )
    return (
        by_x @ w_ih if needs[0] else None,
        by_x.t() @ input if needs[1] else None,
        by_h.t() @ h_before if needs[2] else None,
        by_x.sum(0) if needs[3] else None,
        by_h.sum(0) if needs[4] else None,
    )


def zeros_unless(grad, like):
    return torch.zeros_like(like) if grad is None else grad


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
    if torch.is_grad_enabled():
        output = rnn_layer(input, h, w_ih, w_hh, b_ih, b_hh, relu, sizes, reverse)[0]
    slopes = aten.threshold_backward(torch.ones_like(output), output, 0) if relu else 1 - output * output
    grad_output, grad_h = grad
    by_h, found = zeros_unless(grad_h, h), []
    for rows, given, slope in back(sizes, reverse, grad_output, slopes):
        by_x = arrived(by_h, rows, given) * slope
        by_h = replaced(by_h, by_x @ w_hh)
        found.append(by_x)
    by_x = torch.cat(in_order(found, not reverse))
    return *of_weights(by_x, by_x, input, before(output, h, sizes, reverse), w_ih, needs), by_h


# An LSTM: c' = f c + i g and h' = o tanh(c'), with the sigmoids i, f, o and the tanh g of x + W h.


def lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    weights = Weights(w_ih, w_hh, b_ih, b_hh, w_hr)
    output, state, saved = run_steps(lstm_step, input, (h, c), weights, sizes, reverse)
    return (output, *state), saved


def lstm_forward(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    if has_kernel(input, w_hr, sizes):
        arguments, options = for_kernel(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes)
        output, h, c, workspace = torch.mkldnn_rnn_layer(*arguments, reverse, [], *options, False, False, True)
        return (output.flatten(0, 1), h, c), {"saved": (workspace,)}
    results, saved = lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse)
    return results, {"saved": saved}


def has_kernel(input, w_hr, sizes):
    """Whether oneDNN has one kernel for all steps, as fast as hand-written code gets."""
    usable = torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available()
    plain = w_hr is None and len(set(sizes)) == 1 and input.numel() > 0
    return usable and plain and input.device.type == "cpu" and input.dtype == torch.float32


def for_kernel(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes):
    """The tensors that the kernel takes, and its options: an LSTM (2), its size, one layer, with biases."""
    biases = [torch.zeros_like(w_ih[:, 0]) if b is None else b for b in (b_ih, b_hh)]
    input = input.unflatten(0, (len(sizes), sizes[0]))
    return (input, w_ih, w_hh, *biases, h, c), (2, c.shape[-1], 1, True)


def by_kernel(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, sizes, reverse, result, workspace):
    arguments, options = for_kernel(input, h, c, w_ih, w_hh, b_ih, b_hh, sizes)
    output, *ends = result
    output = output.unflatten(0, (len(sizes), sizes[0]))
    grad_output, *grad_ends = (zeros_unless(g, r) for g, r in zip(grad, (output, *ends), strict=True))
    by_input, *others = aten.mkldnn_rnn_layer_backward(
        *arguments,
        output,
        *ends,
        grad_output.view(output.shape),
        *grad_ends,
        reverse,
        *options,
        True,
        False,
        [],
        False,
        workspace,
    )
    return by_input.flatten(0, 1), *others, None


def lstm_layer(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    """The outputs of all steps, and the last h and c."""
    tensors = (input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)
    if has_torch_function(tensors):
        return handle_torch_function(lstm_layer, tensors, *tensors, sizes, reverse)
    return lstm_forward(*tensors, sizes, reverse)[0]


@backward(lstm_layer, wrt=("input", "w_ih", "w_hh", "b_ih", "b_hh", "h", "c", "w_hr"), forward=lstm_forward)
def lstm_layer_all(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse, result, saved, needs):
    if torch.is_grad_enabled():  # what was kept is a constant: compute it again, on record
        result, saved = lstm_steps(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse)
    elif len(saved) == 1:
        return by_kernel(grad, input, h, c, w_ih, w_hh, b_ih, b_hh, sizes, reverse, result, *saved)
    output, (i_f, g, o, cells) = result[0], saved
    i, f = i_f.chunk(2, -1)
    m = cells.tanh()
    c_by_h = o * (1 - m * m)
    o_by_h = m * o * (1 - o)
    gates_by_c = torch.stack((g * i * (1 - i), before(cells, c, sizes, reverse) * f * (1 - f), i * (1 - g * g)), 1)
    grad_output, grad_h, grad_c = grad
    by_h, by_c, found, projected = zeros_unless(grad_h, h), zeros_unless(grad_c, c), [], []
    for rows, given, *slopes, forget in back(sizes, reverse, grad_output, c_by_h, o_by_h, gates_by_c, f):
        of_h = arrived(by_h, rows, given)
        projected.append(of_h)
        of_h = of_h if w_hr is None else of_h @ w_hr
        of_c = torch.addcmul(by_c[:rows], of_h, slopes[0])
        by_x = torch.cat(((of_c.unsqueeze(1) * slopes[2]).flatten(1), of_h * slopes[1]), 1)
        by_h = replaced(by_h, by_x @ w_hh)
        by_c = replaced(by_c, of_c * forget)
        found.append(by_x)
    by_x = torch.cat(in_order(found, not reverse))
    by_w_hr = torch.cat(in_order(projected, not reverse)).t() @ (o * m) if needs[7] else None
    h_before = before(output, h, sizes, reverse)
    return *of_weights(by_x, by_x, input, h_before, w_ih, needs), by_h, by_c, by_w_hr


# A GRU: h' = n + z (h - n), n = tanh(x_n + r h_n), with h_n of W h + b and the sigmoids r, z of x + W h + b.


def gru_forward(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse):
    weights = Weights(w_ih, w_hh, b_ih, b_hh)
    output, state, (r_z, n, h_n) = run_steps(gru_step, input, (h,), weights, sizes, reverse)
    return (output, *state), {"r_z": r_z, "n": n, "h_n": h_n}


def gru_layer(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse):
    """The outputs of all steps, and the last h."""
    tensors = (input, h, w_ih, w_hh, b_ih, b_hh)
    if has_torch_function(tensors):
        return handle_torch_function(gru_layer, tensors, *tensors, sizes, reverse)
    return gru_forward(*tensors, sizes, reverse)[0]


@backward(gru_layer, wrt=("input", "w_ih", "w_hh", "b_ih", "b_hh", "h"), forward=gru_forward)
def gru_layer_all(grad, input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse, result, r_z, n, h_n, needs):
    output = result[0]
    if torch.is_grad_enabled():
        (output, *_), again = gru_forward(input, h, w_ih, w_hh, b_ih, b_hh, sizes, reverse)
        r_z, n, h_n = again.values()
    r, z = r_z.chunk(2, -1)
    h_before = before(output, h, sizes, reverse)
    n_by_h = (1 - z) * (1 - n * n)
    gates_by_h = torch.stack((n_by_h * h_n * r * (1 - r), (h_before - n) * z * (1 - z), n_by_h * r, n_by_h), 1)
    size = h.shape[-1]
    grad_output, grad_h = grad
    by_h, found = zeros_unless(grad_h, h), []
    for rows, given, slopes, kept in back(sizes, reverse, grad_output, gates_by_h, z):
        of_h = arrived(by_h, rows, given)
        gates = (of_h.unsqueeze(1) * slopes).flatten(1)  # those of r, z and h_n; then that of x_n
        by_h = replaced(by_h, torch.addmm(of_h * kept, gates[:, : 3 * size], w_hh))
        found.append(gates)
    r_and_z, of_h_n, of_x_n = torch.cat(in_order(found, not reverse)).split((2 * size, size, size), 1)
    by_x, by_gates = torch.cat((r_and_z, of_x_n), 1), torch.cat((r_and_z, of_h_n), 1)
    return *of_weights(by_x, by_gates, input, h_before, w_ih, needs), by_h


def run_layer(step, input, state, weights, sizes, reverse):
    """The outputs of one layer in one direction, and its last state."""
    # Written out: under autocast each product is cast on its own, and the rules are those of real numbers.
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
    cells = zip(weights_of(params, has_biases, count), zip(*hx, strict=True), strict=True)
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


def weights_of(params, has_biases, count):
    """The parameters of ``count`` cells, given one after another."""
    each = len(params) // count
    if each * count != len(params) or each not in ((4, 5) if has_biases else (2, 3)):
        raise UnsupportedCallError(f"a recurrent network of {count} cells was given {len(params)} parameters")
    for own in zip(*[iter(params)] * each, strict=True):
        yield Weights(*own) if has_biases else Weights(own[0], own[1], w_hr=own[2] if each == 3 else None)


def define(packet, step, cell):
    """Define by ``step`` the network ``packet`` and the op of one ``cell``."""
    has_c = step is lstm_step

    @decomposition(packet.input)
    def run(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        input = input.transpose(0, 1) if batch_first else input
        hx = lowered(input, hx) if has_c else (hx,)
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


def lowered(input, hx):
    """The state of an LSTM as autocast has it: torch's kernel for whole sequences runs in one dtype, c included."""
    device = input.device.type
    fused = torch.is_autocast_enabled(device) and hx[0].shape == hx[1].shape and input.dtype != torch.double
    return [part.to(torch.get_autocast_dtype(device)) for part in hx] if fused else hx


define(aten.rnn_tanh, rnn_tanh_step, torch.rnn_tanh_cell)
define(aten.rnn_relu, rnn_relu_step, torch.rnn_relu_cell)
define(aten.lstm, lstm_step, torch.lstm_cell)
define(aten.gru, gru_step, torch.gru_cell)
