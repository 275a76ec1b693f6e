"""Cells of recurrent networks: one step as one op, with one formula for all that it depends on.

Each is defined in ``ops_registry/rules/recurrent.py`` as a layer of one step. Here it is what torch computes, value by value, and saves
what torch saves: gates, not the sums that they are functions of.
"""

import torch
import torch.nn.functional as F

from ops_registry.registry import as_one
from ops_registry.rules.recurrent_steps import input_and_weight_grads, zeros_if_none
from ops_registry.shared.recorded import recorded

aten = torch.ops.aten

INPUTS = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")


def is_common(input, *states):
    """Whether a step is of real rows, as many of each state as of the input. torch, or the layer, says what is wrong with others."""
    fits = input.dim() == 2 and all(h.dim() == 2 and h.shape[0] == input.shape[0] for h in states)
    return fits and input.is_floating_point()


# A plain cell: h' = f(W_ih x + b_ih + W_hh h + b_hh), with f' = 1 - h'^2 of tanh, and 0 or 1 of relu.


def plain_forward(function):
    def forward(input, hx, w_ih, w_hh, b_ih, b_hh):
        if not is_common(input, hx):
            return None
        return function(F.linear(hx, w_hh, b_hh).add_(F.linear(input, w_ih, b_ih))), {}

    return forward


@as_one(torch.rnn_tanh_cell, wrt=INPUTS, forward=plain_forward(torch.tanh_))
def rnn_tanh_cell(grad, input, hx, w_ih, w_hh, result, needs):
    return plain_gradients(aten.tanh_backward(grad, result), input, hx, w_ih, w_hh, needs)


@as_one(torch.rnn_relu_cell, wrt=INPUTS, forward=plain_forward(torch.relu_))
def rnn_relu_cell(grad, input, hx, w_ih, w_hh, result, needs):
    return plain_gradients(aten.threshold_backward(grad, result, 0), input, hx, w_ih, w_hh, needs)


def plain_gradients(grad_x, input, hx, w_ih, w_hh, needs):
    grad_input, *of_weights = input_and_weight_grads(grad_x, grad_x, input, hx, w_ih, needs)
    return grad_input, grad_x @ w_hh if needs.hx else None, *of_weights


# An LSTM: c' = f c + i g and h' = o m with m = tanh c', with the sigmoids i, f, o and the tanh g of W_ih x + b_ih + W_hh h + b_hh.


def lstm_forward(input, hx, w_ih, w_hh, b_ih, b_hh):
    if len(hx) != 2 or not is_common(input, *hx):
        return None
    h, c = hx
    gates = F.linear(h, w_hh, b_hh).add_(F.linear(input, w_ih, b_ih))
    i, f, g, o = gates.chunk(4, 1)
    for gate in (i, f, o):  # one by one, as in torch: the last bit depends on it
        gate.sigmoid_()
    g.tanh_()
    c = (f * c).add_(i * g)
    m = c.tanh()
    return (o * m, c), {"gates": gates, "m": m}


def recorded_lstm_gates(input, h, c, w_ih, w_hh, b_ih, b_hh):
    """The gates and m again, with their history: what was saved is a constant."""
    size = c.shape[1]
    x = F.linear(h, w_hh, b_hh) + F.linear(input, w_ih, b_ih)
    x_if, x_g, x_o = x.split((2 * size, size, size), 1)
    gates = torch.cat((x_if.sigmoid(), x_g.tanh(), x_o.sigmoid()), 1)
    i, f, g, _ = gates.chunk(4, 1)
    return gates, (f * c + i * g).tanh()


@as_one(torch.lstm_cell, wrt=INPUTS, forward=lstm_forward)
def lstm_cell(grad, input, hx, w_ih, w_hh, b_ih, b_hh, gates, m, needs):
    h, c = hx
    if recorded():
        gates, m = recorded_lstm_gates(input, h, c, w_ih, w_hh, b_ih, b_hh)
    i, f, g, o = gates.chunk(4, 1)
    grad_h, grad_c = zeros_if_none(grad[0], m), grad[1]
    through_h = aten.tanh_backward(grad_h * o, m)
    grad_c = through_h if grad_c is None else grad_c + through_h
    grad_if = aten.sigmoid_backward(torch.cat((grad_c * g, grad_c * c), 1), gates[:, : 2 * g.shape[1]])
    grad_g = aten.tanh_backward(grad_c * i, g)
    grad_o = aten.sigmoid_backward(grad_h * m, o)
    grad_x = torch.cat((grad_if, grad_g, grad_o), 1)
    grad_input, *of_weights = input_and_weight_grads(grad_x, grad_x, input, h, w_ih, needs)
    return grad_input, [grad_x @ w_hh, grad_c * f] if needs.hx else None, *of_weights


# A GRU: h' = n + z (h - n), n = tanh(x_n + r h_n), with x = W_ih x + b_ih, h_n of W_hh h + b_hh, and the sigmoids r, z of the sum of both.


def gru_forward(input, hx, w_ih, w_hh, b_ih, b_hh):
    if not is_common(input, hx):
        return None
    x_r, x_z, x_n = F.linear(input, w_ih, b_ih).chunk(3, 1)
    gates = F.linear(hx, w_hh, b_hh)
    r, z, h_n = gates.chunk(3, 1)
    r.add_(x_r).sigmoid_()
    z.add_(x_z).sigmoid_()
    n = (x_n + h_n * r).tanh_()
    return (hx - n).mul_(z).add_(n), {"gates": gates, "n": n}


def recorded_gru_gates(input, h, w_ih, w_hh, b_ih, b_hh):
    """r, z, h_n and n again, with their history: what was saved is a constant."""
    size = h.shape[1]
    x_gates, x_n = F.linear(input, w_ih, b_ih).split((2 * size, size), 1)
    h_gates, h_n = F.linear(h, w_hh, b_hh).split((2 * size, size), 1)
    r_z = (h_gates + x_gates).sigmoid()
    return torch.cat((r_z, h_n), 1), (x_n + h_n * r_z[:, :size]).tanh()


@as_one(torch.gru_cell, wrt=INPUTS, forward=gru_forward)
def gru_cell(grad, input, hx, w_ih, w_hh, b_ih, b_hh, gates, n, needs):
    if recorded():
        gates, n = recorded_gru_gates(input, hx, w_ih, w_hh, b_ih, b_hh)
    r, z, h_n = gates.chunk(3, 1)
    through_z = grad * z
    grad_n = aten.tanh_backward(grad - through_z, n)
    grad_rz = torch.cat((grad_n * h_n, grad * (hx - n)), 1)
    grad_rz = aten.sigmoid_backward(grad_rz, gates[:, : grad_rz.shape[1]])
    grad_ih, grad_hh = torch.cat((grad_rz, grad_n), 1), torch.cat((grad_rz, grad_n * r), 1)
    grad_input, *of_weights = input_and_weight_grads(grad_ih, grad_hh, input, hx, w_ih, needs)
    return grad_input, torch.addmm(through_z, grad_hh, w_hh) if needs.hx else None, *of_weights
