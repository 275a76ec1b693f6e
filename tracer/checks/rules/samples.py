"""Arguments to check a rule with: drawn from the op's signature, or taken from torch's own operator database."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from ops_registry.binding import Spelling, gather_varargs
from ops_registry.registry import TABLE
from ops_registry.rule import Rule
from ops_registry.signatures import NUMPY_NAMES, is_custom
from ops_registry.spellings import canonical
from ops_registry.torch_private import DisableTorchFunctionSubclass, overload_schema, schemas
from tracer.checks.derivatives import plain, twin
from tracer.checks.rules.handmade_samples import made

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


@dataclass(frozen=True)
class Sample:
    """Arguments of one call, by the names of the rule's signature; those left out take their defaults."""

    values: dict[str, Any]
    #: ``"given"``, ``"derived"``, ``"database"`` or ``"table"``.
    source: str

    @property
    def size(self) -> int:
        """How many elements its tensors have."""
        return sum(t.numel() for t in tree_leaves(self.values) if isinstance(t, torch.Tensor))

    def __str__(self) -> str:
        return ", ".join(f"{name}={tree_map(_shown, value)}" for name, value in self.values.items())


class _Text(str):
    """Text that shows without quotation marks inside a list."""

    def __repr__(self) -> str:
        return str(self)


def _shown(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    layout = "" if value.is_contiguous() else f", strides {list(value.stride())}"
    return _Text(f"{str(value.dtype)[6:]}{list(value.shape)}{layout}")


# ---------------------------------------------------------------------------------------------- calls
def named(spelling: Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call gives, by the names of the rule's signature."""
    if spelling.varargs:
        args = gather_varargs(args)
    values = dict(zip(spelling.order, args, strict=False))
    for name, value in kwargs.items():
        known = (
            "input"
            if name == "self"
            else name
            if name in spelling.rule.signature.names
            else NUMPY_NAMES.get(name, name)
        )
        values[known] = value
    return values


def arranged(spelling: Spelling, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in one spelling: by position as far as they go, then by name."""
    left = dict(values)
    args = []
    keyword_only = spelling.rule.signature.keyword_only
    for name in spelling.order:
        if name not in left or name in keyword_only:
            break
        args.append(left.pop(name))
    return tuple(args), left


# ---------------------------------------------------------------------------------------------- derived from the signature
class Dice(Protocol):
    """Where choices come from: hypothesis, or a random number generator."""

    def integer(self, low: int, high: int) -> int:
        """Between both, inclusive."""

    def choice(self, options: Sequence[Any]) -> Any:
        """One of them."""


class RandomDice:
    """Choices of a random number generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


class HypothesisDice:
    """Choices of hypothesis: ``draw`` is what a composite strategy gets."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        from hypothesis import strategies

        self.draw, self.strategies = draw, strategies

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(self.strategies.integers(low, high)))

    def choice(self, options: Sequence[Any]) -> Any:
        return self.draw(self.strategies.sampled_from(options))


Shape = tuple[int, ...]


def broadcastable(dice: Dice, count: int, max_rank: int = 4, sizes: Sequence[int] = (0, 1, 1, 2, 3)) -> list[Shape]:
    """``count`` shapes that broadcast together, of any rank, axes of length 0 and 1 among them."""
    full = [dice.choice(sizes) for _ in range(dice.integer(0, max_rank))]
    found = []
    for _ in range(count):
        rank = dice.integer(0, len(full))
        kept = full[len(full) - rank :]
        found.append(tuple(1 if size != 0 and dice.integer(0, 1) else size for size in kept))
    return found


def _same(dice: Dice, count: int) -> list[Shape]:
    return [tuple(dice.choice((0, 1, 2, 3, 3)) for _ in range(dice.integer(0, 4)))] * count


def _square(dice: Dice, count: int) -> list[Shape]:
    size, batch = dice.integer(1, 4), (2,) * dice.integer(0, 1)
    return [(*batch, size, size)] * count


def _product(dice: Dice, count: int) -> list[Shape]:
    m, k, n = (dice.integer(1, 4) for _ in range(3))
    batch = (2,) * dice.integer(0, 1)
    return [(*batch, m, k), (*batch, k, n), *[(m, n)] * (count - 2)][:count]


#: How the shapes of the tensor arguments fit each other.
FAMILIES: dict[str, Callable[[Dice, int], list[Shape]]] = {
    "broadcast": broadcastable,
    "same": _same,
    "square": _square,
    "product": _product,
}

#: Where the values are drawn from: the first range in which the op gives finite results.
DOMAINS = ((-2.0, 2.0), (0.1, 0.9), (1.1, 2.5))


def make_tensor(dice: Dice, shape: Shape, domain: tuple[float, float], position: int = 0) -> torch.Tensor:
    """A float64 tensor of uniform values that lies contiguous, transposed, with gaps or expanded in memory.

    Those at different positions of a call never have the same values, which would be ties.
    """
    generator = torch.Generator().manual_seed(64 * dice.integer(0, 1 << 16) + position)
    low, high = domain

    def values(*size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64) * (high - low) + low

    layout = dice.choice(("contiguous", "contiguous", "transposed", "gaps", "expanded"))
    if layout == "transposed" and len(shape) > 1:
        return values(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "gaps" and shape:
        return values(*shape, 2)[..., 0]
    if layout == "expanded" and shape and shape[0] > 1:
        return values(1, *shape[1:]).expand(shape)
    return values(*shape)


class Unguessable(Exception):
    """An argument that the signature alone does not say how to choose."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One way to draw arguments that the op takes."""

    schema: Any
    family: str
    domain: tuple[float, float]

    def draw(self, dice: Dice) -> dict[str, Any]:
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
        shapes = FAMILIES[self.family](dice, count)
        values: dict[str, Any] = {}
        rank = max(map(len, shapes), default=0) if len(wanted) != 1 else len(shapes[0])
        for name, argument in zip(names, arguments, strict=True):
            if name in wanted:
                values[name] = self._tensor(dice, name, shapes.pop(0), 2 * len(values))
            elif name in lists:
                values[name] = [self._tensor(dice, name, shapes.pop(0), 2 * len(values) + k) for k in range(2)]
            elif not argument.has_default_value():
                values[name] = _required(dice, name, str(argument.type), rank)
            elif name in ("keepdim", "alpha", "beta") and dice.integer(0, 1):
                values[name] = True if name == "keepdim" else 0.5
        return values

    def _tensor(self, dice: Dice, name: str, shape: Shape, position: int) -> torch.Tensor:
        made = make_tensor(dice, shape, self.domain, position)
        if name in ("mask", "condition"):
            return made > sum(self.domain) / 2
        if name in ("index", "indices", "grid"):
            raise Unguessable(name)
        return made


def _required(dice: Dice, name: str, kind: str, rank: int) -> Any:
    """A value for an argument without default."""
    if name in ("dtype", "layout", "memory_format", "device"):
        raise Unguessable(name)  # their schema says that they are integers, and torch believes any
    if kind in ("number", "float", "Scalar"):
        return dice.choice((0.5, 2.0, -1.5, 3))
    if kind == "bool":
        return bool(dice.integer(0, 1))
    if kind == "int" and name.startswith("dim"):
        return dice.integer(-max(rank, 1), max(rank, 1) - 1)
    if kind == "int":
        return dice.choice((0, 1, 2, -1))
    if kind in ("List[int]", "Optional[List[int]]") and name.startswith("dim"):
        return [i for i in range(rank) if dice.integer(0, 1)]
    if kind.startswith("Optional["):
        return None
    raise Unguessable(f"{name}: {kind}")


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


def plans(func: Callable[..., Any], rule: Rule, call: Callable[[dict[str, Any]], Any]) -> list[Plan]:
    """The ways of drawing arguments that ``call``, the op on plain tensors, takes and gives finite results for."""
    found = []
    for schema in schemas_of(func, rule):
        for family in FAMILIES:
            for domain in DOMAINS:
                plan = Plan(schema, family, domain)
                if _works(plan, call):
                    found.append(plan)
                    break
    return found


def _works(plan: Plan, call: Callable[[dict[str, Any]], Any]) -> bool:
    useful = 0
    for seed in range(12):
        try:
            torch.manual_seed(0)
            results = tree_leaves(call(plan.draw(RandomDice(seed))))
        except Unguessable:
            return False
        except Exception:
            continue
        floating = [r for r in results if isinstance(r, torch.Tensor) and (r.is_floating_point() or r.is_complex())]
        if not all(bool(r.isfinite().all()) for r in floating if r.layout == torch.strided):
            return False
        useful += any(r.numel() for r in results if isinstance(r, torch.Tensor))
    return useful >= 2


# ---------------------------------------------------------------------------------------------- torch's operator database
def database() -> list[Any]:
    """torch's operators with sample inputs; none where what it needs is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError:
        return []
    return list(op_db)


def _plain_name(name: str) -> str:
    name = name.removeprefix("nn.functional.").replace(".", "_")
    return canonical(name.strip("_"))


def entries_for(rule: Rule) -> list[Any]:
    """The operators of the database that are likely to call the op: by name, without the ``_backward`` of a kernel."""
    wanted = rule.name.split(".")[0].strip("_").removesuffix("_data").removesuffix("_backward")
    names = {canonical(wanted), wanted, wanted.removeprefix("native_"), wanted.removesuffix("_with_indices")}
    return [e for e in database() if names & {_plain_name(e.name), *(_plain_name(a.name) for a in e.aliases)}]


class Harvest:
    """The calls that samples of the database lead to, in the forward and in the recorded backward pass, by rule."""

    def __init__(self, per_rule: int, only: Iterable[str] | None = None) -> None:
        self.per_rule = per_rule
        self.only = None if only is None else set(only)
        self.samples: dict[str, list[Sample]] = {}
        self._seen: set[tuple[str, str]] = set()

    def run(self, entries: Iterable[Any], per_entry: int, dtype: torch.dtype = torch.float64) -> Harvest:
        """Go through up to ``per_entry`` samples of each operator, evenly spread over the first forty."""
        from tracer.tracked_tensor import Tensor

        original = Tensor.__dict__["__torch_function__"]

        def intercept(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with DisableTorchFunctionSubclass():
                self._note(func, args, kwargs or {})
            return original.__func__(cls, func, types, args, kwargs)

        Tensor.__torch_function__ = classmethod(intercept)  # type: ignore[assignment,method-assign]
        try:
            for entry in entries:
                self._run_entry(entry, per_entry, dtype)
        finally:
            Tensor.__torch_function__ = original  # type: ignore[method-assign]
        return self

    def _run_entry(self, entry: Any, per_entry: int, dtype: torch.dtype) -> None:
        from tracer import track

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                listed = [s for _, s in zip(range(40), entry.sample_inputs("cpu", dtype), strict=False)]
            except Exception:
                return
            for sample in listed[:: max(1, len(listed) // per_entry)][:per_entry]:
                leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
                able = [isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in leaves]
                tracked = [track(twin(v), True) if a else v for v, a in zip(leaves, able, strict=True)]
                args, kwargs = torch.utils._pytree.tree_unflatten(tracked, spec)
                try:
                    torch.manual_seed(0)
                    results = [
                        r
                        for r in tree_leaves(entry.op(*args, **kwargs))
                        if isinstance(r, torch.Tensor) and r.requires_grad
                    ]
                    inputs = [t for t, a in zip(tracked, able, strict=True) if a]
                    # Tracked too: the formula of a linear op sees no other tensor.
                    seeds = [track(torch.randn_like(plain(r)), True) for r in results]
                    first = torch.autograd.grad(results, inputs, seeds, create_graph=True, allow_unused=True)
                    again = [g for g in first if g is not None and g.requires_grad]
                    if again:
                        torch.autograd.grad(
                            again, [*inputs, *seeds], [torch.randn_like(plain(g)) for g in again], allow_unused=True
                        )
                except Exception:
                    continue

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        spelling = TABLE.get(func)
        if spelling is None or (spelling.inplace and not spelling.rule.name.endswith("_")):
            return
        try:
            if spelling.pick_overload is not None:
                spelling = spelling.pick_overload(args, kwargs)
            name = spelling.rule.name
            if (self.only is not None and name not in self.only) or len(self.samples.get(name, ())) >= self.per_rule:
                return
            values = named(spelling, args, kwargs)
        except Exception:
            return
        leaves = tree_leaves(values)
        if not all(isinstance(v, _ARGUMENTS) for v in leaves):
            return
        if any(isinstance(v, torch.Tensor) and v.numel() > LARGEST for v in leaves):
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
    yield from (Sample(values, "table") for values in made(rule.name))
