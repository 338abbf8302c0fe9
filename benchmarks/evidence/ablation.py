"""Prompts with parts of the document removed: random ablations, and leave-one-out.

A part is a word; in documents of many words it is a sentence, or a run of words where even sentences are too many. What
is removed is removed from the tokens, so that nothing stands in its place. The rest of the prompt is always kept, and
its last token, at which the answer is predicted, too.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from conserva.tasks import Causal

from .reading import Read, logits

KEPT_SHARE = 0.5
FEWEST_SENTENCES = 8
"""Where there are fewer, runs of words are removed instead."""


def units(one: Read, most: int) -> np.ndarray:
    """Return the number of the part that each token of the prompt belongs to; -1 for tokens that are always kept.

    Parameters
    ----------
    one
        The item.
    most
        How many parts there may be.
    """
    found = np.full(len(one), -1)
    places = one.places("document")
    places = places[places < len(one) - 1]
    words = np.unique([one.encoded.words[i] for i in places], return_inverse=True)[1]
    count = int(words.max()) + 1
    sentences = _sentences(one, places)
    if count <= most:
        found[places] = words
    elif FEWEST_SENTENCES <= sentences.max() + 1 <= most:
        found[places] = sentences
    else:
        found[places] = words * most // count
    return found


def _sentences(one: Read, places: np.ndarray) -> np.ndarray:
    """Return the number of the sentence of each of some tokens."""
    ends = np.array([found.end() for found in re.finditer(r"[.!?\n]+(?=\s)", one.encoded.text)])
    middles = [(offset[0] + offset[1] - 1) / 2 for i in places if (offset := one.encoded.offsets[i]) is not None]
    return np.unique(np.searchsorted(ends, middles, side="right"), return_inverse=True)[1]


def drawn(one: Read, parts: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return random ablations, ablations x parts, True where a part is kept: those of an item and a seed."""
    start = int.from_bytes(hashlib.blake2b(f"{seed}/{one.item.key}".encode(), digest_size=8).digest())
    return np.random.default_rng(start).random((count, int(parts.max()) + 1)) < KEPT_SHARE


def outputs(task: Causal, one: Read, parts: np.ndarray, kept: np.ndarray, target: str) -> np.ndarray:
    """Return the explained number with only some parts of the document; `kept` is ablations x parts."""
    always = np.ones((len(kept), 1), dtype=bool)
    return logits(task, one, np.concatenate([kept, always], 1)[:, parts], target)  # part -1 is the last column


def leave_one_out(task: Causal, one: Read, parts: np.ndarray, target: str) -> np.ndarray:
    """Return the scores of the tokens: what the removal of a part takes off the output, shared among its tokens."""
    count = int(parts.max()) + 1
    kept = np.concatenate([np.ones((1, count), dtype=bool), ~np.eye(count, dtype=bool)])
    found = outputs(task, one, parts, kept, target)
    shares = np.append((found[0] - found[1:]) / np.bincount(parts[parts >= 0]), 0)
    scores: np.ndarray = shares[parts]
    return scores


def sums(scores: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return the sum of the scores of the tokens of each part."""
    inside = parts >= 0
    found: np.ndarray = np.bincount(parts[inside], scores[inside])
    return found
