"""What an evaluation has done so far, sample by sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..lines import Lines

NAME = "samples.jsonl"


class Journal:
    """Lines about samples: first their scores, then their curves. Without a folder it lives in memory."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.scores: dict[int, dict[str, Any]] = {}
        self.curves: dict[int, dict[str, Any]] = {}
        self._lines = None if folder is None else Lines(folder / NAME, settings, "an evaluation", self._take)

    def _take(self, found: dict[str, Any]) -> None:
        (self.scores if "scores" in found else self.curves)[found["sample"]] = found

    def add_scores(self, sample: int, found: Mapping[str, Any]) -> None:
        """Write down the scores of a sample."""
        self._add({"sample": sample, **found})

    def add_curves(self, sample: int, found: Mapping[str, Any]) -> None:
        """Write down the curves of a sample: it is done."""
        self._add({"sample": sample, **found})

    def _add(self, line: dict[str, Any]) -> None:
        self._take(line)
        if self._lines is not None:
            self._lines.append(line)

    def close(self) -> None:
        """Let the file go."""
        if self._lines is not None:
            self._lines.close()


def read_journal(path: Path) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """Return the scores and the curves of every sample that a finished run wrote down."""
    scores: dict[int, dict[str, Any]] = {}
    curves: dict[int, dict[str, Any]] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            found = json.loads(line)
            if "sample" in found:
                (scores if "scores" in found else curves)[found["sample"]] = found
    return scores, curves
