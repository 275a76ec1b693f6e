"""oneDNN's kernel for all steps of an LSTM, as two ops of our own.

torch's ops look at the thread's grad mode to know whether backward will follow, and claim that what they save for it is empty. A captured
graph runs without grad mode, and its memory is planned by what ops say of their results: so these always save, and say how much.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ops_registry.torch_private import count_dispatch_modes, disable_modes

_ARGUMENTS = "Tensor input, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, Tensor c, bool reverse"
_library = torch.library.Library("glassgrad", "FRAGMENT")
_library.define(f"onednn_lstm({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"onednn_lstm_backward({_ARGUMENTS}, Tensor output, Tensor end_h, Tensor end_c, Tensor grad_output, Tensor grad_h, Tensor grad_c, "
    f"Tensor workspace) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_op: Any = torch.ops.glassgrad.onednn_lstm.default
_backward_op: Any = torch.ops.glassgrad.onednn_lstm_backward.default

_kernel: Any = torch.mkldnn_rnn_layer
_backward_kernel: Any = torch.ops.aten.mkldnn_rnn_layer_backward.default
#: What the kernel is told of: an LSTM.
_LSTM = 2


def onednn_lstm(*arguments: Any) -> Any:
    """Of ``input (T, N, I)``, weights, biases, first states and direction: outputs, last h, last c, and the workspace for backward."""
    # An op that is written in Python takes long to reach, and nobody but a mode, that of a capture, sees that there is one.
    return (_op if count_dispatch_modes() else _run)(*arguments)


def onednn_lstm_backward(*arguments: Any) -> Any:
    """Of those, the results and their gradients: gradients of input, both weights, either bias, h and c."""
    return (_backward_op if count_dispatch_modes() else _run_backward)(*arguments)


@torch.library.impl(_library, "onednn_lstm", "CPU")
def _run(*arguments: Any) -> tuple[torch.Tensor, ...]:
    *tensors, reverse = arguments
    # It reads its arguments as if they were contiguous, whatever their strides.
    tensors = [tensor.contiguous() for tensor in tensors]
    with torch.enable_grad():
        results: tuple[torch.Tensor, ...] = _kernel(
            *tensors, reverse, [], _LSTM, tensors[-1].shape[-1], 1, True, False, False, True
        )
    return results


@torch.library.impl(_library, "onednn_lstm_backward", "CPU")
def _run_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    reverse, workspace = arguments[7], arguments[-1]
    inputs, results = ([tensor.contiguous() for tensor in part] for part in (arguments[:7], arguments[8:-1]))
    grad_input, grad_w_ih, grad_w_hh, grad_bias, _, grad_h, grad_c = _backward_kernel(
        *inputs, *results, reverse, _LSTM, inputs[-1].shape[-1], 1, True, True, False, [], False, workspace
    )
    return grad_input, grad_w_ih, grad_w_hh, grad_bias, grad_h, grad_c


@torch.library.register_fake("glassgrad::onednn_lstm", lib=_library)
def _shapes(*arguments: Any) -> tuple[torch.Tensor, ...]:
    input, *_, h, c, _ = arguments
    steps, rows, inputs = input.shape
    hidden = h.shape[-1]
    saved = _workspace(steps, rows, inputs, hidden, input.dtype)
    workspace = input.new_empty(saved, dtype=torch.uint8)
    return input.new_empty(steps, rows, hidden), torch.empty_like(h), torch.empty_like(c), workspace


@torch.library.register_fake("glassgrad::onednn_lstm_backward", lib=_library)
def _shapes_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    input, w_ih, w_hh, b_ih, _, h, c, *_ = arguments
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (input, w_ih, w_hh, b_ih, h, c))


@functools.cache
def _workspace(steps: int, rows: int, inputs: int, hidden: int, dtype: torch.dtype) -> int:
    """How many bytes the kernel saves, which it alone knows."""
    with disable_modes():
        parts = ((steps, rows, inputs), (4 * hidden, inputs), (4 * hidden, hidden), 4 * hidden, 4 * hidden)
        zeros = [torch.zeros(part, dtype=dtype) for part in (*parts, (rows, hidden), (rows, hidden))]
        return _run(*zeros, False)[-1].numel()
