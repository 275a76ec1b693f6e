"""``check_rule``: what is right passes, what is wrong is caught and named."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import ops_registry
from ops_registry import RuleCheckError
from ops_registry.registry import RULES
from tracer.checks.rules.check import check_rule
from tracer.checks.rules.comparison import RuleComparison

T = torch.Tensor
FLOAT64 = (torch.float64,)

_library = torch.library.Library("check_rule_tests", "DEF")
ops = torch.ops.check_rule_tests


def define(signature: str, function: Callable[..., Any]) -> Any:
    """An op of the tests' own."""
    name = signature.split("(")[0]
    _library.define(signature)
    _library.impl(name, function, "CompositeExplicitAutograd")
    return getattr(ops, name)


scaled_square = define("scaled_square(Tensor x, float scale) -> Tensor", lambda x, scale: scale * x * x)
product = define("product(Tensor a, Tensor b) -> Tensor", lambda a, b: a * b)
matrix_product = define("matrix_product(Tensor a, Tensor b) -> Tensor", torch.mm)
shares = define("shares(Tensor x) -> Tensor", lambda x: x.softmax(-1))
damped = define("damped(Tensor x) -> Tensor", lambda x: x * x.exp())
row_sum = define("row_sum(Tensor x) -> Tensor", lambda x: x.sum(-1, keepdim=True))
picky = define("picky(Tensor x, str mode) -> Tensor", lambda x, mode: {"twice": 2 * x}[mode])

pytestmark = pytest.mark.usefixtures("clean_registry", "same_draws_every_time")


@pytest.fixture
def same_draws_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")


def right_rule() -> None:
    @ops_registry.backward(scaled_square)
    def rule(grad: T, x: T, scale: float) -> T:
        return grad * 2 * scale * x.conj()


def failure(op: Any, **options: Any) -> RuleCheckError:
    with pytest.raises(RuleCheckError) as caught:
        check_rule(op, **{"max_examples": 15, "database": False, **options})
    return caught.value


# ---------------------------------------------------------------------------------------------- what is right
def test_a_right_rule_passes_and_the_report_says_what_was_looked_at() -> None:
    right_rule()
    report = check_rule(scaled_square, max_examples=20)
    assert report.examples["derived"] > 10
    assert set(report.dtypes) == {"float64", "float32", "bfloat16", "complex128"}
    assert report.orders[2] > 10
    assert report.against_differences > 20
    assert "check_rule_tests.scaled_square: right in" in repr(report)


def test_every_spelling_is_tried() -> None:
    found = check_rule(torch.mul, max_examples=12, database=False).spellings
    wanted = {"torch.mul", "torch.Tensor.mul", "torch.Tensor.mul_", "torch.Tensor.__rmul__", "torch.Tensor.__imul__"}
    assert wanted | {"torch.multiply", "torch.ops.aten.mul.Tensor"} <= set(found)


def test_shapes_broadcast_and_are_empty_and_0d_and_lie_strangely_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, T]] = []
    original = RuleComparison.check

    def check(self: RuleComparison, sample: Any) -> None:
        seen.append(sample.values)
        original(self, sample)

    monkeypatch.setattr(RuleComparison, "check", check)
    check_rule(torch.mul, max_examples=40, database=False, dtypes=FLOAT64)
    pairs = [(v["input"], v["other"]) for v in seen if isinstance(v["other"], T)]
    assert any(a.shape != b.shape for a, b in pairs)
    assert any(a.numel() == 0 for a, _ in pairs)
    assert any(a.dim() == 0 for a, _ in pairs)
    assert any(not a.is_contiguous() for a, _ in pairs)
    assert any(0 in a.stride() and a.numel() > 1 for a, _ in pairs)


@pytest.mark.parametrize(
    "op",
    [
        torch.exp,
        torch.sub,
        torch.where,
        torch.matmul,
        torch.sum,
        torch.max,
        torch.logaddexp,
        torch.linalg.det,
        torch.eq,
    ],
    ids=lambda op: op.__name__,
)
def test_rules_of_the_project_are_right(op: Callable[..., Any]) -> None:
    assert check_rule(op, max_examples=8, database=False).examples["derived"] >= 3


def test_an_overloaded_op_is_checked_in_each_overload() -> None:
    found = check_rule(torch.max, max_examples=8, database=False).spellings
    assert {"torch.ops.aten.max.dim", "torch.ops.aten.max.other", "torch.max"} <= set(found)


def test_arguments_can_be_given() -> None:
    report = check_rule(
        torch.nn.functional.conv1d, inputs=(torch.rand(1, 2, 5), torch.rand(3, 2, 3)), keywords={"padding": 1}
    )
    assert dict(report.examples) == {"given": 1}


def test_torch_confirms_a_first_derivative_though_its_second_is_wrong() -> None:
    # Scaled by how often a row is looked up, the gradient is not the derivative on purpose; torch scales the second one wrongly.
    table, rows = torch.rand(5, 2, dtype=torch.float64), torch.tensor([[1, 1], [2, 3]])
    report = check_rule(torch.embedding, inputs=(table, rows, -1, True, False), database=False)
    assert report.torch_wrong > 0 and report.doubtful > 0


def test_a_strategy_can_be_given() -> None:
    shapes = st.tuples(st.integers(0, 3), st.integers(1, 3))
    inputs = shapes.map(lambda shape: (torch.rand(shape, dtype=torch.float64), 1))
    assert check_rule(torch.cumsum, inputs=inputs, max_examples=10).examples["given"] == 10


def test_given_tensors_are_left_as_they_are() -> None:
    x = torch.rand(3, dtype=torch.float64)
    before = x.clone()
    check_rule(torch.Tensor.exp, inputs=(x,))
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_with_ci_in_the_environment_every_run_draws_the_same() -> None:
    right_rule()
    reports = [check_rule(scaled_square, max_examples=10) for _ in range(2)]
    assert reports[0].kept_bytes == reports[1].kept_bytes
    assert reports[0].examples == reports[1].examples


# ---------------------------------------------------------------------------------------------- what is wrong
def rules_of_scaled_square() -> dict[str, tuple[Callable[..., Any], str]]:
    def sign(grad: T, x: T, scale: float) -> T:
        return -grad * 2 * scale * x

    def factor(grad: T, x: T, scale: float) -> T:
        return grad * scale * x

    def unconjugated(grad: T, x: T, scale: float) -> T:
        return grad * 2 * scale * x

    def narrow(grad: T, x: T, scale: float) -> T:
        return grad.float() * 2 * scale * x.float()

    def narrow_inside(grad: T, x: T, scale: float) -> T:
        return grad * (2 * scale * x.float())

    def detached(grad: T, x: T, scale: float) -> T:
        return grad * 2 * scale * x.detach()

    def writing(grad: T, x: T, scale: float) -> T:
        return grad.mul_(2 * scale * x)

    def unbroadcast(grad: T, x: T, scale: float) -> T:
        return (grad * 2 * scale * x).sum(0, keepdim=True) if x.dim() else grad * 2 * scale * x

    def nothing(grad: T) -> None:
        return None

    return {
        "sign": (sign, "sign"),
        "factor": (factor, "factor"),
        "conjugate": (unconjugated, "conjugate"),
        "dtype": (narrow, "wrong dtype"),
        "dtype inside": (narrow_inside, "precision"),
        "detached": (detached, "missing term"),
        "in place": (writing, "in-place write"),
        "missing broadcast": (unbroadcast, "missing broadcast"),
        "nothing": (nothing, "missing term"),
    }


@pytest.mark.parametrize("name", rules_of_scaled_square())
def test_a_wrong_rule_is_caught_and_named(name: str) -> None:
    rule, kind = rules_of_scaled_square()[name]
    ops_registry.backward(scaled_square, wrt="x")(rule)
    dtypes = FLOAT64 if kind != "conjugate" else (torch.float64, torch.complex128)
    error = failure(scaled_square, dtypes=dtypes)
    assert error.kind == kind
    assert f"{__file__}:{rule.__code__.co_firstlineno}" in str(error)
    assert "check_rule_tests.scaled_square(x=" in str(error)


def test_a_transposed_product() -> None:
    ops_registry.backward(matrix_product, wrt="a")(lambda grad, b: grad @ b.mT)
    ops_registry.backward(matrix_product, wrt="b")(
        lambda grad, a: a @ grad if a.shape[0] == a.shape[1] else a.mT @ grad
    )
    error = failure(matrix_product, dtypes=FLOAT64, max_examples=40)
    assert error.kind == "transposed"
    assert "wrong for: b" in str(error)


def test_a_gradient_of_the_transposed_shape() -> None:
    ops_registry.backward(matrix_product, wrt="a")(lambda grad, b: b @ grad.mT)
    ops_registry.backward(matrix_product, wrt="b")(lambda grad, a: a.mT @ grad)
    assert failure(matrix_product, dtypes=FLOAT64, max_examples=40).kind == "transposed"


def test_swapped_operands() -> None:
    ops_registry.backward(product, wrt="a")(lambda grad, a: grad * a)
    ops_registry.backward(product, wrt="b")(lambda grad, b: grad * b)
    assert failure(product, dtypes=FLOAT64).kind == "swapped inputs"


def test_a_missing_sum_over_a_broadcast_axis() -> None:
    def first_of_each_axis(grad: T, a: T, b_shape: Any) -> T:
        grad = grad * a
        while grad.dim() > len(b_shape):
            grad = grad[:1].sum(0)
        for axis, size in enumerate(b_shape):
            if size == 1 and grad.shape[axis] > 1:
                grad = grad.narrow(axis, 0, 1)
        return grad

    ops_registry.backward(product, wrt="a")(lambda grad, b: grad * b)
    ops_registry.backward(product, wrt="b")(first_of_each_axis)
    error = failure(product, dtypes=FLOAT64, max_examples=40)
    assert error.kind == "missing broadcast sum"
    assert "wrong for: b" in str(error)


def test_a_reduction_whose_gradient_is_not_expanded() -> None:
    ops_registry.backward(row_sum)(lambda grad: grad)
    assert failure(row_sum, dtypes=FLOAT64).kind == "missing broadcast"


def test_a_missing_term_through_a_sum() -> None:
    ops_registry.backward(shares)(lambda grad, result: grad * result)
    assert failure(shares, dtypes=FLOAT64).kind == "missing term"


def test_a_missing_term_of_a_product() -> None:
    ops_registry.backward(damped)(lambda grad, result: grad * result)
    error = failure(damped, dtypes=FLOAT64)
    assert (error.kind, "lacks + the result / x" in str(error)) == ("missing term", True)


def test_too_much_memory() -> None:
    ops_registry.backward(torch.exp, replace=True)(lambda grad, input, result: grad * result.conj())
    assert failure(torch.exp).kind == "memory"
    assert check_rule(torch.exp, max_examples=5, database=False, memory=False).kept_bytes > 0


@pytest.mark.parametrize("words", [{"linear": True}, {"symmetric": True}], ids=["linear", "symmetric"])
def test_a_word_for_forward_mode_that_does_not_hold(words: dict[str, bool]) -> None:
    ops_registry.backward(shares, **words)(lambda grad, result: result * (grad - (grad * result).sum(-1, keepdim=True)))
    if "symmetric" in words:  # the Jacobian of softmax is symmetric
        assert check_rule(shares, dtypes=FLOAT64).examples
    else:
        assert failure(shares, dtypes=FLOAT64).kind == "tangents"


def test_a_symmetric_jacobian_over_real_numbers_alone() -> None:
    formula = RULES["sgn"].formulas[0].function
    ops_registry.backward(torch.sgn, replace=True, symmetric=True)(formula)
    assert failure(torch.sgn).kind == "tangents"
    ops_registry.backward(torch.sgn, replace=True, symmetric=True, holomorphic=False)(formula)
    assert check_rule(torch.sgn).dtypes["complex128"]


def test_a_rule_that_reads_a_gradient_as_it_lies_in_memory() -> None:
    def by_memory(grad: T, x: T, scale: float) -> T:
        return torch.as_strided(grad, grad.shape, x.contiguous().stride()) * 2 * scale * x

    ops_registry.backward(scaled_square)(by_memory)
    with pytest.raises(RuleCheckError, match=r"comes in (non-contiguous|expanded)|raises"):
        check_rule(scaled_square, dtypes=FLOAT64, inputs=(torch.rand(3, 2, dtype=torch.float64), 2.0))


def test_a_wrong_rule_of_one_spelling_only() -> None:
    ops_registry.backward(torch.exp, in_place=True)(lambda grad, result: grad * result * 3)
    error = failure(torch.exp, dtypes=FLOAT64)
    assert error.kind == "factor"
    assert "exp_" in str(error)


def test_a_gradient_that_backward_gives_otherwise_than_grad() -> None:
    calls = itertools.count()

    def drifting(grad: T, x: T, scale: float) -> T:
        return grad * 2 * scale * x.conj() * (1 + 1e-13 * next(calls))

    ops_registry.backward(scaled_square)(drifting)
    error = failure(scaled_square, dtypes=(torch.float64, torch.complex128))
    assert error.kind == "backward() differs from grad()"


def test_a_missing_rule_says_what_to_do() -> None:
    assert failure(scaled_square).kind == "no rule"


def test_arguments_that_cannot_be_guessed_are_asked_for() -> None:
    ops_registry.backward(picky)(lambda grad: 2 * grad)
    error = failure(picky)
    assert (error.kind, "Pass inputs=" in str(error)) == ("nothing checked", True)
    assert check_rule(picky, inputs=(torch.rand(3), "twice")).examples["given"] == 1


# ---------------------------------------------------------------------------------------------- around it
def test_importing_the_registry_needs_no_hypothesis() -> None:
    text = "import sys; sys.modules['hypothesis'] = None; import ops_registry; assert 'tracer.checks.rules.check' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_without_hypothesis_given_arguments_are_checked_and_others_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert check_rule(torch.exp, inputs=(torch.rand(3),)).examples["given"] == 1
    assert "pip install hypothesis" in str(failure(torch.exp))
