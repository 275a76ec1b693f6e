"""``nn.ConvLSTM2d``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import plain
from support.training import accuracy, compare_modules, fit

import nn
import tracer


class Written(torch.nn.Module):
    """The same in torch, gate by gate, each with convolutions of its own, from the same parameters."""

    def __init__(self, ours: nn.ConvLSTM2d) -> None:
        super().__init__()
        self.layers, self.hidden = ours.num_layers, ours.hidden_channels
        self.padding = [k // 2 for k in ours.kernel_size]
        for name, parameter in ours.named_parameters():
            self.register_parameter(name, torch.nn.Parameter(plain(parameter).clone()))

    def forward(self, x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor) -> torch.Tensor:
        last = []
        for layer in range(self.layers):
            named = {name.rsplit("_", 1)[0]: p for name, p in self.named_parameters() if name.endswith(f"l{layer}")}
            h, c, outputs = h0[layer], c0[layer], []
            for t in range(x.shape[1]):

                def gate(
                    k: int, t: int = t, h: torch.Tensor = h, x: torch.Tensor = x, named: Any = named
                ) -> torch.Tensor:
                    rows = slice(k * self.hidden, (k + 1) * self.hidden)
                    total = 0
                    for side, image in (("ih", x[:, t]), ("hh", h)):
                        bias = named[f"bias_{side}"][rows] if f"bias_{side}" in named else None
                        total = total + torch.conv2d(image, named[f"weight_{side}"][rows], bias, padding=self.padding)
                    return total

                c = torch.sigmoid(gate(1)) * c + torch.sigmoid(gate(0)) * torch.tanh(gate(2))
                h = torch.sigmoid(gate(3)) * torch.tanh(c)
                outputs.append(h)
            x = torch.stack(outputs, 1)
            last += [h, c]
        return torch.cat([x.flatten(), *(s.flatten() for s in last)])


def everything(result: Any) -> torch.Tensor:
    """Output and states in one, in the order of ``Written``."""
    output, (h, c) = result
    return torch.cat([output.flatten(), *(s.flatten() for pair in zip(h, c, strict=True) for s in pair)])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", [3, (1, 5)])
def test_values_and_gradients_are_those_of_written_out_gates(layers: int, bias: bool, kernel: Any) -> None:
    ours = nn.ConvLSTM2d(2, 3, kernel, num_layers=layers, bias=bias, dtype=torch.float64)
    x = torch.randn(2, 4, 2, 5, 6, dtype=torch.float64)
    states = [torch.randn(layers, 2, 3, 5, 6, dtype=torch.float64) for _ in range(2)]
    compare_modules(ours, Written(ours), [x, *states], lambda x, h, c: everything(ours(x, (h, c))))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_on_one_pixel_it_is_torchs_lstm(layers: int, bias: bool) -> None:
    torch.manual_seed(0)
    ours = nn.ConvLSTM2d(3, 4, 1, num_layers=layers, bias=bias, dtype=torch.float64)
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(3, 4, layers, bias=bias, batch_first=True, dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(plain(a).flatten(), b.flatten()), "the same seed gives the same parameters"
    data = torch.randn(2, 5, 3, dtype=torch.float64)
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    results = everything(ours(x[..., None, None])), everything(theirs(native))
    torch.testing.assert_close(plain(results[0]), results[1].detach())
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(x.grad, native.grad)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad.flatten(), b.grad.flatten())


def test_shapes() -> None:
    model = nn.ConvLSTM2d(2, 3, 3, num_layers=2)
    output, (h, c) = model(torch.randn(4, 5, 2, 6, 7))
    assert output.shape == (4, 5, 3, 6, 7) and h.shape == c.shape == (2, 4, 3, 6, 7)
    torch.testing.assert_close(output[:, -1], h[-1])


def test_without_a_batch_dimension() -> None:
    model = nn.ConvLSTM2d(2, 3, 3, num_layers=2)
    x, states = torch.randn(5, 2, 6, 7), (torch.randn(2, 3, 6, 7), torch.randn(2, 3, 6, 7))
    output, (h, c) = model(x, states)
    assert output.shape == (5, 3, 6, 7) and h.shape == c.shape == (2, 3, 6, 7)
    batched = model(x[None], tuple(s[:, None] for s in states))
    torch.testing.assert_close(everything((output, (h, c))), everything(batched))


def test_an_empty_batch() -> None:
    output, _ = nn.ConvLSTM2d(2, 3, 3)(torch.ones(0, 5, 2, 6, 7))
    assert output.shape == (0, 5, 3, 6, 7)


def test_the_state_carries_a_sequence_on() -> None:
    model = nn.ConvLSTM2d(1, 2, 3, dtype=torch.float64)
    x = torch.randn(2, 6, 1, 4, 4, dtype=torch.float64)
    first, state = model(x[:, :3])
    second, _ = model(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), model(x)[0])


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "even kernel": (lambda: nn.ConvLSTM2d(1, 2, 2), nn.ArgumentError, "odd"),
    "kernel of three": (lambda: nn.ConvLSTM2d(1, 2, (3, 3, 3)), nn.ArgumentError, "kernel_size"),  # type: ignore[arg-type]
    "no channels": (lambda: nn.ConvLSTM2d(1, 0, 3), nn.ArgumentError, "positive"),
    "rank": (lambda: nn.ConvLSTM2d(1, 2, 3)(torch.ones(1, 4, 4)), nn.ShapeError, r"shape \(1, 4, 4\)"),
    "channels": (
        lambda: nn.ConvLSTM2d(1, 2, 3)(torch.ones(2, 3, 2, 4, 4)),
        nn.ShapeError,
        r"T, 1, H, W\).*\(2, 3, 2, 4, 4\)",
    ),
    "no time": (lambda: nn.ConvLSTM2d(1, 2, 3)(torch.ones(2, 0, 1, 4, 4)), nn.ShapeError, "T > 0"),
    "state": (
        lambda: nn.ConvLSTM2d(1, 2, 3)(torch.ones(2, 3, 1, 4, 4), (torch.ones(1, 2, 2, 4, 4), torch.ones(2, 2, 4, 4))),
        nn.ShapeError,
        r"must be \(1, 2, 2, 4, 4\).*and \(2, 2, 4, 4\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


class Motion(nn.Module):
    """Which way does the dot move?"""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.ConvLSTM2d(1, 6, 3)
        self.head = nn.Linear(6, 4)

    def forward(self, films: torch.Tensor) -> torch.Tensor:
        _, (h, _) = self.lstm(films)
        return self.head(h[-1].amax((-2, -1)))


def films(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A dot on a noisy ring of 6 x 6 that moves up, down, left or right for four images."""
    ways = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
    way, start = torch.randint(4, (count,)), torch.randint(6, (count, 2))
    result = torch.rand(count, 4, 1, 6, 6) * 0.3
    for t in range(4):
        at = (start + t * ways[way]) % 6
        result[torch.arange(count), t, 0, at[:, 0], at[:, 1]] += 1
    return result, way


def test_it_learns_motion_to_95_percent() -> None:
    model = Motion()
    fit(model, *films(500), epochs=14, lr=3e-2)
    assert accuracy(model, *films(300)) >= 0.95
