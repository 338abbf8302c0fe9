"""Variables that are assigned to each other, as in RULER's variable tracking: the evidence is the chain of one of them.

"K = 48213. Q = K. Z = Q." gives a number a second and a third name. Chains of other numbers stand between. The value of
the last variable is asked for, and only all statements of its chain together say what it is.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from itertools import count, product

from ..item import Item, Source

HOPS = (1, 2, 3)
"""How often a value is handed on before it is asked for."""

CHAINS = (2, 3)
"""How many chains there are, the asked one included."""

LEAST, MOST = 10_000, 99_999


def items(source: Source) -> Iterator[Item]:
    """Yield documents without end, of all numbers of hops and chains in turn."""
    sizes = list(product(HOPS, CHAINS))
    for number in count():
        hops, chains = sizes[number % len(sizes)]
        yield item(random.Random(f"{source.seed}/tracking/{number}"), hops, chains)


def item(draw: random.Random, hops: int, chains: int) -> Item:
    """Draw a document."""
    names = iter(draw.sample(string.ascii_uppercase, chains * (hops + 1)))
    values = draw.sample(range(LEAST, MOST + 1), chains)
    drawn = [chain([next(names) for _ in range(hops + 1)], value) for value in values]
    order = [number for number in range(chains) for _ in range(hops + 1)]
    draw.shuffle(order)
    rest = [iter(statements) for statements in drawn]
    text, evidence = "", []
    for number in order:  # the statements of a chain keep their order
        start = len(text) + bool(text)
        text = f"{text} {next(rest[number])}".strip()
        if number == 0:
            evidence.append((start, len(text)))
    asked = drawn[0][-1].partition(" ")[0]
    labels = {"hops": hops, "chains": chains, "depth": round(evidence[0][0] / len(text), 3)}
    prompt = f"{text}\n\nQuestion: What is the value of {asked}?\nAnswer: The value of {asked} is"
    return Item("tracking", prompt, str(values[0]), tuple(evidence), (0, len(text)), text, labels)


def chain(names: Sequence[str], value: int) -> list[str]:
    """Return the statements that hand a value on from name to name."""
    return [f"{name} = {before}." for name, before in zip(names, [value, *names], strict=False)]
