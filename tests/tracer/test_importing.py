"""``tracer/importing.py``: acting on a module once it is loaded, without loading it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tracer.importing import AfterImport

ROOT = Path(__file__).parents[2]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    (tmp_path / "loaded_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loaded_later", raising=False)
    return []


def test_a_module_is_acted_on_once_its_code_has_run(seen: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    finder = AfterImport({"loaded_later"}, seen.append)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert seen == []
    import loaded_later  # type: ignore[import-not-found]

    assert seen == [loaded_later] and loaded_later.value == 1 and finder.waiting == set()


def test_a_module_that_is_there_is_acted_on_at_once(seen: list[ModuleType]) -> None:
    assert AfterImport({"sys"}, seen.append).waiting == set()
    assert seen == [sys]


def test_a_module_that_does_not_exist_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = AfterImport({"no_such_module"}, lambda module: None)
    assert finder.find_spec("no_such_module", None) is None


def test_importing_glassgrad_loads_no_distributed_module_that_torch_does_not() -> None:
    code = "import sys, torch; before = set(sys.modules); import tracer, nn; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch.distributed" not in done.stdout
