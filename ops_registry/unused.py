"""Why a replaced rule was never applied: which ops ran in its place, and in which of them the op may hide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ops_registry.errors import UnmatchedScopeError, UnusedRuleError
from ops_registry.matching import Scope

#: Ops that do the work of others in one kernel: a rule for one of those does not reach inside.
HIDDEN_IN: dict[str, tuple[str, ...]] = {
    "addbmm": ("bmm", "add", "matmul"),
    "addcdiv": ("div", "add"),
    "addcmul": ("mul", "add"),
    "addmm": ("mm", "add", "matmul"),
    "addmv": ("mv", "add", "matmul"),
    "baddbmm": ("bmm", "add", "matmul"),
    "batch_norm": ("mean", "var", "rsqrt", "sqrt"),
    "bilinear": ("matmul", "add", "mul"),
    "binary_cross_entropy_with_logits": ("sigmoid", "log_sigmoid", "log", "binary_cross_entropy"),
    "celu": ("exp", "expm1", "relu"),
    "cosine_similarity": ("mul", "sum", "norm", "linalg_vector_norm", "div"),
    "elu": ("exp", "expm1", "relu"),
    "gelu": ("tanh", "erf", "mul"),
    "glu": ("sigmoid", "mul"),
    "group_norm": ("mean", "var", "rsqrt", "sqrt"),
    "gru": ("sigmoid", "tanh", "linear", "mul"),
    "gru_cell": ("sigmoid", "tanh", "linear", "mul"),
    "hardsigmoid": ("clamp", "relu6", "hardtanh"),
    "hardswish": ("clamp", "relu6", "hardtanh", "hardsigmoid", "mul"),
    "hardtanh": ("clamp", "relu"),
    "instance_norm": ("mean", "var", "rsqrt", "sqrt", "batch_norm"),
    "layer_norm": ("mean", "var", "rsqrt", "sqrt"),
    "lerp": ("mul", "add", "sub"),
    "linear": ("matmul", "mm", "addmm", "add"),
    "log_softmax": ("softmax", "log", "exp", "logsumexp"),
    "logaddexp": ("exp", "log", "add", "logsumexp"),
    "logcumsumexp": ("exp", "log", "cumsum"),
    "log_sigmoid": ("sigmoid", "log"),
    "logsumexp": ("exp", "log", "sum"),
    "lstm": ("sigmoid", "tanh", "linear", "mul"),
    "lstm_cell": ("sigmoid", "tanh", "linear", "mul"),
    "mish": ("tanh", "softplus", "mul"),
    "mse_loss": ("sub", "pow", "square", "mean"),
    "nll_loss": ("gather", "index_select"),
    "relu6": ("relu", "clamp", "hardtanh"),
    "rms_norm": ("mean", "rsqrt", "pow", "mul"),
    "rnn_relu": ("relu", "linear", "add"),
    "rnn_tanh": ("tanh", "linear", "add"),
    "scaled_dot_product_attention": ("softmax", "matmul", "bmm", "dropout", "mul"),
    "selu": ("exp", "expm1", "relu", "elu"),
    "silu": ("sigmoid", "mul"),
    "softmax": ("exp", "sum", "div"),
    "softplus": ("exp", "log1p", "log"),
}

#: Ops that say nothing of what is composed of them.
COMMON = frozenset(
    {"add", "sub", "mul", "div", "sum", "mean", "pow", "square", "matmul", "mm", "bmm", "linear", "addmm", "dropout"}
)


def no_census() -> dict[str, int]:
    """Where no graph is open, nobody has counted."""
    return {}


class _Census:
    """Who counts the recorded calls by op: a graph, which stands on a floor above."""

    count: Callable[[], Mapping[str, int]] = staticmethod(no_census)


census = _Census()


def explain_unused(
    unused: Iterable[str],
    met: set[str],
    taken_inside: set[str],
    scope: Scope | None,
    replayed: Mapping[str, int] | None = None,
) -> UnusedRuleError:
    """The error for the ``unused`` ops of a ``use`` block: the ops ``met`` were called in it, those ``taken_inside`` in a block within.

    ``replayed``: of a ``replay``, which has gone through so many calls of each op.
    """
    by, ended, right = "use", "use() has ended", " expect=None says that this is all right."
    if replayed is not None:
        by, ended, right = "replay", "replay() has ended", ""
    unused = list(unused)
    rules = "rules" if len(unused) > 1 else "rule"
    names = ", ".join(unused)
    if scope is not None and scope.asked and not scope.matched:
        return UnmatchedScopeError(
            f"{by}(where={scope.where!r}): the {rules} for {names} never held: no call was made there. The ops were called in "
            f"{_listed(scope.places())}.{_meant(scope.near())}{right}"
        )
    counts = census.count() if replayed is None else replayed
    met = met | set(counts)
    # A path that no module has is the likelier fault than an op that hides, and the error says both.
    near = _meant(scope.near()) if scope is not None and not scope.matched else ""
    reasons = [
        f"A block inside this one took every call of {name}."
        if name in taken_inside
        else why_not_met(name, met, counts)
        for name in unused
    ]
    return UnusedRuleError(
        f"{ended}, and its {rules} for {names} {'were' if len(unused) > 1 else 'was'} never applied. {' '.join(reasons)}{near} "
        f"{_what_ran(met, counts)}{right}"
    )


def why_not_met(name: str, met: set[str], counts: Mapping[str, int]) -> str:
    """Why no call of ``name`` was recorded. ``met`` are the ops that were called, ``counts`` says how often: one may do its work."""
    hiding = [op for op, parts in HIDDEN_IN.items() if name in parts and op in met]
    if hiding:
        places = ", ".join(op if op not in counts else f"{op}, {_calls(counts[op])}" for op in hiding)
        return f"{name} runs inside {places}: give the rule to that op, or call the parts."
    if name in met:
        return (
            f"{name} was called, but on nothing that requires grad where the rule gives a gradient, or under torch.no_grad() (as in the "
            f"forward pass of checkpoint(use_reentrant=True)), or with a result of whole numbers or truth values."
        )
    parts = [part for part in HIDDEN_IN.get(name, ()) if part in met and part not in COMMON]
    if parts:
        return f"{name} was not called. It can be composed of other ops, and {', '.join(parts)} was called: a model may do so itself."
    return f"{name} was not called."


def _what_ran(met: set[str], counts: Mapping[str, int]) -> str:
    if not met:
        return (
            "No op with a rule was called on a tracked tensor at all: a rule holds for the calls made inside the block, so the forward "
            "pass belongs there (backward may come later), and its model (nn.track) or its input (tracer.tensor) has to be tracked."
        )
    if counts:
        ops = sorted(counts, key=lambda op: -counts[op])
        return f"These ops were recorded: {_listed([f'{op} x{counts[op]}' for op in ops])}."
    return f"These ops were called: {_listed(sorted(met))}."


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _listed(words: list[str], most: int = 20) -> str:
    if not words:
        return "no place"
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _meant(near: list[str]) -> str:
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
