"""Whatever a module returns, writes and is given: the compiled one does the same, or says by name what it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.compiled_modules import Called, assert_same_call, assert_same_gradients, loss_of, twins
from torch.utils.checkpoint import checkpoint

import ops_registry
import tracer
from tracer.errors import CaptureError, InPlaceError, UnsupportedError

torch.manual_seed(0)
X = torch.randn(4, 3)
WANTED = torch.randn(4, 3, requires_grad=True)


@dataclass
class Pair:
    first: Any
    second: Any


def twice(module: Any, x: torch.Tensor) -> Any:
    h = module.linear(x)
    return h, h


def with_its_view(module: Any, x: torch.Tensor) -> Any:
    h = module.linear(x)
    return h, h.t()


def writes_a_buffer(module: Any, x: torch.Tensor) -> Any:
    y = module.linear(x) * module.buffer.clone()
    module.buffer.lerp_(y.detach().mean(0), 0.1)
    return y + module.buffer


def writes_inside(module: Any, x: torch.Tensor) -> Any:
    h = x * 1
    h[:, 0] = module.linear(x).mean()
    return h.mul_(2).sin()


def writes_an_argument(module: Any, x: torch.Tensor) -> Any:
    x.add_(1)
    return module.linear(x)


def clamps_its_weight(module: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        module.linear.weight.clamp_(-0.3, 0.3)
    return module.linear(x)


def enables_grad(module: Any, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        return module.linear(x)


def takes_a_gradient(module: Any, x: torch.Tensor) -> Any:
    return torch.autograd.grad(module.linear(x).pow(3).sum(), x, create_graph=True)[0]


FORWARDS: dict[str, Callable[..., Any]] = {
    "linear": lambda m, x: m.linear(x),
    "tuple, None, number, dictionary": lambda m, x: (m.linear(x), None, 3, {"k": m.linear(x).argmax(1), "d": m.linear(x).detach()}),
    "its argument": lambda m, x: (x, m.linear(x)),
    "a view of its argument": lambda m, x: (x.t(), m.linear(x)),
    "nothing but a view": lambda m, x: x[:, 1:].unsqueeze(0),
    "pieces of its argument": lambda m, x: (*x.chunk(2), m.linear(x).unbind(1)),
    "a detached view": lambda m, x: (x.detach()[0], m.linear(x)),
    "a parameter": lambda m, x: m.linear.weight,
    "a view of a parameter": lambda m, x: m.linear.weight[0] * 1 + m.linear.bias[1:2],
    "one result twice": twice,
    "pieces": lambda m, x: m.linear(x).chunk(3, 1),
    "a result and its view": with_its_view,
    "transposed": lambda m, x: m.linear(x).t(),
    "expanded": lambda m, x: m.linear(x).sum(0).expand(4, 3),
    "no gradient": lambda m, x: x.argmax(1),
    "complex": lambda m, x: torch.view_as_real(torch.fft.fft(m.linear(x))),
    "conjugated": lambda m, x: torch.view_as_real(torch.fft.fft(m.linear(x)).conj().resolve_conj()),
    "a buffer written": writes_a_buffer,
    "writes inside": writes_inside,
    "a weight written": clamps_its_weight,
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("wanted", [False, True])
def test_results_gradients_and_buffers_are_those_of_the_eager_module(name: str, wanted: bool) -> None:
    compiled, eager = twins(Called(FORWARDS[name]), check=True)
    for scale in (1.0, -2.0):
        x = (X * scale).requires_grad_(wanted)
        results = assert_same_call(compiled, eager, [x])
    assert len(compiled.explain().rows) == 1
    if name == "one result twice":
        assert results[0] is results[1]


def test_a_gradient_that_the_module_takes_itself_is_part_of_its_graph() -> None:
    compiled, eager = twins(Called(takes_a_gradient), check=True)
    assert_same_call(compiled, eager, [WANTED])


def test_a_checkpoint_with_a_backward_pass_of_its_own_may_be_inside() -> None:
    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(lambda t: module.linear(t).tanh(), x, use_reentrant=True)
        return checkpoint(module.linear, h, use_reentrant=True) + module.linear.bias

    assert_same_call(*twins(Called(forward)), [WANTED])


def test_dataclasses_come_back_as_such() -> None:
    compiled, eager = twins(Called(lambda m, x: Pair(m.linear(x), [x * 2])))
    ours, theirs = compiled(WANTED), eager(WANTED)
    assert isinstance(ours, Pair)
    loss_of([ours.first, ours.second]).backward()
    loss_of([theirs.first, theirs.second]).backward()
    assert_same_gradients(compiled, eager)


def test_a_plain_argument_that_is_written_is_written() -> None:
    compiled, eager = twins(Called(writes_an_argument))
    assert_same_call(compiled, eager, [X])
    assert_same_call(compiled, eager, [X + 1])


def test_a_history_made_under_no_grad_by_the_module_itself_is_there() -> None:
    compiled, eager = twins(Called(enables_grad))
    with torch.no_grad():
        ours, theirs = compiled(X), eager(X)
    loss_of(ours).backward()
    loss_of(theirs).backward()
    assert_same_gradients(compiled, eager)


def test_arguments_of_torchs_own_autograd_get_their_gradients() -> None:
    compiled, eager = twins(Called(lambda m, x: m.linear(x).tanh()))
    leaves = [torch.ones(4, 3, requires_grad=True) for _ in range(2)]
    for module, leaf in zip((compiled, eager), leaves, strict=True):
        loss_of(module(leaf * 2) + leaf).backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("used", [0, 1])
def test_what_no_gradient_comes_for_gets_none(used: int) -> None:
    compiled, eager = twins(Called(lambda m, x: (x * 2, m.linear(m.buffer))))
    assert_same_call(compiled, eager, [WANTED], lambda results: results[used].sum())
    assert (compiled.linear.weight.grad is None) == (used == 0)


def test_a_gradient_of_zero_is_one() -> None:
    compiled, eager = twins(Called(lambda m, x: (m.linear(m.buffer), x * 2)))
    assert_same_call(compiled, eager, [WANTED], lambda r: r[0].floor().sum() + 0 * r[1].sum())
    assert compiled.linear.weight.grad is not None


def test_views_of_an_argument_follow_writes_into_it() -> None:
    def total(module: Any, write: Callable[..., Any]) -> Any:
        source = tracer.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        argument = source * 1
        view = module(argument)
        write(argument, view)
        ((view * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum() + argument.sum()).backward()
        return source.grad

    compiled, eager = twins(Called(lambda m, x: x.t()))
    for write in (lambda x, view: x.mul_(3), lambda x, view: view[0].mul_(5)):
        torch.testing.assert_close(total(compiled, write), total(eager, write))


@pytest.mark.parametrize("which", [0, 1])
def test_results_that_share_memory_are_not_to_be_written(which: int) -> None:
    compiled, _ = twins(Called(with_its_view))
    results = compiled(X)
    with pytest.raises(InPlaceError, match="shares its memory with another result of a compiled module"):
        results[which].mul_(2)


def test_pieces_of_an_argument_are_not_to_be_written_as_eagerly() -> None:
    compiled, eager = twins(Called(lambda m, x: x.chunk(2)))
    for module in (compiled, eager):
        with pytest.raises(InPlaceError, match="one of several views"):
            module(tracer.tensor(X, requires_grad=True) * 1)[0].mul_(2)


def branches(module: Any, x: torch.Tensor) -> Any:
    return module.linear(x) if x.sum() > 0 else x


def goes_back(module: Any, x: torch.Tensor) -> Any:
    module.linear(x).sum().backward()
    return module.linear(x)


def hooked_view(module: Any, x: torch.Tensor) -> Any:
    view = x.t()
    view.register_hook(lambda grad: grad * 2)
    return view


def counts(module: Any, x: torch.Tensor) -> Any:
    module.calls = getattr(module, "calls", 0) + 1
    return module.linear(x)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "value": (lambda m, x: m.linear(x) * x.sum().item(), "value of a tensor"),
    "branch": (branches, "value of a tensor"),
    "backward inside": (goes_back, "a compiled module only computes"),
    "argument written": (lambda m, x: (x.mul_(2), m.linear(x))[1], "To its graph an argument that requires grad is a leaf"),
    "hooked view": (hooked_view, "cannot be repeated outside of the graph"),
    "view as another dtype": (lambda m, x: torch.view_as_real(torch.view_as_complex(x[:, :2].contiguous())).view(torch.int32), ""),
    "sparse": (lambda m, x: m.linear(x).to_sparse(), "is not dense"),
    "Python state": (counts, "changes"),
    "object": (lambda m, x: object(), "returns a object"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "view as another dtype"])
def test_what_no_graph_can_hold_is_refused_by_name(name: str) -> None:
    function, told = REFUSED[name]
    compiled, _ = twins(Called(function))
    before = [p.detach().clone() for p in compiled.parameters()]
    with pytest.raises(UnsupportedError, match=told):
        compiled(tracer.tensor(X, requires_grad=True) * 1)
    for p, value in zip(compiled.parameters(), before, strict=True):
        assert p.grad is None
        assert torch.equal(p.detach(), value)


def test_a_view_made_by_a_replaced_rule_is_refused() -> None:
    compiled, _ = twins(Called(lambda m, x: x.t()))
    with ops_registry.use({torch.t: lambda grad: grad.t() * 2}), pytest.raises(CaptureError, match="a replaced rule"):
        compiled(tracer.tensor(X, requires_grad=True) * 1)


def test_hooks_on_leaves_run_in_the_pass_around_once() -> None:
    compiled, eager = twins(Called(lambda m, x: F.gelu(m.linear(x))))
    seen: list[torch.Tensor] = []
    for module in (compiled, eager):
        module.linear.weight.register_hook(lambda grad: grad * 2)
        module.linear.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for _ in range(2):
        assert_same_call(compiled, eager, [WANTED])
    assert len(seen) == 4
    assert len(compiled.explain().rows) == 1


def test_hooks_on_an_argument_are_no_part_of_the_graph() -> None:
    compiled, _ = twins(Called(lambda m, x: m.linear(x)))
    seen = []
    for _ in range(3):
        argument = tracer.tensor(X, requires_grad=True) * 2
        argument.register_hook(lambda grad: seen.append(grad))
        compiled(argument).sum().backward()
    assert len(seen) == 3
    assert len(compiled.explain().rows) == 1


def test_hooks_on_modules_are_part_of_it() -> None:
    compiled, eager = twins(Called(lambda m, x: m.linear(x)))
    for module in (compiled, eager):
        module.linear.register_forward_hook(lambda m, args, out: out * 3)
        module.linear.register_full_backward_hook(lambda m, grads, outs: tuple(g * 2 for g in grads))
    assert_same_call(compiled, eager, [WANTED])


@pytest.mark.filterwarnings("ignore:.*as a custom Function")
def test_scoped_rules_hold_and_count_as_applied() -> None:
    compiled, eager = twins(Called(lambda m, x: torch.relu(m.linear(x))))
    rule = {torch.relu: lambda grad: grad * 5}
    for _ in range(2):
        with ops_registry.use(rule, expect="all"):
            ours, theirs = compiled(X), eager(X)
        loss_of(ours).backward()
        loss_of(theirs).backward()
        assert_same_gradients(compiled, eager)
    assert_same_call(compiled, eager, [X])
    assert len(compiled.explain().rows) == 2
