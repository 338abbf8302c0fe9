"""conserva: explanations of Transformers that add up."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import tasks
from ._util.version import __version__ as __version__
from .errors import Error

if TYPE_CHECKING:
    from .attribution import methods
    from .auditing import Audit
    from .auditing.run import audit
    from .auditing.second_opinion import verify
    from .bias_study import BiasStudy
    from .bias_study.run import bias
    from .engine.context import rules
    from .engine.ledger import Ledger
    from .engine.passes import Relevance
    from .engine.relevance import relevance
    from .engine.rules import RuleSet
    from .evaluation import Evaluation
    from .evaluation.run import evaluate
    from .explaining.compare import compare
    from .explaining.explain import explain
    from .explaining.generate import explain_generation
    from .explaining.trace import trace
    from .replay.scope import Replaying, replaying
    from .results.explanation import Explanation
    from .results.explanations import Comparison, Explanations
    from .results.generation import Generation
    from .results.trace import Trace
    from .tasks import *  # noqa: F403 - they are listed there
    from .tasks.loading import load

__all__ = [
    "Audit",
    "BiasStudy",
    "Comparison",
    "Error",
    "Evaluation",
    "Explanation",
    "Explanations",
    "Generation",
    "Ledger",
    "Relevance",
    "Replaying",
    "RuleSet",
    "Trace",
    "audit",
    "bias",
    "compare",
    "evaluate",
    "explain",
    "explain_generation",
    "load",
    "methods",
    "relevance",
    "replaying",
    "rules",
    "trace",
    "verify",
]
__all__ += tasks.__all__

_MODULES = {
    "attribution": ("methods",),
    "auditing": ("Audit",),
    "auditing.run": ("audit",),
    "auditing.second_opinion": ("verify",),
    "bias_study": ("BiasStudy",),
    "bias_study.run": ("bias",),
    "engine.context": ("rules",),
    "engine.ledger": ("Ledger",),
    "engine.passes": ("Relevance",),
    "engine.relevance": ("relevance",),
    "engine.rules": ("RuleSet",),
    "evaluation": ("Evaluation",),
    "evaluation.run": ("evaluate",),
    "explaining.compare": ("compare",),
    "explaining.explain": ("explain",),
    "explaining.generate": ("explain_generation",),
    "explaining.trace": ("trace",),
    "replay.scope": ("Replaying", "replaying"),
    "results.explanation": ("Explanation",),
    "results.explanations": ("Comparison", "Explanations"),
    "results.generation": ("Generation",),
    "results.trace": ("Trace",),
    "tasks.loading": ("load",),
}
"""Where the public names are defined. They are imported when they are first used: torch takes seconds to import."""


def __getattr__(name: str) -> Any:
    if name in tasks.__all__:
        return getattr(tasks, name)
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
