"""torch's constructors of sparse tensors, which intercept nothing: they would cut the history of their values without a word.

Each lets itself be intercepted here; ``tracer.install`` puts them in the place of torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.overrides import handle_torch_function, has_torch_function

#: torch's constructors of sparse tensors, with the position of the values among their arguments.
SPARSE_CONSTRUCTORS = {
    "sparse_coo_tensor": 1,
    "sparse_compressed_tensor": 2,
    "sparse_csr_tensor": 2,
    "sparse_csc_tensor": 2,
    "sparse_bsr_tensor": 2,
    "sparse_bsc_tensor": 2,
}


def intercepted(construct: Callable[..., Any], position: int) -> Callable[..., Any]:
    """A sparse constructor that lets the class of its values intercept the call, as torch's own does not."""

    @functools.wraps(construct)
    def constructed(*args: Any, **kwargs: Any) -> Any:
        values = kwargs.get("values", args[position] if len(args) > position else None)
        if not has_torch_function((values,)):
            return construct(*args, **kwargs)
        wanted = kwargs.pop("requires_grad", False)
        made = handle_torch_function(construct, (values,), *args, **kwargs)
        return made.requires_grad_() if wanted and not made.requires_grad else made

    return constructed
