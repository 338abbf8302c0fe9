"""conserva: explanations of Transformers that add up."""

from .errors import Error
from .propagation import rules
from .relevance import relevance

__all__ = ["Error", "relevance", "rules"]
__version__ = "0.1.0"
