"""conserva: explanations of Transformers that add up."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Error

if TYPE_CHECKING:
    from .attribution import methods
    from .auditing import Audit
    from .auditing.run import audit
    from .bias_study import BiasStudy
    from .bias_study.run import bias
    from .explaining import explain
    from .explanation import Explanation
    from .faithfulness import Evaluation
    from .faithfulness.run import evaluate
    from .generating import generation
    from .generation_result import Generation
    from .loading import load
    from .model_relevance import relevance
    from .propagation import rules
    from .replay_scope import Replaying, replaying
    from .second_opinion import verify
    from .tasks import Blanks, Causal, Graph, Image, Question, Seq2Seq, Similarity, Speech, Text, Tokens
    from .tracing import Trace, trace

__all__ = [
    "Audit",
    "BiasStudy",
    "Blanks",
    "Causal",
    "Error",
    "Evaluation",
    "Explanation",
    "Generation",
    "Graph",
    "Image",
    "Question",
    "Replaying",
    "Seq2Seq",
    "Similarity",
    "Speech",
    "Text",
    "Tokens",
    "Trace",
    "audit",
    "bias",
    "evaluate",
    "explain",
    "generation",
    "load",
    "methods",
    "relevance",
    "replaying",
    "rules",
    "trace",
    "verify",
]
__version__ = "0.1.0"

_MODULES = {
    "attribution": ("methods",),
    "auditing": ("Audit",),
    "auditing.run": ("audit",),
    "bias_study": ("BiasStudy",),
    "bias_study.run": ("bias",),
    "explaining": ("explain",),
    "explanation": ("Explanation",),
    "faithfulness": ("Evaluation",),
    "faithfulness.run": ("evaluate",),
    "generating": ("generation",),
    "generation_result": ("Generation",),
    "loading": ("load",),
    "model_relevance": ("relevance",),
    "propagation": ("rules",),
    "replay_scope": ("Replaying", "replaying"),
    "second_opinion": ("verify",),
    "tasks": ("Blanks", "Causal", "Graph", "Image", "Question", "Seq2Seq", "Similarity", "Speech", "Text", "Tokens"),
    "tracing": ("Trace", "trace"),
}
"""Where the public names are defined. They are imported when they are first used: torch takes seconds to import."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
