"""conserva: explanations of Transformers that add up."""

from .auditing import Audit
from .auditing.run import audit
from .bias_study import BiasStudy
from .bias_study.run import bias
from .errors import Error
from .explain import explain
from .explanation import Explanation
from .faithfulness import Evaluation
from .faithfulness.run import evaluate
from .loading import load
from .methods import methods
from .propagation import rules
from .relevance import relevance
from .tasks import Graph, Text

__all__ = [
    "Audit",
    "BiasStudy",
    "Error",
    "Evaluation",
    "Explanation",
    "Graph",
    "Text",
    "audit",
    "bias",
    "evaluate",
    "explain",
    "load",
    "methods",
    "relevance",
    "rules",
]
__version__ = "0.1.0"
