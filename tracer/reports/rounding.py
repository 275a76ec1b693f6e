"""Gradients that are 0 but for rounding: a bias before a norm layer, a shift before a softmax, a scale that is divided out again.

Rounding is what is left where much larger parts cancel. So one pass over the gradients finds those that may be rounding: what is much
smaller than what it was made of, and what is made of that. Some elements of each of these are kept.

A gradient is linear in the gradient of the loss; what rounding has left of a sum that cancels is not. So where a leaf may have such a
gradient, a second pass is run from another weight of the loss, and what does not keep to the ratio is rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from ops_registry.torch_private import DisableTorchFunctionSubclass
from tracer.backprop.accumulate import leaving_grad_alone
from tracer.backprop.replay import Replay
from tracer.functions.function_node import FunctionNode
from tracer.graph import Graph
from tracer.node import CallNode, Node, OpaqueNode, Output, flat
from tracer.reports.badness import values_in
from tracer.reports.gradient_births import has_hooks
from tracer.reports.steps import pairs

#: Other weights of the loss: no powers of 2, by which all roundings would come out the same. The second is for gradients of a few
#: elements, where roundings may keep to one ratio by chance.
_OTHER_WEIGHTS, _FEW = (0.7364, 1.9), 4
#: What differs by so much of itself is mostly rounding: others keep to the ratio in all digits but the last ones.
_MOSTLY = 0.1
#: Beside the largest gradient, or that of the loss, one has to be this small to be told as zero.
_PART = 1e-2
#: Of a gradient so many elements are compared; in a graph of more calls none are.
_ELEMENTS, _CALLS = 64, 20_000

#: The numbers of a call and of one of its parents, for what went on to it; twice the same number for what came.
Key = tuple[int, int]


class Seen(NamedTuple):
    """A gradient, what it is for, and how large it is. A result that is gone has no node."""

    node: Node | None
    grad: torch.Tensor
    size: float


class Sample(NamedTuple):
    """Some elements of a gradient, and where they stand, unless at equal distances."""

    elements: torch.Tensor
    places: torch.Tensor | None


def doubts_of(order: Sequence[Node]) -> Doubts | None:
    """To look at a backward pass with; None where the graph is long, or where the user's own code may bend what is linear."""
    return None if len(order) > _CALLS or any(_may_bend(node) for node in order) else Doubts()


def _may_bend(node: Node) -> bool:
    if isinstance(node, FunctionNode) or has_hooks(node):
        return True
    return node.extras is not None and bool(node.extras.post_hooks)


class Doubts:
    """Which gradients of one backward pass may be rounding and nothing else."""

    def __init__(self) -> None:
        #: Some elements of each that may be.
        self.samples: dict[Key, Sample] = {}
        #: Where what came is much smaller than the parts that it is the sum of.
        self.cancelled: set[int] = set()
        #: By the number of a call with several results: those that a gradient came for.
        self.results: dict[int, list[int]] = {}
        #: By serial number: the key of what came, which is that of what was sent where that was one part.
        self._keys: dict[int, Key] = {}
        #: By serial number: who has sent parts to it, how large the largest is, and the largest of those that may be rounding.
        self._sent: dict[int, tuple[list[int], float, float]] = {}

    def at(self, serial: int) -> Key:
        """The key of what came to the node of this number."""
        return self._keys.get(serial, (serial, serial))

    def look_at(self, node: Node, came: Sequence[Seen], went: Sequence[Seen]) -> None:
        """Take note of what came to a call, for each of its results, and of what went on from it to its inputs."""
        doubtful, size, count, little = False, 0.0, 0, 0.0
        for one, grad, part in came:
            if 0 < part < math.inf:
                doubtful |= one is not None and self._arrives(one, grad, part)
                size, count = math.hypot(size, part), count + grad.numel()
                little = max(little, _little(grad.dtype))
                if one is not None and one is not node:
                    self.results.setdefault(node.serial, []).append(one.serial)
        for one, grad, part in went:
            assert one is not None
            if not (0 < part < math.inf and size):
                continue
            doubted = doubtful or _falls(part, grad.numel(), size, count) < max(little, _little(grad.dtype))
            if doubted:
                self._keep((node.serial, one.serial), grad)
            senders, largest, largest_doubted = self._sent.get(one.serial, ([], 0.0, 0.0))
            senders.append(node.serial)
            self._sent[one.serial] = senders, max(largest, part), max(largest_doubted, part if doubted else 0.0)

    def _arrives(self, node: Node, grad: torch.Tensor, size: float) -> bool:
        """Whether what came to a node may be rounding: its parts are, or they cancel."""
        senders, largest, doubted = self._sent.pop(node.serial, ((), 0.0, 0.0))
        if len(senders) == 1:
            self._keys[node.serial] = senders[0], node.serial
            return bool(doubted)
        little = _little(grad.dtype)
        if size < little * largest:
            self.cancelled.add(node.serial)
        elif doubted < little * size or not doubted:
            return False
        self._keep((node.serial, node.serial), grad)
        return True

    def _keep(self, key: Key, grad: torch.Tensor) -> None:
        sample = _sample(grad)
        if sample is not None:
            self.samples[key] = sample

    def suspects(self, nodes: Sequence[Node], norms: Mapping[int, float]) -> list[Node]:
        """Those of the nodes whose gradient may be rounding and is small."""
        most = _PART * max(*norms.values(), 1.0)
        return [n for n in nodes if self.at(n.serial) in self.samples and 0 < norms.get(n.serial, 0.0) < most]


@cache
def _little(dtype: torch.dtype) -> float:
    """The part of what it is made of that a gradient has to be below: far above rounding, for what cancels may be scaled up as well."""
    return torch.finfo(dtype).eps ** (1 / 3)


def _falls(size: float, many: int, before: float, count: int) -> float:
    """How small a gradient of ``many`` elements is beside one of ``count`` that it was made of: in its elements, or in all together.

    A mean is smaller in its elements alone. One number that is made of another is no sum.
    """
    ratio = math.sqrt(many / count)
    return math.inf if many == count == 1 else size / before * max(ratio, 1 / ratio)


def made_by(loss: torch.Tensor, order: Sequence[Node], doubts: Doubts, suspects: Sequence[Node]) -> dict[int, Node]:
    """Where gradients became rounding, by the number of what they came for: the call that passed such a one on and that none came to.

    ``order`` is that of the backward pass; empty where no gradient of the suspects is rounding.
    """
    rounded: set[Key] = set()
    asked = {doubts.at(node.serial): node for node in suspects}
    for weight in _OTHER_WEIGHTS:
        if asked:
            rounded |= _out_of_ratio(doubts.samples, _samples_at(loss, order[0], asked, weight, doubts.samples), weight)
            asked = {k: n for k, n in asked.items() if k not in rounded and len(doubts.samples[k].elements) <= _FEW}
    found: dict[int, Node] = {}
    if all(doubts.at(node.serial) not in rounded for node in suspects):
        return found
    for node in order:  # newest first: each knows what its users have sent
        serial = node.serial
        came = all(doubts.at(one) in rounded for one in doubts.results.get(serial, (serial,)))
        if came and (serial not in found or serial in doubts.cancelled):
            found[serial] = node
        for parent in flat(node.parents):
            if (serial, parent.serial) in rounded or (came and isinstance(node, Output)):
                found.setdefault(parent.serial, found[serial] if came else node)
    return found


def _samples_at(
    loss: torch.Tensor, root: Node, asked: Mapping[Key, Node], weight: float, samples: Mapping[Key, Sample]
) -> dict[Key, torch.Tensor]:
    """The same elements in a backward pass from another weight of the loss, of what leads to the nodes asked about."""
    with DisableTorchFunctionSubclass():
        seed = torch.full_like(loss, weight, requires_grad=False).as_subclass(torch.Tensor)
    sweep = _Again(samples)
    with Graph(), leaving_grad_alone():
        found = sweep.run([(root, seed)], set(asked.values()))
    for key, node in asked.items():
        if key not in sweep.noted and node in found:
            sweep.note(key, found[node])
    return sweep.noted


class _Again(Replay):
    """The same backward pass, of which the elements are kept that are known of another one."""

    watched = True

    def __init__(self, samples: Mapping[Key, Sample]) -> None:
        super().__init__({})
        self._samples = samples
        self.noted: dict[Key, torch.Tensor] = {}

    def note(self, key: Key, grad: Any) -> None:
        before = self._samples.get(key)
        sample = None if before is None or not isinstance(grad, torch.Tensor) else _sample(grad, before.places)
        if sample is not None:
            self.noted[key] = sample.elements

    def _hand_on(self, node: CallNode | OpaqueNode, grad: Any, grad_inputs: dict[int, Any]) -> None:
        for index, part in enumerate(grad if isinstance(grad, tuple) else (grad,)):
            result = node.at(index)
            if result is not None:
                self.note((result.serial, result.serial), part)
        for position, passed_on in grad_inputs.items():
            for parent, part in pairs(node.parents[position], passed_on):
                self.note((node.serial, parent.serial), part)
        super()._hand_on(node, grad, grad_inputs)


def _sample(grad: torch.Tensor, places: torch.Tensor | None = None) -> Sample | None:
    """Some elements; where they stand, if those at equal distances are 0."""
    plain = values_in(grad)
    if plain is None or not plain.numel():
        return None
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    elements = plain.reshape(-1)
    every = -(-elements.numel() // _ELEMENTS)
    if places is not None:
        return Sample(elements[places], places)
    if every == 1:
        return Sample(elements.clone(), None)
    some = elements[::every].clone()
    if not some.any():
        places = elements.nonzero().reshape(-1)
        places = places[:: -(-places.numel() // _ELEMENTS)]
        some = elements[places]
    return Sample(some, places)


def _out_of_ratio(ones: Mapping[Key, Sample], others: Mapping[Key, torch.Tensor], weight: float) -> set[Key]:
    """Of which gradients the elements do not keep to the ratio of the weights of the loss."""
    keys = [key for key, other in others.items() if other.shape == ones[key].elements.shape]
    if not keys:
        return set()
    one = torch.cat([ones[key].elements.cpu() for key in keys]).double() * weight
    other = torch.cat([others[key].cpu() for key in keys]).double()
    lengths = torch.tensor([len(others[key]) for key in keys])
    row = torch.repeat_interleave(torch.arange(len(keys)), lengths)
    off, size = (torch.zeros(len(keys)).double().scatter_reduce(0, row, v.abs(), "amax") for v in (other - one, one))
    return {key for key, out in zip(keys, (off > _MOSTLY * size).tolist(), strict=True) if out}
