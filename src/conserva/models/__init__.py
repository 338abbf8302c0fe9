"""Models of the paper, and the bundled weights."""

from .attention_only import AttentionOnly, AttentionOnlyConfig
from .graphormer import Graphormer, GraphormerConfig

__all__ = ["AttentionOnly", "AttentionOnlyConfig", "Graphormer", "GraphormerConfig"]
