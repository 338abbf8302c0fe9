"""Tasks: how an input becomes features, and an output a target."""

from .text import Text

__all__ = ["Text"]
