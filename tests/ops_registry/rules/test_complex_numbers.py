"""Rules of ``ops_registry/rules/complex_numbers.py``."""

from __future__ import annotations

import pytest
import torch
from support.analytic import assert_values, first, second
from support.checking import Case, case, rand, run_case

import tracer

C = torch.complex128
PARTS = {
    "real": torch.real,
    "imag": torch.imag,
    "conj": torch.conj,
    "conj_physical": torch.conj_physical,
    "angle": torch.angle,
    "view_as_real": torch.view_as_real,
}
PAIRS = {"complex": torch.complex, "polar": torch.polar}

CASES = [
    *[case(n, f, rand(3, 4, dtype=C)) for n, f in PARTS.items()],
    *[case(n, f, rand(dtype=C), label="0-d") for n, f in PARTS.items()],
    *[case(n, f, rand(2, 0, dtype=C), label="empty") for n, f in PARTS.items()],
    *[
        case(n, lambda z, f=f: f(z.transpose(0, 3)), rand(2, 2, 2, 1, 2, dtype=C), label="rank 5, strides")
        for n, f in PARTS.items()
    ],
    *[case(n, lambda z, f=f: f(z * (1 + 2j)).sin(), rand(3, dtype=C), label="inside") for n, f in PARTS.items()],
    case("real", lambda z: z.real, rand(3, dtype=C), label="property"),
    case("imag", lambda z: z.imag, rand(3, dtype=C), label="property"),
    case("imag", lambda z: z.conj().imag, rand(3, dtype=C), label="of a conjugate"),
    case("real", lambda x: torch.real(x) * x, rand(3), label="of a real tensor"),
    case("conj", lambda x: x.conj() * x, rand(3), label="of a real tensor"),
    case("conj_physical", lambda x: torch.conj_physical(x) * x, rand(3), label="of a real tensor"),
    case("conj_physical", lambda z: (z * z).conj_physical_(), rand(3, dtype=C), label="in place"),
    case("angle", torch.angle, rand(3), differences=False, label="of a real tensor"),
    case("resolve_conj", lambda z: z.conj().resolve_conj(), rand(3, dtype=C)),
    case("resolve_conj", lambda z: torch.resolve_conj(z) * z, rand(3, dtype=C), label="nothing to resolve"),
    case("resolve_neg", lambda z: z.conj().imag.resolve_neg(), rand(3, dtype=C)),
    case("resolve_neg", lambda x: torch.resolve_neg(x) * x, rand(3), label="nothing to resolve"),
    case("view_as_complex", torch.view_as_complex, rand(3, 4, 2)),
    case("conj", torch._conj, rand(3, dtype=torch.complex128), label="alias"),
    case("conj_physical", torch._conj_physical, rand(3, dtype=torch.complex128), label="alias"),
    case("view_as_complex", torch.view_as_complex_copy, rand(3, 2), label="copy", torch_agrees=False),
    case("view_as_real", torch.view_as_real_copy, rand(3, dtype=torch.complex128), label="copy"),
    case("view_as_complex", torch.view_as_complex, rand(2), label="0-d"),
    case("view_as_complex", torch.view_as_complex, rand(0, 2), label="empty"),
    case("view_as_complex", lambda x: torch.view_as_complex(x.transpose(0, 1)).conj(), rand(3, 4, 2), label="strides"),
    case(
        "view_as_real",
        lambda z: torch.view_as_real(z).transpose(0, 1),
        rand(3, 4, dtype=C),
        label="strides on the way back",
    ),
    *[case(n, f, rand(3, 1, low=0.5), rand(4)) for n, f in PAIRS.items()],
    *[case(n, f, rand(low=0.5), rand(seed=1), label="0-d") for n, f in PAIRS.items()],
    *[case(n, f, rand(2, 0), rand(1), label="empty") for n, f in PAIRS.items()],
    *[case(n, f, rand(2, 1, 2, 1, 2, low=0.5), rand(3, 1), label="rank 5") for n, f in PAIRS.items()],
    case(
        "complex",
        lambda x, y: torch.complex(real=x.t(), imag=y.expand(3, 2)),
        rand(2, 3),
        rand(2),
        label="strides, keywords",
    ),
    # torch takes the sign of the result for that of the radius
    case("polar", torch.polar, rand(3, low=-2, high=-1), rand(3), label="negative radius", torch_agrees=False),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


def test_the_gradient_of_the_real_part_of_a_square_is_its_conjugate_derivative(device: torch.device) -> None:
    # pytorch/pytorch#41857, pytorch/pytorch#43208
    assert_values(first(lambda z: (z * z).real, [3 + 4j], dtype=C, device=device)[0], [6 - 8j])


def test_the_gradient_of_the_imaginary_part_is_i(device: torch.device) -> None:
    assert_values(first(torch.imag, [3 + 4j], dtype=C, device=device)[0], [1j])


def test_the_angle_at_zero_is_flat_to_second_order(device: torch.device) -> None:
    for derivative in (first, second):
        assert_values(derivative(torch.angle, [0j], dtype=C, device=device)[0], [0j])


def test_the_angle_on_the_negative_real_axis(device: torch.device) -> None:
    assert_values(first(torch.angle, [-2 + 0j], dtype=C, device=device)[0], [-0.5j])


def test_polar_at_radius_zero_still_has_a_direction(device: torch.device) -> None:
    radius, angle = first(torch.polar, [0.0], [0.0], device=device)
    assert_values(radius, [1.0])
    assert_values(angle, [0.0])


def test_polar_of_a_negative_radius_keeps_its_direction(device: torch.device) -> None:
    # the real part is r cos(angle): at angle 0 its slope by r is 1, whatever the sign of r
    assert_values(first(torch.polar, [-1.0], [0.0], device=device)[0], [1.0])


def test_the_real_part_of_a_real_tensor_is_the_tensor_itself(device: torch.device) -> None:
    x = tracer.tensor([1.0], device=device, requires_grad=True)
    assert torch.real(x) is x


def test_a_real_input_of_a_complex_product_gets_a_real_gradient(device: torch.device) -> None:
    (x,) = first(lambda x: x * (2 + 3j), [1.0], device=device)
    assert_values(x, [2.0])
