"""A fact planted in a document of plain sentences: the evidence is the planted answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from planted_facts import Document, document

from ..item import Item, Source


def items(source: Source) -> Iterator[Item]:
    """Yield documents without end, of the wanted lengths in turn."""
    for number in count():
        length = source.lengths[number % len(source.lengths)]
        one = document(source.tokenizer, length, source.seed, number)
        start = planted_at(one) + one.fact.index(one.answer)
        yield Item(
            "planted",
            one.prompt,
            one.answer,
            ((start, start + len(one.answer)),),
            (0, len(one.body)),
            group=one.body,
            labels={"depth": round(one.depth, 3), "length": length, "fact": one.kind},
        )


def planted_at(one: Document) -> int:
    """Return where the planted sentence begins in the document."""
    return len(" ".join((*one.before, ""))) if one.before else 0


def filler(source: Source, number: int, tokens: int) -> list[str]:
    """Return sentences without a fact, of about as many tokens."""
    one = document(source.tokenizer, tokens, source.seed, number)
    return [*one.before, *one.after]
