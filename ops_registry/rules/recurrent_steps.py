"""The cells of recurrent networks, one step as in a textbook, and their way over the steps of a sequence and back.

``input`` lists the steps one after another, ``sizes`` says how many rows each has: as many as there are sequences, or fewer where some
have ended (packed sequences, longest first). A state is a tuple of tensors, of which the first, h, is the output of a step: ``(h,)``, or
``(h, c)`` of an LSTM.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from ops_registry.errors import UnsupportedCallError


class Weights(NamedTuple):
    """The parameters of one cell. ``w_hr`` projects the h of an LSTM to a smaller size."""

    w_ih: torch.Tensor
    w_hh: torch.Tensor
    b_ih: torch.Tensor | None = None
    b_hh: torch.Tensor | None = None
    w_hr: torch.Tensor | None = None


# Torch rounds each product and each sum by itself. Half precision shows it; elsewhere the fused ops are faster and differ in the last bit.

LOW = (torch.float16, torch.bfloat16)


def plus_product(x, a, b):
    """x + a b."""
    return x + a * b if a.dtype in LOW else torch.addcmul(x, a, b)


def plus_hidden_part(x, h, weights):
    """W_ih input + b_ih + W_hh h + b_hh; ``x`` is ``input_part``, which has both biases where they are added before."""
    return x + F.linear(h, weights.w_hh, weights.b_hh) if x.dtype in LOW else torch.addmm(x, h, weights.w_hh.t())


# One step each: from ``x = input_part(step, input, weights)`` and the state before it, the next state and what backward needs of the step.


def rnn_tanh_step(x, state, weights):
    return (plus_hidden_part(x, state[0], weights).tanh(),), ()


def rnn_relu_step(x, state, weights):
    return (plus_hidden_part(x, state[0], weights).relu(),), ()


def lstm_step(x, state, weights):
    h, c = state
    size = c.shape[-1]
    i_f, g, o = plus_hidden_part(x, h, weights).split((2 * size, size, size), -1)
    i_f, g, o = i_f.sigmoid(), g.tanh(), o.sigmoid()
    i, f = i_f.chunk(2, -1)
    c = plus_product(f * c, i, g)
    h = o * c.tanh()
    return (h if weights.w_hr is None else F.linear(h, weights.w_hr), c), (i_f, g, o, c)


def gru_step(x, state, weights):
    (h,) = state
    r_z_and_n = (2 * h.shape[-1], h.shape[-1])
    x_gates, x_n = x.split(r_z_and_n, -1)
    h_gates, h_n = F.linear(h, weights.w_hh, weights.b_hh).split(r_z_and_n, -1)
    r_z = (x_gates + h_gates).sigmoid()
    r, z = r_z.chunk(2, -1)
    n = plus_product(x_n, r, h_n).tanh()
    return (plus_product(n, h - n, z),), (r_z, n, h_n)


def input_part(step, input, weights):
    """W_ih input + b_ih + b_hh; without b_hh in a GRU, whose reset gate r scales it, and in half precision."""
    cast = torch.is_autocast_enabled(input.device.type) and input.dtype != torch.double
    if step is gru_step or weights.b_ih is None or input.dtype in LOW or cast:
        return F.linear(input, weights.w_ih, weights.b_ih)
    return F.linear(input, weights.w_ih, weights.b_ih + weights.b_hh)


# Over the steps of a sequence, from the last to the first where ``reverse``. Rows of a state whose sequence has ended stay as they are.


def in_order(steps, reverse):
    return steps[::-1] if reverse else steps


def replace_first_rows(state, part):
    """``state`` with ``part`` in place of its first rows."""
    rows = part.shape[0]
    return part if rows == state.shape[0] else torch.cat((part, state[rows:]))


def run_steps(step, input, state, weights, sizes, reverse):
    """The outputs of all steps, the state after the last, and what the steps saved, in the order of the input."""
    outputs, saved = [], []
    for x in in_order(input_part(step, input, weights).split(sizes), reverse):
        rows = x.shape[0]
        new, step_saved = step(x, [part[:rows] for part in state], weights)
        state = tuple(replace_first_rows(part, n) for part, n in zip(state, new, strict=True))
        outputs.append(new[0])
        saved.append(step_saved)
    listed = [torch.cat(in_order(parts, reverse)) for parts in (outputs, *zip(*saved, strict=True))]
    return listed[0], state, listed[1:]


def states_before(states, first, sizes, reverse):
    """The states in which the steps started, from those in which they ended and the ``first`` of all."""
    steps, parts = in_order(states.split(sizes), reverse), []
    for state, rows in zip((None, *steps[:-1]), in_order(sizes, reverse), strict=True):
        known = first[:0] if state is None else state[:rows]
        parts.append(known if known.shape[0] == rows else torch.cat((known, first[known.shape[0] : rows])))
    return torch.cat(in_order(parts, reverse))


def backward_steps(sizes, reverse, *tensors):
    """The number of rows of each step and its parts of the tensors, in the order of backward; None for each part of None."""
    split = [(None,) * len(sizes) if t is None else in_order(t.split(sizes), not reverse) for t in tensors]
    return zip(in_order(sizes, not reverse), *split, strict=True)


def add_output_grad(grad_h, rows, grad_output):
    """The gradient of the h of a step: from the steps after it, and from the output of the step itself."""
    return grad_h[:rows] if grad_output is None else grad_h[:rows] + grad_output


def input_and_weight_grads(grad_ih, grad_hh, input, h_before, w_ih, needs):
    """The gradients of input, w_ih, w_hh, b_ih, b_hh, from those of W_ih input + b_ih and of W_hh h + b_hh."""
    if grad_ih.is_complex():
        raise UnsupportedCallError(
            "the formulas of recurrent layers and cells are those of real numbers: write complex ones out"
        )
    return (
        grad_ih @ w_ih if needs.input else None,
        grad_ih.t() @ input if needs.w_ih else None,
        grad_hh.t() @ h_before if needs.w_hh else None,
        grad_ih.sum(0) if needs.b_ih else None,
        grad_hh.sum(0) if needs.b_hh else None,
    )


def zeros_if_none(grad, like):
    return torch.zeros_like(like) if grad is None else grad
