"""`Explanation`: the score of every feature of one input, with the ledger of the explained output."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from ..engine.ledger import Ledger
from .picture import picture_flaws
from .result import Result
from .schema import Count, Share, uneven, unsummed
from .table import data_frame, score_columns

_SENTENCE_END = re.compile(
    r"""(?<!\b[A-Z])(?<!\b[DM]r)(?<!\bMs)(?<!\bMrs)[.!?…]+["'\u201d\u2019»)\]]*(?=\s+[^a-z\s]|\s*$)"""
    r"|[\u3002\uff01\uff1f]+[」』\u201d\u2019]*"  # full stops of Chinese and Japanese
    r"|\n[^\S\n]*(?=\n)"
)
"""The end of a sentence: a full stop that no small letter follows and no initial or title precedes, or a blank line."""


@dataclass(frozen=True)
class Sink:
    """The attention sink of a language model: its first token, which receives attention that no other token needs."""

    token: str
    score: float
    share: Share
    """Its absolute score divided by the sum of all absolute scores."""
    place: int | None
    """The index of its feature; None after `Explanation.without_sink`."""

    @classmethod
    def of(cls, index: int, features: Sequence[str], scores: Sequence[float]) -> Sink:
        """Return the sink with the feature's score, and its share of all scores."""
        total = sum(map(abs, scores))
        return cls(features[index], scores[index], abs(scores[index]) / total if total else 0.0, index)


@dataclass(frozen=True)
class ClassScore:
    """The output of a model for one of its classes."""

    label: str
    output: float
    probability: Share | None
    """None if the outputs are not classes, as in a regression."""


@dataclass(frozen=True)
class Window:
    """A part of a text that is longer than the model's maximum length: features `first` to `last - 1`."""

    first: Count
    last: Count
    output: float
    """The model's output for the window by itself."""


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """The explanation of one output: a signed score for every feature, in the unit of the output.

    Examples
    --------
    >>> one = conserva.explain(conserva.load(), "a joy.")
    >>> one.features
    ('[CLS]', 'a', 'joy', '.', '[SEP]')
    >>> one.merged().visible().features
    ('a', 'joy', '.')
    """

    _schema = "conserva/explanation/1"
    _noun = "explanation"
    _in_repr = ("target", "output", "method", "model")

    features: tuple[str, ...]
    scores: tuple[float, ...]
    special: tuple[bool, ...]
    """Which features are not part of the user's input: a tokenizer's special tokens, a graph's virtual node."""
    words: tuple[int | None, ...]
    """The index of the word in the text, or of the node in the graph, that each feature belongs to."""
    text: str
    """The input as text, or its name."""
    target: str
    output: float
    probability: Share | None
    """The probability of the target, if it is a single class."""
    ledger: Ledger[float] | None
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] | None = None
    """What to draw the features on, if they are not words. `kind` is one of: "molecule" with its `smiles`, where
    feature i belongs to atom words[i]; "superpixels" with an `image` (rows of pixels, 0 to 255) and the `regions`, the
    superpixel of each pixel; "image" with an `image` (a base64-encoded PNG) and the `grid` (rows, columns) of its
    patches."""
    sections: tuple[tuple[str, Count], ...] = ()
    """For tasks with several inputs: the name of each input and its number of features, in order."""
    sink: Sink | None = None
    """The attention sink of a language model."""
    offsets: tuple[tuple[Count, Count] | None, ...] = ()
    """The start and end characters of each feature in `text`: `text[start:end]`. None for features that are not part of
    `text`, such as special tokens. Offsets of neighbouring tokens overlap where a character has several tokens."""
    unknown: tuple[bool, ...] = ()
    """Which features are the tokenizer's unknown token, which stands for text that is not in its vocabulary."""
    classes: tuple[ClassScore, ...] = ()
    """The outputs of the model's classes, the highest first: at most ten, and the target's."""
    windows: tuple[Window, ...] = ()
    """If the text was explained in windows, each of them. `output` is the mean of their outputs."""

    def __post_init__(self) -> None:
        fill_missing(self)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row per feature.

        The columns are `feature`, `score`, `start` and `end` (its characters in `text`), `special`, `word` (the index
        of its word), and `section` (the name of its input, if there are several).

        Examples
        --------
        >>> table = conserva.explain(conserva.load(), "a joy.").to_pandas()
        >>> list(table.columns)
        ['feature', 'score', 'start', 'end', 'special', 'word', 'section']
        """
        return data_frame(score_columns(self), "Explanation.to_pandas()")

    def to_shap(self) -> Any:
        """Return a `shap.Explanation`, for shap's plots: `shap.plots.text(one.to_shap())`.

        `values` are the scores and `base_values` the rest of the output: positions, biases and gap, and the scores of
        features that `visible` or `without_sink` left out. Needs `pip install 'conserva[shap]'`.

        Returns
        -------
        shap.Explanation
            Its `data` are the features as they are written in the text, its `feature_names` those of the tokenizer,
            and its `output_names` is the target.
        """
        return self._renderers["shap"](self)

    def merged(self) -> Explanation:
        """Return a copy in which the subword tokens of a word are one feature, with the sum of their scores."""
        groups: list[list[int]] = []
        borders = set(itertools.accumulate(count for _, count in self.sections))
        for i, word in enumerate(self.words):
            if groups and word is not None and self.words[groups[-1][-1]] == word and i not in borders:
                groups[-1].append(i)
            else:
                groups.append([i])
        return self._of(groups)

    def sentences(self) -> Explanation:
        """Return a copy in which the tokens of a sentence are one feature, with the sum of their scores.

        Features without offsets remain single features.
        """
        words = self.merged()
        ends = [match.end() for match in _SENTENCE_END.finditer(self.text)]
        borders = list(itertools.accumulate(count for _, count in words.sections))
        groups: list[list[int]] = []
        last: tuple[int, int] | None = None
        for i, span in enumerate(words.offsets):
            here = None if span is None else (bisect.bisect_right(borders, i), bisect.bisect_right(ends, span[0]))
            if here is not None and here == last:
                groups[-1].append(i)
            else:
                groups.append([i])
            last = here
        whole = words._of(groups)
        spelled = (
            feature if span is None else self.text[span[0] : span[1]]
            for feature, span in zip(whole.features, whole.offsets, strict=True)
        )
        return replace(whole, features=tuple(spelled))

    def whole_characters(self) -> Explanation:
        """Return a copy in which tokens that share a character of the text are one feature, with their sum.

        The tokens of byte-level tokenizers may be parts of a character, such as an emoji.
        """
        groups: list[list[int]] = []
        last: tuple[int, int] | None = None
        for i, span in enumerate(self.offsets):
            if span is None or span[0] == span[1]:
                groups.append([i])
                last = None
            elif last is not None and last[0] <= span[0] < last[1]:
                groups[-1].append(i)
                last = last[0], max(last[1], span[1])
            else:
                groups.append([i])
                last = span
        return self._of(groups)

    def visible(self) -> Explanation:
        """Return a copy without the special features."""
        return self._of([[i] for i, special in enumerate(self.special) if not special])

    def without_sink(self) -> Explanation:
        """Return a copy without the attention sink's feature. `sink` and `ledger` still include its score."""
        if self.sink is None or self.sink.place is None:
            return self
        return self._of([[i] for i in range(len(self.features)) if i != self.sink.place])

    def _of(self, groups: Sequence[Sequence[int]]) -> Explanation:
        """Return a copy with one feature for each group of features, with the sum of their scores."""
        borders = list(itertools.accumulate(count for _, count in self.sections))
        section_of = [bisect.bisect_right(borders, group[0]) for group in groups]
        sink = self.sink
        if sink is not None and sink.place is not None:
            sink = replace(sink, place=next((i for i, group in enumerate(groups) if sink.place in group), None))
        return replace(
            self,
            features=tuple(_joined([self.features[i] for i in group]) for group in groups),
            scores=tuple(sum(self.scores[i] for i in group) for group in groups),
            special=tuple(self.special[group[0]] for group in groups),
            words=tuple(self.words[group[0]] for group in groups),
            offsets=tuple(_covered([self.offsets[i] for i in group]) for group in groups),
            unknown=tuple(any(self.unknown[i] for i in group) for group in groups),
            windows=tuple(_regrouped(window, groups) for window in self.windows),
            sections=tuple((name, section_of.count(i)) for i, (name, _) in enumerate(self.sections)),
            sink=sink,
        )

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "features", "scores", "special", "words", "offsets", "unknown")
        yield from outside(self.offsets, self.text)
        for i, window in enumerate(self.windows):
            if not window.first <= window.last <= len(self.features):
                yield f"windows[{i}] ends at {window.last}, and there are {len(self.features)} features"
        yield from uncovered(self.sections, len(self.features))
        if self.ledger is not None:
            yield from unsummed("ledger", astuple(self.ledger), self.output)
        if self.sink is not None and self.sink.place is not None and not 0 <= self.sink.place < len(self.features):
            yield f"sink.place is {self.sink.place}, and there are {len(self.features)} features"
        yield from picture_flaws(self)


def fill_missing(result: Any) -> None:
    """Fill the fields `offsets` and `unknown` of a result without them, as saved by earlier versions."""
    for name, value in (("offsets", None), ("unknown", False)):
        if not getattr(result, name):
            object.__setattr__(result, name, (value,) * len(result.features))


def outside(offsets: Sequence[tuple[int, int] | None], text: str) -> Iterator[str]:
    """Yield a flaw for each pair of offsets that is not a part of the text."""
    for i, span in enumerate(offsets):
        if span is not None and not span[0] <= span[1] <= len(text):
            yield f"offsets[{i}] is {list(span)}, and text has {len(text)} characters"


def uncovered(sections: Sequence[tuple[str, int]], many: int) -> Iterator[str]:
    """Yield a flaw if the sections do not have `many` features in total."""
    if sections and (held := sum(count for _, count in sections)) != many:
        yield f"sections hold {held} features, and there are {many}"


def _covered(spans: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the start of the first and the end of the last span."""
    known = [span for span in spans if span is not None]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def _regrouped(window: Window, groups: Sequence[Sequence[int]]) -> Window:
    """Return a window over groups of features: those with at least one feature in it."""
    inside = [i for i, group in enumerate(groups) if any(window.first <= feature < window.last for feature in group)]
    return replace(window, first=inside[0] if inside else 0, last=inside[-1] + 1 if inside else 0)


def _joined(pieces: Sequence[str]) -> str:
    """Join the subword tokens of a word, without WordPiece's "##"."""
    return pieces[0] + "".join(piece.removeprefix("##") for piece in pieces[1:])
