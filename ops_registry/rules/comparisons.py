"""Functions through whose results nothing flows: comparisons, tests, positions, counts, and fresh tensors."""

import torch

from ops_registry.declare import no_gradient

# Comparisons and tests
no_gradient(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
no_gradient(torch.equal, torch.isclose, torch.allclose, torch.isin, torch.is_nonzero)
no_gradient(torch.isnan, torch.isinf, torch.isfinite, torch.isposinf, torch.isneginf, torch.isreal, torch.signbit)
no_gradient(torch.logical_and, torch.logical_or, torch.logical_xor, torch.logical_not, torch.any, torch.all)

# Bits of integers
no_gradient(torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.bitwise_not)
no_gradient(torch.bitwise_left_shift, torch.bitwise_right_shift, torch.gcd, torch.lcm)

# Positions and counts
no_gradient(torch.argmax, torch.argmin, torch.nonzero, torch.argwhere, torch.count_nonzero)
no_gradient(torch.searchsorted, torch.bucketize, torch.histc)

# Fresh tensors that take no more than shape, dtype and device from what they are given
no_gradient(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, reads_values=False)
no_gradient(torch.rand_like, torch.randn_like, torch.randint_like, reads_values=False)
no_gradient(torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_empty, reads_values=False)
no_gradient(torch.Tensor.new_full, torch.Tensor.new_empty_strided, reads_values=False)

# A copy of the values, without their history
no_gradient(torch.Tensor.new_tensor)
