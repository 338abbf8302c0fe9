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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row, pace = bar.add_task(doing, total=None, pace=""), _Pace()
        yield lambda done, total: bar.update(row, completed=done, total=total, pace=pace.of(done, total))


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


class _Pace:
    """The items per second since the first report, and the time that the rest takes at this rate."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._first: int | None = None

    def of(self, done: int, total: int, now: float | None = None) -> str:
        """Return rate and time left as text; an empty string before they are known."""
        self._first = done if self._first is None else self._first
        seconds = (time.monotonic() if now is None else now) - self.began
        if done <= self._first or seconds <= 0:
            return ""
        rate = (done - self._first) / seconds
        return f"{_per_second(rate)}, {_duration((total - done) / rate)} left"


def _lines(doing: str) -> Callable[[int, int], None]:
    pace = _Pace()
    last = pace.began

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        text = pace.of(done, total, now)
        if text and now - last >= SECONDS_BETWEEN_LINES:
            last = now
            print_message(f"{doing}: {done} of {total}, {text}")

    return report


def _per_second(rate: float) -> str:
    if rate >= 10:
        return f"{rate:,.0f}/s"
    return f"{rate:.1f}/s" if rate >= 0.1 else f"{1 / rate:.0f} s each"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
