"""Language models: which token comes next, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets import Labelled
from ..engine.hooks import hooked
from ..errors import Error
from .input_options import words_in
from .masking import TextRows, mask_of, masked
from .prompts import EncodedPrompt, encoded_prompt, is_chat, prompt_of
from .reading import Answer, Reading
from .text import ROUNDED_TO
from .vocabulary import Vocabulary
from .writer import Writer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report an astronomical one."""


class NextToken(Reading):
    """A language model's scores of what follows a place, or several places, of each sample."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, read: Tensor, output_hidden_states: bool | None = None
    ) -> Answer:
        """Return logits of samples x vocabulary for one place a sample, or samples x places x vocabulary for several.

        The network scores no other places: those of a batch of long texts would take more memory than all else.
        """
        places = read.reshape(len(read), -1)
        with _scored_alone(self.network, places, input_ids.shape) as scored:
            output = self.ask(
                input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=output_hidden_states
            )
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            raise Error(f"{type(self.network).__name__} is not a language model: it gives no score for each token.")
        if not scored:
            if logits.shape[1] != input_ids.shape[1]:
                raise Error(
                    f"{type(self.network).__name__} gives scores at {logits.shape[1]} places for "
                    f"{input_ids.shape[1]} tokens: which place belongs to which token cannot be told."
                )
            logits = _at(logits, places)
        return self.answer(logits[:, 0] if read.dim() == 1 else logits, output)


def _at(states: Tensor, places: Tensor) -> Tensor:
    """Return the states of each sample at its own places."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows[:, None], places.to(states.device)]


@contextmanager
def _scored_alone(network: nn.Module, places: Tensor, shape: torch.Size) -> Iterator[list[bool]]:
    """Give the network's last layer its states at some places alone; yield a list that is filled where that is done."""
    done: list[bool] = []

    def choose(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or args[0].shape[:2] != shape:
            return None
        done.append(True)
        return (_at(args[0], places), *args[1:])

    head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None  # type: ignore[operator]
    if not isinstance(head, nn.Module):
        yield done
        return
    with hooked(before=[(head, choose)]):
        yield done


class Causal(Writer):
    """A language model: a Hugging Face model and its tokenizer. It goes on from a text or from a chat."""

    features = ("input_ids",)
    noun = "prompt"

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise Error(f"model={type(model).__name__} has an encoder: it is not a model that goes on from its prompt.")
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is no Hugging Face tokenizer.")
        super().__init__(NextToken(model), name)
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)

    @property
    def _config(self) -> Any:
        """The configuration of the part that reads text, where a model has several."""
        found: Any = self.model.config
        return found.get_text_config() if hasattr(found, "get_text_config") else found

    @property
    def device(self) -> torch.device:
        """Where inputs are put: beside the first weights that are there at all; others are fetched when they run."""
        held = (one.device for one in self.network.parameters() if one.device.type != "meta")
        return next(held, torch.device("cpu"))

    @property
    def longest(self) -> int:
        """How many tokens the model takes."""
        limits = [
            getattr(self.tokenizer, "model_max_length", _UNBOUNDED),
            getattr(self._config, "max_position_embeddings", _UNBOUNDED),
        ]
        return min(int(limit) for limit in limits if limit and limit > 0)

    @property
    def classes(self) -> int:
        """How many tokens the model chooses from."""
        return int(getattr(self._config, "vocab_size", 0)) or len(self.vocabulary)

    def is_spaced(self, encoded: EncodedPrompt) -> bool:
        return not encoded.tokens[-1][-1:].isspace()  # a space or a new line, after which there is no other

    def is_one(self, given: Any) -> bool:
        return isinstance(given, str) or is_chat(given)

    def labelled(self, data: Any) -> Labelled:
        """Return prompts with the tokens that follow: of a file or dataset name, prompts, or (prompt, token) pairs."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, (str, Path)):
            return words_in(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(f"data={data!r:.60} holds no prompts: give a file, a list of prompts, or of (prompt, token).")
        if all(map(self.is_one, data)):
            return Labelled(tuple(data), None, "prompts")
        if all(isinstance(one, (tuple, list)) and len(one) == 2 and self.is_one(one[0]) for one in data):
            return Labelled(tuple(prompt for prompt, _ in data), tuple(label for _, label in data), "prompts")
        raise Error("data is neither a list of prompts nor a list of (prompt, token): its entries differ.")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPrompt:
        """Turn a prompt into tokens; one that is too long is refused, or cut if `truncate` says so.

        It is cut at the left: the end, after which the answer comes, stays.
        """
        prompt = prompt_of(self.tokenizer, given)
        return encoded_prompt(self.tokenizer, self.vocabulary, prompt, self.longest, truncate)

    def padded(self, length: int) -> int:
        """Return a length rounded up on a GPU: kernels are planned anew for every shape, and replays know few."""
        on_gpu = self.device.type == "cuda"
        return min(-(-length // ROUNDED_TO) * ROUNDED_TO, max(length, self.longest)) if on_gpu else length

    def batch(self, encoded: Sequence[EncodedPrompt]) -> dict[str, Tensor]:
        """Put prompts side by side, padded on the right, where no token of theirs looks."""
        width = max(map(len, encoded))
        width = self.padded(width) if len(encoded) > 1 else width
        return self._tensors([(np.array([one.ids]), np.ones((1, len(one)), np.int64)) for one in encoded], width)

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return the mask: tokens are hidden where they may be, as language models have no token that says nothing."""
        hidden = "drop" if "drop" in preferred else None
        return mask_of(self.tokenizer, given or hidden, preferred)

    def masked(self, encoded: EncodedPrompt, kept: np.ndarray, mask: str) -> TextRows:
        return masked(self.tokenizer, np.array(encoded.ids), kept | np.array(encoded.fixed), mask)

    def stack(self, parts: Sequence[TextRows]) -> dict[str, Tensor]:
        return self._tensors([(part.ids, part.attention) for part in parts], max(part.width for part in parts))

    def _tensors(self, parts: Sequence[tuple[np.ndarray, np.ndarray]], width: int) -> dict[str, Tensor]:
        """Return ids and masks of rows x tokens side by side, with the place of each row's last token."""

        def side_by_side(arrays: Sequence[np.ndarray], pad: int) -> np.ndarray:
            rows = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=pad) for one in arrays]
            return np.concatenate(rows)

        inputs = {
            "input_ids": side_by_side([ids for ids, _ in parts], self.tokenizer.pad_token_id or 0),
            "attention_mask": side_by_side([attention for _, attention in parts], 0),
            "read": np.concatenate([np.full(len(ids), ids.shape[1] - 1) for ids, _ in parts]),
        }
        # Other copies would wait for all that the device has to do.
        return {name: torch.from_numpy(x).to(self.device, non_blocking=True) for name, x in inputs.items()}
