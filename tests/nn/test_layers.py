"""``nn.X`` is ``torch.nn.X`` on tracked parameters."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import pytest
import torch
from support.training import accuracy, digits, fit
from torch.testing._internal.common_modules import ModuleInfo, module_db

import nn
import tracer

CLASSES = sorted(
    name
    for name in dir(torch.nn)
    if inspect.isclass(getattr(torch.nn, name))
    and issubclass(getattr(torch.nn, name), torch.nn.Module)
    and not hasattr(getattr(torch.nn, name), "__deprecated__")
)


@pytest.mark.parametrize("name", CLASSES)
def test_every_module_of_torch_is_there_as_a_subclass(name: str) -> None:
    ours, theirs = getattr(nn, name), getattr(torch.nn, name)
    assert issubclass(ours, theirs) and issubclass(ours, nn.Module)
    assert ours.__name__ == name and pickle.loads(pickle.dumps(ours)) is ours
    assert inspect.signature(ours) == inspect.signature(theirs)
    for base in theirs.__mro__:
        if base.__name__ in CLASSES:
            assert issubclass(ours, getattr(nn, base.__name__))


def test_what_is_no_module_is_torchs() -> None:
    assert nn.utils is torch.nn.utils and nn.Buffer is torch.nn.Buffer and nn.NLLLoss2d is torch.nn.NLLLoss2d
    assert nn.functional.relu is torch.nn.functional.relu


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(AttributeError, match="module 'nn' has no attribute 'Liner'"):
        _ = nn.Liner
    with pytest.raises(AttributeError, match=r"module 'nn.functional' has no attribute 'rleu'"):
        _ = nn.functional.rleu


def test_names_are_listed() -> None:
    assert {"Linear", "Swish", "utils"} <= set(dir(nn))
    assert {"relu", "img_to_col"} <= set(dir(nn.functional))


#: Losses whose target torch does not differentiate.
NO_TARGET_GRADIENT = {"SoftMarginLoss", "MultiLabelSoftMarginLoss"}


def samples(info: ModuleInfo) -> list[Any]:
    """Some dozen of torch's own, spread over all."""
    torch.manual_seed(0)
    made = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=True)
    return made[:: max(1, len(made) // 12)]


def leaves(given: Any, track: bool) -> Any:
    """The arguments of a call, floating point tensors as leaves of either world."""
    if isinstance(given, torch.Tensor):
        if not given.is_floating_point():
            return given
        return tracer.tensor(given, requires_grad=True) if track else given.detach().clone().requires_grad_()
    if isinstance(given, dict):
        return {key: leaves(value, track) for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        return type(given)(leaves(value, track) for value in given)
    return given


def tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given] if given.is_floating_point() else []
    if isinstance(given, dict):
        given = given.values()
    return [found for item in given for found in tensors(item)] if isinstance(given, (tuple, list)) else []


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_values_and_gradients_are_torchs(info: ModuleInfo) -> None:
    name = info.module_cls.__name__
    assert samples(info), "torch has no sample of it"
    for sample in samples(info):
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        results = []
        for cls in (getattr(torch.nn, name), getattr(nn, name)):
            track = cls is not getattr(torch.nn, name)
            torch.manual_seed(1)  # the same initial parameters
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = cls(*args, **kwargs).double()
                given = leaves((sample.forward_input.args, sample.forward_input.kwargs), track)
                if name in NO_TARGET_GRADIENT:
                    given = ((given[0][0], *sample.forward_input.args[1:]), given[1])
                torch.manual_seed(2)  # the same dropout
                outputs = tensors(module(*given[0], **given[1]))
            assert {type(p) for p in module.parameters()} <= {tracer.Tensor if track else torch.nn.Parameter}
            sum((o * torch.linspace(-1, 2, o.numel()).view(o.shape)).sum() for o in outputs).backward()
            gradients = [t.grad for t in (*tensors(given), *module.parameters())]
            results.append(([o.detach().as_subclass(torch.Tensor) for o in outputs], gradients))
        torch.testing.assert_close(results[1], results[0], equal_nan=True)


def test_initial_values_are_torchs() -> None:
    torch.manual_seed(3)
    ours = nn.TransformerDecoderLayer(8, 2, 16)
    torch.manual_seed(3)
    theirs = torch.nn.TransformerDecoderLayer(8, 2, 16)
    torch.testing.assert_close(
        {k: v.as_subclass(torch.Tensor) for k, v in ours.state_dict().items()}, dict(theirs.state_dict())
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize(
    ("name", "args"),
    [("Linear", (2, 3)), ("LSTM", (2, 3)), ("TransformerEncoderLayer", (8, 2)), ("Conv2d", (1, 2, 3)), ("ReLU", ())],
)
def test_printed_it_is_torchs(name: str, args: tuple[int, ...]) -> None:
    assert repr(getattr(nn, name)(*args)) == repr(getattr(torch.nn, name)(*args))


def test_lazy_modules_become_tracked_with_their_shapes() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), torch.nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    assert [type(m) for m in model] == [nn.Linear, nn.BatchNorm1d, torch.nn.Linear]
    assert all(type(p) is tracer.Tensor and p.grad is not None for p in model.parameters())


def test_lazy_modules_take_a_state_dict_and_copies() -> None:
    lazy = nn.LazyLinear(4)
    twin = copy.deepcopy(lazy)
    unpickled = pickle.loads(pickle.dumps(lazy))
    for module in (lazy, twin, unpickled):
        assert torch.nn.parameter.is_lazy(module.weight)
        module.load_state_dict(nn.Linear(3, 4).state_dict())
        assert type(module.weight) is tracer.Tensor and module.weight.shape == (4, 3)


CONTAINERS = {
    "Sequential": lambda layer: nn.Sequential(layer),
    "Sequential.append": lambda layer: nn.Sequential().append(layer),
    "Sequential.extend": lambda layer: nn.Sequential().extend([layer]),
    "Sequential.insert": lambda layer: nn.Sequential().insert(0, layer),
    "ModuleList": lambda layer: nn.ModuleList([layer]),
    "ModuleList.insert": lambda layer: inserted(nn.ModuleList(), layer),
    "ModuleDict": lambda layer: nn.ModuleDict({"layer": layer}),
    "ParameterList": lambda layer: nn.ParameterList(layer.parameters()),
    "ParameterList of tensors": lambda layer: nn.ParameterList([layer.weight.data]),
    "ParameterDict": lambda layer: nn.ParameterDict(dict(layer.named_parameters())),
}


def inserted(modules: Any, layer: torch.nn.Module) -> torch.nn.Module:
    modules.insert(0, layer)
    return modules


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_track_what_they_are_given(make: Any) -> None:
    parameters = list(make(torch.nn.Linear(2, 2)).parameters())
    assert parameters and all(type(p) is tracer.Tensor for p in parameters)


def test_a_slice_of_a_sequential_is_one() -> None:
    assert type(nn.Sequential(nn.Linear(2, 2), nn.ReLU())[:1]) is nn.Sequential


def test_layers_train_on_digits_to_96_percent() -> None:
    images, labels, test_images, test_labels = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10)
    )
    model(images[:2])
    fit(model, images, labels, epochs=5)
    assert accuracy(model, test_images, test_labels) >= 0.96
