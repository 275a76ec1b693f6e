"""Arguments for the rules whose op neither its signature nor torch's operator database provides with any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ops_registry.torch_private import schemas

Values = dict[str, Any]


def _rand(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


def _convolutions() -> list[Values]:
    options = {"stride": [1, 2], "padding": [1, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
    shapes = {"input": _rand(2, 2, 4, 5), "weight": _rand(3, 2, 2, 3), "bias": _rand(3)}
    turned = {"input": _rand(2, 2, 3, 3), "weight": _rand(2, 3, 2, 2), "bias": _rand(3)}
    return [{**shapes, **options, "transposed": False}, {**turned, **options, "transposed": True}]


def _private_convolutions() -> list[Values]:
    flags = {"benchmark": False, "deterministic": False, "cudnn_enabled": True, "allow_tf32": True}
    return [{**values, **flags} for values in _convolutions()]


def _recurrent(gates: int, hidden: int = 3, packed: bool = False) -> Callable[[], list[Values]]:
    def make() -> list[Values]:
        rows = gates * hidden
        params = [_rand(rows, 2), _rand(rows, hidden), _rand(rows), _rand(rows, seed=1)]
        options = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": True, "bidirectional": False}
        state = _rand(1, 2, hidden)
        hx: Any = [state, _rand(1, 2, hidden, seed=2)] if gates == 4 else state
        if packed:
            return [
                {"data": _rand(5, 2), "batch_sizes": torch.tensor([2, 2, 1]), "hx": hx, "params": params, **options}
            ]
        return [{"input": _rand(4, 2, 2), "hx": hx, "params": params, **options, "batch_first": False}]

    return make


def _cell(gates: int, hidden: int = 3) -> Callable[[], list[Values]]:
    def make() -> list[Values]:
        rows, state = gates * hidden, _rand(2, hidden)
        weights = {
            "w_ih": _rand(rows, 2),
            "w_hh": _rand(rows, hidden),
            "b_ih": _rand(rows),
            "b_hh": _rand(rows, seed=1),
        }
        return [{"input": _rand(2, 2), "hx": [state, _rand(2, hidden, seed=2)] if gates == 4 else state, **weights}]

    return make


def _images(rank: int, **options: Any) -> Callable[[], list[Values]]:
    return lambda: [{"input": _rand(1, 2, *(4,) * rank), **options}]


def _gradients(rank: int, **options: Any) -> Callable[[], list[Values]]:
    return lambda: [{"grad_output": _rand(1, 2, *(5,) * rank), **options}]


def _padded(rank: int) -> Callable[[], list[Values]]:
    return lambda: [{"input": _rand(2, *(4,) * rank), "padding": [1, 2] * rank}]


def _norms(*names: str) -> Callable[[], list[Values]]:
    extra = {"dim": [1], "keepdim": False, "dtype": torch.float64}
    return lambda: [{"input": _rand(3, 4), "p": p, **{n: extra[n] for n in names}} for p in (2, 1, 3.0)]


def _each(*values: Callable[[], Values]) -> Callable[[], list[Values]]:
    return lambda: [value() for value in values]


_RESIZED: Values = {"output_size": [5, 5], "align_corners": False}
_RESIZED_BACK: Values = {**_RESIZED, "input_size": [1, 2, 4, 4]}
_RESIZED_VEC: Values = {"output_size": [5, 5], "align_corners": False, "scale_factors": None}

#: For each rule, a function that makes arguments by the names of its signature.
MAKERS: dict[str, Callable[[], list[Values]]] = {
    "__setitem__": _each(lambda: {"input": _rand(3, 2), "key": 1, "value": _rand(2)}),
    "_adaptive_avg_pool2d": _images(2, output_size=[2, 3]),
    "_adaptive_avg_pool3d": _images(3, output_size=[2, 3, 1]),
    "_convolution": _private_convolutions,
    "_log_softmax": _each(lambda: {"input": _rand(3, 4), "dim": 1, "half_to_float": False}),
    "_native_batch_norm_legit.no_stats": _each(
        lambda: {
            "input": _rand(3, 2, 4),
            "weight": _rand(2),
            "bias": _rand(2),
            "training": True,
            "momentum": 0.1,
            "eps": 1e-5,
        }
    ),
    "_pack_padded_sequence": _each(
        lambda: {"input": _rand(3, 2, 2), "lengths": torch.tensor([3, 2]), "batch_first": False}
    ),
    "_pad_circular": _each(lambda: {"input": _rand(2, 3, 4), "pad": [1, 2]}),
    "_pad_packed_sequence": _each(
        lambda: {
            "data": _rand(5, 2),
            "batch_sizes": torch.tensor([2, 2, 1]),
            "batch_first": False,
            "padding_value": 0.5,
            "total_length": -1,
        }
    ),
    "_prelu_kernel": _each(lambda: {"input": _rand(2, 3, 4), "weight": _rand(1, 3, 1)}),
    "_reshape_alias": _each(lambda: {"input": _rand(3, 4), "size": [4, 3], "stride": [3, 1]}),
    "_scaled_dot_product_flash_attention_for_cpu": _each(
        lambda: {"query": _rand(2, 2, 3, 4), "key": _rand(2, 2, 5, 4), "value": _rand(2, 2, 5, 4, seed=1)}
    ),
    "_softmax": _each(lambda: {"input": _rand(3, 4), "dim": 1, "half_to_float": False}),
    "_to_copy": _each(lambda: {"input": _rand(3)}, lambda: {"input": _rand(3), "dtype": torch.float32}),
    "_unsafe_view": _each(lambda: {"input": _rand(3, 4), "size": [2, 6]}),
    "_upsample_bicubic2d_aa": _images(2, **_RESIZED),
    "_upsample_bicubic2d_aa.vec": _images(2, **_RESIZED_VEC),
    "_upsample_bicubic2d_aa_backward": _gradients(2, **_RESIZED_BACK),
    "_upsample_bilinear2d_aa": _images(2, **_RESIZED),
    "_upsample_bilinear2d_aa.vec": _images(2, **_RESIZED_VEC),
    "_upsample_bilinear2d_aa_backward": _gradients(2, **_RESIZED_BACK),
    "_upsample_lanczos2d_aa": _images(2, **_RESIZED),
    "_upsample_lanczos2d_aa.vec": _images(2, **_RESIZED_VEC),
    "_upsample_lanczos2d_aa_backward": _gradients(2, **_RESIZED_BACK),
    "_upsample_nearest_exact3d": _images(3, output_size=[5, 5, 5]),
    "_upsample_nearest_exact3d.vec": _images(3, output_size=[5, 5, 5], scale_factors=None),
    "_upsample_nearest_exact3d_backward": _gradients(3, output_size=[5, 5, 5], input_size=[1, 2, 4, 4, 4]),
    "_weight_norm": _each(lambda: {"v": _rand(3, 4), "g": _rand(3, 1)}),
    "affine_grid_generator": _each(lambda: {"theta": _rand(2, 2, 3), "size": [2, 1, 3, 4], "align_corners": False}),
    "affine_grid_generator_backward": _each(
        lambda: {"grad": _rand(2, 3, 4, 2), "size": [2, 1, 3, 4], "align_corners": False}
    ),
    "chain_matmul": _each(lambda: {"matrices": [_rand(2, 3), _rand(3, 4), _rand(4, 2)]}),
    "conv_tbc": _each(lambda: {"input": _rand(5, 2, 3), "weight": _rand(3, 3, 2), "bias": _rand(2), "pad": 1}),
    "convolution": _convolutions,
    "frobenius_norm": _each(lambda: {"input": _rand(3, 4), "dim": [0, 1], "keepdim": False}),
    "gru.data": _recurrent(3, packed=True),
    "gru.input": _recurrent(3),
    "gru_cell": _cell(3),
    "lift": _each(lambda: {"input": _rand(3)}),
    "lift_fresh": _each(lambda: {"input": _rand(3)}),
    "lstm.data": _recurrent(4, packed=True),
    "lstm.input": _recurrent(4),
    "lstm_cell": _cell(4),
    "moved_cofactors": _each(lambda: {"matrix": _rand(3, 3), "direction": _rand(3, 3, seed=1)}),
    "native_channel_shuffle": _each(lambda: {"input": _rand(1, 4, 2, 2), "groups": 2}),
    "native_dropout": _each(lambda: {"input": _rand(3, 4), "p": 0.5, "train": True}),
    "nll_loss": _each(lambda: {"input": _rand(3, 4), "target": torch.tensor([0, 3, 1])}),
    "nll_loss2d": _each(lambda: {"input": _rand(2, 3, 2, 2), "target": torch.tensor([0, 2, 1, 1] * 2).view(2, 2, 2)}),
    "norm.Scalar": _norms(),
    "norm.ScalarOpt_dim": _norms("dim", "keepdim"),
    "norm.ScalarOpt_dim_dtype": _norms("dim", "keepdim", "dtype"),
    "norm.ScalarOpt_dtype": _norms("dtype"),
    "norm_except_dim": _each(lambda: {"v": _rand(3, 4), "pow": 2, "dim": 1}),
    "nuclear_norm": _each(lambda: {"input": _rand(3, 4), "keepdim": False}),
    "nuclear_norm.dim": _each(lambda: {"input": _rand(3, 4), "dim": [0, 1], "keepdim": False}),
    "orgqr": _each(lambda: {"input": _rand(4, 2), "input2": _rand(2)}),
    "pad_sequence": _each(lambda: {"sequences": [_rand(3, 2), _rand(1, 2)], "batch_first": True}),
    "reflection_pad1d": _padded(1),
    "reflection_pad2d": _padded(2),
    "reflection_pad3d": _padded(3),
    "replication_pad1d": _padded(1),
    "replication_pad2d": _padded(2),
    "replication_pad3d": _padded(3),
    "rnn_relu.data": _recurrent(1, packed=True),
    "rnn_relu.input": _recurrent(1),
    "rnn_relu_cell": _cell(1),
    "rnn_tanh.data": _recurrent(1, packed=True),
    "rnn_tanh.input": _recurrent(1),
    "rnn_tanh_cell": _cell(1),
    "rrelu_with_noise": _each(lambda: {"input": _rand(3, 4), "noise": _rand(3, 4, seed=1), "training": False}),
    "scatter.value_reduce": _each(
        lambda: {"input": _rand(3, 2), "dim": 0, "index": torch.tensor([[0, 1], [2, 0]]), "value": 2.0, "reduce": "add"}
    ),
    "slice_scatter": _each(lambda: {"input": _rand(4, 2), "src": _rand(2, 2), "dim": 0, "start": 1, "end": 3}),
    "type": _each(lambda: {"input": _rand(3), "dtype": torch.float32}),
    "unsafe_split_with_sizes": _each(lambda: {"input": _rand(5, 2), "split_sizes": [2, 3], "dim": 0}),
    "vander": _each(lambda: {"x": _rand(3), "N": 4}),
    "write_region": _each(
        lambda: {"input": _rand(3, 4), "value": _rand(2, 2), "size": (2, 2), "stride": (4, 1), "storage_offset": 1}
    ),
}


def _of_lists(name: str) -> Iterator[Values]:
    """Lists of one tensor for an op of lists, by those of its schemas that ask for nothing else.

    Of two, torch says that both results require grad where one input does; here each stands for itself.
    """
    for schema in schemas(getattr(torch.ops.aten, name)).values():
        required = [a for a in schema.arguments if not a.has_default_value()]
        if all(str(a.type) == "List[Tensor]" and not a.kwarg_only for a in required):
            names = ["input" if a.name == "self" else a.name for a in required]
            yield {n: [0.6 + 0.3 * _rand(2, 2, seed=i)] for i, n in enumerate(names)}


def handmade_samples(name: str) -> Sequence[Values]:
    """Arguments for a rule; none where the table has nothing for it."""
    if name.startswith("_foreach_"):
        return list(_of_lists(name))
    return MAKERS[name]() if name in MAKERS else ()
