"""Write results to files; the suffix of the file name chooses the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .._util.files import atomic_file, check_file, read_text, write_text, writing
from ..errors import Error
from .table import Row
from .table_files import TABLES, write_table

PICTURES = (".png", ".svg", ".pdf")


def saved(
    path: str | Path,
    texts: Mapping[str, Callable[[], str]],
    draw: Callable[[Path], object] | None = None,
    rows: Iterable[Row] | None = None,
) -> Path:
    """Write a file in the format of its suffix, and return the path.

    Parameters
    ----------
    texts
        For each suffix of a text format, a function that returns the content.
    draw
        A function that writes a picture to a path, by its suffix; None if there is no picture.
    rows
        The rows of a table of explanations; None for results that are not tables.
    """
    path = Path(path)
    given = f"path={str(path)!r}"
    check_file(path, given)
    suffix = path.suffix.lower()
    if suffix in texts:
        return write_text(path, texts[suffix](), given)
    if draw is not None and suffix in PICTURES:
        return drawn(path, draw, given)
    if rows is not None and suffix in TABLES:
        return write_table(path, rows, given)
    known = [*texts]
    known += PICTURES if draw is not None else ()
    known += TABLES if rows is not None else ()
    *others, last = known
    raise Error(f"{given} ends in {path.suffix!r}: choose {', '.join(others)} or {last}.")


def drawn(path: str | Path, draw: Callable[[Path], object], given: str | None = None) -> Path:
    """Write a picture to a file atomically, and return the path."""
    with writing(path, given), atomic_file(path) as temporary:
        draw(temporary)
    return Path(path)


def loaded(path: str | Path) -> str:
    """Return the content of a JSON file that `saved` wrote."""
    return read_text(path, f"path={str(path)!r}")
