"""Wrappers that give every network the interface of a classifier: scores of samples x classes.

Language models and taggers return logits at every position, vision models take pixels. Attribution methods,
faithfulness curves and ledgers all work on inputs of samples x positions (x numbers) and scores of samples x classes.
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
    """The output of a `Reading`: scores of samples x classes, and the network's hidden states if requested."""

    logits: Tensor
    hidden_states: Any = None
    encoder_hidden_states: Any = None
    decoder_hidden_states: Any = None


class Reading(nn.Module):
    """Base class of wrappers: the parameters of `forward` are the inputs, and it returns an `Answer`."""

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
        """Call the network with the inputs that are not None, and without a key-value cache."""
        arguments = {name: value for name, value in inputs.items() if value is not None}
        if "use_cache" in parameters_of(self.network):
            arguments["use_cache"] = False
        return self.network(**arguments)

    @staticmethod
    def answer(logits: Tensor, output: Any) -> Answer:
        """Return the scores with the hidden states in a network's output."""
        parts = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
        return Answer(logits, **{part: getattr(output, part, None) for part in parts})


def refuse_training(model: nn.Module) -> None:
    """Raise an `Error` if a model or one of its modules is in training mode."""
    for name, module in model.named_modules():
        if module.training:
            what = f"Module {name!r}" if name else "The model"
            raise Error(f"{what} is in training mode, where dropout makes outputs random: call model.eval() first.")


def at_positions(scores: Tensor, positions: Tensor) -> Tensor:
    """Return the scores of each sample at its position, from scores of samples x positions x classes."""
    rows = torch.arange(scores.shape[0], device=scores.device)
    return scores[rows, positions]
