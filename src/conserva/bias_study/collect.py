"""From a corpus to mentions: texts are read one by one, and those with mentions explained some at a time.

What is kept is what the study is about: the mentions, and the texts that hold them. All other texts are counted and
forgotten, so that a corpus of any length can be read.
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
"""The journal of a study."""

AT_ONCE = 256
"""How many texts are explained together, those of equal length side by side, and written down at once."""

_SAY_EVERY = 1000


@dataclass(frozen=True)
class Corpus:
    """Texts with their labels, read one by one."""

    texts: Iterable[tuple[str, int | None]]
    """The label is 1 for the first class of the contrast, 0 for the second, None for neither or unknown."""
    count: int | None
    """How many there are, if that is known."""
    source: str


@dataclass
class Collected:
    """What was found so far."""

    texts: int = 0
    mentions: list[Mention] = field(default_factory=list)
    sentences: dict[int, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    beyond: int = 0
    """How many mentions stand where texts were cut."""
    hash: str = ""
    """Of all texts that were read."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Add what a line of the journal says."""
        self.texts, self.hash = line["texts"], line["hash"]
        self.mentions += [Mention(**one) for one in line["mentions"]]
        self.sentences.update((int(number), text) for number, text in line["sentences"].items())
        self.left_out.update(line["left_out"])
        self.beyond += line["beyond"]


@dataclass(frozen=True)
class _Waiting:
    """A text that is to be explained."""

    number: int
    text: str
    label: int | None
    found: Sequence[Found]


class Collector:
    """Finds mentions, explains their texts, and keeps a journal of it."""

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
        """Return all mentions of a corpus; with a folder a run that was stopped there goes on where it was."""
        done = Collected()
        journal = None if folder is None else Journal(folder / NAME, settings, "a bias study")
        try:
            if journal is not None:
                # Where a record is missing, the texts from there on are explained again: some may be there already.
                known = {found["after"]: found for _, found in journal.records}
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
        for one in islice(texts, done.texts):
            read.update(_bytes(one))
            number += 1
        if done.texts and (number, read.hexdigest()[:16]) != (done.texts, done.hash):
            raise Error(
                f"{corpus.source} has other texts than the run before, which read {done.texts} in the same folder: "
                "choose another folder, or give the same texts."
            )

        def write_down() -> None:
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

        def say() -> None:
            if progress is not None:
                progress(number, number if corpus.count is None else corpus.count)

        for one in texts:
            read.update(_bytes(one))
            number += 1
            text, label = one
            found, not_counted = self.finder.find(text)
            left_out.update(not_counted)
            if found:
                waiting.append(_Waiting(number - 1, text, label, found))
            if len(waiting) == AT_ONCE:
                write_down()
                say()
            elif number % _SAY_EVERY == 0:
                say()
        if number > done.texts:
            write_down()
        say()

    def _explain(self, waiting: Sequence[_Waiting], recorder: Recorder | None) -> dict[str, Any]:
        """Return the mentions of some texts with their relevance, ready to be written down."""
        encoded = [self._encoded(one) for one in waiting]
        texts = [one.text for one in waiting]
        explained = explain_with(recorder, self.task, texts, self.target, self.method, self.truncate, self.batch_tokens)
        assert isinstance(explained, list)
        mentions: list[Mention] = []
        beyond = 0
        for one, tokens, why in zip(waiting, encoded, explained, strict=True):
            if not all(map(math.isfinite, (*why.scores, why.output))):
                raise Error(f"Text {one.number + 1} ({one.text[:40]!r}): {self.method.name} gives nan or inf.")
            there = [found for found in one.found if found.end <= _reach(tokens)]
            beyond += len(one.found) - len(there)
            mentions += _mentions(one, there, tokens, why)
        kept = {mention.text for mention in mentions}
        return {
            "mentions": [asdict(mention) for mention in mentions],
            "sentences": {str(one.number): one.text for one in waiting if one.number in kept},
            "beyond": beyond,
        }

    def _encoded(self, one: _Waiting) -> EncodedText:
        try:
            found = self.task.encode(one.text, truncate=self.truncate)
        except Error as error:
            raise Error(f"Text {one.number + 1}: {error}") from None
        if all(span is None for span in found.spans):
            raise Error(
                f"The tokenizer of {self.task.name} does not tell which characters its tokens stand for, so mentions "
                "cannot be found among them: load a fast tokenizer."
            )
        return found


def _bytes(one: tuple[str, int | None]) -> bytes:
    return f"{len(one[0])} {one[1]} {one[0]}\n".encode()


def _reach(tokens: EncodedText) -> int:
    """Return where the last token ends: a text that was cut goes on after it."""
    return max(span[1] for span in tokens.spans if span is not None)


def _mentions(one: _Waiting, there: Sequence[Found], tokens: EncodedText, why: Explanation) -> list[Mention]:
    """Return the mentions of a text with the relevance of their tokens, and its share among all words."""
    whole = sum(map(abs, why.merged().visible().scores))
    mentions = []
    for found in there:
        relevance = sum(
            score
            for score, span in zip(why.scores, tokens.spans, strict=True)
            if span is not None and span[0] < found.end and found.start < span[1]
        )
        mentions.append(
            Mention(
                text=one.number,
                start=found.start,
                end=found.end,
                entity=found.entity,
                group=found.group,
                relevance=relevance,
                share=abs(relevance) / whole if whole else 0.0,
                output=why.output,
                label=one.label,
            )
        )
    return mentions
