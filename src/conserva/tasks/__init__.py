"""Tasks: how an input becomes features, and an output a target. Each is one module with one class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blanks import Blanks
    from .causal import Causal
    from .graph import Graph
    from .image import Image
    from .questions import Question
    from .seq2seq import Seq2Seq
    from .similarity import Similarity
    from .speech import Speech
    from .tagging import Tokens
    from .task import Task
    from .text import Text

__all__ = [
    "Blanks",
    "Causal",
    "Graph",
    "Image",
    "Question",
    "Seq2Seq",
    "Similarity",
    "Speech",
    "Task",
    "Text",
    "Tokens",
]

MODULES = {
    "Text": "text",
    "Causal": "causal",
    "Speech": "speech",
    "Seq2Seq": "seq2seq",
    "Image": "image",
    "Tokens": "tagging",
    "Question": "questions",
    "Blanks": "blanks",
    "Similarity": "similarity",
    "Graph": "graph",
    "Task": "task",
}
"""Task -> its module, imported when the task is first used; in the order in which `conserva.load` tries them."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{MODULES[name]}", __name__), name)
    return found
