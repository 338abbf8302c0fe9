"""Causal language models, explained at the next token."""

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
from .masking import TextRows, mask_of, masked
from .model_kind import ModelKind
from .prompts import EncodedPrompt, encoded_prompt, is_chat, prompt_of
from .reading import Answer, Reading
from .text import ROUNDED_TO
from .user_inputs import read_with_text_labels
from .vocabulary import Vocabulary
from .writer import Writer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report a very large number instead."""


class NextToken(Reading):
    """A language model whose output is the logits of the next token at given positions of each sample."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, read: Tensor, output_hidden_states: bool | None = None
    ) -> Answer:
        """Return logits, samples x vocabulary for one position per sample, else samples x positions x vocabulary.

        Logits are not computed at other positions: for long texts they would take more memory than everything else.
        """
        positions = read.reshape(len(read), -1)
        with _head_at(self.network, positions, input_ids.shape) as applied:
            output = self.ask(
                input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=output_hidden_states
            )
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            raise Error(f"{type(self.network).__name__} is not a language model: it returns no logits for each token.")
        if not applied:
            if logits.shape[1] != input_ids.shape[1]:
                raise Error(
                    f"{type(self.network).__name__} returns logits at {logits.shape[1]} positions for "
                    f"{input_ids.shape[1]} tokens: give a model with one position per token."
                )
            logits = _at(logits, positions)
        return self.answer(logits[:, 0] if read.dim() == 1 else logits, output)


def _at(states: Tensor, positions: Tensor) -> Tensor:
    """Return the states of each sample at its positions, samples x positions."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows[:, None], positions.to(states.device)]


@contextmanager
def _head_at(network: nn.Module, positions: Tensor, shape: torch.Size) -> Iterator[list[bool]]:
    """Apply the network's output layer at the given positions only; yield a list that is not empty once that was done.

    `shape` is that of the input ids: an output layer with an input of another shape is left alone.
    """
    done: list[bool] = []

    def select(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or args[0].shape[:2] != shape:
            return None
        done.append(True)
        return (_at(args[0], positions), *args[1:])

    head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None  # type: ignore[operator]
    if not isinstance(head, nn.Module):
        yield done
        return
    with hooked(before=[(head, select)]):
        yield done


class Causal(Writer):
    """A causal language model: a Hugging Face model and its tokenizer. An input is a text or a chat.

    Parameters
    ----------
    model
        A decoder with a language modelling head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.

    Examples
    --------
    >>> task = conserva.Causal(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, "The capital of France is").target  # doctest: +SKIP
    ' Paris'
    """

    kind = ModelKind("language model", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")

    features = ("input_ids",)
    noun = "prompt"

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise Error(f"model={type(model).__name__} is an encoder-decoder: use conserva.Seq2Seq for it.")
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is not a Hugging Face tokenizer.")
        super().__init__(NextToken(model), name)
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)

    @property
    def _config(self) -> Any:
        """The configuration of the text model, which can be a part of a larger one."""
        config: Any = self.model.config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def device(self) -> torch.device:
        """The device of inputs: that of the first weight which is not offloaded."""
        devices = (weight.device for weight in self.network.parameters() if weight.device.type != "meta")
        return next(devices, torch.device("cpu"))

    @property
    def longest(self) -> int:
        """The maximum number of tokens of an input."""
        limits = [
            getattr(self.tokenizer, "model_max_length", _UNBOUNDED),
            getattr(self._config, "max_position_embeddings", _UNBOUNDED),
        ]
        return min(int(limit) for limit in limits if limit and limit > 0)

    @property
    def classes(self) -> int:
        """The size of the vocabulary."""
        return int(getattr(self._config, "vocab_size", 0)) or len(self.vocabulary)

    def is_spaced(self, encoded: EncodedPrompt) -> bool:
        return not encoded.tokens[-1][-1:].isspace()

    def is_single(self, given: Any) -> bool:
        return isinstance(given, str) or is_chat(given)

    def labelled(self, data: Any) -> Labelled:
        """Return prompts with the next tokens, from a file or dataset name, prompts, or (prompt, token) pairs."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, (str, Path)):
            return read_with_text_labels(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(f"data={data!r:.60} has no prompts: give a file, a list of prompts, or of (prompt, token).")
        if all(map(self.is_single, data)):
            return Labelled(tuple(data), None, "prompts")
        if all(isinstance(row, (tuple, list)) and len(row) == 2 and self.is_single(row[0]) for row in data):
            return Labelled(tuple(prompt for prompt, _ in data), tuple(label for _, label in data), "prompts")
        raise Error("data is neither a list of prompts nor a list of (prompt, token): its entries differ.")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPrompt:
        """Tokenize a prompt. One that is too long raises an `Error`, or with `truncate` is truncated on the left."""
        prompt = prompt_of(self.tokenizer, given)
        return encoded_prompt(self.tokenizer, self.vocabulary, prompt, self.longest, truncate)

    def padded(self, length: int) -> int:
        """Return a length, rounded up on a GPU to limit the number of shapes: each needs its own kernels and graph."""
        on_gpu = self.device.type == "cuda"
        return min(-(-length // ROUNDED_TO) * ROUNDED_TO, max(length, self.longest)) if on_gpu else length

    def batch(self, encoded: Sequence[EncodedPrompt]) -> dict[str, Tensor]:
        """Return a batch, padded on the right."""
        width = max(map(len, encoded))
        width = self.padded(width) if len(encoded) > 1 else width
        return self._tensors(
            [(np.array([prompt.ids]), np.ones((1, len(prompt)), np.int64)) for prompt in encoded], width
        )

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return the mask: "drop" where it is allowed, since causal language models have no neutral token."""
        hidden = "drop" if "drop" in preferred else None
        return mask_of(self.tokenizer, given or hidden, preferred)

    def masked(self, encoded: EncodedPrompt, kept: np.ndarray, mask: str) -> TextRows:
        return masked(self.tokenizer, np.array(encoded.ids), kept | np.array(encoded.fixed), mask)

    def stack(self, parts: Sequence[TextRows]) -> dict[str, Tensor]:
        return self._tensors([(part.ids, part.attention) for part in parts], max(part.width for part in parts))

    def _tensors(self, parts: Sequence[tuple[np.ndarray, np.ndarray]], width: int) -> dict[str, Tensor]:
        """Return ids and attention masks padded to `width`, and the position of the last token of each row."""

        def stacked(arrays: Sequence[np.ndarray], pad: int) -> np.ndarray:
            rows = [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=pad) for array in arrays]
            return np.concatenate(rows)

        inputs = {
            "input_ids": stacked([ids for ids, _ in parts], self.tokenizer.pad_token_id or 0),
            "attention_mask": stacked([attention for _, attention in parts], 0),
            "read": np.concatenate([np.full(len(ids), ids.shape[1] - 1) for ids, _ in parts]),
        }
        # A blocking copy would synchronise with the device.
        return {name: torch.from_numpy(x).to(self.device, non_blocking=True) for name, x in inputs.items()}
