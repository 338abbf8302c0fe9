"""Sequence-to-sequence models such as T5 and BART, explained at the next token of their output."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets import Labelled
from ..engine.untouched import untouched
from ..errors import Error
from ..models.quiet import quiet_loading
from .masking import TextRows, mask_of, masked
from .model_kind import ModelKind
from .output_heads import SINGLE_LABEL
from .prompts import words_of
from .reading import Answer, Reading, at_positions
from .task import Encoded
from .text import Text
from .tokenizing import call_tokenizer
from .user_inputs import read_with_text_labels, refuse_surrogates
from .vocabulary import Vocabulary
from .writer import Writer, greedy, interruptible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SOURCE, SO_FAR = "source", "answer so far"

_ANSWER_LIMITS = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
"""Names that configurations use for the maximum number of decoder tokens."""


class NextToken(Reading):
    """An encoder-decoder whose output is the logits of the next token of each sample."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        read: Tensor | None = None,
        **options: Any,
    ) -> Answer:
        """Return the logits at the decoder position `read` of each sample; without it, at all positions."""
        source = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.next_token(source, decoder_input_ids, decoder_attention_mask, read, options)

    def next_token(
        self, source: dict[str, Any], ids: Tensor | None, mask: Tensor | None, read: Tensor | None, options: Any
    ) -> Answer:
        """Call the network with the inputs of encoder and decoder, and select the logits."""
        output = self.ask(**source, decoder_input_ids=ids, decoder_attention_mask=mask, **options)
        return self.answer(output.logits if read is None else at_positions(output.logits, read), output)


class AnswerVocabulary(Vocabulary):
    """The vocabulary of answers: some tokenizers encode targets differently from sources."""

    def pieces(self, text: str) -> list[int]:
        """Return the token ids of a text, without context."""
        refuse_surrogates("text", text)
        ids = call_tokenizer(self._tokenizer, text_target=text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(token) for token in ids]


@dataclass(frozen=True, eq=False)
class EncodedPair(Encoded):
    """A tokenized source and the answer so far."""

    source: Any
    """The encoded source."""
    answer: tuple[int, ...]
    """The decoder's input ids: the start tokens, then the tokens of the answer so far."""

    @property
    def parts(self) -> tuple[int, ...]:
        return (len(self) - len(self.answer), len(self.answer))

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip((SOURCE, SO_FAR), self.parts, strict=True))

    @property
    def offsets(self) -> tuple[tuple[int, int] | None, ...]:
        """Those of the source; the answer is not part of `text`."""
        return (*self.source.offsets, *(None,) * len(self.answer))

    @property
    def key(self) -> str:
        return f"{self.source.key} {self.answer}"

    @property
    def fixed(self) -> tuple[bool, ...]:
        """The last token of the answer is never removed: the next token is predicted at its position."""
        return (*[False] * (len(self) - 1), True)


@dataclass(frozen=True)
class PairRows:
    """A source and an answer so far with different tokens removed in each row."""

    source: TextRows
    answer: TextRows

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice | np.ndarray) -> PairRows:
        return PairRows(self.source[rows], self.answer[rows])

    @property
    def width(self) -> int:
        """The number of tokens of both."""
        return self.source.width + self.answer.width

    def keys(self) -> np.ndarray:
        """Return the keys of both, with the length of the source."""
        border = np.full((len(self), 1), self.source.width, np.int64).view(np.uint8)
        return np.concatenate([self.source.keys(), self.answer.keys(), border], axis=1)


class Seq2Seq(Writer):
    """An encoder-decoder that generates text: a Hugging Face model and its tokenizer.

    An input is a source, or a pair (source, beginning of the answer). What is explained is the logit of the next token.
    A target is the text of a token, in which a leading space counts, a token id, or a contrast of two, "a - b"; None is
    the most likely token. Features are the tokens of the source, then those of the answer.

    Parameters
    ----------
    model
        An encoder-decoder with a language modelling head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.

    Examples
    --------
    >>> task = conserva.Seq2Seq(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain_generation(task, "translate English to German: a cat").written  # doctest: +SKIP
    'eine Katze'
    """

    kind = ModelKind(
        "sequence-to-sequence model", "AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
    )

    features = ("input_ids", "decoder_input_ids")
    noun = "text"

    takes: ClassVar[str] = "input_ids"
    """The `main_input_name` of the supported networks."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is not a Hugging Face tokenizer.")
        self._refuse_others(model)
        super().__init__(self._wrapped(model), name)
        self.tokenizer = tokenizer
        self.vocabulary = AnswerVocabulary(tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self._sources = Text(model, tokenizer, self.name, head=SINGLE_LABEL.name)

    def _wrapped(self, model: nn.Module) -> Reading:
        """Return the network in the wrapper of this task."""
        return NextToken(model)

    def _refuse_others(self, model: nn.Module) -> None:
        """Raise an `Error` unless the model is an encoder-decoder with a language model head and the right input."""
        kind = type(model).__name__
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
        if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or head is None:
            raise Error(
                f"model={kind} is not an encoder-decoder that generates tokens: load one with AutoModelForSeq2SeqLM, "
                "or AutoModelForSpeechSeq2Seq for speech."
            )
        main = getattr(model, "main_input_name", None)
        if main != self.takes:
            raise Error(
                f"model={kind} takes {main}, but {type(self).__name__} is for {self.takes}: use conserva.Seq2Seq for "
                "texts and conserva.Speech for speech."
            )

    @property
    def classes(self) -> int:
        """The size of the vocabulary."""
        weight: Tensor = self.network.get_output_embeddings().weight  # type: ignore[operator]
        return weight.shape[0]

    @property
    def longest_answer(self) -> int | None:
        """The maximum number of decoder tokens; None if there is no limit."""
        config = self.network.config.get_text_config(decoder=True)  # type: ignore[union-attr, operator]
        limits = [getattr(config, name, None) for name in _ANSWER_LIMITS]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens that every answer begins with: the decoder's start token, and a forced first token."""
        configs = [getattr(self.network, "generation_config", None), self.network.config]

        def configured(name: str) -> int | None:
            values = (getattr(config, name, None) for config in configs)
            return next((int(value) for value in values if value is not None), None)

        first = configured("decoder_start_token_id")
        first = configured("bos_token_id") if first is None else first
        if first is None:
            raise Error(f"{self.name} has no start token for answers: set decoder_start_token_id in generation_config.")
        forced = configured("forced_bos_token_id")
        return (first,) if forced is None or forced == first else (first, forced)

    def is_spaced(self, encoded: Any) -> bool:
        return not encoded.special[-1]  # the first word of an answer has no leading space

    def is_source(self, given: Any) -> bool:
        """Return whether an input is a source without an answer so far."""
        return isinstance(given, str)

    def is_single(self, given: Any) -> bool:
        is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)
        return self.is_source(given) or (is_pair and self.is_source(given[0]))

    def labelled(self, data: Any) -> Labelled:
        """Return inputs with the next token as label, if it is given.

        `data` is a file, a list of sources, or a list of (source, token) or ((source, answer so far), token).
        """
        if isinstance(data, Labelled):
            return data
        if isinstance(data, (str, Path)):
            return read_with_text_labels(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} contains no {self.noun}s: give a file, a list of {self.noun}s, or a list of "
                f"({self.noun}, next token)."
            )
        if all(map(self.is_source, data)):
            return Labelled(tuple(data), None, f"{self.noun}s")
        if all(isinstance(row, (tuple, list)) and len(row) == 2 and self.is_single(row[0]) for row in data):
            return Labelled(tuple(given for given, _ in data), tuple(label for _, label in data), f"{self.noun}s")
        raise Error(
            f"data is neither a list of {self.noun}s nor one of ({self.noun}, next token) or (({self.noun}, answer so "
            "far), next token): its entries differ."
        )

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPair:
        """Tokenize a source and an answer so far; with `truncate` a source that is too long is truncated."""
        source, answer = given if self.is_single(given) and not self.is_source(given) else (given, "")
        if not self.is_source(source):
            raise Error(
                f"{given!r:.60} is not a {self.noun} for {self.name}: give a {self.noun}, or a pair ({self.noun}, "
                "answer so far)."
            )
        tokens = self.vocabulary.pieces(answer) if answer else []
        return self.pair(self.encode_source(source, truncate), (*self.start, *tokens))

    def encode_source(self, source: Any, truncate: bool) -> Encoded:
        """Return an encoded source."""
        return self._sources.encode(source, truncate=truncate)

    def pair(self, source: Encoded, answer: tuple[int, ...]) -> EncodedPair:
        """Return the input of an encoded source and the token ids of an answer, including its start tokens."""
        most = self.longest_answer
        if most is not None and len(answer) > most:
            raise Error(
                f"The answer so far to {source.text[:40]!r} has {len(answer)} tokens, start tokens included, the model "
                f"takes {most}: shorten it."
            )
        texts = tuple(map(self.vocabulary.text, answer))
        own = len(self.start)
        special = tuple(i < own or token in self._special for i, token in enumerate(answer))
        tokens = self.source_texts(source)
        words = (*source.words, *words_of(texts, special))
        return EncodedPair(source.text, (*tokens, *texts), (*source.special, *special), words, source, answer)

    def source_texts(self, source: Any) -> tuple[str, ...]:
        """Return the names of the features of a source: here its tokens, with leading spaces."""
        return tuple(map(self.vocabulary.text, source.ids))

    def batch(self, encoded: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Return a batch in which sources and answers are padded on the right to the longest of each."""
        ids, mask = _stacked([np.array([pair.answer]) for pair in encoded], self._pad)
        return self._on_device(
            {
                **self.source_batch([pair.source for pair in encoded]),
                "decoder_input_ids": ids,
                "decoder_attention_mask": mask,
                "read": np.array([len(pair.answer) - 1 for pair in encoded]),
            }
        )

    def source_batch(self, sources: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the encoder's inputs for a batch of sources."""
        ids, mask = _stacked([np.array([source.ids]) for source in sources], self._pad)
        return {"input_ids": ids, "attention_mask": mask}

    @property
    def _pad(self) -> int:
        """The padding token, which is masked, so any id will do."""
        return self.tokenizer.pad_token_id or 0

    def _on_device(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        device, dtype = next((parameter.device, parameter.dtype) for parameter in self.network.parameters())
        tensors = {name: torch.from_numpy(np.ascontiguousarray(x)).to(device) for name, x in arrays.items()}
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return the mask: "drop" where it is allowed, since few of these models have a neutral token."""
        hidden = "drop" if "drop" in preferred else None
        return mask_of(self.tokenizer, given or hidden, preferred)

    def masked(self, encoded: EncodedPair, kept: np.ndarray, mask: str) -> Any:
        border, kept = encoded.parts[0], kept | np.array(encoded.fixed)
        source = masked(self.tokenizer, np.array(encoded.source.ids), kept[:, :border], mask)
        return PairRows(source, masked(self.tokenizer, np.array(encoded.answer), kept[:, border:], mask))

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        sources = [part.source for part in parts]
        ids, _ = _stacked([source.ids for source in sources], self._pad)
        attention, _ = _stacked([source.attention for source in sources], 0)
        return self._on_device({"input_ids": ids, "attention_mask": attention, **self.stacked_answers(parts)})

    def stacked_answers(self, parts: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the decoder's inputs for all rows, and the position of the last token of each."""
        answers = [part.answer for part in parts]
        ids, _ = _stacked([answer.ids for answer in answers], self._pad)
        attention, _ = _stacked([answer.attention for answer in answers], 0)
        read = np.concatenate([np.full(len(answer), answer.width - 1) for answer in answers])
        return {"decoder_input_ids": ids, "decoder_attention_mask": attention, "read": read}

    def generated(self, encoded: EncodedPair, tokens: int) -> list[int]:
        """Return at most `tokens` ids that the network generates greedily after the answer so far.

        They end with the end-of-sequence token, unless the limit comes first.
        """
        from transformers.generation.utils import GenerationMixin

        if not isinstance(self.network, GenerationMixin):
            raise Error(f"{type(self.network).__name__} has no generate method: give the answer.")
        so_far, most = len(encoded.answer), self.longest_answer
        # One more token than requested, since some models force the last one to be the end-of-sequence token.
        room = tokens + 1 if most is None else min(tokens + 1, most - so_far)
        if room < 1:
            raise Error(f"The answer so far has {so_far} tokens, the maximum of the model: shorten it.")
        inputs = self.batch([encoded])
        given = {**self.network_source(inputs), "decoder_input_ids": inputs["decoder_input_ids"]}
        # Not the network's own method: Whisper's splits recordings and chooses among several answers.
        generate: Any = GenerationMixin.generate
        with untouched(self.network), quiet_loading(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unused settings for beam search and sampling
            settings = greedy(self.network, room)
            output = generate(self.network, generation_config=settings, stopping_criteria=[interruptible], **given)
        new: list[int] = output[0, so_far:].tolist()
        return new[:tokens]

    def network_source(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of the network's encoder, from a batch."""
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def _stacked(arrays: Sequence[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate arrays of rows x tokens, padded on the right to the longest; return them and their padding mask."""
    width = max(array.shape[1] for array in arrays)
    rows = [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=pad) for array in arrays]
    real = np.repeat([np.arange(width) < array.shape[1] for array in arrays], [len(array) for array in arrays], axis=0)
    return np.concatenate(rows), real.astype(np.int64)
