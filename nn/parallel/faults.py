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


def in_a_capture() -> CaptureError:
    """Of a compiled step that calls the wrapper."""
    return CaptureError(
        "a compiled step calls a module in DistributedDataParallel: a graph exchanges no gradients. Let the step call the module itself "
        "(wrapped.module), and call wrapped.exchange() after each call of the step."
    )


def nothing_to_exchange(missing: Sequence[str]) -> ExchangeError:
    """Of an exchange that was asked for too early; ``missing``: the parameters without ``.grad``."""
    when = f"where .grad of {missing[0]} is None" if missing else "inside of a backward pass"
    return ExchangeError(
        f"exchange() was called {when}: call it after a backward pass that fills .grad of every parameter and exchanges nothing itself."
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
