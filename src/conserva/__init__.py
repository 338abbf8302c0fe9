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
from .generating import generation
from .generation import Generation
from .loading import load
from .methods import methods
from .propagation import rules
from .relevance import relevance
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
