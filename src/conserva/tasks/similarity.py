"""Sentence encoders, explained by the similarity of two texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..datasets import Labelled
from ..errors import Error
from .encoded_text import SECTIONS, EncodedText
from .fingerprint import fingerprint
from .masking import TextRows
from .model_kind import ModelKind
from .output_heads import SINGLE_LABEL
from .reading import Answer, Reading, at_positions
from .sentence_files import modules_of, poolings_of, settings_of, tokenizer_of, truncation_of
from .task import Encoded, Task
from .text import Text
from .user_inputs import labelled_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Self

POOLINGS = ("mean", "cls", "lasttoken")
"""How a text becomes a vector: the mean of the last hidden states, or that of the first or of the last token."""

SCORES = {"cosine": "cosine similarity", "dot": "dot product"}
"""Similarity measure -> its name in results."""

_OTHER = "other_"
"""The prefix of the inputs of the second text."""


@dataclass(frozen=True)
class EncodedPair(Encoded):
    """Two texts, tokenized separately."""

    first: EncodedText = field(repr=False)
    second: EncodedText = field(repr=False)

    @property
    def parts(self) -> tuple[int, ...]:
        return (len(self.first), len(self.second))

    @property
    def offsets(self) -> tuple[tuple[int, int] | None, ...]:
        start = len(self.text) - len(self.second.text)
        shifted = (None if span is None else (start + span[0], start + span[1]) for span in self.second.offsets)
        return (*self.first.offsets, *shifted)

    @property
    def key(self) -> str:
        return f"{self.first.key} {self.second.key}"

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        return ((SECTIONS[0], len(self.first)), (SECTIONS[1], len(self.second)))


@dataclass(frozen=True)
class PairRows:
    """Two texts with different tokens removed in each row."""

    first: TextRows
    second: TextRows

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice | np.ndarray) -> PairRows:
        return PairRows(self.first[rows], self.second[rows])

    @property
    def width(self) -> int:
        """The number of tokens of both texts."""
        return self.first.width + self.second.width

    def keys(self) -> np.ndarray:
        """Return the keys of both texts, with the length of the first."""
        border = np.full((len(self), 1), self.first.width).view(np.uint8)
        return np.concatenate([border, self.first.keys(), self.second.keys()], axis=1)


class TextSimilarity(Reading):
    """A text encoder whose output is the similarity of two texts."""

    def __init__(self, network: nn.Module, pooling: str, score: str, layers: Sequence[nn.Module] = ()) -> None:
        super().__init__(network)
        self.pooling, self.score, self.layers = pooling, score, nn.Sequential(*layers)
        self.layers.training = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        other_input_ids: Tensor,
        other_attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        other_token_type_ids: Tensor | None = None,
    ) -> Answer:
        """Return the similarity of each pair of texts."""
        # Both factors depend on the input, so the rule for products applies; normalisation is treated as a norm layer.
        first = self.vector(input_ids, attention_mask, token_type_ids)
        second = self.vector(other_input_ids, other_attention_mask, other_token_type_ids)
        if self.score == "cosine":
            first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        return Answer((first * second).sum(-1, keepdim=True))

    def vector(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the vectors of texts."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.ask(input_ids=input_ids, attention_mask=attention_mask, **types)
        states = getattr(output, "last_hidden_state", None)
        if not isinstance(states, Tensor):
            raise Error(f"{type(self.network).__name__} returns no last_hidden_state: load it with AutoModel.")
        embedding: Tensor = self.layers(self._pooled(states, attention_mask))
        return embedding

    def _pooled(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "lasttoken":
            positions = torch.arange(states.shape[1], device=states.device)
            return at_positions(states, (positions * attention_mask).argmax(1))
        weights = attention_mask.to(states) / attention_mask.sum(1, keepdim=True)
        return (states * weights.unsqueeze(-1)).sum(1)


class Similarity(Task):
    """A sentence encoder and its tokenizer; an input is (text, text).

    What is explained is the cosine similarity of the two embeddings, or their dot product. Under
    `exact`, the default, each text is attributed half of the product, and the ledger closes. Rule sets that
    differentiate products count it twice.

    Parameters
    ----------
    model
        An encoder without a head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.
    pooling
        How the embedding of a text is computed from its tokens: "mean" of all, "cls", the first one, or "lasttoken".
    score
        What is explained: "cosine" or "dot".
    layers
        Modules that the embedding passes after the pooling, such as a projection, in evaluation mode.

    Examples
    --------
    >>> task = conserva.Similarity(model, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, ("a cat", "a small cat")).output  # doctest: +SKIP
    0.83
    """

    kind = ModelKind("sentence encoder", "AutoModel", "MODEL_MAPPING_NAMES")

    features = ("input_ids", "other_input_ids")
    noun = "pair of texts"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        pooling: str = "mean",
        score: str = "cosine",
        layers: Sequence[nn.Module] = (),
    ) -> None:
        if pooling not in POOLINGS:
            raise Error(f"pooling={pooling!r} is unknown: choose one of {', '.join(POOLINGS)}.")
        if score not in SCORES:
            raise Error(f"score={score!r} is unknown: choose one of {', '.join(SCORES)}.")
        self.text = Text(model, tokenizer, head=SINGLE_LABEL.name)
        self.text.checks_padding = False  # the model returns no logits
        super().__init__(TextSimilarity(model, pooling, score, layers), name)
        self.score = score

    @classmethod
    def from_files(cls, model: nn.Module, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        """Return the task of a sentence encoder, with the pooling in its files; others than those known are refused."""
        modules = modules_of(source, name)
        poolings = poolings_of(source, modules, name)
        if others := sorted(set(modules) - {"Transformer", "Pooling", "Normalize"}):
            raise Error(
                f"model={name!r} has the modules {', '.join(others)}, which are not supported in files: give "
                "conserva.load the SentenceTransformer itself."
            )
        score, layers = _score(source, name), truncation_of(source, name)
        if "Normalize" in modules and score == "dot":
            if layers:  # the dot product of normalised vectors of which a part is left out is no cosine
                raise Error(
                    f"model={name!r} truncates normalised embeddings, which is not supported in files: give "
                    "conserva.load the SentenceTransformer itself."
                )
            score = "cosine"
        return cls(
            model,
            tokenizer_of(source, options, name),
            name,
            pooling=known_pooling(poolings, f"model={name!r}"),
            score=score,
            layers=layers,
        )

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        return self.text.preprocessors

    @property
    def options(self) -> Mapping[str, Any]:
        assert isinstance(self.model, TextSimilarity)
        own = {"pooling": self.model.pooling, "score": self.score}
        layers = self.model.layers
        return {**own, "layers": f"{layers!r} {fingerprint(layers)}"} if len(layers) else own

    @property
    def labels(self) -> dict[str, int]:
        """Empty: the output is a number."""
        return {}

    @property
    def classes(self) -> int:
        """1: the output is a number."""
        return 1

    def is_single(self, given: Any) -> bool:
        return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)

    def labelled(self, data: Any) -> Labelled:
        """Return a list of pairs of texts as data."""
        return labelled_inputs(self, data, "(text, text)")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedPair:
        """Tokenize two texts. One that is too long raises an `Error`, or with `truncate` is truncated."""
        return self.encode_all([given], truncate=truncate)[0]

    def encode_all(self, many: Sequence[Any], *, truncate: bool = False) -> list[EncodedPair]:
        """Tokenize pairs of texts, all in one call of the tokenizer."""
        for given in many:
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise Error(f"{given!r:.60} is not a pair of texts: give (text, text).")
            for text in given:
                if not isinstance(text, str):
                    raise Error(f"text={text!r:.60} is not a string: give (text, text).")
        each = self.text.encode_all([text for pair in many for text in pair], truncate=truncate)
        return [_pair(first, second) for first, second in zip(each[::2], each[1::2], strict=True)]

    def resolve_target(self, target: Any, encoded: Any) -> Any:
        """Return the index of the only output; a target cannot be chosen."""
        if target is not None:
            raise Error(f"target={target!r}: the {SCORES[self.score]} is a single number, so leave the target out.")
        return (0,)

    def target_name(self, target: Any, index: int | None) -> str:
        return SCORES[self.score]

    def padded(self, length: int) -> int:
        return self.text.padded(length)

    def batch(self, encoded: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Return a batch in which first and second texts are padded on the right to the longest of each."""
        first, second = [pair.first for pair in encoded], [pair.second for pair in encoded]
        return _both(self.text.batch(first), self.text.batch(second))

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        return self.text.mask(given, preferred)

    def masked(self, encoded: EncodedPair, kept: np.ndarray, mask: str) -> PairRows:
        border = len(encoded.first)
        first = self.text.masked(encoded.first, kept[:, :border], mask)
        return PairRows(first, self.text.masked(encoded.second, kept[:, border:], mask))

    def stack(self, parts: Sequence[PairRows]) -> dict[str, Tensor]:
        first, second = [part.first for part in parts], [part.second for part in parts]
        return _both(self.text.stack(first), self.text.stack(second))


def known_pooling(poolings: Sequence[str], given: str) -> str:
    """Return the pooling of a sentence encoder; raise an `Error` if there are several, or if it is not supported."""
    if len(poolings) != 1 or poolings[0] not in POOLINGS:
        raise Error(
            f"{given} uses the pooling {', '.join(poolings) or 'of no kind'}: only one of {', '.join(POOLINGS)} is "
            "supported. Wrap it in a module and use conserva.relevance instead."
        )
    return poolings[0]


def _score(source: str, name: str) -> str:
    """Return the measure of similarity that a sentence encoder was saved with, by default the cosine."""
    score = settings_of(source).get("similarity_fn_name")
    if score is None:
        return "cosine"
    if score not in SCORES:
        raise Error(f"model={name!r} has the similarity {score!r:.60}: supported are {', '.join(SCORES)}.")
    return str(score)


def _pair(first: EncodedText, second: EncodedText) -> EncodedPair:
    tokens, special, words = first.tokens + second.tokens, first.special + second.special, first.words + second.words
    unknown = first.unknown + second.unknown
    return EncodedPair(f"{first.text} | {second.text}", tokens, special, words, first, second, unknown=unknown)


def _both(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**first, **{f"{_OTHER}{name}": x for name, x in second.items()}}
