"""Recurrent layers on arguments of any layout."""

from __future__ import annotations

import copy

import torch
from support.checking import plain

import nn

INPUT, HIDDEN, STEPS, BATCH = 3, 4, 5, 3


def test_the_kernel_of_an_lstm_reads_arguments_that_are_not_contiguous() -> None:
    """A step of a batch, ``x[:, 0]``, is such a one, as it comes to a cell in a loop."""
    module = torch.nn.LSTM(INPUT, HIDDEN)
    tracked = nn.track(copy.deepcopy(module))
    for m in (module, tracked):
        m.weight_hh_l0.data = m.weight_hh_l0.data.t().contiguous().t()
    x = torch.randn(STEPS, BATCH, 2 * INPUT)[..., ::2]
    h, c = torch.randn(1, HIDDEN, BATCH).mT, torch.randn(1, BATCH, 2 * HIDDEN)[..., ::2]
    expected, got = module(x, (h, c))[0], tracked(x, (h, c))[0]
    torch.testing.assert_close(plain(got), expected)
    weight = torch.randn_like(expected)
    got.backward(weight)
    expected.backward(weight)
    for ours, theirs in zip(tracked.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
