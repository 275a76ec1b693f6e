"""The pages of the repository as programs: their blocks are run from top to bottom, and what each prints is held against what is shown.

    python -m support.pages docs/asking-why.md

writes what the blocks print now into a page; read it before you keep it.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A page shows a longer line of output in several, but for the rows of tables, which begin with spaces.
LONGEST_LINE = 120

#: Blocks that run: of Python, or of the shell. A block of Python with the name of a file is that file, for the shell to run. A block that
#: is shown as ``text`` directly after is what it prints; ``text measured``: its numbers are other ones in every run.
_BLOCK = re.compile(
    r"^```(?P<kind>python|sh)(?: (?P<file>\S+))?\n(?P<code>.*?)^```$"
    r"(?:\n\n^```text(?P<measured> measured)?\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    kind: str
    #: The name that a block of Python is written under, instead of being run here.
    file: str | None
    #: With as many empty lines before it as put its lines where they are in the page.
    code: str
    #: What the page says that it prints, and where that stands in the page; None where it says nothing.
    shown: str | None
    span: tuple[int, int]
    #: Whether it shows numbers that are measured.
    measured: bool


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that run."""
    text = page.read_text()
    return [
        Block(
            found["kind"],
            found["file"],
            ("" if found["file"] else "\n" * text.count("\n", 0, found.start("code"))) + found["code"],
            found["shown"],
            found.span("shown"),
            found["measured"] is not None,
        )
        for found in _BLOCK.finditer(text)
        if found["kind"] == "python" or found["shown"] is not None
    ]


def printed(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page one after another: each with what it prints, as a page shows it.

    Files are written to ``folder``, and the shell works there.
    """
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.code)
            continue
        if block.kind == "sh":
            yield block, broken(_run_in_shell(block.code, folder))
            continue
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(block.code, str(page), "exec"), names)
        yield block, broken(out.getvalue())


def _run_in_shell(code: str, folder: Path) -> str:
    """What shell commands print to stdout, with this Python as ``python``."""
    here = Path(sys.executable).parent
    more = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        ["bash", "-c", code], cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=120
    )
    return run.stdout if run.returncode == 0 else run.stdout + run.stderr


def broken(output: str) -> str:
    """An output as a page shows it."""
    lines = [
        line if len(line) <= LONGEST_LINE or line.startswith(" ") else textwrap.fill(line, LONGEST_LINE, **_BREAKING)
        for line in output.splitlines()
    ]
    return "".join(f"{line}\n" for line in lines)


_BREAKING: Any = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}


def comparable(text: str, measured: bool) -> list[str]:
    """The lines of an output without what is another thing in every run, or after every change of a file of rules."""
    text = re.sub(r"\b(\w+\.py):\d+", _without_line_of_rule, text)
    text = re.sub(r"\b\d+\.\d s\b", "# s", text)  # how long a script ran
    if not measured:
        return text.splitlines()
    return sorted(re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", re.sub(r" +", " ", line)) for line in text.splitlines())


def _without_line_of_rule(found: re.Match[str]) -> str:
    return found[1] if (ROOT / "ops_registry" / "rules" / found[1]).is_file() else found[0]


def rewrite(page: Path, folder: Path) -> None:
    """Put what the blocks print now in the place of what is shown: again where that moved lines which are named in it."""
    for _ in range(3):
        text = page.read_text()
        for block, output in reversed([*printed(page, folder)]):
            if block.shown is not None and comparable(output, block.measured) != comparable(
                block.shown, block.measured
            ):
                start, end = block.span
                text = text[:start] + output + text[end:]
        if text == page.read_text():
            return
        page.write_text(text)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    for given in sys.argv[1:]:
        with TemporaryDirectory() as temporary:
            rewrite(Path(given).resolve(), Path(temporary))
