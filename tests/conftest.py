"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest
import torch
import torch.testing._internal.common_utils  # puts a hypothesis profile of its own in force: here, before ours
from hypothesis import HealthCheck, settings
from support.proofs import fail_unless_run

from ops_registry.registry import RULES, TABLE, active, changes
from tracer.checks.leaves import restart_random
from tracer.graph import current

settings.register_profile(
    "default",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=list(HealthCheck),
    max_examples=60,
)
settings.load_profile("default")

# Each xdist worker gets one thread: two workers with two threads each on two cores only get in each other's way.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device on which the tests run: cpu, cuda, cuda:1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that a page names as a proof runs wherever the tests do."""
    report = yield
    fail_unless_run(report, item.path, getattr(item, "originalname", item.name))
    return report


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors of the tests live."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def no_state_left_behind() -> Iterator[None]:
    """A test that leaves global state changed fails."""
    restart_random(0)
    rules, graph = len(RULES), current.graph
    yield
    assert torch.is_grad_enabled(), "the test left grad mode off"
    assert active.table is TABLE, "the test left replaced rules in force"
    assert current.graph is graph, "the test left a Graph open"
    assert len(RULES) == rules, "the test left a rule registered"
    assert gc.isenabled(), "the test left the garbage collector off"


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Whatever rules a test registers are gone afterwards."""
    table, rules, replaced = dict(TABLE), dict(RULES), changes.replaced
    yield
    TABLE.clear()
    TABLE.update(table)
    RULES.clear()
    RULES.update(rules)
    changes.replaced = replaced


@pytest.fixture(scope="module")
def group_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of ``torch.distributed`` whose only process is the one of the tests."""
    from support.processes import join_group

    join_group(str(tmp_path_factory.mktemp("group") / "store"), 0, 1)
    yield
    torch.distributed.destroy_process_group()
