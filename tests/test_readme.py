"""Every Python block of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops_registry.registry import _RULES, TABLE

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def own_rules():
    """What a block registers is gone afterwards."""
    table, rules = dict(TABLE), dict(_RULES)
    yield
    TABLE.clear()
    TABLE.update(table)
    _RULES.clear()
    _RULES.update(rules)


def test_the_readme_has_code() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0][:40])
def test_readme_block_runs(block: str, own_rules: None, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})
