"""Train the network of ``train_digits.py`` in several processes, each on its part of every batch.

    torchrun --nproc-per-node 2 examples/train_digits_ddp.py --checkpoint digits.pt

A run that is killed goes on from its checkpoint when it is started again; ``torchrun --max-restarts 3`` starts it again by itself. Exits
non-zero when the accuracy is not what one process reaches.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from train_digits import BATCH, EPOCHS, REQUIRED_ACCURACY, SEED, Data, DigitNet, accuracy, load

import nn


def save(
    path: Path, epoch: int, model: torch.nn.Module, *more: torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler
) -> None:
    """Write a checkpoint in one go, so that a run that is killed meanwhile leaves the one before."""
    partial = path.with_suffix(".partial")
    torch.save({"epoch": epoch, "model": model.state_dict(), "more": [m.state_dict() for m in more]}, partial)
    os.replace(partial, path)


def train(data: Data, epochs: int, checkpoint: Path | None) -> torch.nn.Module:
    """The trained network, the same in every process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = nn.parallel.DistributedDataParallel(
        DigitNet()
    )  # tracks it, and gives all processes the parameters of the first
    examples = TensorDataset(data.train_images, data.train_digits)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(examples, seed=SEED)
    loader = DataLoader(examples, BATCH // size, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=epochs * len(loader))
    first = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["epoch"]
        model.load_state_dict(saved["model"])
        for part, state in zip((optimizer, schedule), saved["more"], strict=True):
            part.load_state_dict(state)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # another order in every epoch, the same in a run that was resumed
        torch.manual_seed(SEED + 1 + epoch * size + rank)  # and other dropout masks
        total = torch.zeros(())
        for images, digits in loader:
            loss = F.cross_entropy(model(images), digits)
            optimizer.zero_grad()
            loss.backward()  # .grad is the mean over all processes when it returns
            optimizer.step()
            schedule.step()
            total += loss.detach() / len(loader)
        dist.all_reduce(total)
        if rank == 0:
            tested = accuracy(model.module, data.test_images, data.test_digits)
            print(
                f"epoch {epoch + 1:>2}/{epochs}  loss {total.item() / size:.6f}  test accuracy {tested:.2%}", flush=True
            )
            if checkpoint is not None:
                save(checkpoint, epoch + 1, model, optimizer, schedule)
    return model.module


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on handwritten digits in several processes, under torchrun.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--checkpoint", type=Path, help="file to resume from, and to write after every epoch")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")  # torchrun has told who is who
    data = load()
    model = train(data, arguments.epochs, arguments.checkpoint)
    tested = accuracy(model, data.test_images, data.test_digits)
    if dist.get_rank() == 0:
        print(f"Test accuracy {tested:.2%} on {len(data.test_digits)} digits, {dist.get_world_size()} processes.")
    dist.destroy_process_group()
    if arguments.epochs == EPOCHS and tested < REQUIRED_ACCURACY:
        print(f"failed: accuracy {tested:.2%} is below {REQUIRED_ACCURACY:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
