"""Facts that a model knows by heart: the evidence is the subject that it knows them of."""

from __future__ import annotations

from collections.abc import Iterator

from ..item import Item, Source

FILE = "known_1000.jsonl"


def items(source: Source) -> Iterator[Item]:
    """Yield an item for each row whose prompt has its subject once."""
    for row in source.rows(FILE):
        prompt, subject = row["prompt"].strip(), row["subject"].strip()
        if prompt.count(subject) != 1:
            continue
        start = prompt.index(subject)
        labels = {"relation": row["relation_id"], "depth": round(start / len(prompt), 3)}
        evidence = ((start, start + len(subject)),)
        yield Item("known", prompt, row["attribute"].strip(), evidence, (0, len(prompt)), subject, labels)
