"""Indirect objects: "Ann and Bob met. Bob gave a plum to" is continued by the name that stands once, the evidence."""

from __future__ import annotations

from collections.abc import Iterator

from ..item import Item, Source, mentions

FILE = "ioi.jsonl"


def items(source: Source) -> Iterator[Item]:
    """Yield an item for each row."""
    for row in source.rows(FILE):
        prompt, answer = row["prompt"].strip(), row["answer"].strip()
        if found := mentions(prompt, answer):
            labels = {"depth": round(found[0][0] / len(prompt), 3)}
            yield Item("ioi", prompt, answer, found, (0, len(prompt)), prompt, labels)
