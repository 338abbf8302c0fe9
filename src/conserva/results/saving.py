"""Results as files: the ending of a name says in which form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from .._util.files import atomic_file, check_file, read_text, write_text, writing
from ..errors import Error

PICTURES = (".png", ".svg", ".pdf")


def saved(
    path: str | Path, texts: Mapping[str, Callable[[], str]], draw: Callable[[Path], object] | None = None
) -> Path:
    """Write one of the texts, by its ending, or let a picture be drawn; return the path."""
    path = Path(path)
    given = f"path={str(path)!r}"
    check_file(path, given)
    ending = path.suffix.lower()
    if ending in texts:
        return write_text(path, texts[ending](), given)
    if draw is not None and ending in PICTURES:
        return drawn(path, draw, given)
    *others, last = [*texts, *PICTURES] if draw is not None else [*texts]
    raise Error(f"{given} ends in {path.suffix!r}: choose {', '.join(others)} or {last}.")


def drawn(path: str | Path, draw: Callable[[Path], object], given: str | None = None) -> Path:
    """Let a picture be drawn to a file, whole or not at all; return the path."""
    with writing(path, given), atomic_file(path) as half:
        draw(half)
    return Path(path)


def loaded(path: str | Path) -> str:
    """Return the text of a JSON file that `saved` wrote."""
    return read_text(path, f"path={str(path)!r}")
