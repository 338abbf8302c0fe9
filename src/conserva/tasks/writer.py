"""Base class of tasks with generative models, whose classes are the tokens of a vocabulary."""

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
    """Return a generation config for greedy decoding, which overrides the network's own settings."""
    settings = copy.deepcopy(network.generation_config)
    settings.update(max_new_tokens=tokens, num_beams=1, do_sample=False, num_return_sequences=1)
    settings.update(min_length=0, no_repeat_ngram_size=0, repetition_penalty=1.0, return_dict_in_generate=False)
    return settings


def interruptible(ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
    """Handle pending interrupts; a stopping criterion that never stops generation otherwise."""
    handle()
    return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


class Writer(Task):
    """A generative model, whose classes are the possible next tokens."""

    vocabulary: Vocabulary

    @property
    def labels(self) -> Vocabulary:
        """The texts of tokens and their ids."""
        return self.vocabulary

    @abstractmethod
    def is_spaced(self, encoded: Any) -> bool:
        """Return whether the token of a word that comes next has a leading space."""

    def resolve_target(self, target: Any, encoded: Any) -> Any:
        """Return a target as a token id, or as a contrast of two; texts are looked up in the vocabulary."""
        if isinstance(target, tuple):  # a contrast of two token ids
            return " - ".join(map(str, target))
        if not isinstance(target, str):
            return target
        spaced = self.is_spaced(encoded)
        both = self.vocabulary.contrast(target, spaced)
        return self.vocabulary.token(target, spaced) if both is None else f"{both[0]} - {both[1]}"

    def target_title(self, target: Any, index: int | None, encoded: Any) -> str:
        """Return the token's text with its leading space; as a Python literal if it is not printable."""
        if index is not None:
            return self._shown(index)
        both = self.vocabulary.contrast(target, self.is_spaced(encoded)) if isinstance(target, str) else None
        if isinstance(target, tuple):
            both = target
        return self.target_name(target, index) if both is None else " - ".join(map(self._shown, both))

    def _shown(self, token: int) -> str:
        text = self.vocabulary.text(token)
        return text if text.strip() and text.isprintable() else repr(text)
