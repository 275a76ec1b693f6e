"""What goes wrong in an exchange, in words: what happened, to which parameter, what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nn.errors import ExchangeError
from tracer.errors import CaptureError, UnsupportedError

#: What to do in a process that is no longer in step with the others.
RESTART = "End all processes and start them again from the last checkpoint (torchrun does both), or wrap the module anew in all of them."


def named(names: Sequence[str]) -> str:
    """The first of the parameters, and how many more there are."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def without_gradient(missing: Sequence[str], total: int, static: bool) -> ExchangeError:
    """Of parameters that a backward pass did not come to; ``static``: as often as in the first one."""
    remedy = (
        "static_graph=True holds for graphs that are the same in every step: leave it out"
        if static
        else "Use every parameter in the loss, freeze those that are not to be trained (requires_grad_(False)) before the module is "
        "wrapped, or pass find_unused_parameters=True"
    )
    return ExchangeError(
        f"in DistributedDataParallel {len(missing)} of {total} parameters got no gradient in this backward pass: {named(missing)}. "
        f"The other processes wait for them. {remedy}."
    )


def comes_late(name: str) -> ExchangeError:
    """Of a second gradient in one pass."""
    return ExchangeError(
        f"the parameter {name} got one more gradient in the same backward pass, after its bucket had left. Where it is used in more than "
        f"one checkpointed stretch, pass static_graph=True, or use_reentrant=False to the checkpoint."
    )


def recorded_pass(name: str) -> UnsupportedError:
    """Of a backward pass that is recorded, at the parameter ``name``."""
    return UnsupportedError(
        f"backward(create_graph=True) reached the parameter {name} of a module in DistributedDataParallel: the means over processes have "
        f"no history. Take the derivatives that are to be differentiated again by torch.autograd.grad(..., create_graph=True), which "
        f"exchanges nothing, or run forward and backward inside no_sync()."
    )


def began_outside(name: str) -> CaptureError:
    """Of a compiled step with a backward pass whose forward pass came before it."""
    return CaptureError(
        f"a compiled step brings a gradient to the parameter {name}, after a forward pass through its DistributedDataParallel outside of "
        f"the step. Call the wrapper inside of the step, or go back through the pass outside first."
    )


def buffers_sent_twice(name: str) -> CaptureError:
    """Of a compiled step that calls a wrapper more than once, and writes the buffer ``name``."""
    return CaptureError(
        f"a compiled step calls a module in DistributedDataParallel more than once and writes its buffer {name}: it is sent to all "
        f"processes before each call, and a graph cannot do that in between. Pass forward_sync_buffers=False (broadcast_buffers=False), or "
        f"compile a step for each call."
    )


def wrapper_is_gone() -> ExchangeError:
    """Of a backward pass through a wrapper that nobody holds any more."""
    return ExchangeError(
        "backward goes through a forward pass of a DistributedDataParallel that nobody holds any more: the gradients would not be "
        "exchanged, and each process would train for itself. Keep the wrapper in a variable (wrapped = DistributedDataParallel(module))."
    )


def hook_failed(name: str, error: Exception) -> ExchangeError:
    """Of an exchange by a communication hook."""
    return ExchangeError(
        f"the communication hook {name} has failed, or another process is gone, which its own error tells: {error}. {RESTART}"
    )


def check_gradient(name: str, gradient: torch.Tensor, flat: torch.Tensor) -> None:
    """Raise for a gradient that does not fit its bucket, whose memory is ``flat``."""
    if gradient.layout is not torch.strided:
        raise UnsupportedError(
            f"the parameter {name} of a module in DistributedDataParallel got a gradient of layout {gradient.layout}: only dense ones are "
            f"exchanged. Use sparse=False, or gradient.to_dense() in a hook on the parameter."
        )
    if gradient.dtype is not flat.dtype or gradient.device != flat.device:
        raise ExchangeError(
            f"the parameter {name} got a gradient of {gradient.dtype} on {gradient.device}, and its bucket was made for {flat.dtype} on "
            f"{flat.device}: convert or move the module before it is wrapped."
        )
