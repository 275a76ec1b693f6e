"""Python-level torch functions run their own body, whose parts are recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tracer
from tracer.recording import python_functions

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normalize": lambda x: F.normalize(x, dim=1),
    "unflatten, which calls itself": lambda x: x.unflatten(1, (2, 2)),
    "norm": lambda x: x.norm(dim=0),
    "gumbel-free softmin": lambda x: F.softmin(x, dim=1),
    "max_pool2d, dispatched on a flag": lambda x: F.max_pool2d(x.view(1, 1, 3, 4), 2),
    "split": lambda x: torch.cat(x.split([1, 3], dim=1)[::-1], 1),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([0], [0])),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "cosine similarity": lambda x: F.cosine_similarity(x, x + 1, dim=1),
    "reflected division": lambda x: 2 / (x + 5),
    "reflected power": lambda x: 2**x,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("torch_offers_redispatch", [True, False])
def test_gradients_equal_torchs(name: str, torch_offers_redispatch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytorch/pytorch#131947
    if not torch_offers_redispatch:
        monkeypatch.setattr(python_functions, "skip_one_hop", None)
    function = CALLS[name]
    data = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).cos()
    x, native = tracer.tensor(data, requires_grad=True), data.clone().requires_grad_()
    out, expected = function(x), function(native)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), expected.detach())
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), x), torch.autograd.grad(expected.square().sum(), native)
    )


def test_an_error_in_the_body_leaves_no_state() -> None:
    x = tracer.tensor([[1.0, 2.0]], requires_grad=True)
    for _ in range(2):  # a function whose body raised is entered again, not taken for a call from its own body
        with pytest.raises(ValueError, match="reduction"):
            F.binary_cross_entropy(x, x, reduction="nonsense")
    with tracer.Graph() as graph:
        F.normalize(x, dim=0).sum().backward()
        assert len(graph) == 0 and x.grad is not None and x.grad.tolist() == [[0.0, 0.0]]
