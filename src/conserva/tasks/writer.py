"""Models that write: what is asked about is the next token, known by its text."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..engine.interrupts import handle
from .task import Task
from .vocabulary import Vocabulary


def greedy(network: Any, tokens: int) -> Any:
    """Return settings for the most likely token each time, whatever else a network's own settings ask for."""
    settings = copy.deepcopy(network.generation_config)
    settings.update(max_new_tokens=tokens, num_beams=1, do_sample=False, num_return_sequences=1)
    settings.update(min_length=0, no_repeat_ngram_size=0, repetition_penalty=1.0, return_dict_in_generate=False)
    return settings


def interruptible(ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
    """Go on writing, unless an interrupt waits."""
    handle()
    return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


class Writer(Task):
    """A model whose classes are the tokens that may come next."""

    vocabulary: Vocabulary

    @property
    def labels(self) -> Vocabulary:
        """The texts of the tokens, and their ids."""
        return self.vocabulary

    @abstractmethod
    def is_spaced(self, encoded: Any) -> bool:
        """Return whether a word that comes next comes after a space, which is its own."""

    def aim(self, target: Any, encoded: Any) -> Any:
        """Return a target as an index: of a token's text, after a space or exactly as given, or of a contrast."""
        if isinstance(target, tuple):  # one token rather than another, by their ids
            return " - ".join(map(str, target))
        if not isinstance(target, str):
            return target
        spaced = self.is_spaced(encoded)
        both = self.vocabulary.contrast(target, spaced)
        return self.vocabulary.token(target, spaced) if both is None else f"{both[0]} - {both[1]}"

    def titled(self, target: Any, index: int | None, encoded: Any) -> str:
        """Return the token's text, with its space; one that cannot be seen as Python writes it."""
        if index is not None:
            return self._shown(index)
        both = self.vocabulary.contrast(target, self.is_spaced(encoded)) if isinstance(target, str) else None
        if isinstance(target, tuple):
            both = target
        return self.named(target, index) if both is None else " - ".join(map(self._shown, both))

    def _shown(self, token: int) -> str:
        text = self.vocabulary.text(token)
        return text if text.strip() and text.isprintable() else repr(text)
