"""Matplotlib figures: created and saved without interpreting text as formulas."""

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
"""Metadata without dates, so that the same result gives the same file."""


@contextmanager
def drawing() -> Iterator[None]:
    """Disable math text, TeX and warnings about missing glyphs while a figure is drawn and saved.

    Use it as a decorator of functions that draw and save: tick labels are only made when a figure is saved.
    """
    require("A picture", "matplotlib")
    from matplotlib import rc_context

    with warnings.catch_warnings(), rc_context(_LITERAL):
        warnings.simplefilter("ignore", UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure in the format of the file name's extension."""
    ending = Path(path).suffix.lower()
    drawn = io.BytesIO()  # on a full disk, matplotlib would raise errors of its own while it cleans up
    figure.savefig(drawn, format=ending.removeprefix("."), metadata=_WITHOUT_DATE.get(ending))
    Path(path).write_bytes(drawn.getvalue())
