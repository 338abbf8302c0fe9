"""Audits: which components of a model lose relevance."""

from .result import Audit, Component, Head, Norm

__all__ = ["Audit", "Component", "Head", "Norm"]
