"""Parameters that torch's own module functions replace stay tracked."""

from __future__ import annotations

import pytest
import torch

import nn
import tracer


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("swaps", [False, True])
def test_to_empty_keeps_parameters_tracked(device: str, swaps: bool) -> None:
    torch.__future__.set_swap_module_params_on_conversion(swaps)
    try:
        model = nn.track(torch.nn.Linear(3, 2, device=device))
        model.to_empty(device="cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    assert all(type(p) is tracer.Tensor and isinstance(p, torch.nn.Parameter) for p in model.parameters())
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_loading_by_assignment_keeps_parameters_tracked(device: str) -> None:
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(2, 2, device=device), torch.nn.BatchNorm1d(2, device=device)))
    values = {
        name: value.clone()
        for name, value in torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict().items()
    }
    model.load_state_dict(values, assign=True)
    assert all(type(p) is tracer.Tensor and isinstance(p, torch.nn.Parameter) for p in model.parameters())
    assert model[0].weight.data_ptr() == values["0.weight"].data_ptr()
    model(torch.tensor([[1.0, 2.0], [3.0, 5.0]])).pow(3).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


def test_a_parameter_of_another_module_stays_what_it_is() -> None:
    source, model = torch.nn.Linear(2, 2), nn.track(torch.nn.Linear(2, 2))
    model.load_state_dict(source.state_dict(keep_vars=True), assign=True)
    assert model.weight is source.weight and type(source.weight) is torch.nn.Parameter
