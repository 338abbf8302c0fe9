"""A few film reviews, and runs on them that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REVIEWS = [
    "a joy.",
    "dull",
    "not much of anything, and far too long for what little it has to say.",
    "has a lot of the virtues of eastwood at his best.",
    "an unwatchably hackneyed telenovela",
    "the jokes fall flat, one after the other, and the music does not help at all.",
]


class Runs:
    """Starts a script in a process of its own, with a folder to write to, a pause, and a file of texts."""

    def __init__(self, script: str, texts: Sequence[str], folder: Path) -> None:
        self.script, self.folder, self.texts = script, folder, folder / "texts.txt"
        self.texts.write_text("\n".join(texts), encoding="utf-8")

    def start(self, folder: str, pause: str) -> subprocess.Popen[str]:
        """Start it."""
        command = [sys.executable, "-c", self.script, str(self.folder / folder), pause, str(self.texts)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
