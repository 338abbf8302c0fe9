"""Models of the paper, and the bundled weights."""

from .attention_only import AttentionOnly, AttentionOnlyConfig

__all__ = ["AttentionOnly", "AttentionOnlyConfig"]
