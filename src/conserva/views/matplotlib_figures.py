"""Figures of matplotlib, in which every text is taken literally."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LITERAL: dict[Any, Any] = {"text.parse_math": False, "text.usetex": False, "svg.hashsalt": "conserva"}

_WITHOUT_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What a file's metadata leaves out: the same result gives the same file."""


@contextmanager
def drawing() -> Iterator[None]:
    """Take texts literally while a figure is made and saved: no formula, no TeX, no warning of letters a font lacks.

    It decorates functions that draw, from the first text to the file: ticks get theirs when a figure is saved.
    """
    require("A picture", "matplotlib")
    from matplotlib import rc_context

    with warnings.catch_warnings(), rc_context(_LITERAL):
        warnings.simplefilter("ignore", UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure; the ending of the name says as what."""
    ending = Path(path).suffix.lower()
    drawn = io.BytesIO()  # where a disk is full, matplotlib raises errors of its own while it cleans up
    figure.savefig(drawn, format=ending.removeprefix("."), metadata=_WITHOUT_DATE.get(ending))
    Path(path).write_bytes(drawn.getvalue())
