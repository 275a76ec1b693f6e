"""Packing sequences of several lengths: the elements of a batch sorted by length, listed step by step."""

import torch
import torch.nn.functional as F

from ops_registry.registry import backward, decomposition


def element_places(batch_sizes, device):
    """The step and the sequence of each element of a packed batch."""
    present = torch.arange(batch_sizes[0].item()) < batch_sizes.unsqueeze(1)
    return [index.to(device) for index in present.nonzero(as_tuple=True)]


def forward_pack(input, lengths, batch_first):
    result = torch._pack_padded_sequence(input, lengths, batch_first)
    return result, {"batch_sizes": result[1]}


@backward(torch._pack_padded_sequence, forward=forward_pack, linear=True)
def pack_padded_sequence(grad, input_shape, batch_sizes, batch_first):
    first, second, *features = input_shape
    shape = (second, first, *features) if batch_first else input_shape
    padded = grad.new_zeros(shape).index_put(element_places(batch_sizes, grad.device), grad)
    return padded.transpose(0, 1) if batch_first else padded


@backward(torch._pad_packed_sequence, wrt="data", linear=[("data", "padding_value")])
def pad_packed_sequence(grad, batch_sizes, batch_first):
    step, sequence = element_places(batch_sizes, grad.device)
    return grad[sequence, step] if batch_first else grad[step, sequence]


@decomposition(torch._C._nn.pad_sequence)
def pad_sequence(sequences, batch_first, padding_value, padding_side):
    longest, features = max(s.shape[0] for s in sequences), sequences[0].shape[1:]
    padded = []
    for s in sequences:
        missing = longest - s.shape[0]
        s = s.expand(s.shape[0], *features)  # as in torch, which copies each into its place
        pad = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(F.pad(s, (0, 0) * (s.dim() - 1) + pad, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)
