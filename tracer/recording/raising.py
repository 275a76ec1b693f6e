"""Nodes that stand where a derivative is not to be had: backward raises when a gradient comes through, and not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from tracer.graph import enter
from tracer.node import Node, joint_plan
from tracer.tracked_tensor import Tensor, plain_alias


def refusing_node(
    name: str, error: Callable[[], Exception], parents: Sequence[Node], shape: torch.Size, dtype: torch.dtype
) -> Node:
    """A node that raises ``error()`` when backward goes through it on its way to ``parents``."""

    def refuse(grad: Any, kept: tuple[Any, ...], needs: tuple[bool, ...] | None) -> NoReturn:
        raise error()

    return enter(Node(joint_plan(name, refuse, len(parents)), tuple(parents), shape, dtype))


def refusing_alias(tensor: torch.Tensor, name: str, error: Callable[[], Exception], parents: Sequence[Node]) -> Tensor:
    """An alias of ``tensor`` whose history is such a node."""
    alias: Any = plain_alias(tensor)
    alias.__class__ = Tensor
    alias._node = refusing_node(name, error, parents, alias.shape, alias.dtype)
    return alias
