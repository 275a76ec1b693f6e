"""Arguments drawn from an op's signature: tensors of shapes that fit each other, in every layout, and numbers beside them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ops_registry.rule import Rule
from ops_registry.signatures import is_custom
from ops_registry.torch_private import overload_schema, schemas, tree_leaves


class Choices(Protocol):
    """Where choices come from: hypothesis, or a random number generator."""

    def integer(self, low: int, high: int) -> int:
        """Between both, inclusive."""

    def choice(self, options: Sequence[Any]) -> Any:
        """One of them."""


class RandomChoices(Choices):
    """Choices of a random number generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


Shape = tuple[int, ...]


def broadcastable(
    choices: Choices, count: int, max_rank: int = 4, sizes: Sequence[int] = (0, 1, 1, 2, 3)
) -> list[Shape]:
    """``count`` shapes that broadcast together, of any rank, axes of length 0 and 1 among them."""
    full = [choices.choice(sizes) for _ in range(choices.integer(0, max_rank))]
    found = []
    for _ in range(count):
        rank = choices.integer(0, len(full))
        kept = full[len(full) - rank :]
        found.append(tuple(1 if size != 0 and choices.integer(0, 1) else size for size in kept))
    return found


def _same(choices: Choices, count: int) -> list[Shape]:
    return [tuple(choices.choice((0, 1, 2, 3, 3)) for _ in range(choices.integer(0, 4)))] * count


def _square(choices: Choices, count: int) -> list[Shape]:
    size, batch = choices.integer(1, 4), (2,) * choices.integer(0, 1)
    return [(*batch, size, size)] * count


def _product(choices: Choices, count: int) -> list[Shape]:
    m, k, n = (choices.integer(1, 4) for _ in range(3))
    batch = (2,) * choices.integer(0, 1)
    return [(*batch, m, k), (*batch, k, n), *[(m, n)] * (count - 2)][:count]


#: How the shapes of the tensor arguments fit each other.
FAMILIES: dict[str, Callable[[Choices, int], list[Shape]]] = {
    "broadcast": broadcastable,
    "same": _same,
    "square": _square,
    "product": _product,
}

#: Where the values are drawn from: the first range in which the op gives finite results.
DOMAINS = ((-2.0, 2.0), (0.1, 0.9), (1.1, 2.5))


def make_tensor(choices: Choices, shape: Shape, domain: tuple[float, float], position: int = 0) -> torch.Tensor:
    """A float64 tensor of uniform values that lies contiguous, transposed, with gaps or expanded in memory.

    Those at different positions of a call never have the same values, which would be ties.
    """
    generator = torch.Generator().manual_seed(64 * choices.integer(0, 1 << 16) + position)
    low, high = domain

    def values(*size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64) * (high - low) + low

    layout = choices.choice(("contiguous", "contiguous", "transposed", "gaps", "expanded"))
    if layout == "transposed" and len(shape) > 1:
        return values(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "gaps" and shape:
        return values(*shape, 2)[..., 0]
    if layout == "expanded" and shape and shape[0] > 1:
        return values(1, *shape[1:]).expand(shape)
    return values(*shape)


class UnguessableError(Exception):
    """An argument that the signature alone does not say how to choose."""


@dataclass(frozen=True, eq=False)
class DrawingPlan:
    """One way to draw arguments that the op takes."""

    schema: Any
    family: str
    domain: tuple[float, float]

    def draw(self, choices: Choices) -> dict[str, Any]:
        """Arguments by name."""
        arguments = [
            a
            for a in self.schema.arguments
            if not (a.alias_info is not None and a.alias_info.is_write and a.kwarg_only)
        ]
        own = [a.name for a in arguments]
        names = ["input" if n == "self" and "input" not in own else n for n in own]
        wanted = [n for n, a in zip(names, arguments, strict=True) if str(a.type) == "Tensor"]
        lists = [n for n, a in zip(names, arguments, strict=True) if str(a.type) == "List[Tensor]"]
        count = len(wanted) + 2 * len(lists)
        shapes = FAMILIES[self.family](choices, count)
        values: dict[str, Any] = {}
        rank = max(map(len, shapes), default=0) if len(wanted) != 1 else len(shapes[0])
        for name, argument in zip(names, arguments, strict=True):
            if name in wanted:
                values[name] = self._tensor(choices, name, shapes.pop(0), 2 * len(values))
            elif name in lists:
                values[name] = [self._tensor(choices, name, shapes.pop(0), 2 * len(values) + k) for k in range(2)]
            elif not argument.has_default_value():
                values[name] = _required(choices, name, str(argument.type), rank)
            elif name in ("keepdim", "alpha", "beta") and choices.integer(0, 1):
                values[name] = True if name == "keepdim" else 0.5
        return values

    def _tensor(self, choices: Choices, name: str, shape: Shape, position: int) -> torch.Tensor:
        made = make_tensor(choices, shape, self.domain, position)
        if name in ("mask", "condition"):
            return made > sum(self.domain) / 2
        if name in ("index", "indices", "grid"):
            raise UnguessableError(name)
        return made


def _required(choices: Choices, name: str, kind: str, rank: int) -> Any:
    """A value for an argument without default."""
    if name in ("dtype", "layout", "memory_format", "device"):
        raise UnguessableError(name)  # their schema says that they are integers, and torch believes any
    if kind in ("number", "float", "Scalar"):
        return choices.choice((0.5, 2.0, -1.5, 3))
    if kind == "bool":
        return bool(choices.integer(0, 1))
    if kind == "int" and name.startswith("dim"):
        return choices.integer(-max(rank, 1), max(rank, 1) - 1)
    if kind == "int":
        return choices.choice((0, 1, 2, -1))
    if kind in ("List[int]", "Optional[List[int]]") and name.startswith("dim"):
        return [i for i in range(rank) if choices.integer(0, 1)]
    if kind.startswith("Optional["):
        return None
    raise UnguessableError(f"{name}: {kind}")


def schemas_of(func: Callable[..., Any], rule: Rule) -> list[Any]:
    """The schemas of the op's overloads that write into nothing; none for an op that torch has no schema of."""
    if isinstance(func, torch._ops.OpOverload):
        return [overload_schema(func)]
    packet = func if is_custom(func) else getattr(torch.ops.aten, rule.name, None)
    if packet is None:
        return []
    found = [
        (name, s)
        for name, s in schemas(packet).items()
        if all(a.name == "self" or a.name in rule.signature.names for a in s.arguments)
    ]
    return [
        s
        for name, s in found
        if "out" not in name and "Dimname" not in str(s) and "Generator" not in str(s.arguments[-1].type)
    ]


def drawing_plans(func: Callable[..., Any], rule: Rule, call: Callable[[dict[str, Any]], Any]) -> list[DrawingPlan]:
    """The ways of drawing arguments that ``call``, the op on plain tensors, takes and gives finite results for."""
    found = []
    for schema in schemas_of(func, rule):
        for family in FAMILIES:
            for domain in DOMAINS:
                plan = DrawingPlan(schema, family, domain)
                if _works(plan, call):
                    found.append(plan)
                    break
    return found


def _works(plan: DrawingPlan, call: Callable[[dict[str, Any]], Any]) -> bool:
    useful = 0
    for seed in range(12):
        try:
            results = tree_leaves(call(plan.draw(RandomChoices(seed))))
        except UnguessableError:
            return False
        except Exception:
            continue
        floating = [r for r in results if isinstance(r, torch.Tensor) and (r.is_floating_point() or r.is_complex())]
        if not all(bool(r.isfinite().all()) for r in floating if r.layout == torch.strided):
            return False
        useful += any(r.numel() for r in results if isinstance(r, torch.Tensor))
    return useful >= 2
