"""The models and leaves of a script, under the names that it has for them."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import torch

import nn
import tracer
from tracer.commands.subjects import Models, leaves_to_ask, named_loss


def names(models: Models, loss: torch.Tensor, **variables: object) -> list[str]:
    return [" = ".join(called) for called in leaves_to_ask(models, loss, [variables]).values()]


def test_models_that_nothing_holds_are_roots_and_parts_are_not() -> None:
    with Models() as models:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
        other = torch.nn.Linear(1, 1)
        torch.nn.ReLU()
    found = models.roots()
    assert net in found and other in found
    assert not any(part in found for part in (net[0], net[1], net[1][0]))


def test_no_model_is_kept_alive() -> None:
    with Models() as models:
        net = torch.nn.Linear(2, 2)
    seen = len(models.roots())
    del net
    gc.collect()
    assert len(models.roots()) == seen - 1


def test_one_model_has_plain_names_and_several_are_told_apart() -> None:
    with Models() as models:
        gen = nn.Linear(2, 2, bias=False)
        others = models.roots()
    loss = gen(torch.ones(1, 2)).sum()
    if others == [gen]:
        assert names(models, loss, gen=gen) == ["weight"]
    with models:
        critic = nn.Linear(2, 1, bias=False)
        extra = nn.Linear(2, 1, bias=False)
    found = names(models, loss, gen=gen, trainer=SimpleNamespace(critic=critic))
    assert {"gen.weight", "trainer.critic.weight", "Linear.weight"} <= set(found)
    del extra


def test_leaves_have_the_names_of_their_variables_or_none() -> None:
    w = tracer.tensor([1.0], requires_grad=True)
    v = tracer.tensor([1.0], requires_grad=True)
    hidden = tracer.tensor([1.0, 2.0], requires_grad=True)
    found = names(Models(), (w * v * hidden).sum(), w=w, parameters=[v], number=3)
    assert {"w", "parameters[0]", "a leaf, float32[2]"} <= set(found)


def test_the_loss_is_that_of_the_innermost_frame_with_a_history() -> None:
    inner, outer = (tracer.tensor([1.0], requires_grad=True) * 2 for _ in range(2))
    assert named_loss([{"loss": 3.0}, {"loss": inner}, {"loss": outer}]) is inner
    assert named_loss([{"loss": torch.ones(1)}, {}]) is None
