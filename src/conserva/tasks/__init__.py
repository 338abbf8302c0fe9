"""Tasks: how an input becomes features, and an output a target."""

from .graph import Graph
from .task import Task
from .text import Text

__all__ = ["Graph", "Task", "Text"]
