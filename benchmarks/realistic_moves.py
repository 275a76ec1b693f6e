"""Calls of ops that move numbers about: views, shapes, joining, indexing, gathering."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from op_calls import POINTS, ROWS, TOKENS, Call, fixed, integers, make_calls, mask, normal


def views() -> Iterator[Call]:
    x, tokens, cube = normal(*POINTS), normal(*TOKENS), normal(64, 128, 128)
    yield from make_calls(
        {
            "H": (lambda x: x.H, x),
            "T": (lambda x: x.T, x),
            "__getitem__": (lambda x: x[:, ::2], x),
            "__getitem__ of rows": (lambda x, i: x[i], normal(5000, 256), integers(5000, 4096)),
            "as_strided": (lambda x: torch.as_strided(x, (500, 500), (1000, 2)), x),
            "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y)[1], x, normal(1000)),
            "broadcast_to": (lambda x: x.broadcast_to(1000, 1000), normal(1000)),
            "chunk": (lambda x: x.chunk(4, -1), tokens),
            "contiguous": (lambda x: x.T.contiguous(), x),
            "diagonal": (lambda x: torch.diagonal(x, dim1=1, dim2=2), cube),
            "dsplit": (lambda x: torch.dsplit(x, 4), cube),
            "expand": (lambda x: x.expand(1000, 1000), normal(1000)),
            "expand_as": (lambda x, y: x.expand_as(y), normal(1000), fixed(x)),
            "expand_copy": (lambda x: torch.expand_copy(x, (1000, 1000)), normal(1000)),
            "flatten": (lambda x: x.flatten(1), tokens),
            "hsplit": (lambda x: torch.hsplit(x, 4), x),
            "linalg.diagonal": (torch.linalg.diagonal, cube),
            "mH": (lambda x: x.mH, cube),
            "mT": (lambda x: x.mT, cube),
            "movedim": (lambda x: x.movedim(0, 1), tokens),
            "narrow": (lambda x: x.narrow(1, 100, 500), x),
            "narrow_copy": (lambda x: torch.narrow_copy(x, 1, 100, 500), x),
            "permute": (lambda x: x.permute(2, 0, 1), tokens),
            "ravel": (torch.ravel, tokens),
            "reshape": (lambda x: x.reshape(-1, 768), tokens),
            "reshape of a transpose": (lambda x: x.transpose(1, 2).reshape(8, -1), tokens),
            "reshape_as": (lambda x, y: x.reshape_as(y), tokens, fixed(normal(4096, 768))),
            "select": (lambda x: x.select(1, 3), tokens),
            "slice": (lambda x: x[:, 10:500], tokens),
            "split": (lambda x: x.split(256, -1), tokens),
            "split.list_args": (lambda x: x.split([256, 512], -1), tokens),
            "split_with_sizes": (lambda x: torch.split_with_sizes(x, [256, 512], -1), tokens),
            "squeeze": (lambda x: x.squeeze(0), normal(1, *POINTS)),
            "squeeze.multiple": (lambda x: x.squeeze((0, 2)), normal(1, 1000, 1, 1000)),
            "t": (torch.t, x),
            "tensor_split": (lambda x: torch.tensor_split(x, 3, -1), tokens),
            "transpose": (lambda x: x.transpose(1, 2), tokens),
            "unbind": (lambda x: x.unbind(1), normal(64, 100, 256)),
            "unflatten": (lambda x: x.unflatten(-1, (12, 64)), tokens),
            "unfold": (lambda x: x.unfold(1, 16, 8), x),
            "unsqueeze": (lambda x: x.unsqueeze(1), tokens),
            "view": (lambda x: x.view(-1, 768), tokens),
            "view_as": (lambda x, y: x.view_as(y), tokens, fixed(normal(4096, 768))),
            "vsplit": (lambda x: torch.vsplit(x, 4), x),
        }
    )


def joined(op: str) -> Callable[..., torch.Tensor]:
    function = getattr(torch, op)
    return lambda *x: function(x)


def shapes() -> Iterator[Call]:
    x, row, image = normal(*POINTS), normal(1000), normal(8, 64, 56, 56)
    for op, size in (("hstack", POINTS), ("vstack", POINTS), ("dstack", (500, 500)), ("column_stack", POINTS)):
        yield Call(op, joined(op), (normal(*size), normal(*size)))
    for op in ("atleast_1d", "atleast_2d", "atleast_3d", "fliplr", "flipud", "tril", "triu"):
        yield Call(op, getattr(torch, op), (x,))
    yield from make_calls(
        {
            "bfloat16": (lambda x: x.bfloat16(), x),
            "block_diag": (torch.block_diag, normal(200, 200), normal(300, 300)),
            "cartesian_prod": (torch.cartesian_prod, row, normal(500)),
            "cat": (lambda *x: torch.cat(x, 1), x, x),
            "cdouble": (lambda x: x.cdouble(), x),
            "cfloat": (lambda x: x.cfloat(), x),
            "combinations": (torch.combinations, row),
            "constant_pad_nd": (lambda x: torch.constant_pad_nd(x, (1, 1, 1, 1)), image),
            "diag": (torch.diag, row),
            "diag_embed": (torch.diag_embed, normal(64, 128)),
            "diagflat": (torch.diagflat, row),
            "diagonal_scatter": (torch.diagonal_scatter, x, row),
            "double": (lambda x: x.double(), x),
            "fill": (lambda x: torch.fill(x, 1.0), x),
            "flip": (lambda x: x.flip(1), x),
            "float": (lambda x: x.float(), normal(*POINTS, dtype=torch.float64)),
            "half": (lambda x: x.half(), x),
            "meshgrid.list_of_tensors": (lambda *x: torch.meshgrid(list(x), indexing="ij"), row, row),
            "meshgrid.variadic_tensors": (lambda *x: torch.meshgrid(*x, indexing="ij"), row, row),
            "repeat": (lambda x: x.repeat(4, 2), normal(500, 500)),
            "repeat_interleave": (lambda x: x.repeat_interleave(4, 0), normal(500, 500)),
            "repeat_interleave by counts": (
                lambda x, n: x.repeat_interleave(n, 0),
                normal(1000, 256),
                integers(5, 1000),
            ),
            "roll": (lambda x: x.roll(10, 1), x),
            "rot90": (torch.rot90, x),
            "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 3), x, row),
            "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 100, 200), x, normal(100, 1000)),
            "stack": (lambda *x: torch.stack(x), x, x),
            "tile": (lambda x: x.tile(4, 2), normal(500, 500)),
            "to": (lambda x: x.to(torch.float64), x),
            "zero_": (lambda x: (x * 2).zero_(), x),
        }
    )


def places() -> Iterator[Call]:
    x, table, index = normal(*ROWS), normal(5000, 256), integers(5000, 4096)
    spread, chosen = integers(1024, *ROWS), integers(1024, 256, 100)
    for how in ("amax", "amin", "mean", "prod", "sum"):
        yield Call(
            f"scatter_reduce.{how}", lambda x, i, s, h=how: x.scatter_reduce(1, i, s, h), (x, spread, normal(*ROWS))
        )
    yield from make_calls(
        {
            "gather": (lambda x, i: x.gather(1, i), x, spread),
            "index_add": (lambda x, i, s: x.index_add(0, i, s), table, index, normal(4096, 256)),
            "index_copy": (
                lambda x, i, s: x.index_copy(0, i, s),
                table,
                lambda: torch.randperm(5000)[:4096],
                normal(4096, 256),
            ),
            "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), table, index),
            "index_put": (
                lambda x, i, s: x.index_put((i,), s),
                table,
                lambda: torch.randperm(5000)[:4096],
                normal(4096, 256),
            ),
            "index_put adding": (
                lambda x, i, s: x.index_put((i,), s, accumulate=True),
                table,
                index,
                normal(4096, 256),
            ),
            "index_select": (lambda x, i: x.index_select(0, i), table, index),
            "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), normal(8, 12, 256, 256), mask(256, 256)),
            "masked_scatter": (torch.masked_scatter, normal(*POINTS), mask(*POINTS), normal(*POINTS)),
            "masked_select": (torch.masked_select, normal(*POINTS), mask(*POINTS)),
            "put": (
                lambda x, i, s: x.put(i, s),
                normal(*POINTS),
                lambda: torch.randperm(10**6)[: 10**5],
                normal(10**5),
            ),
            "scatter": (lambda x, i, s: x.scatter(1, i, s), x, lambda: torch.rand(ROWS).argsort(1), normal(*ROWS)),
            "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), x, spread, normal(*ROWS)),
            "take": (torch.take, normal(*POINTS), integers(10**6, 10**5)),
            "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), x, chosen),
        }
    )


def move_calls() -> Iterator[Call]:
    for subject in (views, shapes, places):
        yield from subject()
