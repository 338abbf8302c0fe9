"""An item of the benchmark: a prompt, its answer, and the part of the prompt that is the reason for the answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]
"""The first character of a part of a text, and the one behind its last."""

SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Item:
    """A prompt with a known answer and a known reason for it."""

    kind: str
    prompt: str
    """What the user writes, without white space at its ends."""
    answer: str
    evidence: tuple[Span, ...]
    """Where in the prompt the reason stands."""
    document: Span
    """The part of the prompt that is searched for the reason: not the question, which is always close to the answer."""
    group: str
    """What items that resemble each other have in common, such as a passage: they are in the same split."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """What results can be grouped by, such as the depth of the evidence."""
    chat: bool = False
    """Whether the prompt is sent as a message of a user, in the model's chat template."""

    @property
    def key(self) -> str:
        """A name that depends on the content alone."""
        return f"{self.kind}-{digest(self.prompt, self.answer, str(self.chat))}"

    @property
    def split(self) -> str:
        """The split that the item belongs to, whatever else is in the data."""
        return SPLITS[int(digest(self.group), 16) % 2]


@dataclass(frozen=True)
class Source:
    """What items are made from."""

    data: Path
    """The folder of the files of squad, known and ioi."""
    tokenizer: Any
    """The tokenizer by which generated documents get their length."""
    seed: int = 0
    lengths: Sequence[int] = (128, 256)
    """The lengths of generated documents in tokens, in turn."""

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file in a random order, which rows added to the file do not change."""
        lines = (self.data / name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in sorted(lines, key=lambda line: digest(str(self.seed), line))]


def digest(*texts: str) -> str:
    """Return a short hash of texts."""
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()


def mentions(text: str, word: str) -> tuple[Span, ...]:
    """Return where a word stands in a text, by itself."""
    return tuple(found.span() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text))


def of_split(items: Iterator[Item], split: str) -> Iterator[Item]:
    """Yield the items of a split, each once."""
    seen: set[str] = set()
    for item in items:
        if item.split == split and item.key not in seen:
            seen.add(item.key)
            yield item
