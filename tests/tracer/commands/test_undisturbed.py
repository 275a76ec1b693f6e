"""A pass of our own leaves random numbers and buffers alone."""

from __future__ import annotations

import torch

from tracer.commands.undisturbed import undisturbed


def test_random_numbers_go_on_as_if_nothing_had_drawn_any() -> None:
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    with undisturbed([]):
        torch.randn(7)
    assert torch.equal(torch.randn(4), expected)


def test_buffers_that_change_are_put_back_and_others_keep_their_version() -> None:
    norm = torch.nn.BatchNorm1d(2)
    norm.register_buffer("other", torch.ones(2))
    before = norm.running_mean.clone()
    with undisturbed([norm]):
        norm(torch.randn(4, 2))
        assert not torch.equal(norm.running_mean, before)
    assert torch.equal(norm.running_mean, before) and int(norm.num_batches_tracked) == 0
    assert norm.other._version == 0
