"""Which words move a model: the relevance that falls on groups of words in a corpus (Ali et al. 2022, section 6.4)."""

from .result import BiasStudy

__all__ = ["BiasStudy"]
