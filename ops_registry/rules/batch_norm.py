"""Batch and instance normalisation. Running statistics are written by the forward call, once, and carry no gradient."""

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, overloaded
from ops_registry.shared.normalisation import INPUTS, all_but_channels, double_backward, recorded_statistics
from ops_registry.shared.optional import per_result
from ops_registry.shared.recorded import recorded

aten = torch.ops.aten


def per_channel(value, rank):
    """A tensor with one number a channel, for broadcasting against one with channels in dimension 1."""
    return None if value is None else value.reshape(-1, *[1] * (rank - 2))


def of_batch(input, mean, invstd, training, eps):
    """The statistics of the batch as the forward call gave them, computed again where their own derivative is wanted."""
    if not (recorded() and training):
        return mean, invstd
    return recorded_statistics(input, all_but_channels(input.dim()), eps, mean)


def forward_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    result, mean, invstd, reserve, implementation = torch._batch_norm_impl_index(
        input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
    )
    running = (None, None) if training else (running_mean, running_var)
    extra = {"mean": mean, "invstd": invstd, "running": running, "reserve": reserve, "implementation": implementation}
    return result, extra


@backward(torch.batch_norm, wrt=INPUTS, forward=forward_batch_norm, symmetric="input")
def batch_norm(
    grad, input, weight, weight_shape, bias_shape, running, mean, invstd, training, eps, reserve, implementation, needs
):
    if grad.numel() == 0:  # the kernel would crash
        grad_weight = grad.new_zeros(weight_shape) if needs.weight else None
        grad_bias = grad.new_zeros(bias_shape) if needs.bias else None
        return grad, grad_weight, grad_bias
    statistics = *running, *of_batch(input, mean, invstd, training, eps)
    if implementation == 0:  # torch's own kernel
        return aten.native_batch_norm_backward(grad, input, weight, *statistics, training, eps, list(needs))
    return aten._batch_norm_impl_index_backward(
        implementation, input, grad, weight, *statistics, training, eps, list(needs), reserve
    )


def forward_native(func, mean_position, training_position):
    """The forward of those forms of batch norm that return the statistics they used."""

    def forward(*args):
        result = func(*args)
        training = training_position is None or args[training_position]
        running = (None, None) if training or mean_position is None else args[mean_position : mean_position + 2]
        return result, {"mean": result[1], "invstd": result[2], "running": running}

    return forward


def native_gradients(grad, input, weight, running, mean, invstd, training, eps, needs):
    if input.numel() == 0:
        raise UnsupportedCallError(
            "the gradient of native batch norm of an empty tensor is not supported: use torch.batch_norm"
        )
    statistics = *running, *of_batch(input, mean, invstd, training, eps)
    return aten.native_batch_norm_backward(grad, input, weight, *statistics, training, eps, list(needs))


def native_backward(func, mean_position, training_position):
    """``backward`` for such a form. As in torch, the statistics that it returns are constants."""
    return backward(
        func,
        wrt=INPUTS,
        forward=forward_native(func, mean_position, training_position),
        constant_results=(1, 2, 3),
    )


@native_backward(torch.native_batch_norm, 3, 5)
@native_backward(aten._native_batch_norm_legit.default, 3, 5)
@native_backward(aten._native_batch_norm_legit.no_stats, None, 3)
def native_batch_norm(grad, input, weight, running, mean, invstd, training, eps, needs):
    return native_gradients(grad, input, weight, running, mean, invstd, training, eps, needs)


@overloaded(aten._native_batch_norm_legit)
def choose_batch_norm(*args, **named):
    overload = aten._native_batch_norm_legit
    statistics = "running_mean" in named or (len(args) > 3 and not isinstance(args[3], bool))
    return overload.default if statistics else overload.no_stats


@native_backward(aten._batch_norm_with_update, 3, None)
def batch_norm_with_update(grad, input, weight, running, mean, invstd, eps, needs):
    return native_gradients(grad, input, weight, running, mean, invstd, True, eps, needs)


def batch_norm_second(grads, g, x, weight, statistics, train, eps, needs):
    """The gradients of batch norm's backward kernel by ``g``, ``x``, ``weight`` and the statistics of the batch it was given."""
    rank, (running_mean, running_var, mean, invstd) = x.dim(), statistics
    dims = all_but_channels(rank)
    if not train:
        mean, invstd = running_mean, (running_var + eps).rsqrt()
    mean, invstd, weight, a, b = (per_channel(t, rank) for t in (mean, invstd, weight, *grads[1:]))
    found = double_backward(g, x, mean, invstd, weight, dims, (grads[0], a, b), fixed=not train)
    if not train:
        needs = (*needs[:3], False, False)  # the statistics of the batch went unused
    grad_g, grad_x, *per_channel_gradients = (f if needed else None for f, needed in zip(found, needs, strict=True))
    grad_g = None if grad_g is None else grad_g.expand(x.shape)
    return grad_g, grad_x, *(None if f is None else f.sum(dims) for f in per_channel_gradients)


@backward(
    aten._batch_norm_impl_index_backward, wrt=("grad_output", "input", "weight", "save_mean", "save_var_transform")
)
def batch_norm_impl_index_backward(
    grad, grad_output, input, weight, running_mean, running_var, save_mean, save_var_transform, train, eps, output_mask, needs
):  # fmt: skip
    statistics = running_mean, running_var, save_mean, save_var_transform
    return batch_norm_second(per_result(grad, output_mask), grad_output, input, weight, statistics, train, eps, needs)


@backward(aten.native_batch_norm_backward, wrt=("grad_out", "input", "weight", "save_mean", "save_invstd"))
def native_batch_norm_backward(
    grad, grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask, needs
):
    statistics = running_mean, running_var, save_mean, save_invstd
    return batch_norm_second(per_result(grad, output_mask), grad_out, input, weight, statistics, train, eps, needs)


# Instance norm is the batch norm of one sample that has the channels of all.


def as_one_sample(x):
    return x.contiguous().reshape(1, -1, *x.shape[2:])


def repeated(samples, *per_channel):
    return tuple(None if t is None else t.repeat(samples) for t in per_channel)


def forward_instance_norm(
    input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled
):
    if not use_input_stats and (running_mean is None or running_var is None):
        given = input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled
        return torch.instance_norm(*given), {}  # raises: torch says what is missing
    samples = input.shape[0]
    weight, bias, *running = repeated(samples, weight, bias, running_mean, running_var)
    result, extra = forward_batch_norm(
        as_one_sample(input), weight, bias, *running, use_input_stats, momentum, eps, cudnn_enabled
    )
    if use_input_stats:
        for statistic, updated in zip((running_mean, running_var), running, strict=True):
            if statistic is not None:
                statistic.copy_(updated.reshape(samples, -1).mean(0))
    return result.reshape(input.shape), extra


@backward(torch.instance_norm, wrt=INPUTS, forward=forward_instance_norm, symmetric="input")
def instance_norm(grad, input, weight, running, mean, invstd, use_input_stats, eps, reserve, implementation, needs):
    samples = input.shape[0]
    (weight,) = repeated(samples, weight)
    one, x = as_one_sample(grad), as_one_sample(input)
    per_channel = [(samples * input.shape[1],)] * 2
    noted = (running, mean, invstd, use_input_stats, eps, reserve, implementation)
    grad_x, *others = batch_norm(one, x, weight, *per_channel, *noted, needs)
    grad_weight, grad_bias = (None if t is None else t.reshape(samples, -1).sum(0) for t in others)
    return None if grad_x is None else grad_x.reshape(input.shape), grad_weight, grad_bias
