"""What shape of mistake a wrong Jacobian is said to show."""

from __future__ import annotations

import torch

from tracer.checks.jacobians import Jacobian, from_rows, numerical_jacobians, unit_cotangents
from tracer.checks.mistakes import diagnose, worst
from tracer.errors import Mistake


def jacobian(values: torch.Tensor, output: tuple[int, ...], input: tuple[int, ...]) -> Jacobian:
    """Of a real output, or, where the first axis says so, of a complex one."""
    parts = values.numel() // max(1, torch.Size(output).numel() * torch.Size(input).numel()) or 1
    return Jacobian(values.reshape(parts, *output, *input), output, input)


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def said(analytic: torch.Tensor, numerical: torch.Tensor, output: tuple[int, ...], input: tuple[int, ...]) -> Mistake:
    return diagnose(jacobian(analytic, output, input), jacobian(numerical, output, input))


# ---------------------------------------------------------------------------------------------- the kinds
def test_the_negative_is_a_sign() -> None:
    n = rand(3, 4)
    assert said(-n, n, (3,), (4,)).kind == "sign"


def test_signs_that_are_wrong_here_and_there() -> None:
    n = rand(4).diag()
    assert said(n.abs(), n, (4,), (4,)).kind == "sign"


def test_a_factor_is_named() -> None:
    n = rand(3, 4)
    mistake = said(n / 2, n, (3,), (4,))
    assert mistake.kind == "factor"
    assert "1/2 times" in mistake.text


def test_a_factor_that_is_a_size_is_explained() -> None:
    n = rand(5, 3)
    assert "5 is the number of elements of the output" in said(5 * n, n, (5,), (3,)).text


def test_a_mean_in_place_of_a_sum_over_a_broadcast_axis() -> None:
    n = rand(5, 1)
    assert "mean in place of a sum" in said(n / 5, n, (5,), (1,)).text


def test_one_number_is_no_factor() -> None:
    assert said(torch.tensor([0.7123]), torch.tensor([1.0]), (), ()).kind == "no known shape of mistake"


def test_axes_of_the_input_exchanged() -> None:
    n = rand(2, 3, 3)
    mistake = said(n.transpose(1, 2), n, (2,), (3, 3))
    assert (mistake.kind, mistake.text) == ("transposed", "axis 0 of the input and axis 1 of the input are exchanged")


def test_a_product_with_a_matrix_that_should_be_transposed() -> None:
    weight, eye = rand(3, 3), torch.eye(2, dtype=torch.float64)
    right = torch.einsum("ab,kj->ajbk", eye, weight)  # of x @ weight
    wrong = torch.einsum("ab,jk->ajbk", eye, weight)  # grad @ weight
    assert said(wrong, right, (2, 3), (2, 3)).kind == "transposed"


def test_a_reshape_in_place_of_a_transposition() -> None:
    n = rand(2, 3, 2)
    mistake = said(n.transpose(1, 2).reshape(2, 3, 2), n, (2,), (3, 2))
    assert (mistake.kind, "reshaped" in mistake.text) == ("transposed", True)


def test_the_jacobian_in_place_of_its_transpose() -> None:
    n = rand(4, 4)
    assert said(n.t(), n, (4,), (4,)).kind == "transposed"
    n = rand(2, 2, 2, 2)
    assert said(n.permute(2, 3, 0, 1), n, (2, 2), (2, 2)).kind == "transposed"


def test_the_gradient_of_another_input() -> None:
    a, b = rand(3, 3), rand(3, 3)
    mistake = diagnose(jacobian(b, (3,), (3,)), jacobian(a, (3,), (3,)), {"other": jacobian(b, (3,), (3,))})
    assert (mistake.kind, mistake.text) == ("swapped inputs", "this is the gradient of other")


def test_only_the_first_of_what_was_broadcast_sends_a_gradient() -> None:
    n = rand(3, 2, 2)
    first = torch.zeros_like(n)
    first[0] = n[0]
    mistake = said(first, n, (3, 2), (2,))
    assert (mistake.kind, "axis 0 of the output" in mistake.text) == ("missing broadcast sum", True)


def test_no_gradient_at_all() -> None:
    assert said(torch.zeros(3, 4), rand(3, 4), (3,), (4,)).kind == "missing term"


def test_elements_without_a_gradient_and_where_they_are() -> None:
    n = rand(3, 4)
    a = n.clone()
    a[:, 1] = 0
    mistake = said(a, n, (3,), (4,))
    assert (mistake.kind, "index 1 of axis 0 of the input" in mistake.text) == ("missing term", True)


def test_a_sum_over_the_elements_that_is_left_out() -> None:
    y = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert said(y.diag(), y.diag() - y.outer(y), (3,), (3,)).kind == "missing term"


def test_a_missing_outer_product() -> None:
    n = rand(4, 4)
    mistake = said(n - rand(4).outer(rand(4)), n, (4,), (4,))
    assert (mistake.kind, "outer product" in mistake.text) == ("missing term", True)


def test_a_missing_constant() -> None:
    n = rand(3, 3)
    assert "the same number, 2, is missing" in said(n - 2, n, (3,), (3,)).text


def test_a_missing_term_that_is_at_hand() -> None:
    x = rand(4)
    result = x * x.exp()
    a, n = jacobian(result.diag(), (4,), (4,)), jacobian((result + x.exp()).diag(), (4,), (4,))
    mistake = diagnose(a, n, values={"x": x, "the result": result})
    assert (mistake.kind, mistake.text) == ("missing term", "the analytic derivative lacks + the result / x")


def test_a_missing_factor_that_is_at_hand() -> None:
    x = rand(4)
    mistake = diagnose(
        jacobian(x.cos().diag(), (4,), (4,)), jacobian((x * x.cos()).diag(), (4,), (4,)), values={"x": x}
    )
    assert (mistake.kind, mistake.text) == ("factor", "the analytic derivative lacks * x")


def test_a_gradient_where_there_is_none() -> None:
    assert said(rand(3, 3), torch.zeros(3, 3), (3,), (3,)).kind == "extra term"


def test_a_conjugate() -> None:
    n = rand(3, 3, dtype=torch.complex128)
    assert said(n.conj(), n, (3,), (3,)).kind == "conjugate"


def test_a_conjugate_of_what_comes_in() -> None:
    w = rand(3, dtype=torch.complex128).diag()
    right, wrong = torch.stack((w, 1j * w)), torch.stack((w, -1j * w))
    assert said(wrong, right, (3,), (3,)).kind == "conjugate"


def test_nan_is_said_to_be_where_it_is() -> None:
    n = rand(3, 3)
    a = n.clone()
    a[0, 0] = torch.nan
    mistake = said(a, n, (3,), (3,))
    assert (mistake.kind, "1 of 9 elements (analytic)" in mistake.text) == ("not finite", True)


def test_a_loss_of_digits() -> None:
    n = rand(3, 3)
    assert said(n * (1 + 1e-6), n, (3,), (3,)).kind == "precision"


def test_the_wrong_shape() -> None:
    assert diagnose(jacobian(rand(6), (3,), (2,)), jacobian(rand(9), (3,), (3,))).kind == "wrong shape"


def test_what_is_right_in_places_is_said_to_be() -> None:
    n = rand(3, 4)
    a = n.clone()
    a[2] = rand(4)
    mistake = said(a, n, (3,), (4,))
    assert mistake.kind == "some elements"
    assert "index 2 of axis 0 of the output" in mistake.text


def test_what_has_no_shape_has_none() -> None:
    assert said(rand(3, 4), rand(3, 4), (3,), (4,)).kind == "no known shape of mistake"


def test_empty_jacobians_show_nothing() -> None:
    assert said(rand(0, 3), rand(0, 3), (0,), (3,)).kind == "no known shape of mistake"


def test_the_worst_element() -> None:
    n = rand(2, 3, 4)
    a = n.clone()
    a[1, 0, 3] += 10
    at_output, at_input, part, analytic, numerical = worst(jacobian(a, (2, 3), (4,)), jacobian(n, (2, 3), (4,)))
    assert (list(at_output), list(at_input), part) == ([1, 0], [3], 0)
    assert analytic - numerical == 10


# ---------------------------------------------------------------------------------------------- Jacobians
def test_numerical_jacobians_are_those_of_the_function() -> None:
    x = rand(2, 2)
    product, total = numerical_jacobians(lambda: (x * x[0], x.sum()), x, 1e-6)
    expected = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    for i in range(2):
        for j in range(2):
            expected[i, j, i, j] += x[0, j]
            expected[i, j, 0, j] += x[i, j]
    torch.testing.assert_close(product.values[0], expected)
    torch.testing.assert_close(total.values[0], torch.ones(2, 2, dtype=torch.float64))


def test_the_numerical_gradient_of_a_complex_input_is_in_torchs_convention() -> None:
    z = rand(2, dtype=torch.complex128)
    (found,) = numerical_jacobians(lambda: [(z * z.conj()).real], z, 1e-6)
    torch.testing.assert_close(found.values[0], (2 * z).diag(), rtol=1e-6, atol=1e-6)


def test_a_complex_output_has_two_parts() -> None:
    x = rand(2)
    (found,) = numerical_jacobians(lambda: [torch.complex(x, 3 * x)], x, 1e-6)
    eye = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(found.values, torch.stack((eye, 3 * eye)))


def test_the_input_is_put_back_to_the_bit() -> None:
    x = rand(3)
    before = x.clone()
    numerical_jacobians(lambda: [x.exp()], x, 1e-6)
    assert torch.equal(x, before)


def test_unit_cotangents_give_the_rows() -> None:
    x = rand(3).requires_grad_()
    y = torch.stack((x.sum(), x.prod()))
    rows = [torch.autograd.grad(y, x, c, retain_graph=True)[0] for c in unit_cotangents(y)]
    assert from_rows(rows, y, x).matrix.shape == (2, 3)
