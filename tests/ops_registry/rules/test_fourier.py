"""Rules of ``ops_registry/rules/fourier.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.analytic import assert_values, first
from support.checking import Case, Make, case, check_under_autocast, plain, rand, run_case
from torch.utils._python_dispatch import TorchDispatchMode

import ops_registry
import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.fourier import halved

C = torch.complex128
NORMS = ("forward", "backward", "ortho")
VF = torch._C._VariableFunctions
aten = torch.ops.aten

#: Transforms that take complex signals, and those that take real ones only.
OF_COMPLEX = ("fft", "ifft", "irfft", "hfft")
OF_REAL = ("rfft", "ihfft")


def make(name: str, *shape: int) -> Make:
    """Something for the transform to work on."""
    return rand(*shape, dtype=torch.float64 if name.rstrip("2n") in OF_REAL else C)


def one_dimension(name: str) -> list[Case]:
    f = getattr(torch.fft, name)
    rule, x = f"fft_{name}", partial(make, name)
    return [
        case(rule, f, x(3, 6), label="even"),
        case(rule, f, x(3, 5), label="odd"),
        case(rule, f, x(3, 5), label="not recorded", second=False),
        *[case(rule, partial(f, norm=norm), x(2, 6), label=norm) for norm in NORMS],
        *[case(rule, partial(f, n=n), x(2, 5), label=f"n={n}") for n in (1, 2, 3, 4, 7, 8, 12)],
        *[case(rule, lambda x, n=n: f(x, n, 0, "ortho"), x(4, 2, 3), label=f"n={n}, dim=0") for n in (None, 3, 9)],
        case(rule, partial(f, dim=-2), x(2, 4, 3), label="dim=-2"),
        case(rule, f, x(2, 1, 2, 1, 6), label="rank 5"),
        case(rule, f, x(4), label="vector"),
        case(rule, lambda x: f(x.transpose(0, 1)), x(6, 2), label="transposed"),
        case(rule, lambda x: f(x.expand(3, 4)), x(4), label="expanded"),
        case(rule, lambda x: f(x[::2, 1:]), x(4, 6), label="strides"),
    ]


def several_dimensions(name: str) -> list[Case]:
    f = getattr(torch.fft, name)
    rule, x = f"fft_{name}", partial(make, name)
    return [
        case(rule, f, x(3, 4), label="even"),
        case(rule, f, x(2, 3, 5), label="odd"),
        case(rule, f, x(2, 3, 5), label="not recorded", second=False),
        *[case(rule, partial(f, norm=norm), x(3, 4), label=norm) for norm in NORMS],
        *[case(rule, partial(f, s=s), x(2, 4, 5), label=f"s={s}") for s in ((2, 3), (6, 8), (3, 9), (-1, 4), (5, -1))],
        *[
            case(rule, partial(f, dim=d), x(3, 2, 4), label=f"dim={d}")
            for d in ((0, 1), (2, 0), (-1, 1), (1,), (0, 2, 1))
        ],
        case(rule, lambda x: f(x, (3, 7), (2, 0), "ortho"), x(4, 2, 5), label="cropped and filled up"),
        case(rule, f, x(1, 2, 1, 3, 4), label="rank 5"),
        case(rule, lambda x: f(x.permute(2, 0, 1)), x(2, 3, 4), label="permuted"),
        case(rule, lambda x: f(x.expand(2, 3, 4)), x(3, 1), label="expanded"),
    ]


def real_input(name: str) -> Case:
    """A transform of complex signals takes real ones for such without an imaginary part."""
    return case(f"fft_{name}", getattr(torch.fft, name), rand(3, 4), label="real input")


KERNELS = [
    *[
        case("_fft_c2c", lambda x, k=k, f=f: torch._fft_c2c(x, [0, 2], k, f), rand(3, 2, 4, dtype=C), label=f"{k} {f}")
        for k in (0, 1, 2)
        for f in (True, False)
    ],
    *[
        case("_fft_r2c", lambda x, k=k, o=o: torch._fft_r2c(x, [0, 2], k, o), rand(3, 2, n), label=f"{k} {o} {n}")
        for k in (0, 1, 2)
        for o in (True, False)
        for n in (1, 2, 5, 6)
    ],
    *[
        case("_fft_c2r", lambda x, k=k, n=n: torch._fft_c2r(x, [0, 2], k, n), rand(3, 2, 4, dtype=C), label=f"{k} {n}")
        for k in (0, 1, 2)
        for n in (6, 7)
    ],
    case("_fft_c2r", lambda x: torch._fft_c2r(x, [1], 0, 5), rand(2, 3, dtype=C), label="not recorded", second=False),
    case("_fft_r2c", lambda x: aten._fft_r2c(x, [1], 2, True), rand(2, 3), label="packet"),
]

SHIFTS = [
    case(f"fft_{name}", lambda x, name=name, dim=dim: getattr(torch.fft, name)(x, dim) * x, x, label=f"{dim}")
    for name in ("fftshift", "ifftshift")
    for dim, x in (
        (None, rand(5)),
        (0, rand(3, 4)),
        ((-1, 1), rand(2, 3, 5, dtype=C)),
        (None, rand(2, 0)),
        ((4, 2), rand(1, 2, 3, 1, 5)),
    )
]


def stft(label: str, x: Make, *window: Make, rule: str = "stft.center", **options: Any) -> Case:
    """A case of ``torch.stft`` with frames of 6 samples."""
    options = {"hop_length": 2, "return_complex": True, **options}
    return case(rule, lambda x, w=None: torch.stft(x, 6, window=w, **options), x, *window, label=label)


def istft(label: str, x: Make, *window: Make, n: int = 6, **options: Any) -> Case:
    """A case of ``torch.istft`` with frames of ``n`` samples."""
    options = {"hop_length": 2, **options}
    return case("istft", lambda x, w=None: torch.istft(x, n, window=w, **options), x, *window, label=label)


WINDOW, SHORT = rand(6, low=0.5), rand(3, low=0.5)
HALF, WHOLE = rand(2, 4, 5, dtype=C), rand(2, 6, 5, dtype=C)

FRAMES = [
    stft("", rand(2, 13), WINDOW),
    stft("no window", rand(2, 13)),
    stft("one signal", rand(13), WINDOW),
    stft("default hop", rand(13), WINDOW, hop_length=None),
    stft("gaps between the frames", rand(2, 20), WINDOW, hop_length=8),
    stft("short window", rand(2, 13), SHORT, win_length=3),
    stft("short and no window", rand(2, 13), win_length=3),
    stft("normalized", rand(2, 13), WINDOW, normalized=True),
    stft("whole spectrum", rand(2, 13), WINDOW, onesided=False),
    stft("complex", rand(2, 13, dtype=C), WINDOW),
    stft("complex window", rand(2, 13), rand(6, dtype=C)),
    stft("complex and its window", rand(2, 13, dtype=C), rand(6, dtype=C)),
    stft("as real", rand(2, 13), WINDOW, return_complex=False),
    *[stft(mode, rand(2, 13), WINDOW, pad_mode=mode) for mode in ("constant", "replicate", "circular")],
    stft("not centered", rand(2, 13), WINDOW, center=False),
    stft("one frame", rand(6), WINDOW, center=False),
    stft("aligned", rand(2, 13), rand(4, low=0.5), win_length=4, center=False, align_to_window=True),
    stft("not aligned", rand(2, 13), rand(4, low=0.5), win_length=4, center=False, align_to_window=False),
    case("stft.center", lambda x: torch.stft(x.t(), 4, return_complex=True), rand(9, 2), label="transposed"),
    case("stft.center", lambda x: torch.stft(x.expand(2, 9), 4, return_complex=True), rand(9), label="expanded"),
    case("stft.center", lambda x, w: x.stft(5, 2, 5, w, True, "constant", return_complex=True), rand(9), rand(5)),
    case("stft", lambda x, w: aten.stft.default(x, 5, 2, 5, w, return_complex=True), rand(9), rand(5)),
    istft("", HALF, WINDOW),
    istft("no window", HALF),
    istft("one signal", rand(4, 5, dtype=C), WINDOW),
    istft("odd", rand(2, 3, 6, dtype=C), rand(5, low=0.5), n=5),
    istft("default hop", HALF, WINDOW, hop_length=None),
    istft("short window", HALF, SHORT, win_length=3),
    istft("short and no window", HALF, win_length=3),
    istft("normalized", HALF, WINDOW, normalized=True),
    istft("not centered", HALF, WINDOW, center=False),
    istft("whole spectrum", WHOLE, WINDOW, onesided=False),
    istft("complex", WHOLE, WINDOW, return_complex=True),
    istft("complex window", WHOLE, rand(6, dtype=C), return_complex=True),
    *[istft(f"length {n}", HALF, WINDOW, length=n) for n in (1, 7, 11)],
    istft("filled up with zeros", HALF, WINDOW, length=20),
    case("istft", lambda x: x.istft(4, 1, length=5, center=False), rand(3, 5, dtype=C), label="method"),
    case("istft", lambda x: aten.istft(x, 4, 1), rand(3, 5, dtype=C), label="packet"),
]

CASES = [
    *[c for name in (*OF_COMPLEX, *OF_REAL) for c in one_dimension(name)],
    *[c for name in (*OF_COMPLEX, *OF_REAL) for kind in "2n" for c in several_dimensions(name + kind)],
    *[real_input(name + kind) for name in OF_COMPLEX for kind in ("", "2", "n")],
    case("fft_fftn", lambda x: torch.fft.fftn(x), rand(), label="0-d"),
    case("fft_fftn", lambda x: torch.fft.fftn(x, dim=()), rand(2, 3), label="no dimensions"),
    case("fft_fftn", lambda x: torch.fft.fftn(x, s=5), rand(2, 3), label="s a number"),
    case("fft_rfftn", lambda x: torch.fft.rfftn(x, s=5, dim=0), rand(2, 3), label="s and dim numbers"),
    case("fft_fft", lambda x: aten.fft_fft(x, 3, 0, "ortho"), rand(4, 2, dtype=C), label="packet"),
    case("fft_rfft", lambda x: aten.fft_rfft.default(x, 7), rand(2, 4), label="overload"),
    case("fft_rfft", lambda x: torch.fft.rfft(x, torch.tensor(7)), rand(2, 4), label="n a tensor"),
    case(
        "fft_rfft",
        torch.fft.rfft,
        rand(2, 4, dtype=torch.float32),
        label="single",
        differences=False,
        rtol=1e-5,
        atol=1e-5,
    ),
    *KERNELS,
    *SHIFTS,
    *FRAMES,
]


@pytest.mark.filterwarnings(
    "ignore:stft with return_complex=False", "ignore:A window was not", "ignore:The length of signal"
)
@pytest.mark.parametrize("c", CASES, ids=str)
def test_gradients_equal_torch_and_differences(c: Case, device: torch.device) -> None:
    run_case(c, device)


SIZES = st.integers(1, 9)


@given(
    st.sampled_from((*OF_COMPLEX, *OF_REAL)),
    SIZES,
    st.none() | SIZES,
    st.integers(-2, 1),
    st.sampled_from(NORMS),
    st.data(),
)
def test_the_gradient_is_the_adjoint(
    name: str, length: int, n: int | None, dim: int, norm: str, data: st.DataObject
) -> None:
    """<F x, y> = <x, gradient of y>, whatever is cropped or filled up."""
    if n is None and length == 1 and name in ("irfft", "hfft"):
        n = data.draw(SIZES)  # a signal of length 2 (length - 1) = 0 is none
    shape = (length, 3) if dim % 2 == 0 else (3, length)
    x = tracer.track(make(name, *shape)(torch.device("cpu")), True)
    result = getattr(torch.fft, name)(x, n, dim, norm)
    y = rand(*result.shape, dtype=result.dtype, seed=1)(torch.device("cpu"))
    (gradient,) = torch.autograd.grad(result, x, y)
    left = (plain(result) * y.conj()).real.sum()
    right = (plain(x) * plain(gradient).conj()).real.sum()
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------------------------------- values worked out by hand
def test_the_energy_of_a_spectrum_is_n_times_that_of_the_signal(device: torch.device) -> None:
    (gradient,) = first(lambda x: torch.fft.fft(x).abs().square(), [1.0, -2.0, 0.5], device=device)
    assert_values(gradient, [6.0, -12.0, 3.0])


def test_a_frequency_of_half_a_spectrum_pulls_at_the_signal_as_a_cosine(device: torch.device) -> None:
    (gradient,) = first(lambda x: torch.fft.rfft(x)[1].real, [0.0, 0.0, 0.0, 0.0], device=device)
    assert_values(gradient, [1.0, 0.0, -1.0, 0.0])


def test_a_pair_of_frequencies_counts_twice_in_the_signal(device: torch.device) -> None:
    (gradient,) = first(lambda X: torch.fft.irfft(X, norm="forward")[0], [0.0] * 3, dtype=C, device=device)
    assert_values(gradient, [1 + 0j, 2 + 0j, 1 + 0j])


def test_an_imaginary_part_that_no_real_signal_has_gets_no_gradient(device: torch.device) -> None:
    (gradient,) = first(lambda X: torch.fft.irfft(X).square(), [1j] * 3, dtype=C, device=device)
    assert gradient is not None
    assert gradient.imag[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize("n", [1, 2, 5, 6])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_real_transform_is_given_no_imaginary_part_at_frequencies_without_partner(
    n: int, dim: int, device: torch.device
) -> None:
    # CUDA's takes notice of it for some n: pytorch/pytorch#154496
    m = n // 2 + 1
    spectrum = torch.full((m, 2) if dim == 0 else (2, m), 1 + 1j, dtype=C, device=device).conj()
    parts = halved(spectrum, dim, n).movedim(dim, -1)[0]
    alone = [k for k in range(m) if k == 0 or 2 * k == n]
    assert parts.tolist() == [1 if k in alone else 0.5 - 0.5j for k in range(m)]


def test_what_is_cropped_away_gets_no_gradient(device: torch.device) -> None:
    (gradient,) = first(lambda x: torch.fft.fft(x, n=2).real, [1.0, 2.0, 3.0], device=device)
    assert_values(gradient, [2.0, 0.0, 0.0])


def test_a_signal_is_what_its_frames_make_it(device: torch.device) -> None:
    weights = torch.arange(16.0, dtype=torch.float64, device=device)
    window = torch.hann_window(8, dtype=torch.float64, device=device)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return weights * torch.istft(torch.stft(x, 8, 2, window=window, return_complex=True), 8, 2, window=window)

    (gradient,) = first(there_and_back, [1.0] * 16, device=device)
    assert gradient is not None
    torch.testing.assert_close(plain(gradient), weights)


# ------------------------------------------------------------------------------------------------- cost
class Kernels(TorchDispatchMode):
    """Counts the calls of torch's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


WINDOWED = {"window": torch.ones(8), "hop_length": 2}

ONE_TRANSFORM: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "fft": (torch.fft.fft, (torch.randn(9, dtype=torch.cfloat),)),
    "fft of a real signal": (torch.fft.fft, (torch.randn(9),)),
    "rfft": (torch.fft.rfft, (torch.randn(9),)),
    "irfft": (torch.fft.irfft, (torch.randn(9, dtype=torch.cfloat),)),
    "hfft": (torch.fft.hfft, (torch.randn(9, dtype=torch.cfloat),)),
    "fftn": (torch.fft.fftn, (torch.randn(3, 4, dtype=torch.cfloat),)),
    "stft": (lambda x: torch.stft(x, 8, return_complex=True, **WINDOWED), (torch.randn(20),)),
    "stft and its window": (
        lambda x, w: torch.stft(x, 8, 2, window=w, return_complex=True),
        (torch.randn(20), torch.ones(8)),
    ),
    "istft": (lambda x: torch.istft(x, 8, **WINDOWED), (torch.randn(5, 6, dtype=torch.cfloat),)),
    "istft and its window": (
        lambda x, w: torch.istft(x, 8, 2, window=w),
        (torch.randn(5, 6, dtype=torch.cfloat), torch.ones(8)),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), ONE_TRANSFORM.values(), ids=ONE_TRANSFORM)
def test_backward_takes_one_transform(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> None:
    leaves = [tracer.track(x.clone(), True) for x in inputs]
    result = function(*leaves)
    with Kernels() as kernels:
        torch.autograd.grad(result, leaves, plain(result))
    assert sum(n for name, n in kernels.count.items() if name.startswith("_fft")) == 1


@pytest.mark.parametrize("name", [n + k for n in (*OF_COMPLEX, *OF_REAL) for k in ("", "2", "n")] + ["fftshift"])
def test_a_transform_keeps_no_tensor(name: str) -> None:
    (info,) = [r for r in ops_registry.list_rules() if r.op == f"fft_{name}"]
    assert set(info.keeps) <= {"input_shape", "result_shape", "n", "s", "dim", "norm"}


# ------------------------------------------------------------------------------------------------- stft's two meanings
X, W = torch.linspace(-1, 1, 40, dtype=torch.float64).square(), torch.hann_window(16, dtype=torch.float64)

STFT_CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "two by position": lambda x: VF.stft(x, 16, return_complex=True),
    "center": lambda x: VF.stft(x, 16, 4, 16, W, False, return_complex=True),
    "center and pad_mode": lambda x: VF.stft(x, 16, 4, 16, W, True, "constant", return_complex=True),
    "normalized and onesided": lambda x: VF.stft(x, 16, 4, 16, W, True, False, return_complex=True),
    "all of the shorter": lambda x: VF.stft(x, 16, 4, 16, W, True, None, True, None),
    "all of the longer": lambda x: VF.stft(x, 16, 4, 16, W, False, "reflect", True, False, True, True),
    "normalized by name": lambda x: VF.stft(x, 16, 4, 16, W, normalized=True, return_complex=True),
    "packet": lambda x: aten.stft(x, 16, 4, 16, W, return_complex=True),
    "packet, normalized": lambda x: aten.stft(x, 16, 4, 16, W, True, return_complex=True),
    "packet, center": lambda x: aten.stft(x, 16, 4, 16, W, center=True, return_complex=True),
    "packet, pad_mode": lambda x: aten.stft(x, 16, 4, 16, W, True, "constant", return_complex=True),
    "overload": lambda x: aten.stft.default(x, 16, 4, 16, W, True, False, True),
    "overload, center": lambda x: aten.stft.center(x, 16, 4, 16, W, return_complex=True),
    "C method": lambda x: torch._C.TensorBase.stft(x, 16, 4, 16, W, return_complex=True),
    "method": lambda x: x.stft(16, 4, 16, W, False, return_complex=True),
    "function": lambda x: torch.functional.stft(x, 16, 4, 16, W, True, "replicate", True, return_complex=True),
}


@pytest.mark.filterwarnings("ignore:A window was not")
@pytest.mark.parametrize("call", STFT_CALLS.values(), ids=STFT_CALLS)
def test_a_call_of_stft_means_what_it_means_to_torch(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert torch.equal(plain(call(tracer.track(X.clone(), True))), call(X))


@pytest.mark.parametrize("call", STFT_CALLS.values(), ids=STFT_CALLS)
def test_a_call_of_stft_has_the_gradient_of_torch(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run_case(case("stft", call, lambda device: X.to(device), differences=False), torch.device("cpu"))


Z = torch.randn(2, 9, 11, dtype=C)

WRONG: dict[str, Callable[[Callable[..., torch.Tensor]], torch.Tensor]] = {
    "stft: three dimensions": lambda t: torch.stft(t(X[None, None]), 16, window=W, center=False, return_complex=True),
    "stft: three dimensions, centered": lambda t: torch.stft(t(X[None, None]), 16, window=W, return_complex=True),
    "stft: a number": lambda t: VF.stft(t(X[0]), 16, window=W, center=False, return_complex=True),
    "stft: not told return_complex": lambda t: torch.stft(t(X), 16, window=W),
    "stft: n_fft 0": lambda t: torch.stft(t(X), 0, 4, return_complex=True),
    "stft: n_fft beyond the signal": lambda t: torch.stft(t(X), 50, center=False, return_complex=True),
    "stft: hop_length 0": lambda t: torch.stft(t(X), 16, 0, window=W, return_complex=True),
    "stft: win_length 0": lambda t: torch.stft(t(X), 16, 4, 0, return_complex=True),
    "stft: win_length beyond n_fft": lambda t: torch.stft(t(X), 16, 4, 17, return_complex=True),
    "stft: length of the window": lambda t: torch.stft(t(X), 16, window=W[1:], return_complex=True),
    "stft: window of one element": lambda t: torch.stft(t(X), 16, window=W[1:2], return_complex=True),
    "stft: window of two dimensions": lambda t: torch.stft(t(X), 16, window=W[None], return_complex=True),
    "stft: onesided and complex": lambda t: torch.stft(t(X + 0j), 16, window=W, onesided=True),
    "stft: aligned and centered": lambda t: torch.stft(t(X), 16, window=W, return_complex=True, align_to_window=True),
    "stft: aligned, last frame too long": lambda t: torch.stft(
        t(X[:30]), 9, 2, 4, W[:4], center=False, return_complex=True, align_to_window=True
    ),
    "istft: real": lambda t: torch.istft(t(Z.real), 16, window=W),
    "istft: four dimensions": lambda t: torch.istft(t(Z[None]), 16, window=W),
    "istft: empty": lambda t: torch.istft(t(Z[:0]), 16, window=W),
    "istft: number of frequencies": lambda t: torch.istft(t(Z), 18, 4, 16, W),
    "istft: hop_length beyond win_length": lambda t: torch.istft(t(Z), 16, 5, 4, W[:4]),
    "istft: hop_length 0": lambda t: torch.istft(t(Z), 16, 0, window=W),
    "istft: win_length beyond n_fft": lambda t: torch.istft(t(Z), 16, 4, 17),
    "istft: length of the window": lambda t: torch.istft(t(Z), 16, window=W[1:]),
    "istft: onesided and complex": lambda t: torch.istft(t(Z), 16, window=W, return_complex=True),
    "istft: complex window of a real signal": lambda t: torch.istft(t(Z), 16, window=W + 0j),
    "istft: uncovered samples": lambda t: torch.istft(t(Z), 16, window=W, center=False),
    "istft: gaps between the windows": lambda t: torch.istft(t(Z), 16, 8, 8, torch.hann_window(8)),
    "istft: no length": lambda t: torch.istft(t(Z), 16, window=W, length=0),
    "istft: nothing left": lambda t: torch.istft(t(Z[..., :1]), 16, window=W),
}


@pytest.mark.filterwarnings("ignore:A window was not")
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_call_raises_as_it_does_in_torch(call: Callable[[Callable[..., Any]], torch.Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        call(lambda x: x)
    with pytest.raises(UnsupportedCallError):
        call(lambda x: tracer.track(x.clone(), True))


# ------------------------------------------------------------------------------------------------- in use
def test_transforms_under_autocast(device: torch.device) -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        window = torch.ones(8, device=x.device)
        spectra = torch.stft(x, 8, 2, window=window, return_complex=True) * torch.fft.rfft(x, 8).unsqueeze(-1)
        return torch.istft(spectra, 8, 2, window=window)

    check_under_autocast(there_and_back, (rand(2, 16, dtype=torch.float32),), device, rtol=1e-5, atol=1e-5)


def spectrogram_loss(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Distances of magnitudes and log magnitudes in two resolutions from those of a fixed signal."""
    target = torch.sin(torch.arange(x.shape[-1], dtype=x.dtype, device=x.device))
    loss = x.new_zeros(())
    for n_fft in (8, 6):
        w = window[:n_fft]
        a, b = (torch.stft(s, n_fft, 3, window=w, return_complex=True).abs() + 1e-3 for s in (x, target.expand_as(x)))
        loss = loss + (a - b).norm() / b.norm() + (a.log() - b.log()).abs().mean()
    return loss


def wiener_filter(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The signal that remains when each frequency is damped by its share of noise."""
    spectrum = torch.fft.rfft(x, n=2 * x.shape[-1])
    power = spectrum.abs().square()
    return torch.fft.irfft(spectrum * power / (power + noise.exp()), n=2 * x.shape[-1])[..., : x.shape[-1]]


def fourier_layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A layer of a Fourier neural operator: the lowest modes are mixed, the others dropped."""
    modes = torch.fft.rfft2(x, norm="ortho")
    mixed = torch.zeros_like(modes)
    mixed[..., :2, :3] = torch.einsum("bixy,ioxy->boxy", modes[..., :2, :3], weight)
    mixed[..., -2:, :3] = torch.einsum("bixy,ioxy->boxy", modes[..., -2:, :3], weight.conj())
    return torch.nn.functional.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:], norm="ortho"))


def convolution_by_transform(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """A long convolution as the product of spectra."""
    n = x.shape[-1] + kernel.shape[-1] - 1
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(kernel, n), n)


IN_USE = [
    case("stft.center", spectrogram_loss, rand(2, 24), rand(8, low=0.5), label="spectrogram loss"),
    case("fft_irfft", wiener_filter, rand(2, 7), rand(8), label="Wiener filter"),
    case("fft_irfft2", fourier_layer, rand(2, 2, 5, 6), rand(2, 2, 2, 3, dtype=C), label="Fourier layer"),
    case("fft_irfft", convolution_by_transform, rand(2, 7), rand(4), label="convolution"),
]


@pytest.mark.parametrize("c", IN_USE, ids=str)
def test_derivatives_in_use_equal_torch(c: Case, device: torch.device) -> None:
    run_case(c, device)
