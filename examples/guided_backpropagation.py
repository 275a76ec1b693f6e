"""Guided backpropagation and deconvnet on torchvision's ResNet-18, which stays as it is, in-place relus and all.

    python examples/guided_backpropagation.py [--pictures FILE.png]

Both are the gradient of a score by the image, with another rule for relu: guided backpropagation passes what is positive through units that
were active, deconvnet passes whatever is positive. A third picture has the guided rule in one stage of the network alone. Each is held
against a copy of the network in plain torch, in which every relu was replaced by a hand-written one: they are equal to the last bit.

The network has random weights, and the guided picture shows the flower all the same. That is known of the method (Adebayo et al., Sanity
Checks for Saliency Maps, 2018): it shows the edges of the image more than what the network has learned.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_sample_image
from stock_models import resnet18, torchvision

import nn
import ops_registry
import tracer
from ops_registry import packs

SIZE, CLASS = 160, 1
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def photograph() -> torch.Tensor:
    """A flower, ``(1, 3, SIZE, SIZE)``, with the mean and deviation that these networks are made for."""
    pixels = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1) / 255
    middle = torchvision.transforms.functional.center_crop(pixels, 2 * SIZE)
    small = torch.nn.functional.avg_pool2d(middle, 2)
    return ((small - MEAN[:, None, None]) / DEVIATION[:, None, None])[None]


# ---------------------------------------------------------------- with replaced rules: the network is not touched
def gradient(model: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """The gradient of the score of ``CLASS`` by the image."""
    x = tracer.tensor(image, requires_grad=True)
    (grad_x,) = torch.autograd.grad(model(x)[:, CLASS].sum(), x)
    return grad_x


def pictures(model: torch.nn.Module, image: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient by the image under each rule for relu."""
    shown = {"gradient": gradient(model, image)}
    with ops_registry.use(packs.guided_backprop):
        shown["guided"] = gradient(model, image)
    with ops_registry.use(packs.deconvnet):
        shown["deconvnet"] = gradient(model, image)
    with ops_registry.use(packs.guided_backprop, where="layer4"):
        shown["guided in layer4"] = gradient(model, image)
    return shown


# ---------------------------------------------------------------- by hand, in plain torch
class GuidedRelu(torch.autograd.Function):
    """relu; backward passes what is positive through units that were active."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad.clamp(min=0) * (x > 0)


class DeconvRelu(torch.autograd.Function):
    """relu; backward passes what is positive."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return grad.clamp(min=0)


class ByHand(torch.nn.Module):
    """A module in the place of a relu module."""

    def __init__(self, relu: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.relu = relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(x)


def with_relus_by_hand(
    model: torch.nn.Module, relu: Callable[[torch.Tensor], torch.Tensor], stage: str = ""
) -> torch.nn.Module:
    """A copy of ``model`` in which every relu module of one stage, or of all, is another."""
    edited = copy.deepcopy(model)
    part = edited.get_submodule(stage)
    for path, module in list(part.named_modules()):
        if isinstance(module, torch.nn.ReLU):
            parent, _, name = path.rpartition(".")
            setattr(part.get_submodule(parent), name, ByHand(relu))
    return edited


def gradient_by_hand(model: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """The gradient of the score of ``CLASS`` by the image, by torch's own autograd."""
    x = image.clone().requires_grad_()
    (grad_x,) = torch.autograd.grad(model(x)[:, CLASS].sum(), x)
    return grad_x


def pictures_by_hand(model: torch.nn.Module, image: torch.Tensor) -> dict[str, torch.Tensor]:
    """What ``pictures`` should give: four networks, edited by hand."""
    return {
        "gradient": gradient_by_hand(model, image),
        "guided": gradient_by_hand(with_relus_by_hand(model, GuidedRelu.apply), image),
        "deconvnet": gradient_by_hand(with_relus_by_hand(model, DeconvRelu.apply), image),
        "guided in layer4": gradient_by_hand(with_relus_by_hand(model, GuidedRelu.apply, "layer4"), image),
    }


# ----------------------------------------------------------------
def save(image: torch.Tensor, shown: dict[str, torch.Tensor], file: Path) -> None:
    """One row: the photograph, then each gradient, grey where it is zero."""
    row = [image[0] * DEVIATION[:, None, None] + MEAN[:, None, None]]
    row += [0.5 + grad_x[0] / (6 * grad_x.std()) for grad_x in shown.values()]
    torchvision.utils.save_image([part.clamp(0, 1) for part in row], file, nrow=len(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=Path, default=Path("guided_backpropagation.png"))
    file = parser.parse_args().pictures
    image = photograph()
    expected = pictures_by_hand(resnet18(), image)
    shown = pictures(nn.track(resnet18()), image)
    for name, grad_x in shown.items():
        moved = (grad_x - shown["gradient"]).norm() / shown["gradient"].norm()
        same = "equal to the last bit" if torch.equal(grad_x, expected[name]) else "NOT EQUAL"
        print(f"{name:17} {moved:8.1%} away from the gradient; beside the network edited by hand: {same}")
    save(image, shown, file)
    print(f"pictures: {file}")


if __name__ == "__main__":
    main()
