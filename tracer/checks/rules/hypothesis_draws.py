"""Arguments drawn with hypothesis, which is needed for this alone and may be absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ops_registry.errors import RuleCheckError
from tracer.checks.rules.drawing import Choices, DrawingPlan


def require_hypothesis() -> Any:
    """The package. Raises ``RuleCheckError`` where it is not installed."""
    try:
        import hypothesis
    except ImportError as error:
        raise RuleCheckError(
            "check_rule draws arguments with hypothesis, which is not installed: pip install hypothesis. (Concrete inputs= need it not.)",
            "nothing checked",
        ) from error
    return hypothesis


def collected(strategy: Any, count: int) -> list[Any]:
    """``count`` draws of a hypothesis strategy; the same ones every time where ``CI`` is set or the profile says so."""
    hypothesis = require_hypothesis()
    found: list[Any] = []
    chosen = hypothesis.settings(
        max_examples=count,
        derandomize=bool(os.environ.get("CI")) or hypothesis.settings.default.derandomize,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    chosen(hypothesis.given(strategy)(lambda drawn: found.append(drawn)))()
    return found


class HypothesisChoices(Choices):
    """Choices of hypothesis: ``draw`` is what a composite strategy gets."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw, self.strategies = draw, require_hypothesis().strategies

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(self.strategies.integers(low, high)))

    def choice(self, options: Sequence[Any]) -> Any:
        return self.draw(self.strategies.sampled_from(options))


def draws_of(plans: Sequence[DrawingPlan], count: int) -> list[dict[str, Any]]:
    """``count`` times the arguments of one of the plans, by name."""

    @require_hypothesis().strategies.composite
    def arguments(draw: Callable[[Any], Any]) -> dict[str, Any]:
        choices = HypothesisChoices(draw)
        plan: DrawingPlan = choices.choice(plans)
        return plan.draw(choices)

    return collected(arguments(), count)
