"""A few film reviews, and runs on them that can be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

REVIEWS = [
    "a joy.",
    "dull",
    "not much of anything, and far too long for what little it has to say.",
    "has a lot of the virtues of eastwood at his best.",
    "an unwatchably hackneyed telenovela",
    "the jokes fall flat, one after the other, and the music does not help at all.",
]


class Run:
    """A script that runs in a copy of this process, which has the libraries imported."""

    def __init__(self, script: str, *arguments: str) -> None:
        reader, writer = os.pipe()
        self._process = get_context("fork").Process(target=_run, args=(script, arguments, reader, writer))
        self._process.start()
        os.close(writer)
        self.stdout = open(reader, encoding="utf-8")  # noqa: SIM115 - open for as long as it runs

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it ends, and return its exit code."""
        self._process.join(timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return what it writes until it ends."""
        with self.stdout:
            out = self.stdout.read()
        self.wait(timeout)
        return out, None

    @property
    def returncode(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.exitcode


def _run(script: str, arguments: Sequence[str], reader: int, writer: int) -> None:
    os.close(reader)
    os.dup2(writer, 1)
    sys.argv, sys.stdout = ["-c", *arguments], open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()


class Runs:
    """Starts a script in a process of its own, with a folder to write to, a pause, and a file of texts."""

    def __init__(self, script: str, texts: Sequence[str], folder: Path) -> None:
        self.script, self.folder, self.texts = script, folder, folder / "texts.txt"
        self.texts.write_text("\n".join(texts), encoding="utf-8")

    def start(self, folder: str, pause: str) -> Run:
        """Start it."""
        return Run(self.script, str(self.folder / folder), pause, str(self.texts))
