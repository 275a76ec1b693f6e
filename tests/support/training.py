"""Small trainings on real digits and on generated data, and the comparison of a module with torch's on the same weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

import tracer
from support.checking import plain


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits ``(N, 1, 8, 8)`` in [0, 1]: images and labels to train on, images and labels to test on."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(loaded.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1300], order[1300:]
    return images[train], labels[train], images[test], labels[test]


def data(*shape: int) -> torch.Tensor:
    """Normally distributed float64 numbers."""
    return torch.randn(shape, dtype=torch.float64)


def fit(
    model: torch.nn.Module,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    targets: torch.Tensor,
    epochs: int,
    lr: float = 1e-2,
    batch: int = 64,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
) -> None:
    """Train with AdamW and a one-cycle schedule."""
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    steps = epochs * -(-len(targets) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(targets)).split(batch):
            optimizer.zero_grad()
            loss(model(*(x[rows] for x in inputs)), targets[rows]).backward()
            optimizer.step()
            schedule.step()


def accuracy(model: torch.nn.Module, inputs: torch.Tensor | Sequence[torch.Tensor], labels: torch.Tensor) -> float:
    """The part of the examples that get their own label, in evaluation mode."""
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    model.eval()
    with torch.no_grad():
        return (model(*inputs).argmax(-1) == labels).double().mean().item()


Call = Callable[..., torch.Tensor]


def compare_modules(
    ours: torch.nn.Module,
    theirs: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    call_ours: Call | None = None,
    call_theirs: Call | None = None,
) -> None:
    """Values and the gradients of every input and parameter are equal. Both modules have the same parameters, or get them here."""
    theirs.load_state_dict(ours.state_dict())
    results = []
    for module, call, make in (
        (ours, call_ours or ours, tracer.tensor),
        (theirs, call_theirs or theirs, lambda data, requires_grad: data.clone().requires_grad_()),
    ):
        leaves = [make(data, requires_grad=True) for data in inputs]
        output = call(*leaves)
        weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
        (output * weights).sum().backward()
        results.append((plain(output), [x.grad for x in leaves], dict(module.named_parameters())))
    (our_output, our_grads, our_parameters), (output, grads, parameters) = results
    torch.testing.assert_close(our_output, output)
    for number, (a, b) in enumerate(zip(our_grads, grads, strict=True)):
        torch.testing.assert_close(a, b, msg=lambda m, number=number: f"input {number}: {m}")
    assert list(our_parameters) == list(parameters)
    for name, parameter in parameters.items():
        assert type(our_parameters[name]) is tracer.Tensor
        torch.testing.assert_close(our_parameters[name].grad, parameter.grad, msg=lambda m, name=name: f"{name}: {m}")
