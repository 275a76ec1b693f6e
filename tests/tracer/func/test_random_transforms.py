"""Random programs of transforms in transforms, with writes in place and views between them, beside torch on native tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.transformed import derivatives, native_leaf, tracked_leaf, weighted

import tracer

Function = Callable[[torch.Tensor], torch.Tensor]
#: Makes a function of vectors of three elements, by the transforms of ``names``, out of the two leaves that it may close over.
Recipe = Callable[[Any, torch.Tensor, torch.Tensor], Function]

W = torch.tensor([0.3, -0.8, 0.6], dtype=torch.float64)
V = torch.tensor([[0.2, 0.5, -0.4], [0.7, -0.3, 0.1]], dtype=torch.float64)
X = torch.tensor([0.5, 0.4, -0.7], dtype=torch.float64)
T = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


# ---------------------------------------------------------------------------------------------- steps of a function
def whole_write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y.add_(x.sin())
    return y


def write_through_a_slice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x + w + 0 * x
    y[1:].mul_(w[:2])
    return y


def write_by_index(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = w * 1 + 0 * x
    y[0] = w[1] * x[2]
    return y + x


def write_seen_by_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 1
    seen = y.view(3, 1)
    y[2] = w[0] * x[0]
    return seen.sum(1) * y


def write_through_a_view_of_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.stack([x, w])
    y.t()[1].mul_(x[:2])
    return y.sum(0)


def write_through_a_view_seen_by_another(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 1
    written, seen = y[1:], y.view(3, 1)
    written[1] = w[0] * x[0]
    return seen.sum(1) + y * w


def write_into_zeros(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 0
    y[:2] = w[1:] * x[1:]
    y.add_(w)
    return y


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, w: x * w,
    "product with a sum": lambda x, w: x.sin() * w.sum(),
    "tanh": lambda x, w: (x + w).tanh(),
    "without w": lambda x, w: x.cos() * x,
    "without x": lambda x, w: w.sin() + 0 * x,
    "outer": lambda x, w: torch.outer(x, w).sum(0) / 2,
    "of two parts": lambda x, w: torch.cat([x.unbind()[0][None] * w[:1], x[1:]]),
    "detached": lambda x, w: x * w.detach() + x.detach() * w,
    "whole write": whole_write,
    "write through a slice": write_through_a_slice,
    "write by index": write_by_index,
    "write seen by a view": write_seen_by_a_view,
    "write through a view of a view": write_through_a_view_of_a_view,
    "write through a view seen by another": write_through_a_view_seen_by_another,
    "write into zeros": write_into_zeros,
}


# ---------------------------------------------------------------------------------------------- transforms of a function
def batched(
    names: Any, f: Function, x: torch.Tensor, v: torch.Tensor, in_dim: int, out_dim: int, chunk: int | None
) -> torch.Tensor:
    rows = torch.stack([x, x * 0.5])
    batch = rows if in_dim == 0 else rows.t()
    found = names.vmap(f, in_dims=in_dim, out_dims=out_dim, chunk_size=chunk)(batch)
    return found.sum(0) if out_dim == 0 else found.sum(1)


def batched_over_a_leaf(
    names: Any, f: Function, x: torch.Tensor, v: torch.Tensor, in_dim: int, out_dim: int, chunk: int | None
) -> torch.Tensor:
    rows = v if in_dim == 0 else v.t()
    found = names.vmap(lambda a, b: f(a) * b, in_dims=(None, in_dim), out_dims=out_dim, chunk_size=chunk)(x, rows)
    return found.sum(0) if out_dim == 0 else found.sum(1)


def batch_closed_over(
    names: Any, f: Function, x: torch.Tensor, v: torch.Tensor, in_dim: int, out_dim: int, chunk: int | None
) -> torch.Tensor:
    """The function sees the outer argument unbatched, and writes a batch into what it has made."""
    rows = v if in_dim == 0 else v.t()

    def inner(b: torch.Tensor) -> torch.Tensor:
        y = b * 1
        y[0] = f(x)[1] * b[2]
        return y

    found = names.vmap(inner, in_dims=in_dim, out_dims=out_dim, chunk_size=chunk)(rows)
    return found.sum(0) if out_dim == 0 else found.sum(1)


TRANSFORMS: dict[str, Callable[..., torch.Tensor]] = {
    "none": lambda names, f, x, v, *_: f(x),
    "grad": lambda names, f, x, v, *_: names.grad(lambda y: f(y).pow(2).sum())(x),
    "grad of two": lambda names, f, x, v, *_: sum(
        names.grad(lambda y, z: (f(y) * z).sum(), argnums=(0, 1))(x, v[0])  # type: ignore[arg-type]
    ),
    "grad, aux": lambda names, f, x, v, *_: sum(
        names.grad(lambda y: (f(y).prod(), y * v[1]), has_aux=True)(x)  # type: ignore[arg-type]
    ),
    "vjp": lambda names, f, x, v, *_: names.vjp(f, x)[1](T)[0],
    "vjp of a leaf": lambda names, f, x, v, *_: names.vjp(f, x)[1](v[0])[0],
    "jvp": lambda names, f, x, v, *_: names.jvp(f, (x,), (T,))[1],
    "jvp along a leaf": lambda names, f, x, v, *_: sum(names.jvp(f, (x,), (v[1],))),  # type: ignore[arg-type]
    "jacrev": lambda names, f, x, v, *_: names.jacrev(f)(x) @ T,
    "jacfwd": lambda names, f, x, v, *_: names.jacfwd(f)(x) @ T,
    "vmap": batched,
    "vmap over a leaf": batched_over_a_leaf,
    "vmap over a closed batch": batch_closed_over,
}


def layer(kind: str, step: str, before: bool, batch: tuple[int, int, int | None], inner: Recipe | None) -> Recipe:
    """One transform around ``inner``, with one step before or after what it transforms."""

    def recipe(names: Any, w: torch.Tensor, v: torch.Tensor) -> Function:
        within: Function = (lambda x: x) if inner is None else inner(names, w, v)

        def stepped(x: torch.Tensor) -> torch.Tensor:
            return within(STEPS[step](x, w)) if before else STEPS[step](within(x), w)

        return lambda x: TRANSFORMS[kind](names, stepped, x, v, *batch)

    return recipe


BATCH = st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.sampled_from([None, 1]))
LAYERS = st.lists(
    st.tuples(st.sampled_from(list(TRANSFORMS)), st.sampled_from(list(STEPS)), st.booleans(), BATCH),
    min_size=1,
    max_size=3,
)
#: Which of the tensors are leaves; the others are constants.
LEAVES = st.sampled_from(["w", "v", "x", "wv", "wx", "vx", "wvx"])


def assert_program_as_torch(layers: list[Any], leaves: str, ours: Any) -> None:
    """Hold one program with the names of ``ours`` against torch on native tensors."""
    recipe: Recipe | None = None
    for kind, step, before, batch in layers:
        recipe = layer(kind, step, before, batch, recipe)
    assert recipe is not None
    tensors = {"w": W, "v": V, "x": X}

    def program(names: Any) -> Callable[..., torch.Tensor]:
        def run(*given: torch.Tensor) -> torch.Tensor:
            values = {**tensors, **dict(zip(leaves, given, strict=True))}
            return recipe(names, values["w"], values["v"])(values["x"])

        return run

    inputs = tuple(tensors[name] for name in leaves)
    try:
        expected = derivatives(program(torch.func), inputs, native_leaf, 2)
    except RuntimeError:
        return  # what torch itself refuses is no program
    found = [f.as_subclass(torch.Tensor) for f in derivatives(program(ours), inputs, tracked_leaf, 2)]
    if _close(found, expected):
        return
    # torch itself loses derivatives in some nestings of three: then differences decide.
    if any(step == "detached" for _, step, *_ in layers):  # which they do not see
        assert_program_as_torch(
            [(kind, step.replace("detached", "product"), *rest) for kind, step, *rest in layers], leaves, ours
        )
        return
    first, second = gradients(program(ours), inputs, tracked_leaf)
    torch.testing.assert_close(found[0], expected[0])
    assert_near(first, differences(lambda *t: weighted(program(torch.func)(*t)), inputs))
    assert_near(second, differences(lambda *t: gradients(program(ours), t, tracked_leaf)[0].pow(2).sum(), inputs))


def assert_near(found: torch.Tensor, differences: torch.Tensor) -> None:
    """Hold a gradient against central differences."""
    torch.testing.assert_close(found, differences, rtol=1e-5, atol=1e-9)


def _close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.allclose(f, e, rtol=1e-8, atol=1e-9) for f, e in zip(found, expected, strict=True))


def gradients(program: Callable[..., torch.Tensor], tensors: Any, leaf: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
    """The gradient of the weighted result, and that of the sum of its squares, each as one vector."""
    leaves = [leaf(t) for t in tensors]
    loss = weighted(program(*leaves)) + sum(0 * x.sum() for x in leaves)
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    squares = sum((g * g).sum() for g in first) + sum(0 * x.sum() for x in leaves)
    second = torch.autograd.grad(squares, leaves)
    return tuple(torch.cat([g.detach().flatten() for g in gs]).as_subclass(torch.Tensor) for gs in (first, second))


def differences(scalar: Callable[..., torch.Tensor], tensors: Any, eps: float = 1e-5) -> torch.Tensor:
    """The gradient of ``scalar`` by central differences, as one vector."""
    found = []
    for position, tensor in enumerate(tensors):
        for element in range(tensor.numel()):
            ends = []
            for step in (eps, -eps):
                moved = [t.clone() for t in tensors]
                moved[position].view(-1)[element] += step
                ends.append(scalar(*moved).item())
            found.append((ends[0] - ends[1]) / (2 * eps))
    return torch.tensor(found, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(LAYERS, LEAVES, st.sampled_from([torch.func, tracer.func]))
def test_random_nestings_have_the_derivatives_of_torch(layers: list[Any], leaves: str, ours: Any) -> None:
    assert_program_as_torch(layers, leaves, ours)
