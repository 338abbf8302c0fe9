"""A network seen as a classifier: it answers with a score for each class, at the place that is read.

A language model scores every token after every token, a vision model takes pixels, a tagger names every word. What
methods, curves and books work on is always the same: inputs of samples x places (x numbers), and samples x classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.inputs import parameters_of
from ..errors import Error


@dataclass
class Answer:
    """What a reading returns: scores of samples x classes, and the states that a network reports if it is asked."""

    logits: Tensor
    hidden_states: Any = None
    encoder_hidden_states: Any = None
    decoder_hidden_states: Any = None


class Reading(nn.Module):
    """A network, and what is read from it. Its `forward` names the inputs, and returns an `Answer`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        refuse_training(network)
        self.network = network
        self.training = False

    @property
    def config(self) -> Any:
        """The network's configuration."""
        return getattr(self.network, "config", None)

    def ask(self, **inputs: Any) -> Any:
        """Call the network with what was given, and without a cache of keys and values, which serves generation."""
        given = {name: one for name, one in inputs.items() if one is not None}
        if "use_cache" in parameters_of(self.network):
            given["use_cache"] = False
        return self.network(**given)

    @staticmethod
    def answer(logits: Tensor, output: Any) -> Answer:
        """Return the scores together with the states that the network reported."""
        parts = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
        return Answer(logits, **{part: getattr(output, part, None) for part in parts})


def refuse_training(model: nn.Module) -> None:
    """Raise if a model, or a part of it, is in training mode."""
    for name, module in model.named_modules():
        if module.training:
            what = f"Module {name!r}" if name else "The model"
            raise Error(f"{what} is in training mode, where dropout makes answers random: call model.eval() first.")


def each_at_its_place(scores: Tensor, places: Tensor) -> Tensor:
    """Return for every sample its scores at its own place, of samples x places x classes."""
    rows = torch.arange(scores.shape[0], device=scores.device)
    return scores[rows, places]
