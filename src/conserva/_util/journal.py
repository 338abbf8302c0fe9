"""What a run has done so far, on disk, so that it can go on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import Error
from .files import check_readable, reason

_SETTINGS = "settings"
_READ_AT_ONCE = 2**16
_LOCK_ATTEMPTS, _SECONDS_BETWEEN_ATTEMPTS = 10, 0.2
_SUM = b', "checksum": "%s"}\n'
_SUM_LENGTH = len(_SUM % (b"0" * 16))


class Journal:
    """An append-only file of JSON lines, each with a checksum, that one process at a time writes to.

    The first line holds the settings of the run. A run with the same settings goes on with the lines that are there; a
    run with others is refused, and told what differs. Lines whose checksum does not fit, because they were altered or
    belong to another run, are ignored: what they told of is done again. A last line without an end, as a killed process
    leaves it, is cut off.

    Parameters
    ----------
    path
        The file. Its folder is made if it is missing. None for a file without a name, which goes with the process.
    settings
        All that decides the numbers of the run, as JSON takes it.
    what
        What is run, for messages: "an evaluation".
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], what: str) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._key = _key(self._settings)
        if path is None:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
            self._write({_SETTINGS: self._settings}, b"")
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        except (OSError, ValueError) as error:
            raise Error(f"{path} cannot be written: {reason(error)}. Choose another folder.") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise Error(f"{path} is not a regular file: choose another folder.")
            _lock(self._file, path)  # before anything is read: another run may be writing its first line
            self._open(what)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self, what: str) -> None:
        """Check whose journal it is, and cut off half a line."""
        found, end = None, 0
        for place, line in _lines(self._file, 0):
            is_torn = not line.endswith(b"\n")
            if place == 0:
                found = _verified(line, b"")
                is_begun = is_torn and line.startswith(b'{"settings"'[: len(line)])
                if not is_begun and (found is None or _SETTINGS not in found):
                    raise Error(
                        f"{self.path} is not a journal of {what}, or its first line is damaged: delete it, or choose "
                        "another folder."
                    )
            end = place if is_torn else place + len(line)
        if found is not None and (differences := list(_differences(found[_SETTINGS], self._settings))):
            more = f", and {len(differences) - 8} more" if len(differences) > 8 else ""
            raise Error(
                f"{self.path} belongs to another run of {what}. It differs in {'; '.join(differences[:8])}{more}. "
                "Choose another folder, or delete the file."
            )
        os.ftruncate(self._file, end)
        if found is None:
            self._write({_SETTINGS: self._settings}, b"")

    @property
    def records(self) -> Records:
        """What was done so far."""
        return Records(self._file, self._key, str(self.path))

    def append(self, record: Mapping[str, Any]) -> int:
        """Write a record, and return its place. What the system has taken over outlives a kill of this process."""
        return self._write(record, self._key)

    def _write(self, record: Mapping[str, Any], key: bytes) -> int:
        body = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")
        line = body[:-1] + _SUM % _sum(body, key)
        place = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            raise Error(
                f"{self.path} cannot be written: {reason(error)}. What was done so far is kept: make room, and run the "
                "same command again."
            ) from None
        return place

    def close(self) -> None:
        """Close the file, which lets others write to it."""
        os.close(self._file)


class Records:
    """The records of a journal whose checksum fits, each with its place in the file, by which it is found again."""

    def __init__(self, file: int, key: bytes, path: str) -> None:
        self._file, self._key, self._path = file, key, path

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for place, line in _lines(self._file, 0):
            found = _verified(line, self._key) if place else None
            if found is not None:
                yield place, found

    def at(self, place: int) -> dict[str, Any]:
        """Return the record at a place."""
        _, line = next(_lines(self._file, place), (place, b""))
        found = _verified(line, self._key)
        if found is None:
            raise Error(f"{self._path} was changed while it was in use: run the same command again.")
        return found


@contextmanager
def reading(path: Path, what: str) -> Iterator[Records]:
    """Open a journal of whatever settings to read its records."""
    check_readable(path, str(path), limit=2**50)
    with path.open("rb") as file:
        found = _verified(file.readline(), b"")
        if found is None or _SETTINGS not in found:
            raise Error(f"{path} is not a journal of {what}, or its first line is damaged: delete it and run again.")
        yield Records(file.fileno(), _key(found[_SETTINGS]), str(path))


def _lines(file: int, place: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from a place on, each with its own place; the file may be written to meanwhile."""
    begun: list[bytes] = []
    end = place
    while True:
        os.lseek(file, end, os.SEEK_SET)
        part = os.read(file, _READ_AT_ONCE)
        end += len(part)
        *whole, rest = part.split(b"\n")
        for line in whole:
            line = b"".join([*begun, line, b"\n"])
            yield place, line
            place += len(line)
            begun = []
        begun.append(rest)
        if not part:
            if any(begun):
                yield place, b"".join(begun)
            return


def _key(settings: Any) -> bytes:
    """Return what the checksums of a run's lines depend on, so that none can come from a run with other settings."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode()).digest()


def _sum(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=8).hexdigest().encode()


def _verified(line: bytes, key: bytes) -> dict[str, Any] | None:
    """Return the record of a line if its checksum fits."""
    body = line[:-_SUM_LENGTH] + b"}"
    if line != body[:-1] + _SUM % _sum(body, key):
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield the settings that differ, with both values, named by their path."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=str):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
    elif before != now:
        yield f"{name} (was {_short(before)}, is {_short(now)})"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lock(file: int, path: Path) -> None:
    """Keep other processes away from a file for as long as it is open here.

    A process that was killed keeps its files for some time, while the system frees its memory: hence the attempts.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _LOCK_ATTEMPTS:
                time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        except OSError as error:
            raise Error(f"{path} cannot be locked: {reason(error)}. Choose a folder on another disk.") from None
    raise Error(f"{path} is being written by another run: wait for it, or choose another folder.")
