"""What a run has done so far, line by line on disk, so that it can go on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import Error

NAME = "samples.jsonl"


class Journal:
    """Lines about samples: first their scores, then their curves. Without a folder it lives in memory.

    Its first line says what is being run. A line counts once it is whole; half a line, as a kill leaves it, does not.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.scores: dict[int, dict[str, Any]] = {}
        self.curves: dict[int, dict[str, Any]] = {}
        self._file = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        whole = self._read(path, settings) if path.exists() else 0
        self._file = path.open("r+b" if path.exists() else "w+b")
        _lock(self._file, path)
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._append({"settings": settings})

    def _read(self, path: Path, settings: Mapping[str, Any]) -> int:
        """Take in the lines that are there; return where the last whole one ends."""
        end = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                if not line.endswith(b"\n"):
                    break
                try:
                    found = json.loads(line)
                except (json.JSONDecodeError, UnicodeDecodeError):
                    raise Error(f"{path}, line {number + 1}, is damaged: delete the file and start anew.") from None
                if number == 0:
                    self._check(path, found, settings)
                elif "scores" in found:
                    self.scores[found["sample"]] = found
                else:
                    self.curves[found["sample"]] = found
                end += len(line)
        return end

    def _check(self, path: Path, found: Any, settings: Mapping[str, Any]) -> None:
        before = found.get("settings") if isinstance(found, dict) else None
        if before is None:
            raise Error(f"{path} is no journal of an evaluation: choose another folder.")
        now = json.loads(json.dumps(settings))
        changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        if changed:
            raise Error(
                f"{path} belongs to another run: it differs in {', '.join(changed)}. Choose another folder, or delete "
                "the file."
            )

    def add_scores(self, sample: int, found: Mapping[str, Any]) -> None:
        """Write down the scores of a sample."""
        self.scores[sample] = {"sample": sample, **found}
        self._append(self.scores[sample])

    def add_curves(self, sample: int, found: Mapping[str, Any]) -> None:
        """Write down the curves of a sample: it is done."""
        self.curves[sample] = {"sample": sample, **found}
        self._append(self.curves[sample])

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self._file.flush()  # what the system has taken over outlives a kill

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()


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


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep other runs away from the file, for as long as this process lives."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Error(f"{path} is being written by another run: wait for it, or choose another folder.") from None
