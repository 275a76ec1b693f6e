"""Arguments taken from torch's own operator database: the calls that its samples lead to, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ops_registry.binding import Spelling
from ops_registry.registry import TABLE
from ops_registry.rule import Rule
from ops_registry.spellings import canonical
from ops_registry.torch_private import (
    DisableTorchFunctionSubclass,
    is_torch_function_enabled,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from tracer.checks.leaves import can_have_gradient, plain, requiring_grad, tensors_of, twin
from tracer.checks.op_database import listed_ops, samples_of
from tracer.checks.rules.handmade_samples import handmade_samples
from tracer.checks.rules.samples import Sample, named
from tracer.recording.python_functions import redispatch
from tracer.tracked_tensor import Tensor, track

#: What the arguments of a sample are made of, apart from lists and tuples.
_ARGUMENTS = (
    torch.Tensor,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
    slice,
)

#: No sample has a tensor of more elements.
LARGEST = 2000

#: The layouts of the tensors of a sample.
LAYOUTS = (torch.strided, torch.sparse_coo)


def database() -> Sequence[Any]:
    """torch's operators with sample inputs; none where what they need is not installed."""
    try:
        return listed_ops()
    except ImportError:
        return ()


def _plain_name(name: str) -> str:
    name = name.removeprefix("nn.functional.").replace(".", "_")
    return canonical(name.strip("_"))


def entries_for(rule: Rule) -> list[Any]:
    """The operators of the database that are likely to call the op: by name, without the ``_backward`` of a kernel."""
    wanted = rule.name.split(".")[0].strip("_").removesuffix("_data").removesuffix("_backward")
    names = {canonical(wanted), wanted, wanted.removeprefix("native_"), wanted.removesuffix("_with_indices")}
    return [e for e in database() if names & {_plain_name(e.name), *(_plain_name(a.name) for a in e.aliases)}]


class Harvest(TorchFunctionMode):
    """The calls that samples of the database lead to, in the forward and in the recorded backward pass, by rule."""

    def __init__(self, per_rule: int, only: Iterable[str] | None = None) -> None:
        super().__init__()
        self.per_rule = per_rule
        self.only = None if only is None else set(only)
        self.samples: dict[str, list[Sample]] = {}
        self._seen: set[tuple[str, str]] = set()

    def run(self, entries: Iterable[Any], per_entry: int) -> Harvest:
        """Go through up to ``per_entry`` samples of each operator in float64, evenly spread over the first forty."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for entry in entries:
                try:
                    listed = list(islice(samples_of(entry, "cpu", torch.float64), 40))
                except Exception:
                    continue
                for sample in listed[:: max(1, len(listed) // per_entry)][:per_entry]:
                    self._run_sample(entry.op, sample)
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_torch_function_enabled():
            return func(*args, **kwargs)
        # torch turns a mode off while it handles a call; where a call leads to others, these are to be seen too: ``with self``.
        if Tensor not in types:
            if not isinstance(func, FunctionType):
                return func(*args, **kwargs)
            with self:  # a function written in Python does not look into a list of tensors
                return redispatch(func, types, args, kwargs)
        with DisableTorchFunctionSubclass():
            spelling = self._note(func, args, kwargs)
        if spelling is not None and spelling.rule.decomposition is None:
            return func(*args, **kwargs)  # one kernel
        with self:
            return Tensor.__torch_function__(func, types, args, kwargs)

    def _run_sample(self, op: Callable[..., Any], sample: Any) -> None:
        """Call the op on tracked tensors, and differentiate it twice."""
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tracked = [track(twin(v), True) if can_have_gradient(v) else v for v in leaves]
        inputs = [t for t in tracked if isinstance(t, Tensor)]
        args, kwargs = tree_unflatten(tracked, spec)
        try:
            torch.manual_seed(0)
            with self:
                results = requiring_grad(op(*args, **kwargs))
                # Tracked too: the formula of a linear op sees no other tensor.
                cotangents = [track(torch.randn_like(plain(r)), True) for r in results]
                first = torch.autograd.grad(results, inputs, cotangents, create_graph=True, allow_unused=True)
                again = [g for g in first if g is not None and g.requires_grad]
                if again:
                    seeds = [torch.randn_like(plain(g)) for g in again]
                    torch.autograd.grad(again, [*inputs, *cotangents], seeds, allow_unused=True)
        except Exception:  # who refuses what is for the conformance command
            return

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Spelling | None:
        """Take the arguments of a call of a rule; which spelling of the rule it is, where there is one."""
        spelling = TABLE.get(func)
        if spelling is None:
            return None
        try:
            if spelling.choose is not None:
                spelling = spelling.choose(args, kwargs)
                assert spelling is not None  # no scope is in force here
            values = named(spelling, args, kwargs)
        except Exception:  # arguments that the op does not take: the call will say so
            return None
        if not spelling.inplace or spelling.rule.name.endswith("_"):
            self._add(spelling.rule.name, values)
        return spelling

    def _add(self, name: str, values: dict[str, Any]) -> None:
        if (self.only is not None and name not in self.only) or len(self.samples.get(name, ())) >= self.per_rule:
            return
        leaves = tree_leaves(values)
        if not all(isinstance(v, _ARGUMENTS) for v in leaves):
            return
        if any(t.numel() > LARGEST or t.layout not in LAYOUTS for t in tensors_of(leaves)):
            return
        sample = Sample(tree_map(lambda v: twin(v) if isinstance(v, torch.Tensor) else v, values), "database")
        key = (name, str(sample))
        if key not in self._seen:
            self._seen.add(key)
            self.samples.setdefault(name, []).append(sample)


def from_database(rule: Rule, limit: int) -> Iterator[Sample]:
    """Calls of the op that the samples of the operators of its name lead to."""
    harvest = Harvest(limit, {rule.name}).run(entries_for(rule), limit)
    yield from harvest.samples.get(rule.name, ())
    yield from (Sample(values, "table") for values in handmade_samples(rule.name))
