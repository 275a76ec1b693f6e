"""The errors of all three packages: classes of our own, under one base."""

from __future__ import annotations

import importlib

import pytest

import nn.errors
import ops_registry.errors
import tracer.errors
from ops_registry import GlassgradError

ERRORS: list[type[GlassgradError]] = [
    found
    for module in (ops_registry.errors, tracer.errors, nn.errors)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, GlassgradError) and found.__module__ == module.__name__
]


def test_there_are_errors_of_every_package() -> None:
    assert {error.__module__ for error in ERRORS} == {"ops_registry.errors", "tracer.errors", "nn.errors"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_is_a_runtime_error_that_users_can_name(error: type[GlassgradError]) -> None:
    assert issubclass(error, RuntimeError)
    assert not issubclass(error, TypeError), "torch swallows a TypeError that an operator raises"
    package = error.__module__.partition(".")[0]
    assert getattr(importlib.import_module(package), error.__name__) is error
    assert error.__name__.endswith("Error") and vars(error).get("__doc__")


def test_an_error_raised_by_an_operator_arrives_as_it_is() -> None:
    x = tracer.tensor([1.0], requires_grad=True)
    with pytest.raises(tracer.InPlaceError, match="leaf"):
        x += 1
