"""Random generators of Python's and of NumPy's: their states."""

from __future__ import annotations

import random
from typing import Any


def state_of(value: Any) -> Any:
    """The state of a random generator of Python's or NumPy's, to be compared; None of anything else."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if type(value).__module__.startswith("numpy.random") and not isinstance(value, type):
        bits = _bits_of(value)
        return None if bits is None else bits.state
    return None


def put_state(value: Any, state: Any) -> None:
    """Put a generator back to a state that ``state_of`` gave."""
    if isinstance(value, random.Random):
        value.setstate(state)
    else:
        _bits_of(value).state = state


def _bits_of(value: Any) -> Any:
    """What a generator of NumPy's draws from."""
    return getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
