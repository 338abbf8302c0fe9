"""An append-only file of the results of a run, from which an interrupted run is resumed."""

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

    The first line holds the settings of the run. A run with the same settings resumes from the existing lines; a run
    with different settings raises an `Error` that lists the differences. Lines with a wrong checksum, because they were
    modified or belong to another run, are ignored, so their results are computed again. An incomplete last line, as
    left by a killed process, is truncated.

    Parameters
    ----------
    path
        The file. Missing parent folders are created. None for a temporary file, which is deleted with the process.
    settings
        Everything that the results of the run depend on; must be serialisable as JSON.
    what
        What error messages call the run, such as "an evaluation".
    place
        What the user can choose instead if the file cannot be used, in error messages.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], what: str, place: str = "folder") -> None:
        self.path, self._place = path, place
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
            raise Error(f"{path} cannot be written: {reason(error)}. Choose another {place}.") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise Error(f"{path} is not a regular file: choose another {place}.")
            _lock(self._file, path, place)  # before reading: another run may be writing its first line
            self._open(what)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self, what: str) -> None:
        """Compare the settings of an existing journal, and truncate an incomplete last line."""
        header, end = None, 0
        for offset, line in _lines(self._file, 0):
            is_torn = not line.endswith(b"\n")
            if offset == 0:
                header = _verified(line, b"")
                is_begun = is_torn and line.startswith(b'{"settings"'[: len(line)])
                if not is_begun and (header is None or _SETTINGS not in header):
                    raise Error(
                        f"{self.path} is not a journal of {what}, or its first line is damaged: delete it, or choose "
                        f"another {self._place}."
                    )
            end = offset if is_torn else offset + len(line)
        if header is not None and (differences := list(_differences(header[_SETTINGS], self._settings))):
            more = f", and {len(differences) - 8} more" if len(differences) > 8 else ""
            raise Error(
                f"{self.path} belongs to another run of {what}. It differs in {'; '.join(differences[:8])}{more}. "
                f"Choose another {self._place}, or delete the file."
            )
        os.ftruncate(self._file, end)
        if header is None:
            self._write({_SETTINGS: self._settings}, b"")

    @property
    def records(self) -> Records:
        """The records written so far."""
        return Records(self._file, self._key, str(self.path))

    def append(self, record: Mapping[str, Any]) -> int:
        """Write a record, and return its byte offset. The record survives a kill of this process."""
        return self._write(record, self._key)

    def _write(self, record: Mapping[str, Any], key: bytes) -> int:
        body = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")
        line = body[:-1] + _SUM % _sum(body, key)
        offset = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            raise Error(
                f"{self.path} cannot be written: {reason(error)}. The results so far are kept: free disk space, and "
                "run the same command again."
            ) from None
        return offset

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._file)


class Records:
    """The records of a journal with a correct checksum, as pairs of byte offset and record; `at` reads one again."""

    def __init__(self, file: int, key: bytes, path: str) -> None:
        self._file, self._key, self._path = file, key, path

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for offset, line in _lines(self._file, 0):
            record = _verified(line, self._key) if offset else None
            if record is not None:
                yield offset, record

    def at(self, offset: int) -> dict[str, Any]:
        """Return the record at a byte offset."""
        _, line = next(_lines(self._file, offset), (offset, b""))
        record = _verified(line, self._key)
        if record is None:
            raise Error(f"{self._path} was changed while it was in use: run the same command again.")
        return record


@contextmanager
def open_records(path: Path, what: str) -> Iterator[Records]:
    """Open an existing journal for reading, whatever its settings."""
    check_readable(path, str(path), limit=2**50)
    with path.open("rb") as file:
        header = _verified(file.readline(), b"")
        if header is None or _SETTINGS not in header:
            raise Error(f"{path} is not a journal of {what}, or its first line is damaged: delete it and run again.")
        yield Records(file.fileno(), _key(header[_SETTINGS]), str(path))


def _lines(file: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield byte offset and content of the lines from an offset on; the file may grow in the meantime."""
    begun: list[bytes] = []
    end = offset
    while True:
        os.lseek(file, end, os.SEEK_SET)
        part = os.read(file, _READ_AT_ONCE)
        end += len(part)
        *whole, rest = part.split(b"\n")
        for line in whole:
            line = b"".join([*begun, line, b"\n"])
            yield offset, line
            offset += len(line)
            begun = []
        begun.append(rest)
        if not part:
            if any(begun):
                yield offset, b"".join(begun)
            return


def _key(settings: Any) -> bytes:
    """Return the key of the checksums of a run: lines of a run with other settings do not verify."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode()).digest()


def _sum(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=8).hexdigest().encode()


def _verified(line: bytes, key: bytes) -> dict[str, Any] | None:
    """Return the record in a line if its checksum is correct, otherwise None."""
    body = line[:-_SUM_LENGTH] + b"}"
    if line != body[:-1] + _SUM % _sum(body, key):
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield a description of each setting that differs: its dotted name and both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=str):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
    elif before != now:
        yield f"{name} (was {_short(before)}, is {_short(now)})"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lock(file: int, path: Path, place: str) -> None:
    """Lock a file exclusively for as long as it is open here.

    A killed process holds its locks until the system has freed its memory, so locking is attempted several times.
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
            raise Error(f"{path} cannot be locked: {reason(error)}. Choose a {place} on another disk.") from None
    raise Error(f"{path} is being written by another run: wait until it ends, or choose another {place}.")
