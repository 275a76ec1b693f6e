"""What ops and cuts do to a gradient, in words, and what to change."""

from __future__ import annotations

_BELOW = "every element that a gradient came for was at or below 0"
_OUTSIDE = "every element that a gradient came for was outside of its range"
_FLAT = "it is saturated: its slope is 0 in this precision"
_COVERS = "it puts other values over all elements that a gradient came for"

#: Ops whose slope is the other factor.
PRODUCTS = frozenset(
    (
        "mul",
        "matmul",
        "linear",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "einsum",
        "bilinear",
        "dot",
        "mv",
        "conv1d",
        "conv2d",
        "conv3d",
        "div",
    )
)

#: How a call can pass zeros on where a gradient came, by op.
WHY_ZERO: dict[str, str] = {
    **dict.fromkeys(
        ("relu", "threshold", "celu", "elu", "selu", "gelu", "silu", "softplus", "mish", "hardswish"), _BELOW
    ),
    **dict.fromkeys(
        ("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "hardsigmoid", "hardshrink", "softshrink"), _OUTSIDE
    ),
    **dict.fromkeys(("sigmoid", "tanh", "erf", "softmax", "log_softmax", "log_sigmoid", "exp", "softsign"), _FLAT),
    **dict.fromkeys(("softmax", "log_softmax"), "its slopes are 0: one element takes all, or it is alone"),
    **dict.fromkeys(PRODUCTS, "what it is multiplied with is 0 wherever a gradient came"),
    **dict.fromkeys(
        ("masked_fill", "index_fill", "scatter", "masked_scatter", "index_copy", "index_put", "slice_scatter"), _COVERS
    ),
    **dict.fromkeys(("where",), "the condition took the other branch everywhere"),
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "feature_dropout", "alpha_dropout"), "every element was dropped"
    ),
    **dict.fromkeys(("pow", "square"), "a power has slope 0 at a base of 0, and with an exponent of 0"),
    **dict.fromkeys(
        ("abs", "norm", "linalg_norm", "linalg_vector_norm"), "its slope is taken as 0 at 0, where every element was"
    ),
    **dict.fromkeys(
        (
            "__getitem__",
            "select",
            "narrow",
            "index_select",
            "gather",
            "take",
            "masked_select",
            "chunk",
            "split",
            "unbind",
        ),
        "it takes none of the elements that come from there",
    ),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), "none of these elements was the chosen one"),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d"), "no window took one of these elements"
    ),
    **dict.fromkeys(
        ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), "prediction and target are equal, where its slope is 0"
    ),
    **dict.fromkeys(
        ("nll_loss", "nll_loss_nd", "nll_loss2d"), "every target is ignored (ignore_index), or has weight 0"
    ),
    **dict.fromkeys(("embedding", "embedding_bag"), "every index is padding_idx, whose row gets no gradient"),
    **dict.fromkeys(
        ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
        "what it normalises is one value or all equal, so that nothing is left of it, or its weight is 0",
    ),
    "std": "its slope is taken as 0 at a spread of 0",
    **dict.fromkeys(("atan2", "angle"), "its slope is taken as 0 at the origin, where every element was"),
    **dict.fromkeys(("cdist", "pdist", "pairwise_distance"), "its slope is taken as 0 at a distance of 0"),
    "prod": "two or more of its factors are 0",
    "logsumexp": "every element is -inf",
    "scaled_dot_product_attention": "every key is masked, or its softmax is saturated",
}

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

_SCALE = "Scale what goes into it down, or normalise before it"
_WRONG_SIDE = (
    "Look at what goes into it: smaller weights, a lower learning rate, another bias; or use leaky_relu. As a hinge it is fulfilled: its "
    "margin is kept"
)
_WIDEN = "Widen the range, or give it a rule that lets the gradient through (ops_registry.use)"
_FACTOR = "Look at the other factor: a mask, a gate, weights that start at 0"

#: What to do about a zero gradient, by op.
FIX_ZERO: dict[str, str] = {
    **dict.fromkeys(("relu", "threshold"), _WRONG_SIDE),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "hardsigmoid"), _WIDEN),
    "sigmoid": f"{_SCALE}, or hand the logits to a loss that takes them (binary_cross_entropy_with_logits)",
    "tanh": _SCALE,
    **dict.fromkeys(("softmax", "log_softmax"), f"{_SCALE}, or hand the logits to cross_entropy"),
    **dict.fromkeys(PRODUCTS, _FACTOR),
    "where": "Look at the condition",
    "masked_fill": "Look at the mask",
    "dropout": "Drop less",
    **dict.fromkeys(("embedding", "embedding_bag"), "Look at the indices, and at padding_idx"),
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss2d"), "Look at the targets, and at ignore_index"),
}

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
    "conversion": "Use the tensor as it is: a new one made of it has its values alone; torch.stack puts tensors together",
    "grad": "Pass create_graph=True where the gradient is to be part of a loss",
    "deepcopy": "Use the tensor itself: a copy is a leaf of its own",
    "saved": "Use the tensor itself: a file, a pickle or a copy has its values alone",
    "other class": "Keep the tensor's class: another class carries no history",
}


def name_of(op: str) -> str:
    """The op as the tables above have it: without the mark of an in-place form or an overload."""
    return op if op.startswith("__") else op.partition(".")[0].rstrip("_")
