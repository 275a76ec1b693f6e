"""What ``why`` is asked about: the parameters of the script's models and its other leaves, under the names that the script has for them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ops_registry.sites import named_modules
from tracer.graph import backward_order
from tracer.node import Leaf
from tracer.recording.parents import any_node
from tracer.reports.report import kind
from tracer.tracked_tensor import Tensor

#: The names of the variables in one frame, innermost frame first.
Variables = list[Mapping[str, Any]]


class Models:
    """Inside ``with Models() as models:`` every module is noticed that gets a parameter or another module; none is kept alive."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[torch.nn.Module]] = {}

    def __enter__(self) -> Models:
        hooks = (register_module_parameter_registration_hook, register_module_module_registration_hook)
        self._handles = [hook(self._notice) for hook in hooks]
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _notice(self, module: torch.nn.Module, name: str, member: Any) -> None:
        self._seen[id(module)] = weakref.ref(module)

    def roots(self) -> list[torch.nn.Module]:
        """The modules with parameters that no other module holds, those too that were loaded and have run."""
        alive = {id(m): m for reference in list(self._seen.values()) if (m := reference()) is not None}
        alive.update({id(m): m for _, m in named_modules()})
        held = {id(child) for module in alive.values() for child in module.children()}
        return [m for key, m in alive.items() if key not in held and any(True for _ in m.parameters())]


def variables_of(frame: FrameType | None) -> Variables:
    """The variables of the script in ``frame`` and those that called it, innermost first: torch's frames and ours are left out."""
    found: Variables = []
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "torch")).partition(".")[0]
        if package not in ("torch", "tracer", "ops_registry", "nn", "runpy"):
            found.append(frame.f_locals)
        frame = frame.f_back
    return found


def leaves_to_ask(models: Models, loss: torch.Tensor, variables: Variables) -> dict[torch.Tensor, list[str]]:
    """Every parameter and every other leaf that the script names or the loss came from, with its names."""
    roots = models.roots()
    names: dict[torch.Tensor, list[str]] = {}
    for title, root in zip(_titles(roots, variables), roots, strict=True):
        for name, parameter in root.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(f"{title}.{name}" if len(roots) > 1 else name)
    of_models = set(names)
    for name, value in _named_leaves(variables):
        if value not in of_models and name not in names.get(value, ()):
            names.setdefault(value, []).append(name)
    for node in backward_order([n] if (n := any_node(loss)) is not None else []):
        if isinstance(node, Leaf) and node.variable is not None and node.variable not in names:
            names[node.variable] = [f"a leaf, {kind(node.variable)}"]
    return names


def named_loss(variables: Variables, *, with_history: bool = True) -> torch.Tensor | None:
    """The tensor that the script names ``loss``, in the innermost frame that has one: one with a history, or one that has lost it."""
    found = [loss for scope in variables if isinstance(loss := scope.get("loss"), torch.Tensor)]
    if not with_history:
        return next((loss for loss in found if not loss.requires_grad), None)
    return next((loss for loss in found if type(loss) is Tensor and loss._node is not None), None)


def _named_leaves(variables: Variables) -> Iterator[tuple[str, torch.Tensor]]:
    for scope in variables:
        for name, value in list(scope.items()):
            listed = [(f"{name}[{i}]", v) for i, v in enumerate(value)] if type(value) in (list, tuple) else []
            for called, tensor in [(name, value), *listed]:
                if isinstance(tensor, torch.Tensor) and tensor.is_leaf and tensor.requires_grad:
                    yield called, tensor


def _titles(roots: list[torch.nn.Module], variables: Variables) -> list[str]:
    """The variable that holds each model, or an attribute of one; else its class, with a number where it is not the only one."""
    held: dict[int, str] = {}
    for scope in variables:
        for name, value in list(scope.items()):
            if isinstance(value, torch.nn.Module):
                held.setdefault(id(value), name)
            elif not isinstance(value, type) and not name.startswith("__"):
                for attribute, module in list(getattr(value, "__dict__", {}).items()):
                    if isinstance(module, torch.nn.Module):
                        held.setdefault(id(module), f"{name}.{attribute}")
    titles: list[str] = []
    for root in roots:
        title = held.get(id(root), type(root).__name__)
        same = sum(t.partition("#")[0] == title for t in titles)
        titles.append(f"{title}#{same + 1}" if same else title)
    return titles
