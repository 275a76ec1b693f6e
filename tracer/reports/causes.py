"""What ops and cuts do to a gradient, in words, and what to change."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.checkpoint import CheckpointFunction

from tracer.functions.function_node import FunctionNode
from tracer.node import Node

#: No graph sees into a stretch that torch's older checkpoint runs again in a backward pass of its own.
REENTRANT_FIX = "Pass use_reentrant=False to torch.utils.checkpoint: then it is told which call there does it"

#: Ops whose slope is the other factor.
PRODUCTS = frozenset(
    (
        "addbmm", "addcmul", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
        "conv_transpose2d", "conv_transpose3d", "div", "dot", "einsum", "einsum_two", "inner", "kron", "linalg_cross", "linalg_multi_dot",
        "linalg_vecdot", "linear", "matmul", "mm", "mul", "mv", "outer", "tensordot", "vdot",
    )
)  # fmt: skip

_SCALE = "Scale what goes into it down, or normalise before it"
_WRONG_SIDE = (
    "Look at what goes into it: smaller weights, a lower learning rate, another bias; or use leaky_relu. As a hinge it is fulfilled: its "
    "margin is kept"
)
_WIDEN = (
    "Widen the range, or give it a rule that lets the gradient through (ops_registry.use). As a hinge it is fulfilled, and nothing is left "
    "to learn"
)
_MOVE = "Move what goes into it to where it has a slope: smaller weights, another bias, a norm layer before it"
_AT_MINIMUM = "It is at its lowest, and nothing is left to learn. If it should not be: look at whether the target is the prediction itself"
_FLAT = "it is saturated: its slope is 0 in this precision"

#: How a call can pass zeros on where a gradient came, and what to do about it, for each of some ops.
_ZEROS: tuple[tuple[Iterable[str], str, str], ...] = (
    (("relu",), "every element that a gradient came for was at or below 0", _WRONG_SIDE),
    (("threshold",), "every element that a gradient came for was at or below its threshold", _WRONG_SIDE),
    (
        ("celu", "elu", "gelu", "hardswish", "mish", "selu", "silu", "softplus"),
        "every element that a gradient came for was so far below 0 that its slope is 0",
        _MOVE,
    ),
    (("hardshrink", "softshrink"), "every element that a gradient came for lay between -lambd and lambd", _MOVE),
    (
        ("clamp", "clamp_max", "clamp_min", "hardsigmoid", "hardtanh", "relu6"),
        "every element that a gradient came for was outside of its range",
        _WIDEN,
    ),
    (("sigmoid",), _FLAT, f"{_SCALE}, or hand the logits to a loss that takes them (binary_cross_entropy_with_logits)"),
    (("erf", "exp", "softsign", "tanh"), _FLAT, _SCALE),
    (("log_sigmoid",), _FLAT, f"{_SCALE}. As a loss it is fulfilled: nothing is left to learn"),
    (
        ("log_softmax", "softmax"),
        "its slopes are 0: one element takes all, or it is alone",
        f"{_SCALE}, or hand the logits to cross_entropy; as part of a loss it may be fulfilled",
    ),
    (
        PRODUCTS,
        "what it is multiplied with is 0 wherever a gradient came",
        "Look at the other factor: a mask, a gate, weights that start at 0",
    ),
    (
        (
            "fill_diagonal", "index_copy", "index_fill", "index_put", "masked_fill", "masked_scatter", "scatter", "select_scatter",
            "slice_scatter",
        ),
        "it puts other values over all elements that a gradient came for",
        "Look at the mask, or at the index",
    ),
    (("lerp",), "its weight lies on the other end alone", "Look at the weight"),
    (("real", "imag"), "it leaves out the part that comes from there", "Take the other part too, or abs()"),
    (("where",), "the condition took the other branch everywhere", "Look at the condition"),
    (("alpha_dropout", "dropout", "dropout1d", "dropout2d", "feature_dropout"), "every element was dropped", "Drop less"),
    (
        ("pow", "square"),
        "a power has slope 0 at a base of 0, and with an exponent of 0",
        "Look at the base and the exponent. Where it is a squared error of 0, nothing is left to learn",
    ),
    (("abs", "linalg_norm", "linalg_vector_norm", "norm"), "its slope is taken as 0 at 0, where every element was", _AT_MINIMUM),
    (
        (
            "__getitem__", "chunk", "diagonal", "gather", "index_select", "masked_select", "narrow", "pad", "select", "split", "take",
            "take_along_dim", "unbind", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        ),
        "it takes none of the elements that come from there",
        "Take these elements too, or look at the index",
    ),
    (
        ("tril", "triu"),
        "all elements that come from there lie in the part that it sets to 0",
        "Look at its diagonal, and at which side of the matrix is meant",
    ),
    (
        (
            "amax", "amin", "aminmax", "fmax", "fmin", "kthvalue", "max",
            "maximum", "median", "min", "minimum", "mode", "nanmedian", "quantile", "topk",
        ),
        "none of these elements was the chosen one",
        "Give the others a part too, by something smooth in its place: logsumexp, a mean, weights of a softmax",
    ),
    (
        ("adaptive_max_pool2d", "max_pool1d", "max_pool2d", "max_pool3d"),
        "no window took one of these elements",
        "Give the others a part too: avg_pool2d, lp_pool2d",
    ),
    (
        ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"),
        "prediction and target are equal, where its slope is 0",
        _AT_MINIMUM,
    ),
    (
        ("nll_loss", "nll_loss2d", "nll_loss_nd"),
        "every target is ignored (ignore_index), or has weight 0",
        "Look at the targets, and at ignore_index",
    ),
    (
        ("embedding", "embedding_bag"),
        "every index is padding_idx, whose row gets no gradient",
        "Look at the indices, and at padding_idx",
    ),
    (
        ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"),
        "what it normalises is one value or all equal, so that nothing is left of it, or its weight is 0",
        "Let it normalise over more than one value; look at its weight, and at what goes into it",
    ),
    (("std", "var"), "its slope is taken as 0 at a spread of 0: all elements are equal", _AT_MINIMUM),
    (("angle", "atan2"), "its slope is taken as 0 at the origin, where every element was", "Keep both parts from being 0 together"),
    (("cdist", "pairwise_distance", "pdist"), "its slope is taken as 0 at a distance of 0", _AT_MINIMUM),
    (("cumprod", "prod"), "other factors of its products are 0", "Look at the factors that are 0, or add logs"),
    (
        ("logsumexp",),
        "another element is so much larger that these count for nothing in this precision, or every element is -inf",
        _SCALE,
    ),
    (
        ("scaled_dot_product_attention",),
        "every key is masked, or there is one alone, or its softmax is saturated",
        "Look at the mask; scale queries and keys down",
    ),
    (("glu",), "its gate is closed: the sigmoid is 0 in this precision", f"{_SCALE}, or give the gate a bias above 0"),
    (
        ("grid_sampler",),
        "every point lies outside of what it reads, or that is flat there",
        "Keep the points between -1 and 1; padding_mode='border' reaches further",
    ),
    (
        ("gru_layer", "lstm_layer", "rnn_layer"),
        "a gate or an activation is saturated, or weights are 0",
        "Look at the weights and biases of the recurrent network",
    ),
    (
        ("normal",),
        "what it draws has no gradient towards its mean and its spread",
        "mean + std * torch.randn_like(std) draws the same and has one, as rsample() of torch.distributions",
    ),
    (
        ("threshold_backward",),
        "it is the gradient of a relu, whose slope does not change with what it is given",
        "Where a gradient is part of the loss, take an activation with a second derivative: softplus, silu, tanh",
    ),
)  # fmt: skip

#: The reason, and the remedy, by op.
WHY_ZERO = {op: reason for ops, reason, _ in _ZEROS for op in ops}
FIX_ZERO = {op: fix for ops, _, fix in _ZEROS for op in ops}

#: Ops whose derivative is 0 everywhere.
STEPS = frozenset(
    ("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "floor_divide", "bernoulli", "poisson", "binomial")
)

#: In-place ops that put other values over what was there.
OVERWRITING = frozenset(
    (
        "zero",
        "fill",
        "copy",
        "__setitem__",
        "index_fill",
        "index_copy",
        "index_put",
        "masked_scatter",
        "scatter",
        "write_region",
        "normal",
        "uniform",
    )
)

#: Ops whose whole numbers are places.
CHOOSING = frozenset(
    ("max", "min", "topk", "sort", "median", "nanmedian", "mode", "kthvalue", "cummax", "cummin", "aminmax")
)

#: What to do about a cut, by its kind.
FIX_CUT: dict[str, str] = {
    "detach": "Leave out detach() where the gradient is to come through, and compute with torch where NumPy takes it; "
    "torch.nn.Parameter(x) detaches x too",
    "data": "Use the tensor itself, not its .data",
    "no_grad": "Make the call with gradients on, outside of torch.no_grad()",
    "inference_mode": "Take the call out of torch.inference_mode()",
    "numpy": "Compute with torch: NumPy knows of no gradients",
    "dlpack": "Compute with torch: what leaves by dlpack has no history",
    "item": "Use the tensor, not its item()",
    "tolist": "Use the tensor, not its tolist(); torch.stack puts tensors together",
    "float()": "Use the tensor, not a number made of it; torch.stack puts tensors together",
    "complex()": "Use the tensor, not a number made of it; torch.stack puts tensors together",
    "int()": "Whole numbers have no gradient: use the tensor",
    "index()": "Whole numbers have no gradient: weight by the tensor in place of indexing with it",
    "bool()": "Truth values have no gradient: weight by a smooth function of the tensor in place of branching on it",
    "indices": "Indices have no gradient: use the values that come with them, or weight by softmax in place of choosing",
    "integer result": "Integers have no gradient: keep a floating-point dtype",
    "no gradient": "Use a smooth stand-in (softmax for argmax, sigmoid for a comparison), or give the op a rule (ops_registry.use)",
    "requires_grad_(False)": "Leave requires_grad on, or turn it on again before the forward pass",
    "sample": "Draw with rsample() where the distribution has it; else let log_prob(sample) carry the gradient (REINFORCE), or "
    "take gumbel_softmax",
    "marked": "Leave out ctx.mark_non_differentiable for it, or use another result",
    "inside": "Look inside of it for what ends the history: detach, no_grad, integers",
    "conversion": "Use the tensor as it is: a new one made of it has its values alone; torch.stack puts tensors together",
    "grad": "Pass create_graph=True where the gradient is to be part of a loss",
    "deepcopy": "Use the tensor itself: a copy is a leaf of its own",
    "saved": "Use the tensor itself: a file, a pickle or a copy has its values alone",
    "other class": "Keep the tensor's class: another class carries no history",
}


def name_of(op: str) -> str:
    """The op as the tables above have it: without the mark of an in-place form or an overload."""
    return op if op.startswith("__") else op.partition(".")[0].rstrip("_")


def is_reentrant(node: Node | None) -> bool:
    """Whether the call is a checkpoint with ``use_reentrant=True``."""
    return isinstance(node, FunctionNode) and node.cls is CheckpointFunction
