"""Tasks: how inputs become features, and how outputs become targets."""

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
