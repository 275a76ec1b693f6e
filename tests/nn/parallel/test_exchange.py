"""What can go wrong in one process of a group: refused by name, with ``.grad`` as it was. The group has one process."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from support.parallel_training import Checkpointed, Forked, batch, completed, counting, gradients, network

import nn
import tracer
from nn.parallel import DistributedDataParallel
from ops_registry.errors import GlassgradError

pytestmark = pytest.mark.usefixtures("group_of_one")


# ---------------------------------------------------------------------- the wrapper
def test_it_is_an_instance_of_torchs_class_and_has_its_keys() -> None:
    wrapped = DistributedDataParallel(network())
    assert isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
    assert set(wrapped.state_dict()) == {f"module.{name}" for name in network().state_dict()}


def test_the_module_is_tracked_and_stays_the_same_object() -> None:
    module = network()
    parameters = list(module.parameters())
    assert DistributedDataParallel(module).module is module
    assert all(type(p) is tracer.Tensor for p in module.parameters())
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))


def test_a_wrapped_module_may_be_tracked_again() -> None:
    wrapped = DistributedDataParallel(network())
    assert nn.track(wrapped) is wrapped


def test_other_names_of_torchs_module_are_torchs() -> None:
    assert nn.parallel.DataParallel is torch.nn.parallel.DataParallel
    assert "DataParallel" in dir(nn.parallel)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = nn.parallel.no_such_name


def test_a_wrapper_that_is_gone_takes_no_gradients_of_later_passes() -> None:
    module = network()
    DistributedDataParallel(module)(batch(0, 0))
    module(batch(0, 0)).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_wrapper_that_is_gone_before_backward_is_told() -> None:
    """torch exchanges nothing, in silence."""
    module = network()
    y = DistributedDataParallel(module)(batch(0, 0))
    with pytest.raises(nn.ExchangeError, match="nobody holds any more"):
        y.sum().backward()
    assert set(map(str, gradients(module))) == {"None"}


def test_an_unpickled_wrapper_is_tracked_again() -> None:
    wrapped = pickle.loads(pickle.dumps(DistributedDataParallel(network())))
    left = counting(wrapped)
    wrapped(batch(0, 0)).sum().backward()
    assert left == [0] and type(wrapped.module[0].weight) is tracer.Tensor


def test_the_logging_data_tell_of_the_buckets() -> None:
    wrapped = DistributedDataParallel(network())
    data = wrapped._get_ddp_logging_data()
    assert data["world_size"] == 1 and data["module_name"] == "Sequential"
    assert data["bucket_sizes"] == str(4 * sum(p.numel() for p in wrapped.parameters()))


# ---------------------------------------------------------------------- arguments
def on_several_devices() -> Any:
    module = network()
    module[0].to("meta")
    return DistributedDataParallel(module)


def of_a_number(state: Any, bucket: Any) -> None: ...


of_a_number.__annotations__ = {"bucket": int}


def giving_a_bucket(state: Any, bucket: Any) -> None: ...


giving_a_bucket.__annotations__ = {"return": dist.GradBucket}

REFUSED: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: DistributedDataParallel(network(), mixed_precision=object()), "mixed_precision"),
    (lambda: DistributedDataParallel(network(), delay_all_reduce_named_params=[]), "delay_all_reduce_named_params"),
    (lambda: DistributedDataParallel(network(), param_to_hook_all_reduce=object()), "param_to_hook_all_reduce"),
    (lambda: DistributedDataParallel(torch.nn.Embedding(3, 2, sparse=True)), "sparse=False"),
    (on_several_devices, "one device"),
    (lambda: DistributedDataParallel(network(), device_ids=[0, 1]), "one device"),
    (lambda: DistributedDataParallel(3), "torch.nn.Module, got int"),  # type: ignore[arg-type]
    (lambda: DistributedDataParallel(torch.nn.LazyLinear(3)), "weight, bias.*run it once"),
    (lambda: DistributedDataParallel(network()).register_comm_hook(None, None), "function of"),
    (lambda: DistributedDataParallel(network()).register_comm_hook(None, of_a_number), "says of its argument.*int"),
    (lambda: DistributedDataParallel(network()).register_comm_hook(None, giving_a_bucket), "says.*GradBucket"),
    (lambda: DistributedDataParallel(network()).register_comm_hook(None, lambda bucket: None), r"\(state, bucket\)"),
)


@pytest.mark.parametrize(("make", "named"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(GlassgradError, match=named):
        make()


def test_a_second_communication_hook_is_refused() -> None:
    wrapped = DistributedDataParallel(network())
    wrapped.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(nn.ExchangeError, match="registered already"):
        wrapped.register_comm_hook(None, lambda state, bucket: None)


def test_a_graph_is_said_to_be_static_before_the_first_pass() -> None:
    wrapped = DistributedDataParallel(network())
    wrapped(batch(0, 0)).sum().backward()
    with pytest.raises(nn.ExchangeError, match="static_graph=True when the module is wrapped"):
        wrapped._set_static_graph()


def test_optimisers_inside_backward_are_refused_by_name() -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    module = network()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    with pytest.raises(tracer.UnsupportedError, match="step after backward"):
        DistributedDataParallel(module)(batch(0, 0))


def test_a_parameter_that_is_freed_later_is_refused_by_name() -> None:
    module = Forked()
    module.second.requires_grad_(False)
    wrapped = DistributedDataParallel(module)
    module.second.requires_grad_(True)
    with pytest.raises(nn.ExchangeError, match=r"second\.weight requires grad now"):
        wrapped(batch(0, 0))


def test_an_older_wrapper_of_the_same_module_is_refused() -> None:
    module = network()
    older, newer = DistributedDataParallel(module), DistributedDataParallel(module)
    newer(batch(0, 0)).sum().backward()
    with pytest.raises(nn.ExchangeError, match="another DistributedDataParallel"):
        older(batch(0, 0))


# ---------------------------------------------------------------------- faults in backward
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_backward_pass_that_raises_leaves_grad_as_it_was(views: bool, held: bool) -> None:
    wrapped = DistributedDataParallel(network(), gradient_as_bucket_view=views, bucket_cap_mb=0.002)
    for step in range(2):  # the buckets are rebuilt in between
        wrapped.zero_grad()
        wrapped(batch(0, step)).sum().backward()
    if not held:
        wrapped.zero_grad()
    before = gradients(wrapped)

    def fail(gradient: torch.Tensor) -> None:
        raise ArithmeticError("a fault of the user's")

    wrapped.module[0].weight.register_hook(fail)  # the last to come: all other buckets have left
    with pytest.raises(ArithmeticError, match="a fault"):
        wrapped(batch(0, 3)).sum().backward()
    assert gradients(wrapped) == before


def test_after_a_backward_pass_that_raised_the_process_is_out_of_step() -> None:
    wrapped = DistributedDataParallel(network())
    handle = wrapped.module[0].weight.register_hook(lambda gradient: gradient[0])
    with pytest.raises(GlassgradError, match="hook"):
        wrapped(batch(0, 0)).sum().backward()
    handle.remove()
    with pytest.raises(nn.ExchangeError, match=r"no longer in step.*last checkpoint"):
        wrapped(batch(0, 0))
    with torch.no_grad():
        wrapped(batch(0, 0))  # evaluation goes on
    again = DistributedDataParallel(wrapped.module)
    again(batch(0, 0)).sum().backward()
    assert None not in gradients(again)


def test_a_parameter_without_gradient_is_named_in_the_same_backward_pass() -> None:
    wrapped = DistributedDataParallel(Forked())
    x = tracer.tensor(batch(0, 0), requires_grad=True)
    with pytest.raises(nn.ExchangeError, match=r"second\.weight, second\.bias.*find_unused_parameters=True"):
        wrapped(x, "first").sum().backward()
    assert set(map(str, gradients(wrapped))) == {"None"} and x.grad is None


def test_a_pass_for_some_inputs_alone_names_the_other_parameters() -> None:
    wrapped = DistributedDataParallel(Forked())
    with pytest.raises(nn.ExchangeError, match=r"4 of 6 parameters.*first\.weight"):
        wrapped(batch(0, 0)).sum().backward(inputs=list(wrapped.module.last.parameters()))


def test_a_graph_that_is_not_static_is_found() -> None:
    wrapped = DistributedDataParallel(Forked(), static_graph=True)
    wrapped(batch(0, 0)).sum().backward()
    with pytest.raises(nn.ExchangeError, match=r"second\.weight.*static_graph=True holds for graphs that are the same"):
        wrapped(batch(0, 0), "first").sum().backward()


@pytest.mark.parametrize("leaf", [batch(0, 0).requires_grad_(), tracer.tensor(batch(0, 0), requires_grad=True)])
def test_a_parameter_in_several_reentrant_checkpoints_is_named(leaf: torch.Tensor) -> None:
    wrapped = DistributedDataParallel(Checkpointed(reentrant=True, times=2), bucket_cap_mb=0.0001)
    with pytest.raises(nn.ExchangeError, match=r"stretch\.bias.*static_graph=True"):
        wrapped(leaf).sum().backward()


def test_a_recorded_backward_pass_is_refused_and_one_inside_no_sync_is_not() -> None:
    wrapped = DistributedDataParallel(network())
    with pytest.raises(tracer.UnsupportedError, match=r"create_graph=True.*torch\.autograd\.grad"):
        wrapped(batch(0, 0)).sum().backward(create_graph=True)
    assert set(map(str, gradients(wrapped))) == {"None"}
    again = DistributedDataParallel(network())
    with again.no_sync():
        again(batch(0, 0)).sum().backward(create_graph=True)
    assert all(p.grad.requires_grad for p in list(again.parameters())[:1] if p.grad is not None)


def test_a_sparse_gradient_is_refused_by_name() -> None:
    class Looked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(3, 2))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(rows, self.table, sparse=True)

    wrapped = DistributedDataParallel(Looked())
    with pytest.raises(tracer.UnsupportedError, match=r"table.*torch.sparse_coo"):
        wrapped(torch.tensor([0, 2])).sum().backward()


def test_a_module_converted_after_it_was_wrapped_is_refused_by_name() -> None:
    wrapped = DistributedDataParallel(network())
    wrapped.double()
    with pytest.raises(nn.ExchangeError, match=r"torch.float64.*before it is wrapped"):
        wrapped(batch(0, 0).double()).sum().backward()


@pytest.mark.parametrize(
    ("hook", "named"),
    [
        (lambda state, bucket: bucket.buffer(), "returned Tensor.*Future"),
        (lambda state, bucket: completed(bucket.buffer()[:1]), r"shape \(1,\)"),
        (lambda state, bucket: completed("text"), "gave str"),
    ],
)
def test_what_a_communication_hook_returns_is_looked_at(hook: Any, named: str) -> None:
    wrapped = DistributedDataParallel(network())
    wrapped.register_comm_hook(None, hook)
    with pytest.raises(nn.ExchangeError, match=named):
        wrapped(batch(0, 0)).sum().backward()
    assert set(map(str, gradients(wrapped))) == {"None"}


def test_a_communication_hook_is_given_the_gradients_and_parameters_of_its_bucket() -> None:
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=0.002)
    wrapped(batch(0, 0)).sum().backward()
    expected = {id(p): p.grad for p in wrapped.parameters()}
    wrapped.zero_grad()
    seen: list[tuple[int, bool]] = []

    def hook(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        seen.append((bucket.index(), bucket.is_last()))
        for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            assert torch.equal(gradient, expected[id(p)]) and p.grad is None
        return completed(bucket.buffer() * 2)

    wrapped.register_comm_hook(None, hook)
    wrapped(batch(0, 0)).sum().backward()
    assert len(seen) > 1 and seen == [(i, i == len(seen) - 1) for i in range(len(seen))]
    assert all(torch.equal(p.grad, 2 * expected[id(p)]) for p in wrapped.parameters())


# ---------------------------------------------------------------------- passes
def test_a_second_backward_pass_through_the_same_forward_pass_is_exchanged() -> None:
    """torch leaves it to each process, in silence."""
    wrapped = DistributedDataParallel(network())
    left = counting(wrapped)
    y = wrapped(batch(0, 0)).sum()
    y.backward(retain_graph=True)
    once = gradients(wrapped)
    y.backward()
    assert left == [0, 0]
    for p, first in zip(wrapped.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * torch.tensor(first))


def test_a_pass_through_the_module_alone_is_not_exchanged() -> None:
    """As in torch: one process may look at its model while the others wait."""
    wrapped = DistributedDataParallel(network())
    wrapped(batch(0, 0)).sum().backward()
    left = counting(wrapped)
    wrapped.module(batch(0, 0)).sum().backward()
    assert left == []


def test_autograd_grad_exchanges_nothing() -> None:
    wrapped = DistributedDataParallel(network())
    left = counting(wrapped)
    y = wrapped(batch(0, 0)).sum()
    found = torch.autograd.grad(y, list(wrapped.parameters()), retain_graph=True)
    assert left == [] and all(g is not None for g in found)
    y.backward()
    assert left == [0]


def test_reports_exchange_nothing() -> None:
    wrapped = DistributedDataParallel(network())
    left = counting(wrapped)
    with tracer.Graph(sites=True, finite=True) as graph:
        loss = wrapped(batch(0, 0)).pow(2).mean()
    list(tracer.steps(loss))
    tracer.find_nan(graph, loss)
    tracer.timings(loss, by="op")
    assert left == [] and set(map(str, gradients(wrapped))) == {"None"}
    loss.backward()
    assert left == [0]


def test_buckets_leave_while_backward_goes_on() -> None:
    wrapped = DistributedDataParallel(network(), bucket_cap_mb=0.0005)
    wrapped(batch(0, 0)).sum().backward()
    log: list[str] = []
    left = counting(wrapped)
    wrapped(batch(0, 0))  # the buckets are rebuilt here
    first = wrapped.module[0].weight
    first.register_hook(lambda gradient: log.append(f"{len(left)} of {len(wrapped.reducer.buckets)}"))
    wrapped(batch(0, 0)).sum().backward()
    assert log == ["2 of 3"] and left == [0, 1, 2]


def test_with_the_flag_buckets_leave_before_the_end_too() -> None:
    wrapped = DistributedDataParallel(Forked(), find_unused_parameters=True, bucket_cap_mb=0.0001)
    left = counting(wrapped)
    log: list[int] = []
    wrapped.module.first.weight.register_hook(lambda gradient: log.append(len(left)))
    wrapped(batch(0, 0), "first").sum().backward()
    assert log[0] >= 3 and len(left) == len(wrapped.reducer.buckets)


def test_a_checkpoint_round_the_wrapper_itself() -> None:
    plain, wrapped = network(), DistributedDataParallel(network())
    x = batch(0, 0).requires_grad_()
    plain(x).sum().backward()
    checkpoint(wrapped, x, use_reentrant=False).sum().backward()
    for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_no_warning_of_ours_is_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = DistributedDataParallel(network())
        wrapped(batch(0, 0)).sum().backward()
