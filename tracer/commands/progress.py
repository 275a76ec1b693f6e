"""What a person sees while a script runs: how many calls are recorded, how many backward passes there were, the time. On stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tracer.commands.watch import Watch


@contextmanager
def shown(watch: Watch) -> Iterator[None]:
    """Show it inside the block; nothing where stderr is no terminal, or ``rich`` is not installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
        from rich.text import Text
    except ImportError:
        yield
        return
    if not sys.stderr.isatty():
        yield
        return

    class Counts(ProgressColumn):
        """Read anew each time that it is drawn: the script pays nothing for it."""

        def render(self, task: Task) -> Text:
            """The two counts."""
            passes = watch.passes + watch.native_passes
            return Text(f"{watch.graph.recorded():,} calls recorded, {passes:,} backward passes")

    columns = (SpinnerColumn(), TextColumn("{task.description}"), Counts(), TimeElapsedColumn())
    # What the script prints into the same terminal is put above the line; a pipe or a file gets it untouched.
    together = sys.stdout.isatty()
    bar = Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=together, redirect_stderr=False)
    with bar:
        bar.add_task(watch.options.report, total=None)
        yield
