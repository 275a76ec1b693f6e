"""What no graph can hold is refused by name, with the user's line, and leaves everything as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nn
import tracer

model = nn.track(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loose = tracer.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
native = torch.ones(4, requires_grad=True)
array = np.ones(3, dtype="float32")
count = {"steps": 0}
seen: list[torch.Tensor] = []


def branch(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return loss * 2 if loss > 0 else loss


def counts(loss: torch.Tensor, x: torch.Tensor) -> None:
    count["steps"] += 1


def sets_an_attribute(loss: torch.Tensor, x: torch.Tensor) -> None:
    model.last = loss.detach()


def steps(loss: torch.Tensor, x: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()


def seeds(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return F.dropout(x)


def swallows(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * loss.item()
    except Exception:
        return x


REFUSED: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], str]] = {
    "numpy": (lambda loss, x: loss.detach().numpy(), r"numpy\(\) reads the memory"),
    "array": (lambda loss, x: np.asarray(x), r"__array__\(\) reads the memory"),
    "tolist": (lambda loss, x: x.tolist(), r"tolist\(\) reads the memory"),
    "data_ptr": (lambda loss, x: x.data_ptr(), r"data_ptr\(\) reads the memory"),
    "dlpack": (lambda loss, x: x.__dlpack__(), r"__dlpack__\(\) reads the memory"),
    "storage": (lambda loss, x: x.untyped_storage(), r"untyped_storage\(\) reads the memory"),
    "item": (lambda loss, x: loss.item(), "asks for the value"),
    "float": (lambda loss, x: float(loss), "asks for the value"),
    "int": (lambda loss, x: int(loss), "asks for the value"),
    "bool": (branch, "asks for the value"),
    "equal": (lambda loss, x: torch.equal(x, x + 1), "asks for the value"),
    "as_strided_": (lambda loss, x: (x * 1).as_strided_((2, 2), (1, 2)), r"as_strided_\(\) lays a tensor out anew"),
    "write into shared memory": (
        lambda loss, x: (x * 1).unfold(0, 2, 1)[0].neg_(),
        "write in place cannot",
    ),
    "write into expanded memory": (
        lambda loss, x: (x * 1)[:1].expand(5, 4).zero_(),
        r"zero_ writes into .* several elements of which share memory .*test_refusals\.py",
    ),
    "write into overlapping rows": (
        lambda loss, x: (x * 1).as_strided((4, 4), (1, 1)).add_(1),
        "several elements of which share memory",
    ),
    "write into what is read": (
        lambda loss, x: torch._foreach_add_([(y := x * 1)[1:]], [y[:-1]]),
        "shares memory with another argument",
    ),
    "write without a kernel": (
        lambda loss, x: (x * 1).polygamma_(1),
        r"polygamma_ writes in place, .* returns a tensor",
    ),
    "format": (lambda loss, x: f"{loss:.3f}", "asks for the value"),
    "print": (lambda loss, x: repr(loss), "made text"),
    "nonzero": (lambda loss, x: x.nonzero(), "shape depends on values"),
    "boolean index": (lambda loss, x: x[x > 0], "shape depends on values"),
    "unique": (lambda loss, x: x.unique(), "shape depends on values"),
    "masked_select": (lambda loss, x: x.masked_select(x > 0), "shape depends on values"),
    "indices in a tensor": (
        lambda loss, x: x.tensor_split(torch.tensor([1, 2])),
        r"Tensor\.tensor_split reads the values of a tensor of indices .*test_refusals\.py",
    ),
    "indices with gaps": (
        lambda loss, x: torch.tensor_split(x, tensor_indices_or_sections=torch.tensor([1, 0, 2, 0])[::2]),
        r"tensor_split reads the values of a tensor of indices .*test_refusals\.py",
    ),
    "indices, tracked": (
        lambda loss, x: torch.tensor_split(x * loss, torch.tensor([1, 0, 2, 0])[::2]),
        r"tensor_split reads the values of a tensor of indices .*test_refusals\.py",
    ),
    "sparse": (lambda loss, x: x.to_sparse().to_dense(), r"_to_sparse.* not dense \(torch\.sparse_coo\), at .*py"),
    "sparse, tracked": (lambda loss, x: (x * loss).to_sparse().to_dense(), r"not dense \(torch\.sparse_coo\), at .*py"),
    "sparse constructor": (
        lambda loss, x: torch.sparse_coo_tensor(torch.zeros(1, 4, dtype=torch.long), model(x)[0, :1].expand(4), (3,)),
        r"not dense \(torch\.sparse_coo\), at .*py",
    ),
    "sparse gradient": (
        lambda loss, x: F.embedding(torch.tensor([0]), model[0].weight, sparse=True).sum().backward(),
        r"not dense \(torch\.sparse_coo\)",
    ),
    "CSR constructor": (
        lambda loss, x: torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), x[0, :1], (1, 1)),
        "sparse_csr_tensor raises in a step that is captured",
    ),
    "assertion of torch's": (
        lambda loss, x: F.embedding(torch.tensor([0]), model[0].weight, padding_idx=99),
        r"embedding raises in a step that is captured, at .*test_refusals\.py:\d+: Padding_idx",
    ),
    "MKL-DNN": (lambda loss, x: x.to_mkldnn(), "to_mkldnn raises in a step that is captured"),
    "nested": (lambda loss, x: torch.nested.nested_tensor([x]), "cannot tell the result of a call without running it"),
    "optimiser": (steps, r"SGD\.step\(\)"),
    "closed-over tracked tensor": (lambda loss, x: (x * loose).sum(), "loose, .* closed over and in no module"),
    "closed-over native leaf": (
        lambda loss, x: (model(x) * native[:3]).sum(),
        "native, .* closed over and in no module",
    ),
    "closed-over array": (lambda loss, x: loss * torch.from_numpy(array), "array, a NumPy array"),
    "an argument as gradient": (
        lambda loss, x: setattr(model[0].bias, "grad", x.view(-1)[:8]),
        r"sets \.grad of a leaf .* copy there \(x\.clone\(\)\)",
    ),
    "counter": (counts, r"changes count\['steps'\]"),
    "list": (lambda loss, x: seen.append(loss.detach()), "changes seen"),
    "list of what is returned": (lambda loss, x: (seen.append(loss.detach()), loss)[1], "changes seen"),
    "attribute": (sets_an_attribute, r"changes model\.last"),
    "hook": (lambda loss, x: model[0].weight.register_hook(lambda grad: grad * 2), r"other hooks on model\.0\.weight"),
    "Python's random numbers": (lambda loss, x: loss * random.random(), "Python's random"),
    "NumPy's random numbers": (lambda loss, x: loss * np.random.rand(), "Python's random or from NumPy"),
    "a distribution": (
        lambda loss, x: torch.distributions.Normal(x, x.exp(), validate_args=True),
        "validate_args=False",
    ),
    "a refusal that is caught": (swallows, "asks for the value"),
    "default dtype": (
        lambda loss, x: torch.set_default_dtype(torch.float64),
        r"another state behind \(default dtype\)",
    ),
    "grad mode": (lambda loss, x: (torch.set_grad_enabled(False), None)[1], r"another state behind \(grad mode\)"),
    "seed": (seeds, "seeds the random numbers"),
    "generator": (lambda loss, x: torch.rand(3, generator=torch.Generator()), "generator of the user's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_nothing_changes(name: str) -> None:
    act, message = REFUSED[name]

    def step(x: torch.Tensor) -> Any:
        loss = model(x).square().sum()
        return act(loss, x)

    before, state, python_state = dict(vars(model)), torch.get_rng_state(), random.getstate()
    values = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(tracer.UnsupportedError, match=message) as raised:
        tracer.compile(step, backend="replay")(torch.randn(5, 4))
    assert str(raised.value).count(".") > 0
    assert dict(vars(model)) == before
    assert count["steps"] == 0
    assert not seen
    for parameter, value in zip(model.parameters(), values, strict=True):
        assert parameter.grad is None
        assert type(parameter) is tracer.Tensor
        assert torch.equal(parameter.detach(), value)
    if "random" not in name:
        assert random.getstate() == python_state
    assert state.shape == torch.get_rng_state().shape


def test_the_users_line_is_named() -> None:
    def step(x: torch.Tensor) -> float:
        return model(x).sum().item()

    with pytest.raises(tracer.CaptureError, match=rf"test_refusals\.py:{step.__code__.co_firstlineno + 1}"):
        tracer.compile(step, backend="replay")(torch.randn(5, 4))


def test_a_write_into_shared_memory_is_refused() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(2)
        model(x + y).sum().backward()

    x = torch.randn(5, 4)
    with pytest.raises(tracer.CaptureError, match="writes into x, which shares its memory with y"):
        tracer.compile(step, backend="replay")(x, x.view(5, 4))


SPARSE: dict[str, torch.Tensor] = {
    "COO": torch.eye(4).to_sparse(),
    "CSR": torch.eye(4).to_sparse_csr(),
    "nested": torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_an_argument_that_is_not_dense_is_refused(kind: str) -> None:
    with pytest.raises(tracer.CaptureError, match="not dense"):
        tracer.compile(lambda x, y: model(x).sum().backward(), backend="replay")(torch.randn(5, 4), SPARSE[kind])


@pytest.mark.parametrize("kind", SPARSE)
def test_a_buffer_that_is_not_dense_is_refused(kind: str) -> None:
    layer = nn.track(torch.nn.Linear(4, 4))
    layer.register_buffer("graph", SPARSE[kind])
    compiled = tracer.compile(lambda x: layer(x).sum().backward(), backend="replay")
    for _ in range(2):
        with pytest.raises(tracer.CaptureError, match=r"layer\.graph is a tensor that is not dense"):
            compiled(torch.randn(5, 4))


def test_a_lazy_module_is_refused_until_it_was_called() -> None:
    layer = nn.track(torch.nn.LazyLinear(3))
    compiled = tracer.compile(lambda x: layer(x).sum().backward(), backend="replay")
    with pytest.raises(tracer.CaptureError, match=r"layer\.weight is a parameter or buffer of a lazy module"):
        compiled(torch.randn(5, 4))
    layer(torch.randn(5, 4))
    compiled(torch.randn(5, 4))
    assert layer.weight.grad is not None


def test_errors_of_the_step_itself_come_through() -> None:
    def step(x: torch.Tensor) -> None:
        def hook(grad: torch.Tensor) -> None:
            raise RuntimeError("the gradient is odd")

        loss = model(x).sum()
        loss.register_hook(hook)
        loss.backward()

    with pytest.raises(RuntimeError, match="the gradient is odd") as raised:
        tracer.compile(step, backend="replay")(torch.randn(5, 4))
    assert type(raised.value) is RuntimeError


def test_an_argument_with_a_history_is_refused() -> None:
    with pytest.raises(tracer.CaptureError, match="has a history"):
        tracer.compile(lambda h: h.sum().backward(), backend="replay")(model(torch.randn(5, 4)))


def test_an_array_as_argument_is_refused() -> None:
    with pytest.raises(tracer.CaptureError, match="argument ndarray, a NumPy array"):
        tracer.compile(lambda x, a: model(x).sum().backward(), backend="replay")(torch.randn(5, 4), array)


def test_a_result_of_a_compiled_step_has_no_history_to_go_back_through() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    loss = tracer.compile(step, backend="replay")(torch.randn(5, 4))
    model.zero_grad()
    with pytest.raises(tracer.SecondDerivativeError, match="ended with the step"):
        (loss + 0 * loose.sum()).backward()


def test_a_graph_that_inductor_cannot_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def compile(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor], options: Any) -> Any:
            raise NotImplementedError("no kernel for it")

    monkeypatch.setattr("tracer.compiled.backends.inductor", Broken)
    compiled = tracer.compile(lambda x: model(x).sum().backward(), backend="inductor")
    with pytest.raises(tracer.CaptureError, match=r"no kernel for it\)\. .*backend='replay'"):
        compiled(torch.randn(5, 4))
    assert all(parameter.grad is None for parameter in model.parameters())
