"""softmax, log_softmax and logsumexp, along one dimension or several."""

import torch

from ops_registry.declare import self_adjoint
from ops_registry.registry import backward
from ops_registry.shared.conjugate import conj
from ops_registry.shared.dimensions import restore_dims


@backward(torch.softmax, torch._softmax, torch._safe_softmax, symmetric=True)
def softmax(grad, result, dim):
    return torch._softmax_backward_data(grad, result, dim, grad.dtype)


# The Jacobian diag(y) - y yᵀ is symmetric: the product with it is its own transpose.
self_adjoint(torch._softmax_backward_data, wrt="grad_output")


@backward(torch._softmax_backward_data, wrt="output")
def softmax_backward_data_output(grad, grad_output, output, dim):
    through = (grad_output * output).sum(dim, keepdim=True)
    return grad * (grad_output - through) - grad_output * (grad * output).sum(dim, keepdim=True)


@backward(torch.log_softmax, torch._log_softmax)
def log_softmax(grad, result, dim):
    return torch._log_softmax_backward_data(grad, result, dim, grad.dtype)


# The kernel returns g - exp(y) sum(g), with y the log_softmax.


@backward(torch._log_softmax_backward_data, wrt="grad_output", linear=True)
def log_softmax_backward_data(grad, output, dim):
    return grad - (grad * output.exp()).sum(dim, keepdim=True)


@backward(torch._log_softmax_backward_data, wrt="output", symmetric=True)
def log_softmax_backward_data_output(grad, grad_output, output, dim):
    return -grad * output.exp() * grad_output.sum(dim, keepdim=True)


@backward(torch.logsumexp)
def logsumexp(grad, input, result, dim, keepdim):
    shape = input.shape
    # Where every input is -inf, any finite number in place of the result gives exp(-inf) = 0 rather than nan.
    total = restore_dims(result.masked_fill(result == -torch.inf, 0), shape, dim, keepdim)
    return restore_dims(grad, shape, dim, keepdim) * conj((input - total).exp())
