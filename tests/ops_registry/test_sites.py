"""Where a call is made: the paths of modules, and the user's line."""

from __future__ import annotations

import gc
import inspect

import torch
import torch.nn.functional as F
from support.leaves import leaf

import nn
import ops_registry
import tracer
from ops_registry import sites


class Probe(torch.nn.Module):
    """Notes the site at which its forward runs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[sites.Site] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.found.append(sites.find_site("probe", 1))
        return x


def here() -> str:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno}"


def test_a_site_names_the_path_of_the_innermost_module() -> None:
    probe = Probe()
    model = nn.track(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(probe)))
    model(torch.zeros(1, 2))
    assert probe.found[0].module == "1.0"


def test_outside_of_any_module_the_path_is_empty_and_the_line_is_this_one() -> None:
    site, line = sites.find_site("op", 1), here()
    assert site.module == "" and site.line == line and repr(site) == f"op at {sites.short_line(line)}"


def test_a_model_that_was_never_tracked_is_named_from_the_outermost_module() -> None:
    probe = Probe()
    torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU(), probe))(torch.zeros(1))
    assert probe.found[0].module == "0.1"


def test_a_module_that_joined_after_tracking_is_named_below_its_model() -> None:
    probe = Probe()
    model = nn.track(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2))))
    model[0].append(probe)
    model(torch.zeros(1, 2))
    assert probe.found[0].module == "0.1"


def test_a_module_held_by_no_other_has_the_path_of_the_one_that_calls_it() -> None:
    probe = Probe()

    class Caller(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [probe]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](x)

    torch.nn.Sequential(Caller())(torch.zeros(1))
    assert probe.found[0].module == "0"


def test_a_module_held_twice_has_both_paths() -> None:
    probe = Probe()
    nn.track(torch.nn.Sequential(probe, torch.nn.ReLU(), probe))(torch.zeros(1))
    assert probe.found[0].modules == ("0", "2")


def test_tracking_a_part_again_keeps_the_paths_of_the_whole() -> None:
    probe = Probe()
    model = nn.track(torch.nn.Sequential(torch.nn.Sequential(probe)))
    nn.track(model[0])
    model(torch.zeros(1))
    assert probe.found[0].module == "0.0"


def test_tracking_the_whole_after_a_part_names_from_the_whole() -> None:
    probe = Probe()
    part = nn.track(torch.nn.Sequential(probe))
    nn.track(torch.nn.Sequential(part))(torch.zeros(1))
    assert probe.found[0].module == "0.0"


def test_names_go_with_their_modules() -> None:
    before = len(sites._paths)
    model = nn.track(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()))
    assert len(sites._paths) == before + 3
    del model
    gc.collect()
    assert len(sites._paths) == before and len(sites._modules) == before


def test_the_line_of_a_call_inside_torch_is_the_users_own() -> None:
    found: list[sites.Site] = []

    def noting(grad: torch.Tensor, site: sites.Site) -> torch.Tensor:
        found.append(site)
        return grad

    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with tracer.Graph(), ops_registry.use({F.linear: {"input": noting}}):
        y, line = model(leaf(1.0, 2.0).float()), here()
    y.sum().backward()
    assert found[0].line == line and found[0].module == "0.0"


def test_parts_of_a_function_that_torch_writes_have_the_place_of_its_call_and_what_it_was_given_has_its_own() -> None:
    class Distance(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            self.line = sites.short_line(here())
            return (a - b).square().sum(1)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.far = Distance()
            self.lines: list[str] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.lines = [sites.short_line(here())]
            one = F.triplet_margin_with_distance_loss(x, x * 2, x * 3, distance_function=self.far, swap=True)
            self.lines.append(sites.short_line(here()))
            return one + F.triplet_margin_with_distance_loss(x, x * 3, x * 2, distance_function=self.far, swap=True)

    def after(line: str) -> str:
        name, _, number = line.rpartition(":")
        return f"{name}:{int(number) + 1}"

    net, x = nn.track(Net()), tracer.tensor(torch.randn(3, 4), requires_grad=True)
    with tracer.Graph(sites=True) as graph:
        loss = net(x)
    places: dict[tuple[str, str], int] = {}
    for call in graph.calls():
        assert call.site.line is not None
        key = call.site.module, sites.short_line(call.site.line)
        places[key] = places.get(key, 0) + 1
    inside = places.pop(("far", after(net.far.line)))
    assert inside == 2 * 3 * 3  # distances of three ops: three in each call, since both ends may be swapped
    assert places.keys() == {("", after(line)) for line in net.lines} and min(places.values()) > 3
    del loss
