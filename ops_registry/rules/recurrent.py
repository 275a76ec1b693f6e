"""Recurrent networks: the cells as in a textbook, layers of them over the steps of a sequence, and packed sequences.

The input weights are applied to all steps at once; only what depends on the step before is done step by step. A state is a
sequence of tensors whose first, h, is what the cell gives out: ``(h,)``, or ``(h, c)`` of an LSTM.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

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


# One step each: the next state, from ``x = from_input(step, input, weights)`` and the state before.


def rnn_tanh_step(x, state, weights):
    return (plus_recurrence(x, state[0], weights).tanh(),)


def rnn_relu_step(x, state, weights):
    return (plus_recurrence(x, state[0], weights).relu(),)


def lstm_step(x, state, weights):
    h, c = state
    i, f, g, o = plus_recurrence(x, h, weights).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights.w_hr is None else F.linear(h, weights.w_hr)), c


def gru_step(x, state, weights):
    (h,) = state
    gates_and_new = (2 * h.shape[-1], h.shape[-1])
    x_gates, x_new = x.split(gates_and_new, -1)
    h_gates, h_new = F.linear(h, weights.w_hh, weights.b_hh).split(gates_and_new, -1)
    r, z = (x_gates + h_gates).sigmoid().chunk(2, -1)
    n = (x_new + r * h_new).tanh()
    return (n + z * (h - n),)


def plus_recurrence(x, h, weights):
    return torch.addmm(x, h, weights.w_hh.t())


def from_input(step, input, weights):
    """W_ih input + b_ih + b_hh; in a GRU without b_hh, on which its reset gate r acts."""
    if step is gru_step or weights.b_ih is None:
        return F.linear(input, weights.w_ih, weights.b_ih)
    return F.linear(input, weights.w_ih, weights.b_ih + weights.b_hh)


# Over the steps of a sequence. In a packed one sequences end, so later steps have fewer rows.


def run_forward(step, steps, state, weights):
    """The outputs of all steps, and for each row the state after its own last one."""
    outputs, ended = [], []
    for x in steps:
        rows = x.shape[0]
        if rows < state[0].shape[0]:
            ended.append([part[rows:] for part in state])
            state = [part[:rows] for part in state]
        state = step(x, state, weights)
        outputs.append(state[0])
    return outputs, [torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True)] if ended else state


def run_backward(step, steps, state, weights):
    """The same from the last step to the first: each row joins in at its own last step."""
    outputs, initial = [], state
    state = [part[: steps[-1].shape[0]] for part in initial]
    for x in reversed(steps):
        joined, rows = state[0].shape[0], x.shape[0]
        if rows > joined:
            state = [torch.cat((part, first[joined:rows])) for part, first in zip(state, initial, strict=True)]
        state = step(x, state, weights)
        outputs.append(state[0])
    return outputs[::-1], state


def run_layers(step, input, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional):
    """The outputs of the last layer, and the last states of all cells stacked, part by part.

    ``input`` has the steps along its first dimension, or after one another with ``sizes`` rows each.
    """
    directions = (run_forward, run_backward) if bidirectional else (run_forward,)
    count = num_layers * len(directions)
    rows = input.shape[1] if sizes is None else sizes[0]
    if not input.shape[0]:
        raise UnsupportedCallError("a recurrent network was given a sequence of no steps")
    if any(part.dim() != 3 or part.shape[:2] != (count, rows) for part in hx):
        shapes = ", ".join(str(tuple(part.shape)) for part in hx)
        raise UnsupportedCallError(f"a state of shape {shapes} was given to {count} cells and {rows} sequences")
    cells = zip(weights_of(params, has_biases, count), zip(*hx, strict=True), strict=True)
    ends = []
    for layer in range(num_layers):
        if layer and train and dropout:
            input = torch.dropout(input, dropout, True)
        outputs = []
        for run in directions:
            weights, state = next(cells)
            x = from_input(step, input, weights)
            given, end = run(step, x.unbind(0) if sizes is None else x.split(sizes), state, weights)
            outputs.append(torch.stack(given) if sizes is None else torch.cat(given))
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
        output, *ends = run_layers(step, input, None, hx, params, has_biases, num_layers, dropout, train, bidirectional)
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
        weights, state = Weights(w_ih, w_hh, b_ih, b_hh), hx if has_c else (hx,)
        if any(part.shape[0] != input.shape[0] for part in state):
            raise UnsupportedCallError(f"{cell.__name__}: the input has {input.shape[0]} rows, its state has not")
        state = step(from_input(step, input, weights), state, weights)
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


# Packing. The elements of a batch of sequences, sorted by length, are listed step by step.


def places(batch_sizes, device):
    """Step and sequence of each element of a packed batch."""
    present = torch.arange(batch_sizes[0].item()) < batch_sizes.unsqueeze(1)
    return [index.to(device) for index in present.nonzero(as_tuple=True)]


def forward_pack(input, lengths, batch_first):
    result = torch._pack_padded_sequence(input, lengths, batch_first)
    return result, {"batch_sizes": result[1]}


@backward(torch._pack_padded_sequence, forward=forward_pack)
def pack_padded_sequence(grad, input_shape, batch_sizes, batch_first):
    first, second, *features = input_shape
    shape = (second, first, *features) if batch_first else input_shape
    padded = grad.new_zeros(shape).index_put(places(batch_sizes, grad.device), grad)
    return padded.transpose(0, 1) if batch_first else padded


@backward(torch._pad_packed_sequence, wrt="data")
def pad_packed_sequence(grad, batch_sizes, batch_first):
    step, sequence = places(batch_sizes, grad.device)
    return grad[sequence, step] if batch_first else grad[step, sequence]


@decomposition(torch._C._nn.pad_sequence)
def pad_sequence(sequences, batch_first, padding_value, padding_side):
    longest = max(s.shape[0] for s in sequences)
    padded = []
    for s in sequences:
        missing = longest - s.shape[0]
        pad = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(F.pad(s, (0, 0) * (s.dim() - 1) + pad, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)
