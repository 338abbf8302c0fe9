"""The gates for files: those that come in are regular and not too large, those that go out are whole or not there."""

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
"""How large a file may be that is read as a whole."""

LARGEST_SETTINGS = 64 * MEBIBYTE
"""How large a file may be that describes something, as a model's configuration; a tokenizer has one of 30 MiB."""

SPARE = 16 * MEBIBYTE
"""How much space must be free on a disk before work begins whose results go there."""


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def reason(error: OSError | ValueError) -> str:
    """Return why the system refused a path, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    if isinstance(error, UnicodeError):
        return "its name is not valid text"
    return "its name holds a NUL character" if "null" in str(error) else str(error)


def expanded(path: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder, where there is one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # a user that does not exist
        return Path(path)


def exists(path: str | Path) -> bool:
    """Return whether something is at a path; a path that the system refuses to look at holds nothing."""
    try:
        return os.path.lexists(path)
    except ValueError:  # NUL or surrogates
        return False


def check_readable(path: str | Path, given: str, limit: int = LARGEST) -> Path:
    """Return a path if a regular file is there that is not too large; otherwise raise, with what the user gave."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise Error(f"{given} is {kind}: name a file.")
        if found.st_size > limit:
            raise Error(
                f"{given} has {found.st_size / MEBIBYTE:,.0f} MiB, the limit is {limit / MEBIBYTE:,.0f} MiB: split it, "
                "or name another."
            )
        if not os.access(path, os.R_OK):
            raise Error(f"{given} cannot be read: Permission denied. Name another.")
    except (OSError, ValueError) as error:
        raise Error(f"{given} cannot be read: {reason(error)}. Name another.") from None
    return Path(path)


def read_bytes(path: str | Path, given: str, limit: int = LARGEST) -> bytes:
    """Return the content of a regular file that is not too large; otherwise raise, with what the user gave."""
    path = check_readable(path, given, limit)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)  # some files of the system have no size
    except OSError as error:
        raise Error(f"{given} cannot be read: {reason(error)}. Name another.") from None
    if len(content) > limit:
        raise Error(f"{given} is larger than {limit / MEBIBYTE:,.0f} MiB: split it, or name another.")
    return content


def read_text(path: str | Path, given: str, limit: int = LARGEST) -> str:
    """Return the content of a regular UTF-8 file that is not too large; a byte order mark is left out."""
    content = read_bytes(path, given, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Error(f"{given} is not UTF-8 (line {line}): save it as UTF-8.") from None


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside a file; what is written there takes the file's place at the end, at once.

    After an exception the file is as it was before. A device or a pipe is written to directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    half = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{target.suffix[:16]}")
    try:
        yield half
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)


@contextmanager
def atomic_files(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder in a folder; the files that are written there move up into the folder at the end.

    For libraries that write several files of their own choice. After an exception the folder is as it was before.
    """
    target = Path(folder)
    half = target / f".{os.getpid()}-{secrets.token_hex(4)}"
    half.mkdir(parents=True)
    try:
        yield half
        for path in sorted(half.rglob("*")):
            place = target / path.relative_to(half)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(path, place)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def write_text(path: str | Path, text: str, given: str | None = None) -> Path:
    """Write a UTF-8 file, whole or not at all; an error repeats what the user gave."""
    return write_parts(path, [text], given)


def write_parts(path: str | Path, parts: Iterable[str], given: str | None = None) -> Path:
    """Write a UTF-8 file of many parts as they come, whole or not at all; an error repeats what the user gave."""
    with ExitStack() as stack:  # what goes wrong while a part is made is not the file's fault
        with writing(path, given):
            half = stack.enter_context(atomic_file(path))
            file = stack.enter_context(half.open("w", encoding="utf-8", errors="backslashreplace"))
        for part in parts:
            with writing(path, given):
                file.write(part)
        with writing(path, given):
            stack.close()
    return Path(path)


@contextmanager
def writing(path: str | Path, given: str | None = None) -> Iterator[None]:
    """Raise an `Error` that names the file where the system refuses what is written inside."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        if isinstance(error, OSError) or (isinstance(error, ValueError) and "null" in str(error)):
            why = reason(error)
        elif found := _OS_ERROR.search(str(error)):  # as safetensors says it
            why = os.strerror(int(found[1]))
        else:
            raise
        said = f"path={str(path)!r}" if given is None else given
        raise Error(f"{said} cannot be written: {why}. Name another, or make room for it.") from None


def check_file(path: Path, given: str) -> None:
    """Raise, with what the user gave, unless a file can be written there."""
    # Permissions can keep a path from being looked at: os.path then says that nothing is there, Path's methods raise.
    folder = path.parent
    _check_name(path, given)
    if os.path.isdir(path):
        raise Error(f"{given} is a folder: name a file.")
    if stat.S_ISFIFO(_mode(path)):
        raise Error(f"{given} is a pipe: name a file.")  # to write to one waits for whatever reads it, perhaps forever
    if not os.path.isdir(folder):
        raise Error(f"{given}: there is no folder {str(folder)!r}. Make it first, or name another.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Error(f"{given} may not be written: name a file in a folder of yours.")


def check_folder(path: Path, given: str, needed: int = SPARE) -> None:
    """Raise, with what the user gave, unless a folder with so many free bytes is there, or can be made there."""
    _check_name(path, given)
    there = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    if not os.path.isdir(there):
        raise Error(f"{given}: {str(there)!r} is not a folder. Name another.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Error(f"{given}: {str(there)!r} may not be written to. Name a folder of yours.")
    check_space(there, given, needed)


def check_space(folder: str | Path, given: str, needed: int) -> None:
    """Raise if a disk has less than so many bytes left, where the system tells."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if free < needed:
        raise Error(
            f"{given}: {free / MEBIBYTE:,.1f} MiB are free there, and about {needed / MEBIBYTE:,.0f} MiB are needed. "
            "Make room, or name another folder."
        )


def _mode(path: Path) -> int:
    """Return what kind of file is at a path, as the system tells it; 0 for none."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _check_name(path: Path, given: str) -> None:
    """Raise for a name that the system cannot take at all."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        if isinstance(error, (PermissionError, NotADirectoryError)):
            return  # which the caller says in its own words
        raise Error(f"{given} cannot be written: {reason(error)}. Name another.") from None
