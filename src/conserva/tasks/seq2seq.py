"""Writing a text from another: encoder-decoders such as T5 and BART, explained at the next token of their answer."""

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
from .input_options import refuse_halves, words_in
from .masking import TextRows, mask_of, masked
from .output_heads import SINGLE_LABEL
from .prompts import words_of
from .reading import Answer, Reading, each_at_its_place
from .task import Encoded
from .text import Text
from .vocabulary import Vocabulary
from .writer import Writer, greedy, interruptible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SOURCE, SO_FAR = "source", "answer so far"

_ANSWER_LIMITS = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
"""What configurations call the number of tokens that a decoder takes."""


class NextToken(Reading):
    """An encoder-decoder, read after the last token of each sample's answer so far."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        read: Tensor | None = None,
        **options: Any,
    ) -> Answer:
        """Return the score of every token in the place that is read; without one, in all places of the answer."""
        source = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.next_token(source, decoder_input_ids, decoder_attention_mask, read, options)

    def next_token(
        self, source: dict[str, Any], ids: Tensor | None, mask: Tensor | None, read: Tensor | None, options: Any
    ) -> Answer:
        """Ask the network what it writes after an answer so far, given its source."""
        output = self.ask(**source, decoder_input_ids=ids, decoder_attention_mask=mask, **options)
        return self.answer(output.logits if read is None else each_at_its_place(output.logits, read), output)


class AnswerVocabulary(Vocabulary):
    """The tokens of answers: some tokenizers write those in another language than sources."""

    def pieces(self, text: str) -> list[int]:
        """Return the tokens of a text that stands by itself."""
        refuse_halves("text", text)
        found = self._tokenizer(text_target=text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(one) for one in found]


@dataclass(frozen=True, eq=False)
class EncodedPair(Encoded):
    """A source and the answer so far, as the model sees them."""

    source: Any
    """The source as it is encoded by itself."""
    answer: tuple[int, ...]
    """What the decoder has read: what every answer begins with, then the tokens that were written."""

    @property
    def parts(self) -> tuple[int, ...]:
        return (len(self) - len(self.answer), len(self.answer))

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip((SOURCE, SO_FAR), self.parts, strict=True))

    @property
    def key(self) -> str:
        return f"{self.source.key} {self.answer}"

    @property
    def fixed(self) -> tuple[bool, ...]:
        """The last token of the answer stays: the next one is read from its place."""
        return (*[False] * (len(self) - 1), True)


@dataclass(frozen=True)
class PairRows:
    """A source and an answer so far with other tokens taken away in each row."""

    source: TextRows
    answer: TextRows

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice | np.ndarray) -> PairRows:
        return PairRows(self.source[rows], self.answer[rows])

    @property
    def width(self) -> int:
        """How many tokens both have."""
        return self.source.width + self.answer.width

    def keys(self) -> np.ndarray:
        """Return what both are known by, and where the one ends and the other begins."""
        border = np.full((len(self), 1), self.source.width, np.int64).view(np.uint8)
        return np.concatenate([self.source.keys(), self.answer.keys(), border], axis=1)


class Seq2Seq(Writer):
    """An encoder-decoder that writes texts: a Hugging Face model and its tokenizer.

    It is asked with a source, or with a pair of a source and the beginning of an answer, and explained at the token
    that it would write next. A target is a token's text, where a space in front counts, or its id, or a contrast
    "a - b" of two texts; None is the most likely token. Features are the tokens of both, the source's first.
    """

    features = ("input_ids", "decoder_input_ids")
    noun = "text"

    takes: ClassVar[str] = "input_ids"
    """What the networks that the task is for call their main input."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is no Hugging Face tokenizer.")
        self._refuse_others(model)
        super().__init__(self._read_through(model), name)
        self.tokenizer = tokenizer
        self.vocabulary = AnswerVocabulary(tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self._sources = Text(model, tokenizer, self.name, head=SINGLE_LABEL.name)

    def _read_through(self, model: nn.Module) -> Reading:
        """Return what the network is read through."""
        return NextToken(model)

    def _refuse_others(self, model: nn.Module) -> None:
        """Raise unless the model is an encoder-decoder that writes tokens, and reads what this task gives it."""
        kind = type(model).__name__
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
        if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or head is None:
            raise Error(
                f"model={kind} is not an encoder-decoder that writes tokens: load one with AutoModelForSeq2SeqLM, or "
                "AutoModelForSpeechSeq2Seq for speech."
            )
        main = getattr(model, "main_input_name", None)
        if main != self.takes:
            raise Error(
                f"model={kind} reads {main}, {type(self).__name__} gives {self.takes}: use conserva.Seq2Seq for texts "
                "and conserva.Speech for speech."
            )

    @property
    def classes(self) -> int:
        """How many tokens the model scores."""
        weight: Tensor = self.network.get_output_embeddings().weight  # type: ignore[operator]
        return weight.shape[0]

    @property
    def longest_answer(self) -> int | None:
        """How many tokens the decoder takes; None where there is no limit."""
        config = self.network.config.get_text_config(decoder=True)  # type: ignore[union-attr, operator]
        limits = [getattr(config, name, None) for name in _ANSWER_LIMITS]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    @property
    def start(self) -> tuple[int, ...]:
        """What every answer begins with: the decoder's start token, and what the model is told to write first."""
        settings = [getattr(self.network, "generation_config", None), self.network.config]

        def named(name: str) -> int | None:
            found = (getattr(one, name, None) for one in settings)
            return next((int(one) for one in found if one is not None), None)

        first = named("decoder_start_token_id")
        first = named("bos_token_id") if first is None else first
        if first is None:
            raise Error(
                f"{self.name} does not say what an answer begins with: set decoder_start_token_id in its "
                "generation_config."
            )
        forced = named("forced_bos_token_id")
        return (first,) if forced is None or forced == first else (first, forced)

    def is_spaced(self, encoded: Any) -> bool:
        return not encoded.special[-1]  # an answer that has not begun begins without one

    def is_source(self, given: Any) -> bool:
        """Return whether something is a source by itself, without an answer so far."""
        return isinstance(given, str)

    def is_one(self, given: Any) -> bool:
        is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)
        return self.is_source(given) or (is_pair and self.is_source(given[0]))

    def labelled(self, data: Any) -> Labelled:
        """Return sources, or pairs of source and answer so far, each with the next token where it is given.

        That is a file, sources alone, or pairs of input and next token: (source, token) or ((source, so far), token).
        """
        if isinstance(data, Labelled):
            return data
        if isinstance(data, (str, Path)):
            return words_in(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} holds no {self.noun}s: give a file, a list of {self.noun}s, or a list of "
                f"({self.noun}, next token)."
            )
        if all(map(self.is_source, data)):
            return Labelled(tuple(data), None, f"{self.noun}s")
        if all(isinstance(one, (tuple, list)) and len(one) == 2 and self.is_one(one[0]) for one in data):
            return Labelled(tuple(one for one, _ in data), tuple(label for _, label in data), f"{self.noun}s")
        raise Error(
            f"data is neither a list of {self.noun}s nor one of ({self.noun}, next token) or (({self.noun}, answer so "
            "far), next token): its entries differ."
        )

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPair:
        """Turn a source and an answer so far into tokens; with `truncate` a long source is cut, never the answer."""
        source, answer = given if self.is_one(given) and not self.is_source(given) else (given, "")
        if not self.is_source(source):
            raise Error(
                f"{given!r:.60} is not a {self.noun} for {self.name}: give a {self.noun}, or a pair ({self.noun}, "
                "answer so far)."
            )
        tokens = self.vocabulary.pieces(answer) if answer else []
        return self.pair(self.encode_source(source, truncate), (*self.start, *tokens))

    def encode_source(self, source: Any, truncate: bool) -> Encoded:
        """Turn a source into features."""
        return self._sources.encode(source, truncate=truncate)

    def pair(self, source: Encoded, answer: tuple[int, ...]) -> EncodedPair:
        """Put a source and the tokens of an answer together, those that every answer begins with among them."""
        most = self.longest_answer
        if most is not None and len(answer) > most:
            raise Error(
                f"The answer so far to {source.text[:40]!r} has {len(answer)} tokens with those that it begins with, "
                f"the model takes {most}: shorten it."
            )
        texts = tuple(map(self.vocabulary.text, answer))
        own = len(self.start)
        special = tuple(i < own or token in self._special for i, token in enumerate(answer))
        tokens = self.source_texts(source)
        words = (*source.words, *words_of(texts, special))
        return EncodedPair(source.text, (*tokens, *texts), (*source.special, *special), words, source, answer)

    def source_texts(self, source: Any) -> tuple[str, ...]:
        """Return what the features of a source are called: here its tokens, with the spaces before words."""
        return tuple(map(self.vocabulary.text, source.ids))

    def batch(self, encoded: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Put pairs side by side, sources and answers each padded on the right to their longest."""
        ids, mask = _side_by_side([np.array([one.answer]) for one in encoded], self._pad)
        return self._on_device(
            {
                **self.source_batch([one.source for one in encoded]),
                "decoder_input_ids": ids,
                "decoder_attention_mask": mask,
                "read": np.array([len(one.answer) - 1 for one in encoded]),
            }
        )

    def source_batch(self, sources: Sequence[Any]) -> dict[str, np.ndarray]:
        """Put sources side by side."""
        ids, mask = _side_by_side([np.array([one.ids]) for one in sources], self._pad)
        return {"input_ids": ids, "attention_mask": mask}

    @property
    def _pad(self) -> int:
        """The token that pads, which nothing looks at: any will do."""
        return self.tokenizer.pad_token_id or 0

    def _on_device(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        device, dtype = next((one.device, one.dtype) for one in self.network.parameters())
        found = {name: torch.from_numpy(np.ascontiguousarray(x)).to(device) for name, x in arrays.items()}
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in found.items()}

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        """Return the mask: tokens are hidden where they may be, since few models have one that says nothing."""
        hidden = "drop" if "drop" in preferred else None
        return mask_of(self.tokenizer, given or hidden, preferred)

    def masked(self, encoded: EncodedPair, kept: np.ndarray, mask: str) -> Any:
        border, kept = encoded.parts[0], kept | np.array(encoded.fixed)
        source = masked(self.tokenizer, np.array(encoded.source.ids), kept[:, :border], mask)
        return PairRows(source, masked(self.tokenizer, np.array(encoded.answer), kept[:, border:], mask))

    def stack(self, parts: Sequence[Any]) -> dict[str, Tensor]:
        source = [part.source for part in parts]
        ids, _ = _side_by_side([one.ids for one in source], self._pad)
        seen, _ = _side_by_side([one.attention for one in source], 0)
        return self._on_device({"input_ids": ids, "attention_mask": seen, **self.stacked_answers(parts)})

    def stacked_answers(self, parts: Sequence[Any]) -> dict[str, np.ndarray]:
        """Put the answers of rows side by side, with tokens taken away, and the place of each that is read."""
        answers = [part.answer for part in parts]
        ids, _ = _side_by_side([one.ids for one in answers], self._pad)
        seen, _ = _side_by_side([one.attention for one in answers], 0)
        read = np.concatenate([np.full(len(one), one.width - 1) for one in answers])
        return {"decoder_input_ids": ids, "decoder_attention_mask": seen, "read": read}

    def generated(self, encoded: EncodedPair, tokens: int) -> list[int]:
        """Return what the network writes after the answer so far: the most likely token each time.

        It ends with the token that ends an answer, unless there are more tokens than asked for.
        """
        from transformers.generation.utils import GenerationMixin

        if not isinstance(self.network, GenerationMixin):
            raise Error(f"{type(self.network).__name__} does not generate: give the answer.")
        so_far, most = len(encoded.answer), self.longest_answer
        # One more than asked for, since some models are told to end with the last.
        room = tokens + 1 if most is None else min(tokens + 1, most - so_far)
        if room < 1:
            raise Error(
                f"The answer so far has {so_far} tokens, as many as the model takes: there is room for no more."
            )
        inputs = self.batch([encoded])
        given = {**self.network_source(inputs), "decoder_input_ids": inputs["decoder_input_ids"]}
        # As all networks generate: Whisper's own way cuts recordings up and chooses among several answers.
        generate: Any = GenerationMixin.generate
        with untouched(self.network), quiet_loading(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # settings for beams and sampling, which other generations use
            settings = greedy(self.network, room)
            found = generate(self.network, generation_config=settings, stopping_criteria=[interruptible], **given)
        written: list[int] = found[0, so_far:].tolist()
        return written[:tokens]

    def network_source(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the source of a batch as the network itself takes it."""
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def _side_by_side(arrays: Sequence[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of rows x tokens under each other, padded on the right to the longest; and where they are real."""
    width = max(one.shape[1] for one in arrays)
    rows = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=pad) for one in arrays]
    real = np.repeat([np.arange(width) < one.shape[1] for one in arrays], [len(one) for one in arrays], axis=0)
    return np.concatenate(rows), real.astype(np.int64)
