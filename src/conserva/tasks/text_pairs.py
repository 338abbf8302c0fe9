"""Pairs of texts as one input of a classifier: premise and hypothesis, query and passage, two sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..datasets import Labelled
from ..errors import Error

TextPair: TypeAlias = tuple[str, str]


def is_text_pair(given: Any) -> bool:
    """Return whether an input is a pair of texts, a tuple of two strings. A list of strings is several texts."""
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)


def border_of(encoding: Any, types: Sequence[int] | None) -> int | None:
    """Return the first token of the second text of a pair; None if the tokenizer does not return it."""
    numbers = encoding.sequence_ids if encoding is not None else types or ()
    return next((i for i, number in enumerate(numbers) if number == 1), None)


def labelled_of(data: Sequence[Any], labels: Sequence[str]) -> Labelled:
    """Return texts or pairs with labels, from a list of (text, label), ((text, text), label) or ((text, text), None).

    Two strings are a text and its label if the second is a label of the model. Otherwise they are ambiguous, and raise
    an `Error`.
    """
    folded = {label.casefold() for label in labels}
    texts = []
    for number, (given, label) in enumerate(data, 1):
        text = tuple(given) if isinstance(given, list) else given
        if not isinstance(text, str) and not is_text_pair(text):
            raise Error(
                f"data has {given!r:.60} as input {number}, which is neither a text nor a pair of texts: give "
                "(text, label) or ((text, text), label)."
            )
        if isinstance(text, str) and isinstance(label, str) and label.casefold() not in folded:
            known = ", ".join(map(repr, labels)) or "none, classes are numbers"
            raise Error(
                f"Label {label!r:.40} of row {number} is not one of the model's labels: {known}. Rename it in the "
                f"data, or give class indices. If ({text!r:.40}, {label!r:.40}) is a pair of texts, write "
                "((text, text), label), or ((text, text), None) without labels."
            )
        texts.append(text)
    given_labels = tuple(label for _, label in data)
    missing = sum(label is None for label in given_labels)
    if 0 < missing < len(given_labels):
        raise Error(
            f"data has {missing} of {len(given_labels)} entries with the label None: give all a label, or none."
        )
    return Labelled(tuple(texts), None if missing else given_labels, "texts")
