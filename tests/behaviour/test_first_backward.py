"""What the first forward and backward pass of a process imports."""

from __future__ import annotations

import subprocess
import sys

NETWORK = """
import sys

import torch
import torch.nn.functional as F

import nn
import tracer

encode = nn.track(torch.nn.Linear(8, 8))
attend = nn.track(torch.nn.MultiheadAttention(8, 2, batch_first=True))
x = torch.rand(3, 4, 8)
hidden = encode(x)
attended, _ = attend(hidden, hidden, hidden, need_weights=False)
scores = (attended @ hidden.mT).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -1e9)
mixed = torch.cat((scores.softmax(-1) @ hidden, F.scaled_dot_product_attention(hidden, attended, hidden)), -1)
loss = (
    F.mse_loss(mixed, torch.zeros(16))
    + F.cross_entropy(mixed.mean(1), torch.tensor([0, 3, 7]), label_smoothing=0.1)
    + F.binary_cross_entropy(mixed.sigmoid(), torch.ones(3, 4, 16))
    + F.binary_cross_entropy_with_logits(mixed, torch.ones(3, 4, 16))
)
loss.backward()
gradients = [p.grad for p in (*encode.parameters(), *attend.parameters())]
assert isinstance(loss, tracer.Tensor) and all(g is not None and g.isfinite().all() for g in gradients)
"""


def loads_sympy(script: str) -> bool:
    """Whether a new process has loaded sympy after ``script``."""
    script += "\nprint('sympy' in sys.modules)\n"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()[-1] == "True"


def test_the_first_forward_and_backward_import_no_sympy() -> None:
    # 480 modules and half a second: torch.broadcast_shapes imports them when it is called first.
    assert not loads_sympy(NETWORK)


def test_a_script_that_calls_broadcast_shapes_would_be_noticed() -> None:
    assert loads_sympy("import sys, torch\ntorch.broadcast_shapes((2, 1), (3,))")
