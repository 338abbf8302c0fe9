"""Collection of mentions from a corpus: texts are read one by one, and texts with mentions are explained in batches.

Only mentions and the texts that contain them are kept in memory, so that a corpus of any size can be read.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .._util.journal import Journal
from ..attribution import Method
from ..errors import Error
from ..explaining.explain import explain_with
from ..replay.recorder import Recorder, recorder_of
from ..results.explanation import Explanation
from ..tasks.encoded_text import EncodedText
from ..tasks.text import Text
from .mentions import Finder, Found
from .result import Mention

NAME = "mentions.jsonl"
"""The file name of a study's journal."""

AT_ONCE = 256
"""The number of texts with mentions that are explained, and written to the journal, at a time."""

_REPORT_EVERY = 1000


@dataclass(frozen=True)
class Corpus:
    """Texts with their labels, read one by one."""

    texts: Iterable[tuple[str, int | None]]
    """The label is 1 for the first class of the contrast, 0 for the second, None for neither or unknown."""
    count: int | None
    """The number of texts, if known."""
    source: str


@dataclass
class Collected:
    """The mentions collected so far."""

    texts: int = 0
    mentions: list[Mention] = field(default_factory=list)
    sentences: dict[int, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    beyond: int = 0
    """The number of mentions in truncated parts of texts."""
    hash: str = ""
    """A hash of all texts read so far."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Add a record of the journal."""
        self.texts, self.hash = line["texts"], line["hash"]
        self.mentions += [Mention(**mention) for mention in line["mentions"]]
        self.sentences.update((int(number), text) for number, text in line["sentences"].items())
        self.left_out.update(line["left_out"])
        self.beyond += line["beyond"]


@dataclass(frozen=True)
class _Waiting:
    """A text with mentions that is not explained yet."""

    number: int
    text: str
    label: int | None
    mentions: Sequence[Found]


class Collector:
    """Finds mentions, explains their texts, and writes the results to a journal."""

    def __init__(
        self,
        task: Text,
        finder: Finder,
        target: str,
        method: Method,
        *,
        truncate: bool = True,
        batch_tokens: int | None = None,
    ) -> None:
        self.task, self.finder, self.target, self.method = task, finder, target, method
        self.truncate, self.batch_tokens = truncate, batch_tokens

    def collect(
        self,
        corpus: Corpus,
        folder: Path | None,
        settings: Mapping[str, Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> Collected:
        """Return all mentions of a corpus; with a folder, an interrupted run is resumed."""
        done = Collected()
        journal = None if folder is None else Journal(folder / NAME, settings, "a bias study")
        try:
            if journal is not None:
                # From the first missing record on, texts are explained again, even if later records exist.
                known = {record["after"]: record for _, record in journal.records}
                while done.texts in known:
                    done.take(known[done.texts])
            with recorder_of(self.task.model) as recorder:
                self._all(corpus, done, journal, progress, recorder)
        finally:
            if journal is not None:
                journal.close()
        return done

    def _all(
        self,
        corpus: Corpus,
        done: Collected,
        journal: Journal | None,
        progress: Callable[[int, int], None] | None,
        recorder: Recorder | None,
    ) -> None:
        texts = iter(corpus.texts)
        read = hashlib.sha256()
        waiting: list[_Waiting] = []
        left_out: Counter[str] = Counter()
        number = 0
        for row in islice(texts, done.texts):
            read.update(_bytes(row))
            number += 1
        if done.texts and (number, read.hexdigest()[:16]) != (done.texts, done.hash):
            raise Error(
                f"{corpus.source} differs from the previous run in the same folder, in its first {done.texts} texts: "
                "choose another folder, or give the same texts."
            )

        def flush() -> None:
            line = {
                "after": done.texts,
                "texts": number,
                "hash": read.hexdigest()[:16],
                "left_out": dict(left_out),
                **self._explain(waiting, recorder),
            }
            if journal is not None:
                journal.append(line)
            done.take(line)
            waiting.clear()
            left_out.clear()

        def report() -> None:
            if progress is not None:
                progress(number, number if corpus.count is None else corpus.count)

        for row in texts:
            read.update(_bytes(row))
            number += 1
            text, label = row
            mentions, not_counted = self.finder.find(text)
            left_out.update(not_counted)
            if mentions:
                waiting.append(_Waiting(number - 1, text, label, mentions))
            if len(waiting) == AT_ONCE:
                flush()
                report()
            elif number % _REPORT_EVERY == 0:
                report()
        if number > done.texts:
            flush()
        report()

    def _explain(self, waiting: Sequence[_Waiting], recorder: Recorder | None) -> dict[str, Any]:
        """Return the mentions of texts with their relevance, as a record of the journal."""
        encoded = [self._encoded(each) for each in waiting]
        texts = [each.text for each in waiting]
        explained = explain_with(recorder, self.task, texts, self.target, self.method, self.truncate, self.batch_tokens)
        assert isinstance(explained, list)
        mentions: list[Mention] = []
        beyond = 0
        for each, tokens, explanation in zip(waiting, encoded, explained, strict=True):
            if not all(map(math.isfinite, (*explanation.scores, explanation.output))):
                raise Error(f"Text {each.number + 1} ({each.text[:40]!r}): {self.method.name} gives nan or inf.")
            inside = [mention for mention in each.mentions if mention.end <= _end_of(tokens)]
            beyond += len(each.mentions) - len(inside)
            mentions += _mentions(each, inside, tokens, explanation)
        kept = {mention.text for mention in mentions}
        return {
            "mentions": [asdict(mention) for mention in mentions],
            "sentences": {str(each.number): each.text for each in waiting if each.number in kept},
            "beyond": beyond,
        }

    def _encoded(self, waiting: _Waiting) -> EncodedText:
        try:
            encoded = self.task.encode(waiting.text, truncate=self.truncate)
        except Error as error:
            raise Error(f"Text {waiting.number + 1}: {error}") from None
        if all(span is None for span in encoded.spans):
            raise Error(
                f"The tokenizer of {self.task.name} does not return offsets of its tokens, which mentions need: load a "
                "fast tokenizer."
            )
        return encoded


def _bytes(row: tuple[str, int | None]) -> bytes:
    return f"{len(row[0])} {row[1]} {row[0]}\n".encode()


def _end_of(tokens: EncodedText) -> int:
    """Return the end character of the last token, after which a text is truncated."""
    return max(span[1] for span in tokens.spans if span is not None)


def _mentions(
    waiting: _Waiting, inside: Sequence[Found], tokens: EncodedText, explanation: Explanation
) -> list[Mention]:
    """Return the mentions of a text with the relevance of their tokens, and its fraction of all words' |relevance|."""
    total = sum(map(abs, explanation.merged().visible().scores))
    mentions = []
    for mention in inside:
        relevance = sum(
            score
            for score, span in zip(explanation.scores, tokens.spans, strict=True)
            if span is not None and span[0] < mention.end and mention.start < span[1]
        )
        mentions.append(
            Mention(
                text=waiting.number,
                start=mention.start,
                end=mention.end,
                entity=mention.entity,
                group=mention.group,
                relevance=relevance,
                share=abs(relevance) / total if total else 0.0,
                output=explanation.output,
                label=waiting.label,
            )
        )
    return mentions
