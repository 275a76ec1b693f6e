"""A call of every public callable of torch that interception does not see and a tensor can go through; and of other ways around it.

``x`` is a leaf of shape (2, 2), with elements between 0 and 1; the same call is made on a tracked one and on one of torch's. A name may
stand several times, with a word on the call after a comma.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import torch.utils.dlpack
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn import utils

Call = Callable[[Any], Any]


def linear(x: Tensor) -> nn.Linear:
    """A layer whose weight is made of ``x``."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(x)
    return layer


def square(x: Tensor) -> Tensor:
    return x * x


def total(x: Tensor) -> Tensor:
    return (x * x * x).sum()


# ---------------------------------------------------------------- torch: in place
#: What these take beside the tensor; all others that end in an underscore take nothing.
_IN_PLACE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "alpha_dropout_": (0.5, True),
    "clamp_": (0.3, 0.6),
    "clamp_max_": (0.6,),
    "clamp_min_": (0.3,),
    "clip_": (0.3, 0.6),
    "dropout_": (0.5, True),
    "feature_alpha_dropout_": (0.5, True),
    "feature_dropout_": (0.5, True),
    "fill_": (2.0,),
    "ldexp_": (torch.tensor(2),),
    "threshold_": (0.3, 0.1),
    "xlogy_": (torch.full((2, 2), 2.0),),
    "resize_as_": (torch.ones(2, 2),),
}
_IN_PLACE_ELSEWHERE = (
    "addmv_",
    "embedding_renorm_",
    "gcd_",
    "index_put_",
    "lcm_",
    "resize_as_sparse_",
    "detach_",
    "as_strided_",
)


def _in_place(module: Any, name: str) -> Call:
    return lambda x: getattr(module, name)(x * 1, *_IN_PLACE_ARGUMENTS.get(name, ()))


CALLS: dict[str, Call] = {
    f"torch.{name}": _in_place(torch, name)
    for name in dir(torch)
    if name.endswith("_")
    and not name.startswith("_")
    and name not in _IN_PLACE_ELSEWHERE
    and callable(getattr(torch, name))
}
CALLS |= {f"torch.nn.functional.{name}": _in_place(F, name) for name in dir(F) if name.endswith("_") and name[0] != "_"}

CALLS |= {
    "torch.addmv_": lambda x: torch.addmv_(x[0] * 1, x, x[1]),
    "torch.as_strided_": lambda x: torch.as_strided_(x * 1, (2,), (1,), 1),
    "torch.detach_": lambda x: torch.detach_(x * 1),
    "torch.embedding_renorm_": lambda x: torch.embedding_renorm_(x * 1, torch.tensor([0]), 0.1, 2.0),
    "torch.index_put_": lambda x: torch.index_put_(x * 1, (torch.tensor([0]),), x[1] * 3),
    "torch.index_put_, into a plain tensor": lambda x: torch.index_put_(
        torch.ones(2, 2), (torch.tensor([0]),), x[1] * 3
    ),
    "torch.gcd_": lambda x: torch.gcd_((x * 8).int(), torch.tensor(2)),
    "torch.lcm_": lambda x: torch.lcm_((x * 8).int(), torch.tensor(2)),
    "torch.resize_as_sparse_": lambda x: torch.resize_as_sparse_(torch.zeros(3, 3).to_sparse(), x.to_sparse()),
}

# ---------------------------------------------------------------- torch
CALLS |= {
    "torch.Tensor": lambda x: torch.Tensor(x),
    "torch.FloatTensor": lambda x: torch.FloatTensor(x),
    "torch.DoubleTensor": lambda x: torch.DoubleTensor(x.double()),
    "torch.as_strided": lambda x: torch.as_strided(x, (2,), (1,), 1),
    "torch.as_tensor": lambda x: torch.as_tensor(x),
    "torch.as_tensor, dtype": lambda x: torch.as_tensor(x, dtype=torch.float64),
    "torch.as_tensor, list": lambda x: torch.as_tensor([x[0, 0], x[1, 1]]),
    "torch.asarray": lambda x: torch.asarray(x),
    "torch.asarray, copy": lambda x: torch.asarray(x, copy=True),
    "torch.asarray, dtype": lambda x: torch.asarray(x, dtype=torch.float64),
    "torch.asarray, requires_grad": lambda x: torch.asarray(x * 1, requires_grad=True),
    "torch.tensor": lambda x: torch.tensor(x),
    "torch.tensor, list": lambda x: torch.tensor([x[0, 0], x[1, 1]]),
    "torch.scalar_tensor": lambda x: torch.scalar_tensor(x[0, 0]),
    "torch.full": lambda x: torch.full((2,), x[0, 0]),
    "torch.fill": lambda x: torch.fill(x, 2.0),
    "torch.fill, with a tensor": lambda x: torch.fill(torch.ones(3), x[0, 0]),
    "torch.linspace": lambda x: torch.linspace(x[0, 0], x[1, 1], 3),
    "torch.logspace": lambda x: torch.logspace(x[0, 0], x[1, 1], 3),
    "torch.arange": lambda x: torch.arange(x[0, 0], 3.0),
    "torch.normal": lambda x: torch.normal(x, 1.0),
    "torch.range": lambda x: torch.range(x[0, 0], 3.0),
    "torch.hamming_window": lambda x: torch.hamming_window(4, alpha=x[0, 0]),
    "torch.kaiser_window": lambda x: torch.kaiser_window(4, beta=x[0, 0]),
    "torch.normal, deviation": lambda x: torch.normal(x, x),
    "torch.rand_like": torch.rand_like,
    "torch.randn_like": torch.randn_like,
    "torch.randint_like": lambda x: torch.randint_like(x, 5),
    "torch.vander": lambda x: torch.vander(x[0], 3),
    "torch.from_numpy": lambda x: torch.from_numpy(x.numpy()),
    "torch.from_numpy, detached": lambda x: torch.from_numpy(x.detach().numpy()),
    "torch.from_dlpack": lambda x: torch.from_dlpack(x),
    "torch.to_dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "torch.sparse_coo_tensor": lambda x: torch.sparse_coo_tensor([[0, 1]], x[0], (3,)).to_dense(),
    "torch.sparse_compressed_tensor": lambda x: torch.sparse_compressed_tensor(
        [0, 1, 2], [0, 1], x[0], (2, 2), layout=torch.sparse_csr
    ).to_dense(),
    "torch.sparse_csr_tensor": lambda x: torch.sparse_csr_tensor([0, 1, 2], [0, 1], x[0], (2, 2)).to_dense(),
    "torch.sparse_csc_tensor": lambda x: torch.sparse_csc_tensor([0, 1, 2], [0, 1], x[0], (2, 2)).to_dense(),
    "torch.sparse_bsr_tensor": lambda x: torch.sparse_bsr_tensor([0, 1], [0], x[None] * 1, (2, 2)).to_dense(),
    "torch.sparse_bsc_tensor": lambda x: torch.sparse_bsc_tensor([0, 1], [0], x[None] * 1, (2, 2)).to_dense(),
    "torch.mkldnn_adaptive_avg_pool2d": lambda x: torch.mkldnn_adaptive_avg_pool2d(
        x[None, None].to_mkldnn(), 1
    ).to_dense(),
    "torch.mkldnn_convolution": lambda x: torch.mkldnn_convolution(
        x[None, None], torch.ones(1, 1, 1, 1), None, (0, 0), (1, 1), (1, 1), 1
    ),
    "torch.mkldnn_max_pool2d": lambda x: torch.mkldnn_max_pool2d(x[None, None].to_mkldnn(), 2).to_dense(),
    "torch.mkldnn_max_pool3d": lambda x: torch.mkldnn_max_pool3d(x[None, None, None].to_mkldnn(), (1, 2, 2)).to_dense(),
    "torch.vmap": lambda x: torch.vmap(square)(x),
    "torch.vmap, closed over": lambda x: torch.vmap(lambda row: row * x[0])(torch.ones(3, 2)),
    "torch.cond": lambda x: torch.cond(torch.tensor(True), square, lambda t: t.sin(), (x,)),
    "torch.while_loop": lambda x: torch.while_loop(
        lambda i, t: i < 2, lambda i, t: (i + 1, t * t), (torch.tensor(0), x)
    )[1],
    "torch.fork": lambda x: torch.jit.wait(torch.jit.fork(square, x)),
    "torch.wait": lambda x: torch.jit.wait(torch.jit.fork(square, x)),
    "torch.no_grad": lambda x: torch.no_grad()(square)(x),
    "torch.enable_grad": lambda x: torch.enable_grad()(square)(x),
    "torch.set_grad_enabled": lambda x: torch.set_grad_enabled(True)(square)(x),
    "torch.inference_mode": lambda x: torch.inference_mode()(square)(x),
    "torch.autocast": lambda x: torch.autocast("cpu", dtype=torch.bfloat16)(lambda t: t @ t)(x),
}


def _under(guard: str) -> Call:
    def call(x: Tensor) -> Tensor:
        with getattr(torch, guard)():
            return x * x

    return call


CALLS |= {f"torch.{name}": _under(name) for name in ("DisableTorchFunction", "DisableTorchFunctionSubclass")}

# ---------------------------------------------------------------- methods
CALLS |= {
    "torch.Tensor.as_subclass": lambda x: x.as_subclass(Tensor),
    "torch.Tensor.as_subclass, of a parameter": lambda x: x.as_subclass(nn.Parameter),
    "torch.Tensor.new": lambda x: x.new([1.0]),
    "torch.Tensor.new, of a tensor": lambda x: torch.ones(1).new(x),
    "torch.Tensor.new_empty": lambda x: x.new_empty((1,)).fill_(1),
    "torch.Tensor.new_empty_strided": lambda x: x.new_empty_strided((1,), (1,)).fill_(1),
    "torch.Tensor.new_full": lambda x: torch.ones(1).new_full((2,), x[0, 0]),
    "torch.Tensor.new_ones": lambda x: x.new_ones(2),
    "torch.Tensor.new_zeros": lambda x: x.new_zeros(2),
    "torch.Tensor.new_tensor": lambda x: torch.ones(1).new_tensor(x),
    "torch.Tensor.new_tensor, list": lambda x: torch.ones(1).new_tensor([x[0, 0], x[1, 1]]),
    "torch.Tensor.to_padded_tensor": lambda x: torch.nested.as_nested_tensor([x[0], x[1, :1]]).to_padded_tensor(0.0),
    "torch.Tensor.to_sparse_bsc": lambda x: x.to_sparse_bsc((1, 1)).to_dense(),
    "torch.Tensor.to_sparse_bsr": lambda x: x.to_sparse_bsr((1, 1)).to_dense(),
    "torch.Tensor.to_sparse_coo": lambda x: x.to_sparse_coo().to_dense(),
    "torch.Tensor.to_sparse_csc": lambda x: x.to_sparse_csc().to_dense(),
    "torch.Tensor.to_sparse_csr": lambda x: x.to_sparse_csr().to_dense(),
    "torch.Tensor.unflatten": lambda x: x.unflatten(0, (1, 2)),
    "torch.Tensor.__deepcopy__": lambda x: copy.deepcopy(x),
    "torch.Tensor.__copy__": lambda x: copy.copy(x) * 2,
    "torch.Tensor.__reduce_ex__": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.Tensor.__array__": lambda x: torch.from_numpy(np.asarray(x)),
    "torch.Tensor.__iter__": lambda x: torch.stack(list(x)),
    "torch.Tensor.__dlpack__": lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__()),
    "torch.Tensor.data": lambda x: x.data * 2,
    "torch.Tensor.tolist": lambda x: torch.tensor(x.tolist()),
}


# ---------------------------------------------------------------- methods of plain tensors, with a tracked argument
def _assign(name: str) -> Call:
    def assign(x: Tensor) -> Tensor:
        plain = torch.ones(2, 2)
        setattr(plain, name, x * 3)
        return plain

    return assign


def _written(write: Callable[[Tensor, Tensor], Any]) -> Call:
    def call(x: Tensor) -> Tensor:
        plain = torch.full((2, 2), 2.0)
        write(plain, x)
        return plain

    return call


CALLS |= {
    "plain.data = x": _assign("data"),
    "plain.copy_": _written(lambda plain, x: plain.copy_(x * 3)),
    "torch.Tensor.set_, plain": _written(lambda plain, x: plain.set_(x * 3)),
    "plain[0] = x": _written(lambda plain, x: plain.__setitem__(0, x[0] * 3)),
    "plain[mask] = x": _written(lambda plain, x: plain.__setitem__(plain > 1, x.flatten())),
    "plain[0][1] = x": _written(lambda plain, x: plain[0].__setitem__(1, x[0, 0])),
    "plain.mul_": _written(lambda plain, x: plain.mul_(x)),
    "plain.view.add_": _written(lambda plain, x: plain.view(4)[:2].add_(x[0])),
    "plain.index_copy_": _written(lambda plain, x: plain.index_copy_(0, torch.tensor([1]), x[:1])),
    "plain.masked_scatter_": _written(lambda plain, x: plain.masked_scatter_(plain > 1, x)),
    "plain.scatter_": _written(lambda plain, x: plain.scatter_(0, torch.tensor([[0, 1]]), x)),
    "plain.fill_": _written(lambda plain, x: plain.fill_(x[0, 0])),
    "plain.lerp_": _written(lambda plain, x: plain.lerp_(torch.ones(2, 2), x)),
    "plain.addmm_": _written(lambda plain, x: plain.addmm_(x, x)),
    "plain.put_": _written(lambda plain, x: plain.put_(torch.tensor([0]), x[0, :1])),
    "plain.fill_diagonal_": _written(lambda plain, x: plain.fill_diagonal_(float(x.detach()[0, 0]))),
    "plain.type_as": lambda x: torch.ones(1).type_as(x),
    "plain.expand_as": lambda x: torch.ones(1).expand_as(x),
    "plain.where": lambda x: torch.ones(2, 2).where(x > 0.3, x),
    "plain @ x": lambda x: torch.ones(2, 2) @ x,
    "plain ** x": lambda x: torch.full((2, 2), 2.0) ** x,
    "plain.index_add": lambda x: torch.ones(2, 2).index_add(0, torch.tensor([1]), x[:1]),
    "plain.map_": _written(lambda plain, x: plain.map_(x, lambda a, b: a * b)),
    "plain += x": _written(lambda plain, x: plain.__iadd__(x)),
    "number - x": lambda x: 1.0 - x,
    "numpy scalar * x": lambda x: np.float32(2.0) * x,
}


# ---------------------------------------------------------------- functions, graphs, utilities
def _hooked(x: Tensor) -> Tensor:
    with graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return x * x


def _saved_on_cpu(x: Tensor) -> Tensor:
    with graph.save_on_cpu():
        return x * x


def _mutated(x: Tensor) -> Tensor:
    with graph.allow_mutation_on_saved_tensors():
        y = x * 1
        z = y * y
        y.mul_(3)
        z.sum().backward()
    return z.detach()


def _edge(x: Tensor) -> Tensor:
    y = x * 2
    return torch.autograd.grad((y * y).sum(), graph.get_gradient_edge(y))[0]


def _multi_hook(x: Tensor) -> Tensor:
    seen: list[Any] = []
    y = x * 2
    with graph.register_multi_grad_hook((y, x), seen.append):
        (y * y).sum().backward()
    return torch.tensor(float(len(seen)))


def _versioned(x: Tensor) -> Tensor:
    y = x * 1
    z = y * y
    graph.increment_version([y])
    return z


def _swapped(x: Tensor) -> Tensor:
    a, b = x.detach().clone().requires_grad_(), (x.detach() * 2).requires_grad_()
    torch.utils.swap_tensors(a, b)
    (a * a).sum().backward()
    assert a.grad is not None
    return a.grad


def _clipped(clip: Callable[..., Any], *arguments: float) -> Call:
    def call(x: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        (leaf * leaf).sum().backward()
        clip([leaf], *arguments)
        assert leaf.grad is not None
        return leaf.grad

    return call


def _to_vector(x: Tensor) -> Tensor:
    layer = nn.Linear(2, 2, bias=False)
    utils.vector_to_parameters(x.flatten(), layer.parameters())
    return layer(torch.ones(1, 2)).detach()


CALLS |= {
    "torch.nn.functional.Tensor": lambda x: F.Tensor(x),
    "torch.fft.Tensor": lambda x: torch.fft.Tensor(x),
    "torch.special.Tensor": lambda x: torch.special.Tensor(x),
    "torch.nn.functional.hardsigmoid": F.hardsigmoid,
    "torch.nn.functional.hardswish": F.hardswish,
    "torch.nn.functional.sigmoid": F.sigmoid,
    "torch.nn.functional.tanh": F.tanh,
    "torch.nn.functional.upsample": lambda x: F.upsample(x[None, None], 4),
    "torch.nn.functional.upsample_bilinear": lambda x: F.upsample_bilinear(x[None, None], 4),
    "torch.nn.functional.upsample_nearest": lambda x: F.upsample_nearest(x[None, None], 4),
    "torch.autograd.graph.GradientEdge": _edge,
    "torch.autograd.graph.Variable": lambda x: graph.Variable(x) if hasattr(graph, "Variable") else x,
    "torch.autograd.graph.get_gradient_edge": _edge,
    "torch.autograd.graph.allow_mutation_on_saved_tensors": _mutated,
    "torch.autograd.graph.disable_saved_tensors_hooks": lambda x: graph.disable_saved_tensors_hooks("no")(square)(x),
    "torch.autograd.graph.increment_version": _versioned,
    "torch.autograd.graph.register_multi_grad_hook": _multi_hook,
    "torch.autograd.graph.save_on_cpu": _saved_on_cpu,
    "torch.autograd.graph.saved_tensors_hooks": _hooked,
    "torch.utils.swap_tensors": _swapped,
    "torch.utils.checkpoint.checkpoint": lambda x: torch.utils.checkpoint.checkpoint(square, x, use_reentrant=False),
    "torch.utils.checkpoint.checkpoint, reentrant": lambda x: torch.utils.checkpoint.checkpoint(
        square, x, use_reentrant=True
    ),
    "torch.utils.data.default_collate": lambda x: torch.utils.data.default_collate([x, x * 2]),
    "torch.nn.utils.clip_grad_norm": _clipped(utils.clip_grad_norm_, 0.1),
    "torch.nn.utils.clip_grad_norm_": _clipped(utils.clip_grad_norm_, 0.1),
    "torch.nn.utils.clip_grad_value_": _clipped(utils.clip_grad_value_, 0.1),
    "torch.nn.utils.clip_grads_with_norm_": _clipped(
        lambda p, m: utils.clip_grads_with_norm_(p, m, torch.tensor(2.0)), 0.1
    ),
    "torch.nn.utils.get_total_norm": lambda x: utils.get_total_norm([x, x * 2]),
    "torch.nn.utils.get_total_norm, foreach": lambda x: utils.get_total_norm([x, x * 2], foreach=True),
    "torch.nn.utils.fuse_conv_bn_eval": lambda x: utils.fuse_conv_bn_eval(
        nn.Conv2d(1, 1, 1).eval(), nn.BatchNorm2d(1).eval()
    )(x[None, None]),
    "torch.nn.utils.fuse_conv_bn_weights": lambda x: utils.fuse_conv_bn_weights(
        x[:, :, None, None], x[0], x[0], x[1], 1e-5, x[0], x[1]
    )[0],
    "torch.nn.utils.fuse_linear_bn_eval": lambda x: utils.fuse_linear_bn_eval(
        nn.Linear(2, 2).eval(), nn.BatchNorm1d(2).eval()
    )(x),
    "torch.nn.utils.fuse_linear_bn_weights": lambda x: utils.fuse_linear_bn_weights(
        x, x[0], x[0], x[1], 1e-5, x[0], x[1]
    )[0],
    "torch.nn.utils.parameters_to_vector": lambda x: utils.parameters_to_vector([x, x * 2]),
    "torch.nn.utils.spectral_norm": lambda x: utils.spectral_norm(linear(x))(x),
    "torch.nn.utils.vector_to_parameters": _to_vector,
    "torch.nn.utils.weight_norm": lambda x: utils.weight_norm(linear(x))(x),
    "torch.nn.utils.parametrizations.weight_norm": lambda x: utils.parametrizations.weight_norm(linear(x))(x),
    "torch.nn.utils.parametrizations.orthogonal": lambda x: utils.parametrizations.orthogonal(linear(x))(x),
    "torch.nn.utils.rnn.pad_sequence": lambda x: utils.rnn.pad_sequence([x, x[:1]]),
    "torch.nn.utils.rnn.pack_sequence": lambda x: utils.rnn.pack_sequence([x, x[:1]]).data,
    "torch.nn.utils.stateless.functional_call": lambda x: torch.func.functional_call(
        nn.Linear(2, 2, bias=False), {"weight": x}, x
    ),
    "torch.nn.Parameter": lambda x: nn.Parameter(x) * 2,
    "torch.nn.Buffer": lambda x: nn.Buffer(x) * 2 if hasattr(nn, "Buffer") else x,
    "torch.autograd.Variable": lambda x: torch.autograd.Variable(x) * 2,
}

# ---------------------------------------------------------------- transforms
CALLS |= {
    "torch.func.functional_call": lambda x: torch.func.functional_call(
        nn.Linear(2, 2, bias=False), {"weight": x}, torch.ones(1, 2)
    ),
    "torch.func.functionalize": lambda x: torch.func.functionalize(square)(x),
    "torch.func.grad": lambda x: torch.func.grad(total)(x),
    "torch.func.grad, closed over": lambda x: torch.func.grad(lambda t: total(t * x))(torch.ones(2, 2)),
    "torch.func.grad_and_value": lambda x: torch.func.grad_and_value(total)(x),
    "torch.func.hessian": lambda x: torch.func.hessian(total)(x),
    "torch.func.hessian, closed over": lambda x: torch.func.hessian(lambda t: total(t * x))(torch.ones(2, 2)),
    "torch.func.jacfwd": lambda x: torch.func.jacfwd(square)(x),
    "torch.func.jacrev": lambda x: torch.func.jacrev(square)(x),
    "torch.func.jvp": lambda x: torch.func.jvp(square, (x,), (torch.ones(2, 2),)),
    "torch.func.jvp, tangent": lambda x: torch.func.jvp(square, (torch.ones(2, 2),), (x,)),
    # Of the point torch loses the history here, and we do not (tests/tracer/func/test_nesting.py); of the tangents it keeps it.
    "torch.func.linearize, tangent": lambda x: torch.func.linearize(square, torch.ones(2, 2))[1](x),
    "torch.func.rearrange": lambda x: torch.func.rearrange(x, "a b -> b a"),
    "torch.func.stack_module_state": lambda x: torch.func.stack_module_state([linear(x), linear(x)])[0][
        "weight"
    ].detach(),
    "torch.func.vjp": lambda x: torch.func.vjp(square, x)[1](torch.ones(2, 2)),
    "torch.func.vjp, value": lambda x: torch.func.vjp(square, x)[0],
    "torch.func.vmap": lambda x: torch.func.vmap(square)(x),
    "torch.autograd.functional.vjp": lambda x: torch.autograd.functional.vjp(
        square, x, torch.ones(2, 2), create_graph=True
    ),
    "torch.autograd.functional.jvp": lambda x: torch.autograd.functional.jvp(
        square, x, torch.ones(2, 2), create_graph=True
    ),
    "torch.autograd.functional.jacobian": lambda x: torch.autograd.functional.jacobian(square, x, create_graph=True),
    "torch.autograd.functional.hessian": lambda x: torch.autograd.functional.hessian(total, x, create_graph=True),
}


# ---------------------------------------------------------------- scripts, dual numbers, lists, other classes
def _scripted(x: Tensor) -> Tensor:
    return torch.jit.script(_script_body)(x)


def _script_body(x: Tensor) -> Tensor:
    return x * x


def _dual(x: Tensor) -> Tensor:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        return forward.unpack_dual(square(forward.make_dual(x, torch.ones(2, 2)))).tangent * 1


def _saved_and_loaded(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


CALLS |= {
    "torch.jit.script": _scripted,
    "torch.jit.trace": lambda x: torch.jit.trace(square, torch.ones(2, 2))(x),
    "torch.jit.script, of a module": lambda x: torch.jit.script(nn.Linear(2, 2))(x),
    "torch.jit.fork": lambda x: torch.jit.wait(torch.jit.fork(square, x)),
    "torch.autograd.forward_ad": _dual,
    "torch.save": _saved_and_loaded,
    "torch.nested.nested_tensor": lambda x: torch.nested.nested_tensor([x[0], x[1, :1]]).to_padded_tensor(0.0),
    "torch.nested.as_nested_tensor, jagged": lambda x: torch.nested.as_nested_tensor(
        [x[0], x[1, :1]], layout=torch.jagged
    ).to_padded_tensor(0.0),
    "torch.nested.nested_tensor_from_jagged": lambda x: torch.nested.nested_tensor_from_jagged(
        x, offsets=torch.tensor([0, 1, 2])
    ).to_padded_tensor(0.0),
    "torch.masked.masked_tensor": lambda x: torch.masked.masked_tensor(x, x.detach() > 0.3).sum().get_data(),
    "torch.masked.sum": lambda x: torch.masked.sum(x, mask=x.detach() > 0.3),
    "torch.sparse.mm": lambda x: torch.sparse.mm(torch.eye(2).to_sparse(), x),
    "torch.sparse.sum": lambda x: torch.sparse.sum(x.to_sparse()),
    "torch._foreach_mul": lambda x: torch._foreach_mul([x, x * 2], 3.0),
    "torch._foreach_add, lists": lambda x: torch._foreach_add([x], [x * 2]),
    "torch._foreach_norm": lambda x: torch._foreach_norm([x, x * 2]),
    "torch._foreach_add_": lambda x: torch._foreach_add_([x * 1], 1.0),
    "torch.cond, closed over": lambda x: torch.cond(
        torch.tensor(True), lambda t: t * x, lambda t: t * 1, (torch.ones(2, 2),)
    ),
}
