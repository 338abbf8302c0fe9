"""Figures of pages: drawn twice, for wide and for narrow pages, so that their text stays readable on a phone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup


@dataclass(frozen=True)
class ReportFigure:
    """A figure and its caption; a page shows the drawing that fits its width."""

    wide: Markup
    narrow: Markup
    caption: str


def report_figure(draw: Callable[..., Markup], caption: str, *results: Any) -> ReportFigure:
    """Return what `draw` draws of results, with its panels side by side, and below each other for narrow pages."""
    return ReportFigure(draw(*results), draw(*results, narrow=True), caption)
