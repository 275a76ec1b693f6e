"""Calls that somebody makes in our place while looking at them: ``tracer.func.jvp`` carries tangents through each as it is made.

An observer stands in the table of rules, so that a call without one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ops_registry.binding import Kind, ObservedSpelling, Spelling
from ops_registry.registry import Layer

#: ``observe(spelling, func, args, kwargs)`` makes the call and returns its result.
Observe = Callable[[Spelling, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class ObservedTable(Layer):
    """The rules of the table beneath, with ``observe`` for the calls that ``wanted(spelling)`` holds for.

    Decompositions and functions without a rule go their own ways, and their parts are observed; so do calls of all ``kinds`` but those
    named: in-place writes, and ops that never carry a gradient, unless they are.
    """

    def __init__(
        self,
        beneath: Mapping[Callable[..., Any], Spelling],
        wanted: Callable[[Spelling], bool],
        observe: Observe,
        kinds: Collection[Kind] = (Kind.RULE,),
    ) -> None:
        super().__init__(beneath)
        self.wanted = wanted
        self.observe = observe
        self.kinds = {*kinds, Kind.OBSERVED}

    def over(self, outer: Mapping[Callable[..., Any], Spelling]) -> ObservedTable:
        """The same over another table."""
        return ObservedTable(outer, self.wanted, self.observe, self.kinds)

    def __missing__(self, key: Callable[..., Any]) -> Spelling:
        spelling = self.outer[key]
        if spelling.kind in self.kinds and self.wanted(spelling):
            spelling = ObservedSpelling(spelling, self.observe)
        self[key] = spelling
        return spelling


def run_observed(spelling: Spelling, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that is made by its observer."""
    assert isinstance(spelling, ObservedSpelling)
    return spelling.observe(spelling.beneath, func, args, kwargs)
