"""A compiled module behaves as the module, and steps aside where somebody looks at each call."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.compiled_modules import Called, assert_same_call, assert_same_gradients, loss_of, twins

import nn
import tracer
from tracer.errors import AnomalyError, CaptureError, CompiledStepError, GradientArgumentError, UnsupportedError

torch.manual_seed(0)
X = torch.randn(4, 3)


def gelu(module: Any, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return F.gelu(module.linear(x)) * scale


def test_it_is_of_the_modules_class_and_shares_its_state() -> None:
    module = nn.track(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()))
    compiled = tracer.compile(module, backend="replay")
    assert isinstance(compiled, torch.nn.Sequential)
    assert compiled._orig_mod is module
    assert list(compiled.state_dict()) == ["0.weight", "0.bias"]
    assert [*compiled.parameters()] == [*module.parameters()]
    assert len(compiled) == 2
    assert compiled[0] is module[0]
    compiled.eval()
    assert not module.training
    assert not module[1].training
    compiled[0] = torch.nn.Linear(3, 2)
    assert module[0] is compiled[0]
    assert compiled(X).shape == (4, 2)


def test_changes_of_the_module_lead_to_other_graphs() -> None:
    compiled, eager = twins(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout()))
    for change in (
        lambda module: module.eval(),
        lambda module: module.train(),
        lambda module: module[2].__setattr__("p", 0.1),
        lambda module: module.load_state_dict({k: v * 2 for k, v in module.state_dict().items()}),
        lambda module: module.double() and module.float(),
        lambda module: module.register_forward_hook(lambda m, args, out: out * 2),
        lambda module: module.zero_grad(),
    ):
        change(compiled)
        change(eager)
        assert_same_call(compiled, eager, [X])


def test_arguments_by_keyword_and_by_value() -> None:
    compiled, eager = twins(Called(gelu))
    for scale in (1.0, 2.0):
        assert_same_call(compiled, eager, [X], kwargs={"scale": scale})
    assert len(compiled.explain().rows) == 2


def test_arguments_in_nests_get_their_gradients() -> None:
    compiled, eager = twins(Called(lambda m, batch: m.linear(batch["x"][0]) * batch["y"]))
    found = []
    for module in (compiled, eager):
        x, y = (tracer.tensor(X * scale, requires_grad=True) for scale in (1.0, 2.0))
        loss_of(module({"x": [x * 1], "y": y})).backward()
        found.append((x.grad, y.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_copies_have_parameters_and_graphs_of_their_own() -> None:
    compiled, _ = twins(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    kept = compiled(X).detach()
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert torch.equal(twin(X).detach(), twin[0].bias.detach().expand(4, 3))
    torch.testing.assert_close(compiled(X).detach(), kept)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    torch.testing.assert_close(again(X).detach(), kept)
    assert len(again.explain().rows) == 1


def test_a_part_of_a_larger_module() -> None:
    inner = torch.nn.Linear(3, 3)
    model = nn.track(
        torch.nn.Sequential(tracer.compile(inner, backend="replay"), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    )
    eager = torch.nn.Sequential(*map(copy.deepcopy, (inner, model[1], model[2])))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for _ in range(2):
        loss_of(model(X)).backward()
        loss_of(eager(X)).backward()
        assert_same_gradients(model, eager)
    assert len(model[0].explain().rows) == 1


def test_a_replica_with_other_parameters_runs_on_these() -> None:
    compiled, _ = twins(torch.nn.Linear(3, 3))
    compiled(X)
    replica = compiled._replicate_for_data_parallel()
    replica._parameters = {"weight": torch.zeros(3, 3), "bias": torch.ones(3)}
    assert torch.equal(replica(X), torch.ones(4, 3))


def test_inside_a_compiled_step_it_is_part_of_that_graph() -> None:
    compiled, eager = twins(Called(gelu))

    def step(module: torch.nn.Module) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).pow(2).sum()
            loss.backward()
            return loss

        return run

    tracer.compile(step(compiled), backend="replay")(X)
    step(eager)(X)
    assert_same_gradients(compiled, eager)
    assert not compiled.explain().rows


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "jacrev", "torch.hessian"])
def test_inside_of_transforms_the_module_itself_runs(transform: str) -> None:
    compiled, eager = twins(Called(gelu))
    found = []
    for module in (compiled, eager):
        x = tracer.tensor(X, requires_grad=True)

        def total(v: torch.Tensor, module: Any = module) -> torch.Tensor:
            return module(v).pow(2).sum()

        run: Any = {
            "vmap": lambda m=module: torch.vmap(m)(X),
            "grad": lambda x=x, total=total: tracer.func.grad(total)(x),
            "jvp": lambda m=module: tracer.func.jvp(m, (X,), (X,))[1],
            "jacrev": lambda m=module: tracer.func.jacrev(m)(X),
            "torch.hessian": lambda total=total: torch.func.hessian(total)(X[0]),
        }[transform]
        found.append(run().detach())
    torch.testing.assert_close(*found)


def test_dual_numbers_go_through() -> None:
    import torch.autograd.forward_ad as forward_ad

    compiled, eager = twins(Called(gelu))
    compiled.requires_grad_(False)
    eager.requires_grad_(False)
    with forward_ad.dual_level():
        ours, theirs = (forward_ad.unpack_dual(m(forward_ad.make_dual(X, X + 1))).tangent for m in (compiled, eager))
    torch.testing.assert_close(ours, theirs)


def test_anomaly_mode_names_the_call_inside() -> None:
    compiled, _ = twins(Called(lambda m, x: (m.linear(x) * 0).sqrt()))
    with (
        pytest.warns(UserWarning, match="Error detected in MulBackward0"),
        torch.autograd.set_detect_anomaly(True),
        pytest.raises(AnomalyError),
    ):
        compiled(X).sum().backward()


def test_functional_call_takes_the_given_parameters() -> None:
    compiled, eager = twins(Called(gelu))
    given = {"linear.weight": torch.ones(3, 3, requires_grad=True)}
    ours = torch.func.functional_call(compiled, given, (X,))
    theirs = torch.func.functional_call(eager, given, (X,))
    torch.testing.assert_close(ours.detach(), theirs.detach())
    for result in (ours, theirs):
        result.sum().backward()
    expected = given["linear.weight"].grad
    given["linear.weight"].grad = None
    torch.func.functional_call(eager, given, (X,)).sum().backward()
    torch.testing.assert_close(expected, 2 * given["linear.weight"].grad)


def test_a_check_compares_the_first_call_with_the_eager_one() -> None:
    def wrong(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return lambda *given: [value * 1.1 for value in graph.forward(*given)]

    module = nn.track(torch.nn.Linear(3, 3))
    with pytest.raises(CompiledStepError, match="differs by"):
        tracer.compile(module, backend=wrong, check=True)(X)
    assert module.weight.grad is None


def test_a_backend_of_the_users_gets_both_halves() -> None:
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(len(inputs))
        return graph.forward

    compiled, eager = twins(Called(gelu), backend=backend)
    assert_same_call(compiled, eager, [X])
    assert len(seen) == 2


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="lazy parameters"):
        tracer.compile(torch.nn.LazyLinear(3))
    with pytest.raises(UnsupportedError, match="scripted"):
        tracer.compile(torch.jit.script(torch.nn.Linear(3, 3)))
    with pytest.raises(GradientArgumentError, match="backend"):
        tracer.compile(torch.nn.Linear(3, 3), backend="fast")
    with pytest.raises(CaptureError, match="dynamic"):
        tracer.compile(torch.nn.Linear(3, 3), dynamic=True)
