"""The pages of the repository as programs: their blocks are run from top to bottom, and what each prints is held against what is shown.

    PYTHONPATH=tests python -m support.pages README.md

writes what the blocks print now into a page, and draws its picture; ``make pages`` does it for all. Read what has changed before you
keep it. Where lines moved that are named in the page, run it again.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A page shows a longer line of output in several, but for the rows of tables, which begin with spaces.
LONGEST_LINE = 120

#: Blocks that run: of Python, or of the shell. A block of Python with the name of a file is that file, to be imported or run by the
#: shell. A block that is shown as ``text`` directly after is what it prints; ``text measured``: its numbers are other ones in every run.
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


def printed(page: Path, folder: Path, names: dict[str, Any] | None = None) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page one after another: each with what it prints, as a page shows it. ``names`` gets what they assign.

    Files are written to ``folder``, can be imported from there, and the shell works there.
    """
    names = {} if names is None else names
    names["__name__"] = "page"
    title = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.code)
        elif block.kind == "sh":
            yield block, broken(_run_in_shell(block.code, folder))
        else:
            out = io.StringIO()
            with redirect_stdout(out), _importing_from(folder):
                exec(compile(block.code, str(title), "exec"), names)
            yield block, broken(out.getvalue())


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Inside the block the files of a folder are modules; they are forgotten after it."""
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


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


def texts(svg: str) -> list[str]:
    """What stands in a picture, in whatever order and place Graphviz has put it."""
    return sorted(re.findall(r"<text[^>]*>(.*?)</text>", svg))


def picture_of(page: Path) -> Path | None:
    """The picture that a page shows, which its code has drawn and called ``picture``."""
    found = re.search(r"\]\(([^)]+\.svg)\)", page.read_text())
    return None if found is None else page.parent / found[1]


def rewrite(page: Path, folder: Path) -> None:
    """Put what the blocks print now in the place of what is shown, and draw the picture anew where other texts stand in it."""
    text, names = page.read_text(), dict[str, Any]()
    for block, output in reversed([*printed(page, folder, names)]):
        if block.shown is not None and comparable(output, block.measured) != comparable(block.shown, block.measured):
            start, end = block.span
            text = text[:start] + output + text[end:]
    page.write_text(text)
    picture = picture_of(page)
    if picture is not None and not (
        picture.exists() and texts(picture.read_text()) == texts(names["picture"].to_svg())
    ):
        names["picture"].save(picture)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as temporary:
        rewrite(Path(sys.argv[1]).resolve(), Path(temporary))
