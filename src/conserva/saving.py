"""Results as files: the ending of a name says in which form."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .errors import Error

PICTURES = (".png", ".svg", ".pdf")


def saved(
    path: str | Path, texts: Mapping[str, Callable[[], str]], draw: Callable[[Path], object] | None = None
) -> Path:
    """Write one of the texts, by its ending, or let a picture be drawn; return the path."""
    path = Path(path)
    check_file(path, f"path={str(path)!r}")
    ending = path.suffix.lower()
    if ending in texts:
        text = texts[ending]()
        with writing(path):
            path.write_text(text, encoding="utf-8")
    elif draw is not None and ending in PICTURES:
        with writing(path):
            draw(path)
    else:
        *others, last = [*texts, *PICTURES] if draw is not None else [*texts]
        raise Error(f"path={str(path)!r} ends in {path.suffix!r}: choose {', '.join(others)} or {last}.")
    return path


def loaded(path: str | Path) -> str:
    """Return the text of a file that `saved` wrote."""
    said = f"path={str(path)!r}"
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Error(f"{said} cannot be read: {error.strerror}. Name a JSON file that `save` wrote.") from None
    except UnicodeDecodeError:
        raise Error(f"{said} is not UTF-8, and no JSON: name a JSON file that `save` wrote.") from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say which file could not be written, where the system refuses one that is written inside."""
    try:
        yield
    except OSError as error:
        raise Error(
            f"path={str(path)!r} cannot be written: {error.strerror or error}. Name another, or make room for it."
        ) from None


# Permissions can keep a path from being looked at: os.path then says that nothing is there, where Path's methods raise.


def check_file(path: Path, said: str) -> None:
    """Raise, with what the user said, unless a file can be written there."""
    folder = path.parent
    if os.path.isdir(path):
        raise Error(f"{said} is a folder: name a file.")
    if not os.path.isdir(folder):
        raise Error(f"{said}: there is no folder {str(folder)!r}. Make it first, or name another.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Error(f"{said} may not be written: name a file in a folder of yours.")


def check_folder(path: Path, said: str) -> None:
    """Raise, with what the user said, unless a folder is there that can be written to, or can be made there."""
    there = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    if not os.path.isdir(there):
        raise Error(f"{said}: {str(there)!r} is no folder. Name another.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Error(f"{said}: {str(there)!r} may not be written to. Name a folder of yours.")
