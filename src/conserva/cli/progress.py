"""Progress on standard error: a progress bar in a terminal, otherwise a line every 30 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from .output import print_message

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that takes the number of finished items and the total."""
    if not sys.stderr.isatty():
        yield _lines(doing)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


@contextmanager
def progress_of_parts() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that takes the name of the current part, the number of its finished items and their total."""
    open_part: list[tuple[str, Callable[[int, int], None]]] = []
    with ExitStack() as stack:

        def report(doing: str, done: int, total: int) -> None:
            if not open_part or open_part[0][0] != doing:
                stack.close()
                open_part[:] = [(doing, stack.enter_context(progress(doing)))]
            open_part[0][1](done, total)

        yield report


def _lines(doing: str) -> Callable[[int, int], None]:
    began = last = time.monotonic()
    first: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal last, first
        first = done if first is None else first
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES or done <= first:
            return
        last = now
        left = (now - began) / (done - first) * (total - done)
        print_message(f"{doing}: {done} of {total}, {_duration(left)} left")

    return report


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
