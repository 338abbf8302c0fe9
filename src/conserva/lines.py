"""What a run has done so far, line by line on disk, so that it can go on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import Error


class Lines:
    """A file of JSON lines. The first says what is being run; the others are what was done.

    A line counts once it is whole; half a line, as a kill leaves it, does not. While it is open, no other run writes
    to it.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], what: str, take: Callable[[dict[str, Any]], None]
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _read(path, settings, what, take) if path.exists() else 0
        self._file = path.open("r+b" if path.exists() else "w+b")
        _lock(self._file, path)
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self.append({"settings": settings})

    def append(self, line: Mapping[str, Any]) -> None:
        """Write down what was done."""
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()  # what the system has taken over outlives a kill

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def _read(path: Path, settings: Mapping[str, Any], what: str, take: Callable[[dict[str, Any]], None]) -> int:
    """Hand over the lines that are there; return where the last whole one ends."""
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
                _check(path, found, settings, what)
            else:
                take(found)
            end += len(line)
    return end


def _check(path: Path, found: Any, settings: Mapping[str, Any], what: str) -> None:
    before = found.get("settings") if isinstance(found, dict) else None
    if before is None:
        raise Error(f"{path} is no journal of {what}: choose another folder.")
    now = json.loads(json.dumps(settings))
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if changed:
        raise Error(
            f"{path} belongs to another run: it differs in {', '.join(changed)}. Choose another folder, or delete "
            "the file."
        )


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
