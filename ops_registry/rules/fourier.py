"""Fourier transforms: of complex and of real signals, in one or several dimensions, and of short frames (stft, istft).

A transform multiplies by a matrix F of the entries exp(±2πijk/n), scaled as ``norm`` says. The gradient is Fᴴ grad: the
transform of the opposite sign, with the scale that ``norm`` gave, which the opposite transform calls by the opposite name.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import backward, decomposition, overloaded
from ops_registry.shared.dimensions import fit
from ops_registry.shared.indices import whole
from ops_registry.shared.recorded import recorded

OPPOSITE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


# Half the spectrum of a real signal of length n stands for all of it: the frequencies k and n - k of a pair are conjugate, and
# 0 and n/2, which have no partner, are real. Made into a signal, what is left out counts too; made from one, it does not.


def doubled(spectrum, dim, n):
    """The gradient of half a spectrum that a real signal was made of, from the spectrum of the signal's gradient.

    Outside of recording, the spectrum is overwritten: nobody else has it.
    """
    if not recorded():
        spectrum.narrow(dim, 1, (n - 1) // 2).mul_(2)
        return spectrum
    weights = torch.full((n // 2 + 1,), 2, dtype=spectrum.dtype, device=spectrum.device)
    weights[:: unpaired(n)] = 1
    return spectrum * weights.reshape(-1, *ones_after(dim, spectrum))


def halved(spectrum, dim, n):
    """Half the spectrum of the gradient of a real signal, from the gradient of half the signal's spectrum.

    The inverse of a real transform is to take no notice of the imaginary parts at 0 and n/2; CUDA's does for some n.
    """
    weights = torch.full((n // 2 + 1, 2), 0.5, dtype=spectrum.dtype.to_real(), device=spectrum.device)
    weights[:: unpaired(n), 0] = 1
    weights[:: unpaired(n), 1] = 0
    parts = torch.view_as_real(spectrum.resolve_conj())
    return torch.view_as_complex(parts * weights.reshape(-1, *ones_after(dim, spectrum), 2))


def unpaired(n):
    """The distance between the frequencies without a partner: n/2, or any beyond the last frequency where 0 is the only one."""
    return n if n % 2 else n // 2


def ones_after(dim, tensor):
    """A length of 1 for each dimension after ``dim``."""
    return [1] * (-1 - dim if dim < 0 else tensor.dim() - 1 - dim)


# one dimension


@backward(torch.fft.fft, linear=True)
def fft(grad, input_shape, dim, norm):
    return fit(torch.fft.ifft(grad, None, dim, OPPOSITE[norm]), input_shape)


@backward(torch.fft.ifft, linear=True)
def ifft(grad, input_shape, dim, norm):
    return fit(torch.fft.fft(grad, None, dim, OPPOSITE[norm]), input_shape)


@backward(torch.fft.rfft, linear=True)
def rfft(grad, input_shape, n, dim, norm):
    n = input_shape[dim] if n is None else whole(n)
    return fit(torch.fft.irfft(halved(grad, dim, n), n, dim, OPPOSITE[norm]), input_shape)


@backward(torch.fft.irfft, linear=True)
def irfft(grad, input_shape, result_shape, dim, norm):
    return fit(doubled(torch.fft.rfft(grad, None, dim, OPPOSITE[norm]), dim, result_shape[dim]), input_shape)


@backward(torch.fft.hfft, linear=True)
def hfft(grad, input_shape, result_shape, dim, norm):
    return fit(doubled(torch.fft.ihfft(grad, None, dim, OPPOSITE[norm]), dim, result_shape[dim]), input_shape)


@backward(torch.fft.ihfft, linear=True)
def ihfft(grad, input_shape, n, dim, norm):
    n = input_shape[dim] if n is None else whole(n)
    return fit(torch.fft.hfft(halved(grad, dim, n), n, dim, OPPOSITE[norm]), input_shape)


# Several dimensions. A real signal is transformed along the last one named, and what comes out as complex along the others.


def as_list(value):
    return list(value) if isinstance(value, Sequence) else [whole(value)]


def transformed(shape, s, dim):
    """The dimensions along which a tensor of ``shape`` was transformed, in order."""
    if dim is None:
        return list(range(-len(shape) if s is None else -len(as_list(s)), 0))
    return as_list(dim)


def last_length(shape, s, dims):
    """The length that a real signal of ``shape`` was cropped or filled up to along the last of ``dims``."""
    last = -1 if s is None else as_list(s)[-1]
    return shape[dims[-1]] if last == -1 else last


@backward(torch.fft.fft2, torch.fft.fftn, linear=True)
def fftn(grad, input_shape, s, dim, norm):
    return fit(torch.fft.ifftn(grad, None, transformed(input_shape, s, dim), OPPOSITE[norm]), input_shape)


@backward(torch.fft.ifft2, torch.fft.ifftn, linear=True)
def ifftn(grad, input_shape, s, dim, norm):
    return fit(torch.fft.fftn(grad, None, transformed(input_shape, s, dim), OPPOSITE[norm]), input_shape)


@backward(torch.fft.rfft2, torch.fft.rfftn, linear=True)
def rfftn(grad, input_shape, s, dim, norm):
    *others, last = dims = transformed(input_shape, s, dim)
    n = last_length(input_shape, s, dims)
    if others:  # inside torch.vmap torch 2.13 takes no dimensions for all
        grad = torch.fft.ifftn(grad, None, others, OPPOSITE[norm])
    return fit(torch.fft.irfft(halved(grad, last, n), n, last, OPPOSITE[norm]), input_shape)


@backward(torch.fft.irfft2, torch.fft.irfftn, linear=True)
def irfftn(grad, input_shape, result_shape, s, dim, norm):
    dims = transformed(input_shape, s, dim)
    spectrum = torch.fft.rfftn(grad, None, dims, OPPOSITE[norm])
    return fit(doubled(spectrum, dims[-1], result_shape[dims[-1]]), input_shape)


@backward(torch.fft.hfft2, torch.fft.hfftn, linear=True)
def hfftn(grad, input_shape, result_shape, s, dim, norm):
    dims = transformed(input_shape, s, dim)
    spectrum = torch.fft.ihfftn(grad, None, dims, OPPOSITE[norm])
    return fit(doubled(spectrum, dims[-1], result_shape[dims[-1]]), input_shape)


@backward(torch.fft.ihfft2, torch.fft.ihfftn, linear=True)
def ihfftn(grad, input_shape, s, dim, norm):
    *others, last = dims = transformed(input_shape, s, dim)
    n = last_length(input_shape, s, dims)
    if others:  # inside torch.vmap torch 2.13 takes no dimensions for all
        grad = torch.fft.fftn(grad, None, others, OPPOSITE[norm])
    return fit(torch.fft.hfft(halved(grad, last, n), n, last, OPPOSITE[norm]), input_shape)


@backward(torch.fft.fftshift, linear=True)
def fftshift(grad, dim):
    return torch.fft.ifftshift(grad, dim)


@backward(torch.fft.ifftshift, linear=True)
def ifftshift(grad, dim):
    return torch.fft.fftshift(grad, dim)


# The kernels underneath. Their ``normalization`` names the scale itself, whatever the direction.


@backward(torch._fft_c2c, linear=True)
def _fft_c2c(grad, dim, normalization, forward):
    return torch._fft_c2c(grad, dim, normalization, not forward)


@backward(torch._fft_r2c, linear=True)
def _fft_r2c(grad, input_shape, dim, normalization, onesided):
    if not onesided:
        return torch._fft_c2c(grad, dim, normalization, False)
    *others, last = dim
    n = input_shape[last]
    if others:  # inside torch.vmap torch 2.13 takes no dimensions for all
        grad = torch._fft_c2c(grad, others, normalization, False)
    return torch._fft_c2r(halved(grad, last, n), [last], normalization, n)


@backward(torch._fft_c2r, linear=True)
def _fft_c2r(grad, input_shape, dim, normalization, last_dim_size):
    return fit(doubled(torch._fft_r2c(grad, dim, normalization, True), dim[-1], last_dim_size), input_shape)


# Transforms of short frames


def require(condition, message):
    if not condition:
        raise UnsupportedCallError(message)


def full_window(op, window, win_length, n_fft, like):
    """``window`` in the middle of ``n_fft`` places, zeros around it; ones, as ``like``, where there is no window."""
    require(0 < win_length <= n_fft, f"{op}: win_length={win_length} is not from 1 to n_fft={n_fft}")
    if window is None:
        window = torch.ones(win_length, dtype=like.dtype.to_real(), device=like.device)
    shape = tuple(window.shape)
    require(shape == (win_length,), f"{op}: the window has the shape {shape} and not (win_length,), ({win_length},)")
    missing = n_fft - win_length
    return F.pad(window, (missing // 2, missing - missing // 2)) if missing else window


@decomposition(torch.ops.aten.stft.default)
def stft(input, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window):
    """The spectra, as columns, of the frames of ``n_fft`` samples at every multiple of ``hop_length``, times the window."""
    require_signal(input.shape)
    length = input.shape[-1]
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    real = not (input.is_complex() or (window is not None and window.is_complex()))
    onesided = real if onesided is None else onesided
    require(return_complex is not None or not real, "stft of a real signal has to be told return_complex")
    require(0 < n_fft <= length, f"stft: n_fft={n_fft} is not from 1 to the length of the signal, {length}")
    require(hop_length > 0, f"stft: hop_length={hop_length} is not positive")
    require(real or not onesided, "stft: a complex signal or window needs the whole spectrum (onesided=False)")
    whole = window is None and win_length == n_fft
    window = None if whole else full_window("stft", window, win_length, n_fft, input)
    if align_to_window:  # the first window begins where the signal does, not the frame around it
        margin = (n_fft - win_length) // 2
        count = 1 + (length - win_length) // hop_length
        input = F.pad(input, (margin, margin))
        fits = n_fft + hop_length * (count - 1) <= length + 2 * margin
        require(fits, f"stft: with win_length={win_length} and n_fft={n_fft} the last frame ends beyond the signal")
    frames = input.unfold(-1, n_fft, hop_length)
    transform = torch.fft.rfft if onesided else torch.fft.fft
    spectra = transform(frames if whole else frames * window, None, -1, "ortho" if normalized else None).transpose(
        -1, -2
    )
    return torch.view_as_real(spectra) if return_complex is False else spectra


def require_signal(shape):
    require(len(shape) in (1, 2), f"stft takes a signal or a batch of signals, not a tensor of {len(shape)} dimensions")


@decomposition(torch.ops.aten.stft.center)
def centered_stft(
    input, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex, align_to_window
):  # fmt: skip
    """The same; with ``center``, of the signal extended so that the first frame has its beginning in the middle."""
    if center:
        shape = input.shape
        require_signal(shape)
        require(align_to_window is None, "stft: align_to_window is for center=False")
        margin = n_fft // 2
        extended = F.pad(input.reshape(1, -1, shape[-1]), (margin, margin), pad_mode)
        input = extended.reshape(*shape[:-1], -1)
    return stft(input, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window)


@overloaded(torch.stft)
def choose_stft(*args, **kwargs):
    """torch's functions take what follows the window for ``center``, unless what comes next is no ``pad_mode``."""
    plain = len(args) > 6 and not isinstance(args[6], str)
    return torch.ops.aten.stft.default if plain else torch.ops.aten.stft.center


@overloaded(torch.ops.aten.stft, alone=True)
def choose_stft_packet(*args, **kwargs):
    """The packet takes the overload without ``center``, unless a call has what only the other knows."""
    centered = "center" in kwargs or "pad_mode" in kwargs or (len(args) > 6 and isinstance(args[6], str))
    return torch.ops.aten.stft.center if centered else torch.ops.aten.stft.default


@decomposition(torch.istft)
def istft(input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex):
    """The signal whose windowed frames come closest to those of the given spectra: their windowed sum over that of window²."""
    shape = input.shape
    require(input.is_complex(), "istft takes complex spectra, as stft gives them with return_complex=True")
    require(
        len(shape) in (2, 3), f"istft takes (batch,) frequencies and frames, not a tensor of {len(shape)} dimensions"
    )
    require(shape.numel() > 0, "istft of an empty tensor")
    bins, count = shape[-2:]
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    onesided = bins != n_fft if onesided is None else onesided
    expected = n_fft // 2 + 1 if onesided else n_fft
    require(bins == expected, f"istft: {bins} frequencies, where n_fft={n_fft} and onesided={onesided} want {expected}")
    require(0 < hop_length <= win_length, f"istft: hop_length={hop_length} is not from 1 to win_length={win_length}")
    require(not (onesided and return_complex), "istft: half the spectrum (onesided) belongs to a real signal")
    window = full_window("istft", window, win_length, n_fft, input)
    require(return_complex or not window.is_complex(), "istft: a complex window makes a complex signal")

    spectra, norm = input.transpose(-1, -2), "ortho" if normalized else None
    if return_complex:
        frames = torch.fft.ifft(spectra, None, -1, norm)
    else:
        frames = torch.fft.irfft(spectra, n_fft, -1, norm)
    total = n_fft + hop_length * (count - 1)
    start = n_fft // 2 if center else 0
    end = total - start if length is None else start + length
    samples = min(end, total) - start
    require(samples > 0, f"istft: no sample is left between {start} and {end}")

    def overlapped(frames):
        shape = (*frames.shape[:-2], total)
        return torch.ops.aten.unfold_backward(frames, shape, len(shape) - 1, n_fft, hop_length).narrow(
            -1, start, samples
        )

    envelope = overlapped((window * window).expand(count, n_fft))
    require(envelope.abs().min() > 1e-11, "istft: the windows leave a sample uncovered, where the signal is unknown")
    signal = overlapped(frames * window) / envelope
    return F.pad(signal, (0, end - total)) if end > total else signal
