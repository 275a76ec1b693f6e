"""The exchange: gradients of one backward pass, sent to the other processes in buckets while it goes on, and brought back as their means.

``Exchange`` stands in the place of torch's ``Reducer``, written in C++, which hears of gradients from torch's own autograd alone. Its
methods with an underscore are those that the Python code of torch's ``DistributedDataParallel`` calls.

Of each pass:

1. take: the sweep hands over the gradient of a parameter as soon as it is complete;
2. leave: a bucket for which all gradients are there leaves, as soon as those before it have left;
3. settle: at the end of the pass the means are waited for, all of them, and only then is ``.grad`` written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from nn.errors import ExchangeError
from nn.parallel.buckets import Bucket, GradBucket, assign, views_of
from nn.parallel.faults import (
    RESTART,
    check_gradient,
    comes_late,
    hook_failed,
    named,
    recorded_pass,
    without_gradient,
)
from nn.parallel.passes import Passes
from nn.parallel.reference import Reference
from ops_registry.torch_private import DisableTorchFunctionSubclass, TensorBase
from tracer.backprop.accumulate import own
from tracer.backprop.progress import Progress, in_progress
from tracer.node import Leaf, OpaqueNode

_GRAD: Any = TensorBase.grad


class Exchange:
    """Takes the gradients of ``parameters`` from the backward pass, and averages them over the processes of ``group``."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        frozen: Iterable[tuple[str, torch.Tensor]],
        group: dist.ProcessGroup,
        *,
        limits: Sequence[int],
        first_limits: Sequence[int],
        find_unused: bool,
        skip_unused: bool,
        keep_views: bool,
        divide_flat: bool,
    ) -> None:
        self.names = names
        self.parameters = parameters
        self.group = group
        #: What buckets hold in bytes, once they are rebuilt in the order in which gradients arrive.
        self._limits = limits
        self._find_unused = find_unused
        self._skip_unused = skip_unused
        #: ``gradient_as_bucket_view``: ``.grad`` is the memory of the bucket itself.
        self._keep_views = keep_views
        #: ``batched_grad_copy``: a bucket is divided by the number of processes, where it is multiplied with the reciprocal otherwise.
        self._divide_flat = divide_flat
        self._frozen = list(frozen)
        self._numbers = {id(p): number for number, p in enumerate(parameters)}
        self.passes = Passes()
        self._reference = Reference(self)
        self._hook: tuple[Any, Callable[..., Any]] | None = None
        #: A backward pass is under way; why there can be no more; whether one has come through.
        self._open = False
        self._failed: str | None = None
        self._settled = False
        self._static = self._counting = False
        self._rebuilt = find_unused
        #: The order in which gradients have arrived in the first pass, which the buckets are rebuilt by.
        self._order: list[int] = []
        #: How often each parameter gets a gradient in one pass.
        self._expected = [1] * len(parameters)
        self._used_by_any: list[bool] | None = None
        self._divisor: int | None = None
        self._joined: tuple[dist.Work, bool] | None = None
        self._futures: list[torch.futures.Future[Any]] = []
        self._make_buckets(assign(parameters, first_limits))
        for p in parameters:
            _extras(p).taker = self._reference

    def _make_buckets(self, assignment: Sequence[Sequence[int]]) -> None:
        self.buckets = [Bucket(numbers, [self.parameters[n] for n in numbers]) for numbers in assignment]
        self._places = {n: (bucket, i) for bucket in self.buckets for i, n in enumerate(bucket.numbers)}

    # ------------------------------------------------------------------ before a pass
    def prepare_for_forward(self) -> None:
        """A forward pass begins that wants its gradients exchanged."""
        self._check_reducer_finalized()
        for name, p in self._frozen:
            if p.requires_grad:
                raise ExchangeError(
                    f"the parameter {name} requires grad now, and did not when the module was wrapped: its gradient would not be "
                    f"exchanged. Wrap the module by DistributedDataParallel again."
                )
        self.passes.forward_begins()

    def prepare_for_backward(self, _: Iterable[torch.Tensor]) -> None:
        """The forward pass has come through: the next backward pass exchanges its gradients."""
        self.passes.forward_ends()
        self.attach()

    def attach(self) -> None:
        """See to it that the gradients of all parameters come here. Raises ``ExchangeError`` where another wrapper takes one."""
        for p in self.parameters:
            node: Any = p._node  # type: ignore[attr-defined]
            if node is not None and (node.extras is None or node.extras.taker is not self._reference):
                self._attach(p)  # frozen and freed again: that makes a node without it

    def _attach(self, parameter: torch.Tensor) -> None:
        extras = _extras(parameter)
        other = None if extras.taker is None else extras.taker()
        if isinstance(other, Exchange):
            raise ExchangeError(
                f"the parameter {self.names[self.number_of(parameter)]} was wrapped by another DistributedDataParallel since, which "
                f"exchanges its gradient: use that one."
            )
        extras.taker = self._reference

    def _rebuild_buckets(self) -> bool:
        """Deal the parameters out anew, in the order in which rank 0 has met them in its first pass. Whether that was done."""
        self._check_reducer_finalized()
        if self._rebuilt or not self._order:
            return False
        order = torch.tensor(self._order, device=self.parameters[0].device)
        dist.broadcast(order, group=self.group, group_src=0)
        self._make_buckets(assign(self.parameters, self._limits, order.tolist()))
        self._rebuilt = True
        return True

    def _check_reducer_finalized(self) -> None:
        """Raise ``ExchangeError`` where the last backward pass has not come through."""
        if self._failed is None and self._open and not in_progress():
            self._failed = "the last backward pass did not come to its end"
        if self._failed is not None:
            raise ExchangeError(f"this process is no longer in step with the others: {self._failed}. {RESTART}")

    # ------------------------------------------------------------------ 1 take
    def take(self, sweep: Progress, tensor: torch.Tensor, buffer: list[Any]) -> bool:
        """Take the gradient of a parameter, if this pass is one that exchanges them."""
        number = self.number_of(tensor)
        if not (self._open or self.passes.exchanges(self.names[number])):
            return False
        if self._failed is not None:
            self._check_reducer_finalized()
        if sweep.create_graph:
            raise recorded_pass(self.names[number])
        if not self._open:
            self._open_pass(self.absent_in(sweep))
        self._arrive(number, buffer)
        return True

    def number_of(self, parameter: torch.Tensor) -> int:
        """Its place among the parameters."""
        return self._numbers[id(parameter)]

    def _arrive(self, number: int, buffer: list[Any]) -> None:
        """A gradient of a parameter has come, in ``buffer``."""
        bucket, place = self._places[number]
        if bucket.work is not None:
            raise comes_late(self.names[number])
        count = self._counts[number] = self._counts[number] + 1
        if buffer and buffer[0] is not None:
            check_gradient(self.names[number], buffer[0], bucket.flat)
            with DisableTorchFunctionSubclass():
                held = bucket.gradients[place]
                bucket.gradients[place] = (
                    own(buffer, self.parameters[number]) if held is None else held.add_(buffer.pop())
                )
        if count == 1 and not (self._rebuilt or self._counting):
            self._arrivals.append(number)
        if count == self._expected[number] and not self._counting:
            bucket.missing -= 1
            self._leave()

    def absent_in(self, sweep: Progress) -> set[int]:
        """The numbers of the parameters that a backward pass will not come to, as far as its nodes tell."""
        if not self._find_unused or len(in_progress()) > 1 or any(isinstance(n, OpaqueNode) for n in sweep.order):
            return set()  # a Function or a checkpoint might run another pass inside it
        coming = {node for node in sweep.order if type(node) is Leaf}
        return {n for n, p in enumerate(self.parameters) if p._node not in coming}  # type: ignore[attr-defined]

    def _open_pass(self, absent: set[int]) -> None:
        self._open = True
        self._next = 0
        self._counts = [0] * len(self.parameters)
        #: Arrivals of this pass, and the parameters that it will not come to.
        self._arrivals: list[int] = []
        self._absent = {n for n, times in enumerate(self._expected) if not times} if self._static else set(absent)
        for number in self._absent:
            self._places[number][0].missing -= 1

    def run_again(self, numbers: Sequence[int], absent: set[int], gradients: Sequence[list[Any]]) -> None:
        """Exchange the ``gradients`` of a backward pass that a graph has run: of the parameters of these numbers, as they arrived."""
        self._check_reducer_finalized()
        if self._open:
            raise ExchangeError(
                "a compiled step that exchanges gradients was called inside a backward pass that exchanges those of the same module: call "
                "it after that"
            )
        try:
            with torch.no_grad():
                self._open_pass(absent)
                for number, buffer in zip(numbers, gradients, strict=True):
                    self._arrive(number, buffer)
                self.settle(outermost=True)
        except BaseException:
            self.abandon()
            raise

    # ------------------------------------------------------------------ 2 leave
    def _leave(self) -> None:
        """Send off the buckets that are full, in their order: the same in all processes."""
        while self._next < len(self.buckets) and self.buckets[self._next].missing <= 0:
            bucket = self.buckets[self._next]
            if not (self._skip_unused and self._absent.issuperset(bucket.numbers)):
                self._fill(bucket)
                bucket.work = self._send(bucket)
            self._next += 1

    def _fill(self, bucket: Bucket) -> None:
        """Put what ``.grad`` is to hold in this process into the bucket, ``.grad`` itself staying as it is."""
        with DisableTorchFunctionSubclass():
            before = [_GRAD.__get__(p) for p in bucket.parameters]
            if self._keep_views and any(map(_is_same, before, bucket.views)):
                bucket.sent = torch.empty_like(bucket.flat)
                bucket.sent_views = views_of(bucket.sent, bucket.parameters)
            fresh: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
            for view, old, new in zip(bucket.sent_views, before, bucket.gradients, strict=True):
                if old is not None and new is not None:
                    torch.add(old, new, out=view)
                elif old is None and new is None:
                    view.zero_()
                else:
                    fresh[0].append(view)
                    fresh[1].append(old if new is None else new)
            if fresh[0]:
                torch._foreach_copy_(*fresh)
            if self._hook is None and self._divide_flat:
                bucket.sent.div_(self._divide_by())
            elif self._hook is None:
                bucket.sent.mul_(1.0 / self._divide_by())

    def _divide_by(self) -> int:
        """The number of processes that still have data, where ``join`` counts them; that of all others otherwise."""
        if self._divisor is None:
            self._divisor = self.group.size()
            if self._joined is not None and not self._joined[1]:
                self._joined[0].wait()
                self._divisor = int(self._joined[0].get_future().value()[0].item())
        return self._divisor

    def _send(self, bucket: Bucket) -> dist.Work | torch.futures.Future[Any]:
        index = self.buckets.index(bucket)
        return self._run_comm_hook(GradBucket(bucket, bucket.sent, index, index == len(self.buckets) - 1))

    def _run_comm_hook(self, bucket: GradBucket) -> Any:
        if self._hook is None:
            return dist.all_reduce(bucket.buffer(), group=self.group, async_op=True)
        state, hook = self._hook
        future = hook(state, bucket)
        if not hasattr(future, "then"):  # the class of those that torch's collectives give has no public name
            raise ExchangeError(
                f"the communication hook {_name_of(hook)} returned {type(future).__name__}: it has to return a torch.futures.Future of the "
                f"tensor that takes the place of bucket.buffer()"
            )
        return future

    # ------------------------------------------------------------------ 3 settle
    def settle(self, outermost: bool) -> bool:
        """Wait for the means, and write them. Raises ``ExchangeError`` for parameters without gradient, unless these are to be found."""
        if not self._open:
            return True
        with torch.no_grad():
            if self._next < len(self.buckets):
                if not outermost:
                    return False
                self._complete()
            used = self._used()
            results = [self._result(bucket) for bucket in self.buckets]
            for future in self._futures:
                future.wait()
            everywhere = self._used_by_any if used is None else self._wait_for_used(*used)
            with DisableTorchFunctionSubclass():
                for bucket, result in zip(self.buckets, results, strict=True):
                    self._write(bucket, result, everywhere)
        self._close()
        return True

    def _complete(self) -> None:
        """What is to be done at the end of a pass in which some bucket has not left."""
        if self._counting:  # the first pass of a static graph: now it is known how often each parameter gets a gradient
            self._expected = self._counts
            self._absent = {number for number, times in enumerate(self._counts) if not times}
        elif self._find_unused and not self._static:
            self._absent.update(number for number, times in enumerate(self._counts) if not times)
        else:
            self._refuse_missing()
        for bucket in self.buckets:
            bucket.missing = 0
        self._leave()

    def _refuse_missing(self) -> None:
        missing = [self.names[n] for n, times in enumerate(self._counts) if times < self._expected[n]]
        self._failed = f"its last backward pass brought no gradient to {named(missing)}"
        raise without_gradient(missing, len(self.names), self._static)

    def _used(self) -> tuple[torch.Tensor, dist.Work] | None:
        """The exchange of which parameters were used at all, where that is not known."""
        if not (self._counting or (self._find_unused and not self._static)):
            return None
        used = self._get_local_used_map()
        used.copy_(torch.tensor([times > 0 for times in self._counts]))
        return used, dist.all_reduce(used, group=self.group, async_op=True)

    def _wait_for_used(self, used: torch.Tensor, work: dist.Work) -> list[bool]:
        self._wait(work)
        everywhere = [times > 0 for times in used.tolist()]
        if self._static:
            self._used_by_any = everywhere
        return everywhere

    def _wait(self, work: Any) -> Any:
        try:
            return work.wait()
        except RuntimeError as error:
            self._failed = "an exchange with them has failed"
            if self._hook is not None:
                raise hook_failed(_name_of(self._hook[1]), error) from error
            raise ExchangeError(
                f"rank {dist.get_rank(self.group)} waited for the other processes in the exchange of gradients, in vain: {error}. One of "
                f"them has raised, ended, or exchanges something else: its own error says why. {RESTART}"
            ) from error

    def _result(self, bucket: Bucket) -> torch.Tensor | None:
        """What has come back for a bucket, of shape (n,); None where nothing was sent."""
        if bucket.work is None:
            return None
        result = self._wait(bucket.work)
        if self._hook is None:
            return bucket.sent
        result = result[0] if isinstance(result, list | tuple) else result
        if not isinstance(result, torch.Tensor) or result.numel() != bucket.sent.numel():
            shape = f"shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
            raise ExchangeError(
                f"the communication hook gave {shape} for a bucket of shape {tuple(bucket.sent.shape)}: the future has to hold one tensor "
                f"of that shape"
            )
        return result.reshape(-1)

    def _write(self, bucket: Bucket, result: torch.Tensor | None, everywhere: list[bool] | None) -> None:
        """Write the means into ``.grad``. A parameter that no process has used keeps what it has."""
        if result is None:
            return
        views = bucket.sent_views if result is bucket.sent else views_of(result, bucket.parameters)
        into: list[torch.Tensor] = []
        means: list[torch.Tensor] = []
        for i, number in enumerate(bucket.numbers):
            if everywhere is not None and not everywhere[number] and not self._counts[number]:
                continue
            parameter, view = bucket.parameters[i], views[i]
            grad = _GRAD.__get__(parameter)
            if self._keep_views:
                target = bucket.views[i]
            elif grad is not None:
                target = grad
            else:
                own_grad = bucket.gradients[i]
                target = torch.empty_like(parameter, requires_grad=False) if own_grad is None else own_grad
            if target is not view:
                into.append(target)
                means.append(view)
            if target is not grad and not (self._keep_views and _is_same(grad, target)):
                _GRAD.__set__(parameter, target)
        if into:
            torch._foreach_copy_(into, means)

    def _close(self) -> None:
        if not (self._rebuilt or self._counting or self._order):
            self._order = self._arrivals + sorted(self._absent)
        for bucket in self.buckets:
            bucket.clear()
        self._open = self._counting = False
        self._settled = True
        self.passes.closed()
        self._divisor = None
        self._futures = []

    def abandon(self) -> None:
        """The pass has raised: what has left cannot be called back."""
        if self._open and self._failed is None:
            self._failed = "its last backward pass has raised, and the others wait for gradients of it"
        for bucket in self.buckets:
            bucket.gradients = [None] * len(bucket.numbers)

    # ------------------------------------------------------------------ what torch's DistributedDataParallel asks for besides
    def register_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Let ``hook(state, bucket)`` exchange the buckets from now on. Raises ``ExchangeError`` for a second one."""
        if self._hook is not None:
            raise ExchangeError("a communication hook is registered already: torch too takes one, once")
        self._hook = (state, hook)

    def _set_static_graph(self) -> None:
        if self._settled:
            raise ExchangeError(
                "static_graph was set after a backward pass: pass static_graph=True when the module is wrapped, in all processes"
            )
        self._static = self._counting = True
        self._rebuilt = False

    def _set_forward_pass_work_handle(self, work: dist.Work, by_all: bool) -> None:
        self._joined = (work, by_all)

    def _install_post_backward_futures(self, futures: Iterable[torch.futures.Future[Any]]) -> None:
        self._futures.extend(futures)

    def _get_zeros_like_grad_buckets(self) -> list[GradBucket]:
        last = len(self.buckets) - 1
        return [GradBucket(b, torch.zeros_like(b.flat), i, i == last) for i, b in enumerate(self.buckets)]

    def _get_local_used_map(self) -> torch.Tensor:
        return torch.zeros(len(self.parameters), dtype=torch.int32, device=self.parameters[0].device)

    def _push_all_rebuilt_params(self) -> None:
        """A process without data has met no gradient, and takes part in the rebuilding all the same."""
        if not (self._rebuilt or self._order):
            self._order = list(range(len(self.parameters)))

    def _run_allreduce_hook(self, bucket: GradBucket) -> torch.futures.Future[Any]:
        return dist.all_reduce(bucket.buffer(), group=self.group, async_op=True).get_future()

    def _remove_autograd_hooks(self) -> None:
        for p in self.parameters:
            if _extras(p).taker is self._reference:
                _extras(p).taker = None

    def _reset_state(self) -> None:
        for bucket in self.buckets:
            bucket.clear()
        self._open = self.passes.waiting = False
        self._failed = self._divisor = None
        self._rebuilt, self._order = self._find_unused and not self._static, []

    def _update_process_group(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Times are not sampled."""


def _extras(parameter: Any) -> Any:
    return parameter._node.extra()


def _is_same(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether the gradient is that view, or another of the same memory."""
    return gradient is not None and (gradient is view or gradient.data_ptr() == view.data_ptr() != 0)


def _name_of(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__)
