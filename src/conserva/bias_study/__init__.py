"""Bias studies: the relevance of groups of words in a corpus (Ali et al. 2022, section 6.4)."""

from .result import BiasStudy

__all__ = ["BiasStudy"]
