"""Cross entropy of a linear layer's output, a chunk of rows at a time: called by ``F.linear_cross_entropy`` with options.

With p the softmax of x Wᵀ + b and f the factor of a row in the loss, the gradient of the row's logits is f (p - one-hot(target)).
"""

import importlib.util

import torch
import torch.nn.functional as F

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward
from ops_registry.shared.precision import wide
from ops_registry.shared.recorded import recorded

INPUTS = ("input", "linear_weight", "linear_bias")


def layer_gradients(grad, input, linear_weight, target, linear_bias, weight, reduction, ignore_index, rows, needs):
    grad, linear_weight, linear_bias = (
        wide(grad),
        wide(linear_weight),
        None if linear_bias is None else wide(linear_bias),
    )
    counted = target != ignore_index
    labels = torch.where(counted, target, 0)
    factors = counted.to(grad.dtype) if weight is None else torch.where(counted, weight[labels], 0)
    factors = factors * (grad / factors.sum() if reduction == "mean" else grad)
    grad_input, grad_weight, grad_bias = [], 0, 0
    for x, label, factor in zip(input.split(rows), labels.split(rows), factors.split(rows), strict=True):
        x = wide(x)
        slope = F.linear(x, linear_weight, linear_bias).softmax(1)
        slope = slope.scatter_add(1, label.unsqueeze(1), -torch.ones_like(slope[:, :1])) * factor.unsqueeze(1)
        if needs.input:
            grad_input.append(slope @ linear_weight)
        if needs.linear_weight:
            grad_weight = grad_weight + slope.mT @ x
        if needs.linear_bias:
            grad_bias = grad_bias + slope.sum(0)
    return torch.cat(grad_input) if needs.input else None, grad_weight, grad_bias


# torch before 2.13 has no such function.
if importlib.util.find_spec("torch.nn.modules.linear_cross_entropy"):
    import torch.nn.modules.linear_cross_entropy  # defines the ops

    @backward(torch.ops.torch_nn._linear_cross_entropy_batch_chunked, wrt=INPUTS)
    def chunked(
        grad,
        input,
        linear_weight,
        target,
        linear_bias,
        weight,
        reduction,
        ignore_index,
        batch_chunk_size,
        result,
        needs,
    ):
        grad, *others = grad
        if any(other is not None for other in others):
            raise UnsupportedCallError("linear_cross_entropy: the gradients among the op's results have no derivative")
        if not recorded():  # the forward has computed them already
            return [grad * found if need else None for found, need in zip(result[1:], needs, strict=True)]
        layer = input, linear_weight, target, linear_bias
        return layer_gradients(grad, *layer, weight, reduction, ignore_index, batch_chunk_size, needs)

    @backward(torch.ops.torch_nn._linear_cross_entropy_batch_chunked_no_reduction, wrt=INPUTS)
    def chunked_without_reduction(
        grad, input, linear_weight, target, linear_bias, weight, ignore_index, batch_chunk_size, needs
    ):
        layer = input, linear_weight, target, linear_bias
        return layer_gradients(grad, *layer, weight, "none", ignore_index, batch_chunk_size, needs)
