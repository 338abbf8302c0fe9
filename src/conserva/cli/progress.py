"""Progress on standard error: a bar in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from .output import say as say_line

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what is to be called with the number done and the number of all."""
    if not sys.stderr.isatty():
        yield _lines(doing)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)


@contextmanager
def progress_of_parts() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what is to be called with what is being done, the number done and the number of all."""
    open_part: list[tuple[str, Callable[[int, int], None]]] = []
    with ExitStack() as stack:

        def say(doing: str, done: int, total: int) -> None:
            if not open_part or open_part[0][0] != doing:
                stack.close()
                open_part[:] = [(doing, stack.enter_context(progress(doing)))]
            open_part[0][1](done, total)

        yield say


def _lines(doing: str) -> Callable[[int, int], None]:
    began = last = time.monotonic()
    first: int | None = None

    def say(done: int, total: int) -> None:
        nonlocal last, first
        first = done if first is None else first
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES or done <= first:
            return
        last = now
        left = (now - began) / (done - first) * (total - done)
        say_line(f"{doing}: {done} of {total}, {_spoken(left)} left")

    return say


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
