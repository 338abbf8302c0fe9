"""Text classification."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets import Labelled, read_labelled
from ..datasets.graph_catalogue import GRAPH_DATASETS
from ..engine.inputs import parameters_of
from ..engine.untouched import untouched
from ..errors import Error
from .classifier import Classifier
from .encoded_text import SECTIONS, EncodedText, EncodedTextPair
from .masking import TextRows, mask_of, masked
from .model_kind import ModelKind
from .output_heads import ORDINAL, ClassScores
from .sentence_files import settings_of, tokenizer_of
from .text_pairs import TextPair, border_of, is_text_pair, labelled_of
from .tokenizing import call_tokenizer
from .user_inputs import refuse_surrogates
from .vocabulary import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Self

ROUNDED_TO = 16
"""On a GPU, the lengths of batches are rounded up to a multiple of this."""

_UNBOUNDED = 1_000_000
"""Tokenizers without a limit report a very large number instead."""

PADDING_CHANGES = {"full": 1e-4, "half": 0.05}
"""How much padding may change the logits, relative to the largest: rounding."""

_OF_PAIRS = re.compile("entail|contradict|paraphras", re.IGNORECASE)
"""Labels that are about two texts."""

_OF_ENTAILMENT = re.compile("entail|contradict", re.IGNORECASE)
ENTAILMENT = ("premise", "hypothesis")
"""The names of the two texts, for labels of entailment."""


class _TokenTexts(dict[int, str]):
    """A cache of the texts of tokens, decoded: byte-level tokenizers encode characters in their vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        token: str | None = self._tokenizer.convert_ids_to_tokens([token_id])[0]
        if token is None:  # an embedding table may have more rows than the tokenizer has tokens
            return f"<{token_id}>"
        plain = self._tokenizer.convert_tokens_to_string([token]).strip()
        self[token_id] = plain if plain and "\ufffd" not in plain else token
        return self[token_id]


class Text(Classifier):
    """A text classifier or regressor: a Hugging Face model and its tokenizer.

    An input is a text, or a pair of texts as a tuple of two strings, which the model reads as one sequence.

    Parameters
    ----------
    model
        A model with a sequence classification head, in evaluation mode.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.
    head
        The kind of output head, if the configuration does not describe it: "single_label", "multi_label", "binary",
        "regression" or "ordinal".

    Examples
    --------
    >>> bundled = conserva.load()
    >>> task = conserva.Text(bundled.model, bundled.tokenizer, "my model")
    >>> conserva.explain(task, "a joy.").target
    'positive'
    """

    kind = ModelKind(
        "text classifier",
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        classifies=True,
    )

    features = ("input_ids",)
    noun = "text"
    takes_pairs: ClassVar[bool] = True
    """Whether an input can be a pair of texts."""
    takes_ordinal = True
    takes_windows = True
    checks_padding: bool = True
    """Whether the logits of a text and of the padded text are compared; those of classifiers have the same shape."""
    _ignores_padding = False

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        *,
        head: str | None = None,
    ) -> None:
        super().__init__(model, name, head)
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise Error(f"tokenizer={tokenizer!r} is not a Hugging Face tokenizer.")
        self.tokenizer = tokenizer
        self._token_texts = _TokenTexts(tokenizer)
        if self.head is ORDINAL:
            self.model = ClassScores(model, self._thresholds())

    @classmethod
    def from_files(cls, model: nn.Module, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        settings = settings_of(source)
        config: Any = model.config
        if "activation_fn" in settings and not hasattr(config, "sentence_transformers"):
            config.sentence_transformers = {"activation_fn": settings["activation_fn"]}  # where older versions save it
        return cls(model, tokenizer_of(source, options, name), name, **how)

    def _thresholds(self) -> int:
        """Return the number of logits, by a call of the model: `num_labels` may count classes or thresholds."""
        device = next(self.model.parameters()).device
        inputs = self.tokenizer("a", return_tensors="pt", return_token_type_ids=False).to(device)
        with untouched(self.model), torch.no_grad():
            return int(self.model(**inputs).logits.shape[-1])

    @cached_property
    def needs_pairs(self) -> bool:
        """Whether every input must be a pair of texts: if a label is about two, such as "entailment"."""
        return self.takes_pairs and any(map(_OF_PAIRS.search, self.labels))

    @property
    def longest(self) -> int:
        """The maximum number of tokens of an input."""
        limits = [getattr(self.tokenizer, "model_max_length", _UNBOUNDED), self._positions]
        return min(int(limit) for limit in limits if limit and limit > 0)

    @cached_property
    def _positions(self) -> int:
        """The number of positions of the model."""
        try:
            many = int(getattr(self.network.config, "max_position_embeddings", None) or _UNBOUNDED)
        except (AttributeError, NotImplementedError):  # XLNet's configuration raises: it has no limit
            return _UNBOUNDED
        for name, module in self.network.named_modules():
            pad, table = getattr(module, "padding_idx", None), getattr(module, "weight", None)
            if "position" in name and isinstance(pad, int) and isinstance(table, Tensor) and len(table) == many:
                return many - pad - 1  # as in RoBERTa, positions begin after the one of the padding
        return many

    @property
    def tells_types(self) -> bool:
        """Whether the model takes token type ids."""
        types = getattr(getattr(self.network, "config", None), "type_vocab_size", None)
        names = getattr(self.tokenizer, "model_input_names", ())
        return "token_type_ids" in names and "token_type_ids" in parameters_of(self.network) and types not in (0, 1)

    def is_single(self, given: Any) -> bool:
        return isinstance(given, str) or (self.takes_pairs and is_text_pair(given))

    def as_input(self, given: Any) -> Any:
        """Convert the forms of a pair that other libraries use: [text, text] and {"text": ..., "text_pair": ...}."""
        if not self.takes_pairs:
            return given
        if isinstance(given, Mapping) and set(given) == {"text", "text_pair"}:
            return given["text"], given["text_pair"]
        if isinstance(given, (list, np.ndarray)) and len(given) == 2 and all(isinstance(text, str) for text in given):
            return str(given[0]), str(given[1])
        return given

    def labelled(self, data: Any) -> Labelled:
        """Return texts with their labels, from a file or dataset name, texts, or (text, label) pairs."""
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data in GRAPH_DATASETS:
            raise Error(
                f"data={data!r} is a dataset of graphs, and {self.name} takes texts: give a graph model, or a file of "
                "texts."
            )
        if isinstance(data, (str, Path)):
            return read_labelled(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(f"data={data!r} contains no texts: give a file, a list of texts, or a list of (text, label).")
        if self.takes_pairs and is_text_pair(data):
            raise Error(
                f"data={data!r:.60} is ambiguous, a pair or two texts: give [((text, text), None)], or a list of texts."
            )
        if all(isinstance(row, str) for row in data):
            return Labelled(tuple(data), None, "texts")
        if all(isinstance(row, (tuple, list)) and len(row) == 2 for row in data):
            if self.takes_pairs:
                return labelled_of(data, list(self.labels))
            return Labelled(tuple(text for text, _ in data), tuple(label for _, label in data), "texts")
        raise Error("data is neither a list of texts nor a list of (text, label): its entries differ.")

    def encode(self, text: str | TextPair, *, truncate: bool = False) -> EncodedText:
        """Tokenize a text or a pair. One that is too long raises an `Error`, or with `truncate` is truncated."""
        return self.encode_all([text], truncate=truncate)[0]

    def encode_all(self, texts: Sequence[Any], *, truncate: bool = False) -> list[EncodedText]:
        """Tokenize all texts in one call of the tokenizer, and all pairs in another.

        In a pair that is too long, the longer text is truncated first.
        """
        return self._encode_all(texts, truncate, self.longest)

    def encode_whole(self, texts: Sequence[Any]) -> list[EncodedText]:
        """Tokenize texts and pairs of any length, to be split into windows."""
        return self._encode_all(texts, False, sys.maxsize)

    def _encode_all(self, texts: Sequence[Any], truncate: bool, longest: int) -> list[EncodedText]:
        for i, text in enumerate(texts):
            self._check(text, "text" if len(texts) == 1 else f"inputs[{i}]")
        encoded: dict[int, EncodedText] = {}
        for pairs in (False, True):
            rows = [i for i, text in enumerate(texts) if isinstance(text, tuple) == pairs]
            encoded.update(zip(rows, self._tokenized([texts[i] for i in rows], pairs, truncate, longest), strict=True))
        return [encoded[i] for i in range(len(texts))]

    def _check(self, text: Any, given: str = "text") -> None:
        """Raise an `Error` unless an input is a text or, if the task takes pairs, a pair of texts."""
        if not self.is_single(text):
            if not isinstance(text, (tuple, list)):
                raise Error(f"{given}={text!r:.60} is not a string: {self.name} takes texts.")
            takes = "a text, or a pair of texts as (text, text)" if self.takes_pairs else "a text by itself"
            raise Error(f"{given}={text!r:.60}: {self.name} takes {takes}. Give several inputs as a list.")
        if self.needs_pairs and isinstance(text, str):
            raise Error(
                f"{given}={text!r:.60} is one text, but {self.name} compares two: give a pair, as the tuple (text, "
                "text); on the command line, the second text by --with, or its column by --with-column."
            )
        for part in text if isinstance(text, tuple) else (text,):
            if not part.strip():
                where = "" if part is text else f" in the pair {text!r:.60}"
                raise Error(f"text={part!r}{where} is empty: there is nothing to explain.")
            refuse_surrogates("text", part)

    def _tokenized(self, texts: Sequence[Any], pairs: bool, truncate: bool, longest: int) -> list[EncodedText]:
        """Return tokenized texts, or pairs of texts."""
        if not texts:
            return []
        most = longest if truncate else None
        typed = self.tells_types
        # Not verbose: `_encoded` raises an error for texts that are too long.
        options = {"return_attention_mask": False, "return_token_type_ids": pairs or typed, "verbose": False}
        given = [list(column) for column in zip(*texts, strict=True)] if pairs else [list(texts)]
        output = call_tokenizer(self.tokenizer, *given, truncation=truncate, max_length=most, **options)
        added = special_ids(self.tokenizer)
        encodings = output.encodings if getattr(output, "is_fast", False) else [None] * len(texts)
        names = [" | ".join(text) if pairs else text for text in texts]
        encoded = [
            self._encoded(name, list(ids), added, encoding, longest)
            for name, ids, encoding in zip(names, output["input_ids"], encodings, strict=True)
        ]
        types = output.get("token_type_ids") or [None] * len(texts)
        if pairs:
            encoded = [self._as_pair(*pair) for pair in zip(texts, encoded, types, strict=True)]
        if not typed:
            return encoded
        # For models with a table of types, 0 is the default.
        has_default = hasattr(getattr(self.network, "config", None), "type_vocab_size")
        return [
            text if own is None or not (pairs or any(own) or not has_default) else replace(text, token_types=tuple(own))
            for text, own in zip(encoded, types, strict=True)
        ]

    def _as_pair(self, texts: TextPair, encoded: EncodedText, types: Sequence[int] | None) -> EncodedTextPair:
        """Return an encoded pair with the border between its texts; `types` are its token types."""
        border = border_of(encoded.encoding, types)
        if border is None and encoded.encoding is None:
            raise Error(
                f"The tokenizer of {self.name} does not return which text of a pair a token belongs to: load a fast "
                "one, with AutoTokenizer."
            )
        if border is None or all(encoded.special[:border]) or all(encoded.special[border:]):
            raise Error(
                f"The pair {texts!r:.60} has a text without tokens in the tokenizer's vocabulary, or one that was "
                "truncated entirely: both texts must have tokens."
            )
        names = ENTAILMENT if any(map(_OF_ENTAILMENT.search, self.labels)) else SECTIONS
        start = len(encoded.text) - len(texts[1])
        return EncodedTextPair(**vars(encoded), border=border, start=start, names=names)

    def _encoded(self, text: str, ids: list[int], added: Collection[int], encoding: Any, longest: int) -> EncodedText:
        """Return a tokenized text.

        `added` has the ids of special tokens; `encoding` is the `Encoding` of a fast tokenizer, or None.
        """
        if len(ids) > longest:
            raise Error(
                f"The text beginning {text[:40]!r} has {len(ids)} tokens, the model takes {longest}: truncate it with "
                "truncate=True (--truncate), or explain it in windows with windows=True (--windows)."
            )
        special = tuple(map(added.__contains__, ids))
        unknown = tuple(token == self.tokenizer.unk_token_id for token in ids)
        if all(map(operator.or_, special, unknown)):
            raise Error(f"text={text!r} has no tokens in the tokenizer's vocabulary: there is nothing to explain.")
        words: Sequence[int | None] = range(len(ids)) if encoding is None else encoding.word_ids
        tokens = tuple(map(self._token_texts.__getitem__, ids))
        return EncodedText(text, tokens, special, tuple(words), tuple(ids), encoding, unknown=unknown)

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        return mask_of(self.tokenizer, given, preferred)

    def masked(self, encoded: EncodedText, kept: np.ndarray, mask: str) -> TextRows:
        return masked(self.tokenizer, np.array(encoded.ids), kept, mask, encoded.token_types)

    def stack(self, parts: Sequence[TextRows]) -> dict[str, Tensor]:
        width = max(part.width for part in parts)
        device = next(self.model.parameters()).device

        def stacked(arrays: list[np.ndarray], pad: int) -> Tensor:
            rows = [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=pad) for array in arrays]
            return torch.from_numpy(np.concatenate(rows)).to(device)

        inputs = {
            "input_ids": stacked([part.ids for part in parts], self.tokenizer.pad_token_id or 0),
            "attention_mask": stacked([part.attention for part in parts], 0),
        }
        if any(part.types is not None for part in parts):
            types = [np.zeros_like(part.ids) if part.types is None else part.types for part in parts]
            inputs["token_type_ids"] = stacked(types, 0)
        self._check_padding(inputs, np.repeat([part.width for part in parts], list(map(len, parts))))
        return inputs

    def padded(self, length: int) -> int:
        """Return a length, rounded up on a GPU to limit the number of shapes: each needs its own kernels and graph."""
        on_gpu = next(self.model.parameters()).is_cuda and self.tokenizer.pad_token_id is not None
        return min(-(-length // ROUNDED_TO) * ROUNDED_TO, max(length, self.longest)) if on_gpu else length

    def batch(self, encoded: Sequence[EncodedText]) -> dict[str, Tensor]:
        """Return a batch, padded on the right to the longest text; a single text is not padded."""
        width = max(map(len, encoded))
        width = self.padded(width) if len(encoded) > 1 else width
        pad = self.tokenizer.pad_token_id
        if pad is None and any(len(text) < width for text in encoded):
            raise Error(f"The tokenizer of {self.name} has no pad token: explain one text at a time.")
        device = next(self.model.parameters()).device
        lengths = np.array([len(text) for text in encoded])
        real = np.arange(width) < lengths[:, None]
        rows = np.full(real.shape, pad or 0)
        rows[real] = np.fromiter(chain.from_iterable(text.ids for text in encoded), np.int64, int(lengths.sum()))
        inputs = {"input_ids": torch.from_numpy(rows), "attention_mask": torch.from_numpy(real.astype(np.int64))}
        if any(text.token_types is not None for text in encoded):
            types = np.zeros_like(rows)
            types[real] = np.fromiter(chain(*(text.token_types or (0,) * len(text) for text in encoded)), np.int64)
            inputs["token_type_ids"] = torch.from_numpy(types)
        # A blocking copy would synchronise with the device.
        inputs = {name: x.to(device, non_blocking=True) for name, x in inputs.items()}
        self._check_padding(inputs, lengths)
        return inputs

    def _check_padding(self, inputs: Mapping[str, Tensor], lengths: np.ndarray) -> None:
        """Raise an `Error` if the output for a text changes when it is padded, as by models that read the last token.

        The first padded batch decides.
        """
        row = int(lengths.argmin())
        if self._ignores_padding or not self.checks_padding or lengths[row] == inputs["input_ids"].shape[1]:
            return
        padded = {name: x[row : row + 1] for name, x in inputs.items()}
        alone = {name: x[:, : lengths[row]] for name, x in padded.items()}
        with untouched(self.model), torch.no_grad():
            scores, others = self.model(**alone).logits.double(), self.model(**padded).logits.double()
        half = next(self.model.parameters()).dtype in (torch.float16, torch.bfloat16)
        change = float((scores - others).abs().max())
        if change > (PADDING_CHANGES["half"] if half else PADDING_CHANGES["full"]) * max(
            1.0, float(scores.abs().max())
        ):
            raise Error(
                f"The output of {self.name} for a text changes by {change:.2g} if the text is padded, so that texts of "
                "different lengths cannot be in one batch: pass batch_tokens=1 (--batch-tokens 1)."
            )
        self._ignores_padding = True
