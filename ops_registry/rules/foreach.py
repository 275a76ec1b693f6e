"""``torch._foreach_*``: one op on each tensor of a list. Where a gradient is wanted, it is that op on one tensor after the other.

So each tensor is recorded under the rule of the single op, in place where the call is in place.
"""

from dataclasses import replace

import torch

from ops_registry.errors import UnsupportedCallError
from ops_registry.registry import file_rule, op_name
from ops_registry.rule import Rule
from ops_registry.signatures import signature_of
from ops_registry.torch_private import schemas

#: The ops of one tensor, or of tensors and numbers, that torch has for lists too: ``_foreach_sin`` and ``_foreach_sin_`` of ``sin``.
SINGLE_OPS = (
    *("abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "cos", "cosh"),
    *("div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "max"),
    *("maximum", "minimum", "mm", "mul", "neg", "norm", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin"),
    *("sinh", "sqrt", "sub", "tan", "tanh", "trunc"),
)  # fmt: skip

#: Those that write in place and have no other form.
IN_PLACE_OPS = ("copy_", "zero_")


def addcmul(self, tensor1, tensor2, value=1):
    return torch.addcmul(self, tensor1, tensor2, value=value)


def addcmul_(self, tensor1, tensor2, value=1):
    return self.addcmul_(tensor1, tensor2, value=value)


def addcdiv(self, tensor1, tensor2, value=1):
    return torch.addcdiv(self, tensor1, tensor2, value=value)


def addcdiv_(self, tensor1, tensor2, value=1):
    return self.addcdiv_(tensor1, tensor2, value=value)


def norm(self, ord=2, dtype=None):
    return torch.linalg.vector_norm(self, ord, dtype=dtype)


def extreme(choose):
    """``torch.maximum`` or ``torch.minimum``, of a number as well: at a tie the tensor gets half, as beside another tensor."""

    def chosen(self, other):
        if not isinstance(other, torch.Tensor):
            other = torch.full((), other, dtype=torch.result_type(self, other), device=self.device)
        return choose(self, other)

    return chosen


def extreme_(choose):
    """The same, written into the tensor."""

    def written(self, other):
        result = extreme(choose)(self.clone(), other)
        if not torch.can_cast(result.dtype, self.dtype):
            raise UnsupportedCallError(f"a result of {result.dtype} cannot be written into a tensor of {self.dtype}")
        return self.copy_(result)

    return written


#: Single ops that have no function, or no method, of the same name and order of arguments.
WRITTEN_OUT = {
    "addcdiv": addcdiv,
    "addcdiv_": addcdiv_,
    "addcmul": addcmul,
    "addcmul_": addcmul_,
    "maximum": extreme(torch.maximum),
    "maximum_": extreme_(torch.maximum),
    "minimum": extreme(torch.minimum),
    "minimum_": extreme_(torch.minimum),
    "norm": norm,
}


def numbers(name, value):
    """The numbers for each tensor, where they come as one tensor: torch gives it no gradient either."""
    if value.requires_grad:
        raise UnsupportedCallError(
            f"{name}: there is no gradient for the numbers in 'value' or 'scalars'. Detach them."
        )
    return value.tolist()


def one_by_one(name, names, keyword_only, single):
    """The decomposition of the op ``name`` with these arguments: ``single``, called with the tensors and numbers of one place."""

    def each(*values):
        given = {n: v for n, v in zip(names, values, strict=True) if v is not None}
        for n in given.keys() & {"value", "scalars"}:
            if isinstance(given[n], torch.Tensor):
                given[n] = numbers(name, given[n])
        named = {n: given.pop(n) for n in keyword_only if n in given}
        lengths = {len(v) for v in given.values() if isinstance(v, list | tuple)}
        if len(lengths) != 1 or 0 in lengths:
            raise UnsupportedCallError(
                f"{name} takes lists of one length, of at least one tensor: it got lists of {sorted(lengths)}"
            )
        return tuple(
            single(*(v[i] if isinstance(v, list | tuple) else v for v in given.values()), **named)
            for i in range(*lengths)
        )

    return each


def define(name, single):
    """Register the op ``name``, for all its overloads: what one calls ``scalar``, the next calls ``other`` or ``scalars``."""
    func = getattr(torch, name, None)
    if func is None:
        return  # torch before 2.13 has fewer
    signature = signature_of(func)
    arguments = [a for schema in schemas(getattr(torch.ops.aten, name)).values() for a in schema.arguments]
    arguments = [a for a in arguments if a.name != "out"]
    names = tuple(dict.fromkeys("input" if a.name == "self" else a.name for a in arguments))
    keyword_only = {a.name for a in arguments if a.kwarg_only}
    signature = replace(signature, names=names, defaults=dict.fromkeys(names), keyword_only=frozenset(keyword_only))
    decomposition = one_by_one(name, names, keyword_only, single)
    file_rule(func, Rule(op_name(func), signature, decomposition=decomposition))


for _op in SINGLE_OPS:
    define(f"_foreach_{_op}", WRITTEN_OUT.get(_op) or getattr(torch, _op))
for _op in (*(f"{_op}_" for _op in SINGLE_OPS), *IN_PLACE_OPS):
    if hasattr(torch, f"_foreach_{_op}"):
        define(f"_foreach_{_op}", WRITTEN_OUT.get(_op) or getattr(torch.Tensor, _op))
