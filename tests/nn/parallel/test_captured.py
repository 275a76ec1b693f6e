"""Compiled steps that call a wrapper: the exchange follows the graph, or the capture is refused by name. The group has one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from support.parallel_training import Forked, batch, counting, gradients, network

import nn
import tracer
from nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("group_of_one")


def by_replay(step: Callable[..., Any], **options: Any) -> Any:
    return tracer.compile(step, backend="replay", **options)


def test_one_graph_of_a_compiled_step_serves_every_pass() -> None:
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=0.002)
    step = by_replay(lambda x: wrapped(x).sum().backward())
    left = counting(wrapped)
    for number in range(3):
        step(batch(0, number))
    assert len(step.explain().rows) == 1
    assert left == [0, 0, 1, 0, 1]  # the buckets are rebuilt after the first pass


def test_a_parameter_without_gradient_is_named_by_each_call_of_a_compiled_step() -> None:
    wrapped = DistributedDataParallel(Forked())
    x = tracer.tensor(batch(0, 0), requires_grad=True)
    step = by_replay(lambda x: wrapped(x, "first").sum().backward())
    with pytest.raises(nn.ExchangeError, match=r"second\.weight, second\.bias.*find_unused_parameters=True"):
        step(x)
    assert set(map(str, gradients(wrapped))) == {"None"} and x.grad is None
    with pytest.raises(nn.ExchangeError, match="no longer in step"):
        step(x)


def test_a_communication_hook_that_fails_after_a_graph_leaves_grad_as_it_was() -> None:
    wrapped = DistributedDataParallel(network())
    wrapped.register_comm_hook(None, lambda state, bucket: bucket.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        by_replay(lambda x: wrapped(x).sum().backward())(batch(0, 0))
    assert set(map(str, gradients(wrapped))) == {"None"}


def clipped(wrapped: DistributedDataParallel, x: torch.Tensor) -> None:
    wrapped(x).sum().backward()
    torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)


def called_twice(wrapped: DistributedDataParallel, x: torch.Tensor) -> None:
    (wrapped(x) + wrapped(x)).sum().backward()


def recorded(wrapped: DistributedDataParallel, x: torch.Tensor) -> None:
    wrapped(x).sum().backward(create_graph=True)


@pytest.mark.parametrize(
    ("step", "module", "options", "named"),
    [
        (clipped, network, {}, r"looks at \.grad of a parameter of shape \(32, 6\).*exchanged with other processes"),
        (
            called_twice,
            lambda: torch.nn.BatchNorm1d(6),
            {},
            r"more than once.*running_mean.*forward_sync_buffers=False",
        ),
        (recorded, network, {}, r"create_graph=True"),
        (lambda wrapped, x: wrapped(x).sum().backward(), network, {"check": True}, r"check=True.*wrapped\.module"),
    ],
)
def test_what_no_exchange_after_a_graph_can_do_is_refused_by_name(
    step: Callable[..., None], module: Any, options: dict[str, Any], named: str
) -> None:
    wrapped = DistributedDataParallel(module())
    with pytest.raises(tracer.UnsupportedError, match=named):
        by_replay(lambda x: step(wrapped, x), **options)(batch(0, 0))
    wrapped(batch(0, 0)).sum().backward()  # the capture has left nothing behind
    assert None not in gradients(wrapped)


def test_a_wrapper_in_a_compiled_module_is_refused_by_name() -> None:
    compiled = tracer.compile(DistributedDataParallel(network()), backend="replay")
    with pytest.raises(tracer.CaptureError, match=r"DistributedDataParallel\(tracer\.compile\(module\)\)"):
        compiled(batch(0, 0))


def test_a_compiled_step_cannot_finish_a_pass_that_began_outside() -> None:
    wrapped = DistributedDataParallel(network())
    wrapped(batch(0, 0))
    with pytest.raises(tracer.CaptureError, match="outside of the step"):
        by_replay(lambda x: wrapped.module(x).sum().backward())(batch(0, 0))


def test_a_step_of_the_module_alone_is_not_exchanged() -> None:
    wrapped = DistributedDataParallel(network())
    left = counting(wrapped)
    by_replay(lambda x: wrapped.module(x).sum().backward())(batch(0, 0))
    assert left == [] and None not in gradients(wrapped)
