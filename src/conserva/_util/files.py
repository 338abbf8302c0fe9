"""Checked reads and atomic writes: input files are regular files of limited size, output files are never partial."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import Error

MEBIBYTE = 2**20
LARGEST = 1024 * MEBIBYTE
"""The maximum size in bytes of a file that is read into memory."""

LARGEST_SETTINGS = 64 * MEBIBYTE
"""The maximum size in bytes of a configuration file; some tokenizer.json files have 30 MiB."""

SPARE = 16 * MEBIBYTE
"""The free disk space in bytes that is required before a run that writes results starts."""


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def reason(error: OSError | ValueError) -> str:
    """Return a short description of why the operating system rejected a path."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    if isinstance(error, UnicodeError):
        return "its name is not valid text"
    return "its name contains a NUL character" if "null" in str(error) else str(error)


def expanded(path: str | Path) -> Path:
    """Return a path with `~` expanded; the path as it is if the home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # unknown user
        return Path(path)


def exists(path: str | Path) -> bool:
    """Return whether a path exists; False for a path that is not a valid file name."""
    try:
        return os.path.lexists(path)
    except ValueError:  # NUL or surrogates
        return False


def check_readable(path: str | Path, given: str, limit: int = LARGEST) -> Path:
    """Check that a path is a readable regular file of at most `limit` bytes, and return it.

    Parameters
    ----------
    path
        The file.
    given
        What error messages call the file: the argument or option as the user gave it.
    limit
        The maximum size in bytes.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise Error(f"{given} is {kind}: give a file.")
        if status.st_size > limit:
            raise Error(
                f"{given} has {status.st_size / MEBIBYTE:,.0f} MiB, the limit is {limit / MEBIBYTE:,.0f} MiB: split "
                "it, or give another file."
            )
        if not os.access(path, os.R_OK):
            raise Error(f"{given} cannot be read: Permission denied. Give another file.")
    except (OSError, ValueError) as error:
        raise Error(f"{given} cannot be read: {reason(error)}. Give another file.") from None
    return Path(path)


def read_bytes(path: str | Path, given: str, limit: int = LARGEST) -> bytes:
    """Return the content of a file, with the checks and parameters of `check_readable`."""
    path = check_readable(path, given, limit)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)  # files in /proc report a size of 0
    except OSError as error:
        raise Error(f"{given} cannot be read: {reason(error)}. Give another file.") from None
    if len(content) > limit:
        raise Error(f"{given} is larger than {limit / MEBIBYTE:,.0f} MiB: split it, or give another file.")
    return content


def read_text(path: str | Path, given: str, limit: int = LARGEST) -> str:
    """Return the text of a UTF-8 file without byte order mark; checks and parameters as in `check_readable`."""
    content = read_bytes(path, given, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Error(f"{given} is not UTF-8 (line {line}): save it as UTF-8.") from None


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` on exit.

    After an exception the file is unchanged. For a device or a pipe, the path itself is yielded.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{target.suffix[:16]}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_files(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary subfolder, and move the files written there into `folder` on exit.

    For libraries that choose the names of the files they write. After an exception the folder is unchanged.
    """
    target = Path(folder)
    temporary = target / f".{os.getpid()}-{secrets.token_hex(4)}"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            destination = target / path.relative_to(temporary)
            if path.is_dir():
                destination.mkdir(exist_ok=True)
            else:
                os.replace(path, destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | Path, text: str, given: str | None = None) -> Path:
    """Write a UTF-8 file atomically; `given` is what error messages call it."""
    return write_parts(path, [text], given)


def write_parts(path: str | Path, parts: Iterable[str], given: str | None = None) -> Path:
    """Write a UTF-8 file atomically from an iterable of strings; `given` is what error messages call it."""
    with ExitStack() as stack:  # errors raised by the iterable are not write errors, so `writing` must not see them
        with writing(path, given):
            temporary = stack.enter_context(atomic_file(path))
            file = stack.enter_context(temporary.open("w", encoding="utf-8", errors="backslashreplace"))
        for part in parts:
            with writing(path, given):
                file.write(part)
        with writing(path, given):
            stack.close()
    return Path(path)


@contextmanager
def writing(path: str | Path, given: str | None = None) -> Iterator[None]:
    """Convert I/O errors raised in the block to an `Error` that names the file."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        if isinstance(error, OSError) or (isinstance(error, ValueError) and "null" in str(error)):
            why = reason(error)
        elif match := _OS_ERROR.search(str(error)):  # the format of safetensors' messages
            why = os.strerror(int(match[1]))
        else:
            raise
        name = f"path={str(path)!r}" if given is None else given
        raise Error(f"{name} cannot be written: {why}. Give another path, or free disk space.") from None


def check_file(path: Path, given: str) -> None:
    """Raise an `Error` unless a file can be written at a path; `given` is what the message calls it."""
    # Without search permission os.path functions return False, whereas methods of Path raise.
    folder = path.parent
    _check_name(path, given)
    if os.path.isdir(path):
        raise Error(f"{given} is a folder: give a file.")
    if stat.S_ISFIFO(_mode(path)):
        raise Error(f"{given} is a pipe: give a file.")  # opening a pipe blocks until another process reads it
    if not os.path.isdir(folder):
        raise Error(f"{given}: the folder {str(folder)!r} does not exist. Create it, or give another path.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Error(f"{given} is not writable: give a file in a folder you can write to.")


def check_folder(path: Path, given: str, needed: int = SPARE) -> None:
    """Raise an `Error` unless a folder exists or can be created, with at least `needed` bytes of free disk space."""
    _check_name(path, given)
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
    if not os.path.isdir(existing):
        raise Error(f"{given}: {str(existing)!r} is not a folder. Give another.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Error(f"{given}: {str(existing)!r} is not writable. Give a folder you can write to.")
    check_space(existing, given, needed)


def check_space(folder: str | Path, given: str, needed: int) -> None:
    """Raise an `Error` if the disk of a folder has less than `needed` bytes free; do nothing if that is unknown."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if free < needed:
        raise Error(
            f"{given}: {free / MEBIBYTE:,.1f} MiB of disk space are free, about {needed / MEBIBYTE:,.0f} MiB are "
            "needed. Free disk space, or give another folder."
        )


def _mode(path: Path) -> int:
    """Return the `st_mode` of a path; 0 if it does not exist."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _check_name(path: Path, given: str) -> None:
    """Raise an `Error` for a path that is not a valid file name."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        if isinstance(error, (PermissionError, NotADirectoryError)):
            return  # the caller has its own messages for these
        raise Error(f"{given} cannot be written: {reason(error)}. Give another path.") from None
