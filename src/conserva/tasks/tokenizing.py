"""Calls of tokenizers, one at a time."""

from __future__ import annotations

import threading
from typing import Any

_one_at_a_time = threading.Lock()


def call_tokenizer(tokenizer: Any, *texts: Any, **options: Any) -> Any:
    """Call a tokenizer while no other thread calls one.

    Fast tokenizers of transformers set truncation and padding as a state before they read it: of two threads, one would
    get texts that are truncated as the other asked for.
    """
    with _one_at_a_time:
        return tokenizer(*texts, **options)
