"""What tests share: made up prompts."""

from __future__ import annotations

PROMPT, ANSWER = "The capital of France is", " Paris. Rome"
