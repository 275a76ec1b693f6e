"""Every block of the README and of the pages in ``docs/`` runs, and prints what is shown; every link leads somewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.pages import PAGES, ROOT, blocks, comparable, picture_of, printed, rewrite, texts

TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


def test_the_readme_has_code() -> None:
    assert len(blocks(PAGES[0])) >= 5


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, clean_registry: None, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block, output in printed(page, tmp_path, names):
        if block.shown is not None:
            assert comparable(output, block.measured) == comparable(block.shown, block.measured)
    picture = picture_of(page)
    if picture is not None and shutil.which("dot") is not None:
        assert texts(picture.read_text()) == texts(names["picture"].to_svg())


def test_the_readme_shows_a_picture() -> None:
    picture = picture_of(PAGES[0])
    assert picture is not None and {"detach of mean", "net.py:14", "zero gradient"} <= set(texts(picture.read_text()))


PAGE = """
A page.

```python job.py
print("from a file")
```

```sh
python job.py
```

```text
something else
```

```python
print("in", 1.5, "ms"); print("relu (activations.py:10)")
```

```text measured
in 2.25   ms
relu (activations.py:99)
```

```sh
rm -r never/run  # nothing is shown for it
```
"""


def test_a_page_may_show_files_and_commands_and_what_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    held = [
        (output, comparable(output, block.measured) == comparable(block.shown or "", block.measured))
        for block, output in printed(page, tmp_path)
    ]
    assert held == [("from a file\n", False), ("in 1.5 ms\nrelu (activations.py:10)\n", True)]
    rewrite(page, tmp_path)
    assert page.read_text() == PAGE.replace("something else", "from a file")
