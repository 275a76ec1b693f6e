"""Networks that nobody here wrote, as their packages make them, with random weights: what the other examples look into.

    pip install -c constraints.txt -e ".[examples]"

Nothing is downloaded. The transformers are small, the ResNet is the real ResNet-18. ``options`` go to a network's configuration.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch


def import_torchvision() -> ModuleType:
    """torchvision, also beside a torch without CUDA.

    The package index has it built for CUDA alone. Its compiled ops do not load beside another torch, and its import then stops at the shape
    rules of two of them. No network needs those ops: that they are declared is enough.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision")


# transformers asks for torchvision as it is loaded, wherever it is installed.
torchvision = import_torchvision()

from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel  # noqa: E402


def resnet18(seed: int = 0) -> torch.nn.Module:
    """torchvision's ResNet-18: images ``(N, 3, H, W)`` to 1000 scores. One in-place relu module serves both relus of a block."""
    torch.manual_seed(seed)
    return torchvision.models.resnet18(weights=None).eval()


def vit(seed: int = 0) -> torch.nn.Module:
    """torchvision's vision transformer, two blocks: images ``(N, 3, 32, 32)`` to 10 scores."""
    torch.manual_seed(seed)
    network = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10
    )
    torch.nn.init.xavier_uniform_(network.heads.head.weight)  # it begins with zeros, and nothing would come back
    return network.eval()


def bert(seed: int = 0, **options: Any) -> torch.nn.Module:
    """transformers' BERT, two blocks: token numbers below 100, ``(N, T)``, to hidden states."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **options
    )
    return BertModel(config).eval()


def gpt2(seed: int = 0, **options: Any) -> torch.nn.Module:
    """transformers' GPT-2, two blocks: token numbers below 100, ``(N, T)``, to the scores of the next one."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None, **options
    )
    return GPT2LMHeadModel(config).eval()
