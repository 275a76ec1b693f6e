"""Old home of helpers that now have one each in ``ops_registry.shared``."""

from ops_registry.shared.conjugate import conj
from ops_registry.shared.dimensions import reduced_count, reduced_dims, restore_dims, spread
from ops_registry.shared.masks import share_among_ties as share
from ops_registry.shared.picking import add_at, add_slices, put_back
from ops_registry.shared.products import divides_well, exclusive_cumprod

__all__ = [
    "add_at",
    "add_slices",
    "conj",
    "divides_well",
    "exclusive_cumprod",
    "put_back",
    "reduced_count",
    "reduced_dims",
    "restore_dims",
    "share",
    "spread",
]
