"""Which activation was not replaced? A rule that never applies leaves the vanilla gradient, and three stock networks invite that.

    python examples/which_activation.py

GPT-2 composes its gelu of ``tanh``, ``pow`` and products: a rule for ``F.gelu`` never applies, while one for ``tanh`` bites inside the
activation. BERT and the vision transformer have their softmax inside ``F.scaled_dot_product_attention``. A block whose rules were never
applied raises ``UnusedRuleError``, and ``tracer.audit`` lists which rule each call will use.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from stock_models import bert, gpt2, vit

import nn
import ops_registry
import tracer

TOKENS = torch.arange(14).reshape(2, 7)
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)


def halved(grad: torch.Tensor, default: Callable[..., Any]) -> Any:
    """Half of what the rule in its place gives, for an op of one input."""
    return 0.5 * default(grad)


def halved_in_attention(grad: torch.Tensor, default: Callable[..., Any]) -> Any:
    """The same for query, key, value and mask of an attention: None where nothing is wanted."""
    return tuple(None if part is None else 0.5 * part for part in default(grad))


def complaint(model: torch.nn.Module, argument: torch.Tensor, rules: Any, where: str | None = None) -> str:
    """What a block with ``rules`` around the forward pass says at its end; empty where they were applied."""
    nn.track(model)
    try:
        with tracer.Graph(), ops_registry.use(rules, where=where, expect="all"):
            result = model(argument)  # held, so that the graph has all of its calls
    except ops_registry.UnusedRuleError as error:
        return str(error)
    del result
    return ""


def gradient(model: torch.nn.Module, rules: Any) -> torch.Tensor:
    """The gradient of a language model's loss by all parameters, in one vector."""
    nn.track(model)
    with ops_registry.use(rules, expect="all"):
        scores = model(TOKENS).logits
    loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])


def one_gelu() -> torch.nn.Module:
    """The same GPT-2 with torch's own gelu, which is one op."""
    return gpt2(activation_function="gelu_pytorch_tanh")


def moved(model: torch.nn.Module, rules: Any) -> float:
    """How far rules move the gradient of a model, by its length."""
    plain = gradient(model, {})
    return ((gradient(model, rules) - plain).norm() / plain.norm()).item()


def audited(where: str) -> tuple[Any, Any]:
    """Which rules GPT-2's activations will use under one for tanh that holds in ``where``, and the calls of tanh that it left out."""
    model = nn.track(gpt2())
    with tracer.Graph(sites=True) as graph, ops_registry.use({torch.tanh: halved}, where=where):
        result = model(TOKENS)  # held, so that the graph has all of its calls
    report = tracer.audit(graph, [F.gelu, torch.tanh, torch.pow])
    del result
    return report, report.missing(torch.tanh)


def show(text: str) -> None:
    print(
        textwrap.fill(
            text or "no complaint: the rule was applied", 110, initial_indent="    ", subsequent_indent="    "
        )
    )


def main() -> None:
    print("GPT-2, a rule for F.gelu that halves the gradient:")
    show(complaint(gpt2(), TOKENS, {F.gelu: halved}))
    print("The same with torch's own gelu, which gives the same numbers:")
    show(complaint(one_gelu(), TOKENS, {F.gelu: halved}))
    print(
        f"It moves the gradient by {moved(one_gelu(), {F.gelu: halved}):.1%}. The same rule for torch.tanh bites inside"
    )
    print(f"GPT-2's own gelu, without a complaint, and moves it by {moved(gpt2(), {torch.tanh: halved}):.1%}.")
    print("An audit shows where: a rule for torch.tanh in the first block alone.")
    report, missing = audited("transformer.h.0")
    print(textwrap.indent(str(report), "    "))
    print(textwrap.indent(str(missing), "    "))
    print("BERT, a rule for torch.softmax:")
    show(complaint(bert(), TOKENS, {torch.softmax: halved}))
    print("The same where it computes its attention step by step, or with a rule for the attention as a whole:")
    show(complaint(bert(attn_implementation="eager"), TOKENS, {torch.softmax: halved}))
    show(complaint(bert(), TOKENS, {F.scaled_dot_product_attention: halved_in_attention}))
    print("A vision transformer, a rule for torch.softmax:")
    show(complaint(vit(), IMAGE, {torch.softmax: halved}))


if __name__ == "__main__":
    main()
