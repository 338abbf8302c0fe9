"""Results as files: the ending of a name says in which form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import Error

PICTURES = (".png", ".svg", ".pdf")


def saved(
    path: str | Path, texts: Mapping[str, Callable[[], str]], draw: Callable[[Path], object] | None = None
) -> Path:
    """Write one of the texts, by its ending, or let a picture be drawn; return the path."""
    path = Path(path)
    if path.suffix in texts:
        path.write_text(texts[path.suffix](), encoding="utf-8")
    elif draw is not None and path.suffix in PICTURES:
        draw(path)
    else:
        *others, last = [*texts, *PICTURES] if draw is not None else [*texts]
        raise Error(f"path={str(path)!r} ends in {path.suffix!r}: choose {', '.join(others)} or {last}.")
    return path
