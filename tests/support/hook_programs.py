"""Random programs with hooks everywhere, written to a log: the same program runs on torch's own tensors and on tracked ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

Named = tuple[torch.Tensor, str]
Log = list[tuple[Any, ...]]


def run_program(seed: int, leaf: Callable[..., torch.Tensor], inputs: bool) -> tuple[Log, list[Any]]:
    """What the hooks of program number ``seed`` saw, and every ``.grad`` afterwards. ``inputs``: backward is asked for two leaves only.

    Of several results of one call one alone gets hooks: torch runs those of all in one go, we as each result is visited.
    """
    rnd = random.Random(seed)
    leaves = [(leaf(rnd.random(), rnd.random()), f"leaf {i}") for i in range(4)]
    results = _results(rnd, leaves)
    hooked = leaves + [(value, name) for value, name in results if name.endswith(".0")]
    log: Log = []
    for number in range(rnd.randint(1, 6)):
        _hook(rnd, log, number, hooked)
    loss: Any = sum((value * 1.0).sum() for value, _ in rnd.sample(results, min(2, len(results))))
    loss.backward(inputs=[value for value, _ in rnd.sample(leaves, 2)] if inputs else None)
    kept = [_rounded(value.grad) for value, _ in leaves + results if value.is_leaf or value.retains_grad]
    return log, kept


def _results(rnd: random.Random, leaves: list[Named]) -> list[Named]:
    values, results = [value for value, _ in leaves], []
    for step in range(rnd.randint(2, 8)):
        made = rnd.choice(_CALLS)(rnd.choice(values), rnd.choice(values))
        values += made
        results += [(value, f"result {step}.{i}") for i, value in enumerate(made)]
    return results


_CALLS: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda a, b: [a * b],
    lambda a, b: [a + b],
    lambda a, b: [a.exp()],
    lambda a, b: torch.stack([a, b]).unbind(),
]


def _hook(rnd: random.Random, log: Log, number: int, values: list[Named]) -> None:
    tensor, name = rnd.choice(values)
    kind = rnd.choice(["see", "double", "retain", "before", "after", "accumulated", "all", "any"])
    label = f"{kind} {number} {name}"

    def see(*seen: Any) -> None:
        log.append((label, _rounded(seen[-1])))

    def scaled(seen: Any) -> Any:
        see(seen)
        if isinstance(seen, tuple):
            return tuple([None if g is None else g * 3 for g in seen])
        return None if seen is None else seen * 2

    node: Any = tensor.grad_fn
    if kind in ("see", "double"):
        tensor.register_hook(see if kind == "see" else scaled)
    elif kind in ("all", "any"):
        some = [value for value, _ in rnd.sample(values, 3)]
        register_multi_grad_hook(some, see, mode=kind)  # type: ignore[arg-type]
    elif kind == "accumulated" and tensor.is_leaf:
        tensor.register_post_accumulate_grad_hook(lambda t: see(t.grad))
    elif kind == "retain" and not tensor.is_leaf:
        tensor.retain_grad()
    elif kind == "before" and not tensor.is_leaf:
        node.register_prehook(scaled)
    elif kind == "after" and not tensor.is_leaf:
        node.register_hook(see)


def _rounded(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return [_rounded(v) for v in value]
    return [round(v, 6) for v in value.flatten().tolist()]
