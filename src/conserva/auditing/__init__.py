"""The audit: where does relevance leak?"""

from .result import Audit, Component, Head, Norm

__all__ = ["Audit", "Component", "Head", "Norm"]
