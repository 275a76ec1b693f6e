"""Wrappers and collectives of ``torch.distributed`` round tracked tensors: right, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.leaves import leaf32

import nn
import tracer
from ops_registry.errors import GlassgradError
from tracer.recording.distributed import COLLECTIVES, refuse_wrapped

if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DataParallel, DistributedDataParallel

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures("group_of_one")


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))


def tracked_model() -> torch.nn.Sequential:
    return nn.track(model())


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (1,))


# ---------------------------------------------------------------------- wrappers
def wrap_and_run(wrap: Callable[[torch.nn.Module], Any]) -> None:
    """A wrapper that is lazy raises at the first forward pass."""
    wrapped = wrap(tracked_model())
    wrapped(torch.ones(1, 2))


def data_parallel_by_replicate(module: torch.nn.Module) -> Any:
    from torch.distributed._composable import replicate

    return replicate(module)


def sharded(module: torch.nn.Module) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=mesh())


def sharded_by_the_old_wrapper(module: torch.nn.Module) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(module)


def parallelized(module: torch.nn.Module) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(module, mesh(), {"0": ColwiseParallel()})


def distributed_module(module: torch.nn.Module) -> Any:
    from torch.distributed.tensor import distribute_module

    return distribute_module(module, mesh())


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (DistributedDataParallel, "DistributedDataParallel"),
        (data_parallel_by_replicate, "DistributedDataParallel .or replicate"),
        (sharded, "fully_shard"),
        (sharded_by_the_old_wrapper, "FullyShardedDataParallel"),
        (parallelized, "parallelize_module"),
        (distributed_module, "distribute_module"),
    ],
)
def test_a_wrapper_of_tracked_parameters_is_refused_by_name(wrap: Callable[[torch.nn.Module], Any], name: str) -> None:
    with pytest.raises(tracer.UnsupportedError, match=rf"{name}.*nn.parallel.DistributedDataParallel"):
        wrap_and_run(wrap)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, data_parallel_by_replicate, sharded, parallelized])
def test_wrappers_of_plain_modules_work_as_before(wrap: Callable[[torch.nn.Module], Any]) -> None:
    wrapped, plain = wrap(model()), model()
    for module in (wrapped, plain):
        module(torch.ones(1, 2)).sum().backward()
    for ours, theirs in zip(wrapped.parameters(), plain.parameters(), strict=True):
        gradient: Any = ours.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        torch.testing.assert_close(gradient, theirs.grad)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, data_parallel_by_replicate, sharded])
def test_a_wrapped_module_is_not_tracked(wrap: Callable[[torch.nn.Module], Any]) -> None:
    wrapped = wrap(model())
    before = [type(p) for p in wrapped.parameters()]
    for module in (wrapped, torch.nn.Sequential(wrapped)):
        with pytest.raises(tracer.UnsupportedError, match=r"DistributedDataParallel|fully_shard"):
            nn.track(module)
    assert [type(p) for p in wrapped.parameters()] == before
    with pytest.raises(tracer.UnsupportedError, match=r"DistributedDataParallel|fully_shard"):
        nn.Sequential(wrapped)


def test_the_old_sharding_wrapper_is_known_by_its_class() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    torch.nn.Module.__init__(wrapped)
    with pytest.raises(tracer.UnsupportedError, match="FullyShardedDataParallel"):
        refuse_wrapped(wrapped)


def test_a_module_tracked_inside_its_wrapper_is_refused_at_the_next_forward_pass() -> None:
    inner = model()
    wrapped = DistributedDataParallel(inner)
    wrapped(torch.ones(1, 2)).sum().backward()
    nn.track(inner[1])
    with pytest.raises(tracer.UnsupportedError, match="DistributedDataParallel"):
        wrapped(torch.ones(1, 2))
    with torch.no_grad():
        assert wrapped(torch.ones(1, 2)).shape == (1, 1)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("wrap", [DistributedDataParallel, data_parallel_by_replicate, sharded, parallelized])
def test_a_tracked_input_of_a_wrapped_module_is_refused(
    wrap: Callable[[torch.nn.Module], Any], requires_grad: bool
) -> None:
    wrapped = wrap(model())
    x = tracer.tensor([[1.0, 1.0]], requires_grad=requires_grad)
    with pytest.raises(tracer.UnsupportedError, match=r"(DistributedDataParallel|parallelize_module).*plain tensor"):
        wrapped(x)
    assert wrapped(x.data).shape == (1, 1)
    if wrap is not parallelized:
        with torch.no_grad():
            wrapped(x)


class Scaled(torch.nn.Linear):
    """A layer that holds a tracked constant."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.scale = tracer.tensor([2.0, 2.0])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(input, self.weight * self.scale, self.bias)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, data_parallel_by_replicate])
def test_a_tracked_tensor_inside_a_wrapped_module_is_refused(wrap: Callable[[torch.nn.Module], Any]) -> None:
    wrapped = wrap(Scaled())
    with pytest.raises(tracer.UnsupportedError, match=r"met a tracked tensor.*DistributedDataParallel"):
        wrapped(torch.ones(1, 2))
    (Scaled()(torch.ones(1, 2))).sum().backward()


def test_checkpoint_wrappers_are_no_matter() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    plain, wrapped = model(), nn.track(checkpoint_wrapper(model()))
    for module in (plain, wrapped):
        module(torch.ones(1, 2)).sum().backward()
    for ours, theirs in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_data_parallel_on_one_device_hands_over_to_the_module() -> None:
    wrapped = DataParallel(tracked_model())
    if wrapped.device_ids:
        pytest.skip("there is a GPU")
    wrapped(torch.ones(1, 2)).sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters())


def test_data_parallel_over_several_devices_is_refused() -> None:
    wrapped = DataParallel(tracked_model())
    with pytest.raises(tracer.UnsupportedError, match="DataParallel over several devices"):
        wrapped.replicate(wrapped.module, [0, 1])


@pytest.mark.parametrize("placement", ["Replicate", "Shard"])
def test_a_distributed_tensor_is_not_made_of_a_tracked_one(placement: str) -> None:
    from torch.distributed import tensor as dtensor

    where = [dtensor.Replicate() if placement == "Replicate" else dtensor.Shard(0)]
    x = leaf32(1.0, 2.0)
    for make in (dtensor.distribute_tensor, dtensor.DTensor.from_local):
        with pytest.raises(tracer.UnsupportedError, match=r"distribute_tensor.*from_local.*plain tensor"):
            make(x, mesh(), where)
        made = make(torch.ones(2, requires_grad=True), mesh(), where)
        assert made.requires_grad


def test_wrappers_that_were_imported_before_are_refused_too() -> None:
    code = """
import os, tempfile, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
import tracer, nn
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
for call in (lambda: fully_shard(nn.track(torch.nn.Linear(2, 1)), mesh=mesh), lambda: distribute_tensor(tracer.tensor([1.0]), mesh)):
    try:
        call()
    except tracer.UnsupportedError as error:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]


def test_a_torch_without_distributed_can_be_used() -> None:
    code = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("importing", "tracer/importing.py")
importing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(importing)
names = ("_c10d_init", "_rpc_init", "_dist_autograd_init")
forget = lambda module: [delattr(module, name) for name in names if hasattr(module, name)]
sys.meta_path.insert(0, importing.AfterImport({"torch._C"}, forget))
import torch, tracer, nn
assert not torch.distributed.is_available()
nn.track(torch.nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
try:
    torch.nn.parallel.DistributedDataParallel(nn.track(torch.nn.Linear(2, 1)))
except tracer.UnsupportedError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"]


# ---------------------------------------------------------------------- collectives
def all_reduce(x: Any) -> Any:
    dist.all_reduce(x)
    return x


def gathered(x: Any) -> Any:
    results = [torch.zeros(2)]
    dist.all_gather(results, x)
    return results[0]


def gathered_into(x: Any) -> Any:
    result = torch.zeros(2)
    dist.all_gather_into_tensor(result, x)
    return result


def gathered_into_views(x: Any) -> Any:
    result = torch.zeros(2, 2)
    dist.all_gather([result[1]], x)
    return result


def gathered_into_chunks(x: Any) -> Any:
    result = torch.zeros(2)
    dist.all_gather(list(result.chunk(1)), x)
    return result


def reduce_scattered(x: Any) -> Any:
    result = torch.zeros(2)
    dist.reduce_scatter_tensor(result, x)
    return result


def broadcast(x: Any) -> Any:
    dist.broadcast(x, 0)
    return x


def in_one_bucket(x: Any) -> Any:
    dist.all_reduce_coalesced([x])
    return x


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "collective",
    [
        all_reduce,
        gathered,
        gathered_into,
        gathered_into_views,
        gathered_into_chunks,
        reduce_scattered,
        broadcast,
        in_one_bucket,
    ],
)
def test_backward_through_a_collective_raises_and_fills_nothing(collective: Callable[[Any], Any]) -> None:
    x = leaf32(1.0, 2.0)
    result = collective(x * 2)
    with pytest.raises(tracer.UnsupportedError, match=r"collective \w+ of torch.distributed.*differentiable"):
        (result.sum() + 0 * x.sum()).backward()
    assert x.grad is None


def test_a_functional_collective_is_differentiated_or_raises() -> None:
    from torch.distributed._functional_collectives import all_reduce as functional_all_reduce

    x = leaf32(1.0, 2.0)
    assert dist.group.WORLD is not None
    try:
        total = functional_all_reduce(x * 2, "sum", dist.group.WORLD)
        (total.sum() + 0 * x.sum()).backward()
    except GlassgradError as error:
        assert "Collective" in str(error) and x.grad is None
    else:
        assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_values_of_a_collective_can_be_looked_at_beside_a_loss() -> None:
    x = leaf32(1.0, 2.0)
    loss = (x * 2).sum()
    loss.backward(retain_graph=True)
    all_reduce(loss)
    assert loss.item() == 6.0
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_collectives_into_leaves_leave_them_leaves() -> None:
    x = leaf32(1.0, 2.0)
    broadcast(x)
    all_reduce(x.view(2))
    (x * x).sum().backward()
    assert x.is_leaf and x.grad is not None and x.grad.tolist() == [2.0, 4.0]


def test_collectives_without_gradients_leave_no_history() -> None:
    x = leaf32(1.0, 2.0)
    with torch.no_grad():
        assert not gathered(x * 2).requires_grad
    assert not gathered(x.detach()).requires_grad


@pytest.mark.filterwarnings("ignore:c10d")
def test_collectives_of_torchs_own_tensors_are_left_alone() -> None:
    native = torch.ones(2, requires_grad=True)
    for collective in (all_reduce, gathered):
        result = collective(native * 2)
        assert type(result) is torch.Tensor
    all_reduce(native * 2).sum().backward()
    assert native.grad is not None and native.grad.tolist() == [2.0, 2.0]


def test_every_collective_of_a_process_group_that_writes_is_known() -> None:
    # What moves no tensor, or writes into none that it is given.
    others = {"send", "barrier", "monitored_barrier"}
    names = {
        name
        for name in dir(dist.ProcessGroup)
        if any(part in name for part in ("reduce", "gather", "broadcast", "scatter", "all", "recv", "send", "barrier"))
        and not name.startswith("__")
    }
    names -= {"allow_inflight_collective_with_graph_capture", "_wait_for_pending_works", "_enable_collectives_timing"}
    assert names - others <= set(COLLECTIVES)
