"""Ready mappings of rules for ``use``: ``with use(packs.guided_backprop): ...``.

A pack changes what passes back, never the forward. The formula of each stands in its docstring: ``g`` is the gradient of the result, ``x``
the input, ``y`` the result, and ``own(g)`` what the op's own rule gives. A pack is a mapping like any other: ``{**packs.deconvnet,
torch.sin: mine}`` adds to it, ``{F.gelu: packs.guided_backprop[torch.relu]}`` gives its rule to another op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ops_registry.errors import RuleError
from ops_registry.kinks import CONVENTIONS, rules_at_kinks
from ops_registry.registry import find
from ops_registry.signatures import signature_of

Function = Callable[..., Any]
Rule = Function | Mapping[str, Function]


class Pack(Mapping[Function, Rule]):
    """A mapping from torch functions to rules. Packs are shared, so that nobody writes into one."""

    def __init__(
        self, name: str, rules: Mapping[Function, Rule], definition: str | None = None, *, once: bool = False
    ) -> None:
        self._name = name
        #: Whether it is to meet each gradient once: ``use`` then refuses several layers of one module.
        self.once = once
        self._rules = dict(rules)
        if definition is not None:
            self.__doc__ = definition

    def __getitem__(self, func: Function) -> Rule:
        return self._rules[func]

    def __iter__(self) -> Iterator[Function]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __repr__(self) -> str:
        return f"ops_registry.packs.{self._name}"


# ---------------------------------------------------------------------- rectifiers, for pictures of what a network sees
def _guided(grad: Any, default: Any) -> Any:
    return default(grad.clamp(min=0))


def _guided_hardtanh(grad: Any, default: Any, min_val: Any) -> Any:
    return default(grad.clamp(min=0) if min_val >= 0 else grad)


def _deconv(grad: Any) -> Any:
    return grad.clamp(min=0)


def _deconv_hardtanh(grad: Any, default: Any, min_val: Any) -> Any:
    return grad.clamp(min=0) if min_val >= 0 else default(grad)


guided_backprop = Pack(
    "guided_backprop",
    {torch.relu: _guided, F.relu6: _guided, F.hardtanh: _guided_hardtanh},
    """Guided backpropagation: ``own(max(g, 0))``, which for relu is ``g`` where ``g > 0`` and ``y > 0``, else 0.

    Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity: The All Convolutional Net, 2015, section 3.4.

    It holds for relu, relu6, and hardtanh with a lower end of 0 or more (which is what ``nn.ReLU6`` calls). The paper defines it for
    rectifiers, whose results are never negative; leaky_relu, elu, gelu and their kin keep their own rule, unless they are given this one.
    """,
)

deconvnet = Pack(
    "deconvnet",
    {torch.relu: _deconv, F.relu6: _deconv, F.hardtanh: _deconv_hardtanh},
    """The deconvolutional network: ``max(g, 0)``, whatever the sign of the input was.

    Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, 2014, section 2.1. It holds for the same ops as
    ``guided_backprop``.
    """,
)


# ---------------------------------------------------------------------- steps
def _straight(grad: Any) -> Any:
    return grad


class StraightThrough(Pack):
    """``straight_through``, and ``straight_through(low, high)`` with a range."""

    def __call__(self, low: float, high: float) -> Pack:
        """``g`` where ``low <= x <= high``, else 0. Raises ``RuleError`` where there is nothing between them."""
        if not low <= high:
            raise RuleError(f"packs.straight_through({low!r}, {high!r}): nothing lies between {low!r} and {high!r}")

        def straight_within(grad: Any, input: Any) -> Any:
            return torch.where((input >= low) & (input <= high), grad, 0)

        return Pack(f"straight_through({low!r}, {high!r})", _at_steps(straight_within))


def _at_steps(rule: Function) -> dict[Function, Rule]:
    """The steps by their first argument; the value of heaviside at 0 keeps its gradient."""
    return {
        torch.round: rule,
        torch.sign: rule,
        torch.floor: rule,
        torch.ceil: rule,
        torch.trunc: rule,
        torch.heaviside: {"input": rule},
    }


straight_through = StraightThrough(
    "straight_through",
    _at_steps(_straight),
    """The straight-through estimator: ``g``, as if the step were the identity; ``straight_through(low, high)``: 0 outside of the range.

    Bengio, Léonard, Courville: Estimating or Propagating Gradients Through Stochastic Neurons for Conditional Computation, 2013. With the
    range -1 to 1 for sign: Hubara, Courbariaux, Soudry, El-Yaniv, Bengio: Binarized Neural Networks, 2016, equation 4.

    It holds for round, sign, floor, ceil, trunc and heaviside. A comparison (``x > 0``) gives truth values, which have no gradient to
    replace: write ``torch.heaviside(x, torch.zeros(()))``.
    """,
)


def surrogate(slope: float) -> Pack:
    """A spike's derivative by a fast sigmoid: ``g / (slope |x| + 1)²`` for ``heaviside(x, ...)``.

    Zenke, Ganguli: SuperSpike: Supervised Learning in Multilayer Spiking Neural Networks, 2018. ``x`` is the membrane potential less its
    threshold. A comparison gives truth values, which have no gradient to replace: write ``torch.heaviside(x, torch.zeros(()))``. Raises
    ``RuleError`` for a slope that is not above 0.
    """
    if not slope > 0:
        raise RuleError(f"packs.surrogate({slope!r}): the slope of the fast sigmoid is above 0")

    def fast_sigmoid(grad: Any, input: Any) -> Any:
        return grad / (slope * input.abs() + 1).square()

    return Pack(f"surrogate({slope!r})", {torch.heaviside: {"input": fast_sigmoid}})


# ---------------------------------------------------------------------- kinks
def pinned(convention: Literal["zero", "half", "left", "right"]) -> Pack:
    """One convention wherever an op has a kink: ``g s`` there, ``own(g)`` elsewhere.

    ``s`` is made of the slopes from the left and from the right: ``"left"``, ``"right"``, ``"half"`` (their mean), or ``"zero"`` (0). At
    the kink of relu these are 0, 1, 1/2 and 0; of abs -1, 1, 0 and 0. What hangs on it: Bertoin, Bolte, Gerchinovitz, Pauwels: Numerical
    Influence of ReLU'(0) on Backpropagation, 2021.

    It holds for relu, relu6, leaky_relu, prelu, elu, selu, hardtanh, hardsigmoid, hardswish, softshrink, threshold (where it is a kink and
    no jump), abs, l1_loss, and clamp, maximum, minimum, fmax, fmin where two arguments are equal: there the kink is that of their
    difference, input less the other or less the bound. What picks an element by its index keeps its rule, and so do reductions, in which
    ties share. The slope is a constant at the kink: the second derivative there is 0. Raises ``RuleError`` for another name.
    """
    if convention not in CONVENTIONS:
        raise RuleError(f"packs.pinned({convention!r}): the conventions are {', '.join(CONVENTIONS)}")
    return Pack(f"pinned({convention!r})", rules_at_kinks(CONVENTIONS[convention]))


# ---------------------------------------------------------------------- what passes back to the input of an op
#: The ops that layers with weights run.
LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

Ops = Function | tuple[Function, ...]


def reverse(scale: float, op: Ops = LAYERS) -> Pack:
    """Gradient reversal: ``-scale own(g)`` for the input of ``op``; its weights keep their gradient.

    Ganin, Lempitsky: Unsupervised Domain Adaptation by Backpropagation, 2015, equations 7 and 8.

    Each call of ``op`` in the block reverses what passes through it, and two calls one behind the other cancel. So say at which call:
    ``use(packs.reverse(0.5), where="dom")`` where ``dom`` is one layer, ``where="dom.0"`` where it is several; ``use`` refuses several
    layers of one module. ``op`` is a function or a tuple of them, where the place is not a layer with weights:
    ``packs.reverse(0.5, torch.clone)`` reverses at ``features.clone()``, wherever that is called.
    """
    return _at_inputs(f"reverse({scale!r})", op, lambda g: g * -scale, once=op is LAYERS)


def clip(value: float, op: Ops = LAYERS) -> Pack:
    """Clipping by value: ``max(-value, min(own(g), value))`` for the input of ``op``, at each of its calls; weights keep their gradient.

    Graves: Generating Sequences With Recurrent Neural Networks, 2013, section 2.1. ``op`` as for ``reverse``. Raises ``RuleError`` for a
    value that is not above 0.
    """
    _require_above_zero("clip", value)
    return _at_inputs(f"clip({value!r})", op, lambda g: g.clamp(-value, value))


def clip_norm(value: float, op: Ops = LAYERS) -> Pack:
    """Clipping by norm: ``own(g) min(1, value / |own(g)|)`` for the input of ``op``, at each of its calls; weights keep their gradient.

    Pascanu, Mikolov, Bengio: On the Difficulty of Training Recurrent Neural Networks, 2013, algorithm 1. The norm is the Euclidean one, of
    the whole tensor. ``op`` as for ``reverse``. Raises ``RuleError`` for a value that is not above 0.
    """
    _require_above_zero("clip_norm", value)
    return _at_inputs(f"clip_norm({value!r})", op, lambda g: g * (value / g.norm().clamp(min=value)))


def _require_above_zero(pack: str, value: float) -> None:
    if not value > 0:
        raise RuleError(f"packs.{pack}({value!r}): the value is above 0")


def _at_inputs(name: str, op: Ops, change: Function, *, once: bool = False) -> Pack:
    """``change(own(g))`` for the first differentiable argument of each op."""

    def changed(grad: Any, default: Any) -> Any:
        passed = default(grad)
        return [change(part) for part in passed] if isinstance(passed, list) else change(passed)

    ops = op if isinstance(op, tuple) else (op,)
    return Pack(name, {func: {_first_input(func): changed} for func in ops}, once=once)


def _first_input(func: Function) -> str:
    spelling = find(func)
    if spelling is not None and spelling.rule.inputs:
        return spelling.rule.inputs[0][1]
    return signature_of(func).names[0]
