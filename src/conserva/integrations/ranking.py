"""Rankings of passages by a cross-encoder or a sentence encoder, and why one passage stands above another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple, replace
from typing import Any

from ..attribution import MethodLike
from ..engine.ledger import Ledger
from ..engine.memory import AUTO
from ..engine.rules import DEFAULT
from ..errors import Error
from ..explaining.explain import explain
from ..results.explanation import Explanation
from ..results.explanations import Explanations
from ..tasks.loading import load
from ..tasks.similarity import Similarity
from ..tasks.task import Task
from ..tasks.text import Text

__all__ = ["contrast", "explain_ranking"]

PASSAGE, LABELS = "passage", "labels"
"""What explanations of a ranking have in their provenance: the index of the passage, or the labels that were ranked."""

BETWEEN = " | "
"""What is between the texts of a pair in `Explanation.text`."""

_PROMPTS = (("query",), ("document", "passage", "corpus"))
"""The names of prompts that sentence-transformers puts before a query, and before a passage: the first that exists."""


def explain_ranking(
    model: Any,
    query: str,
    passages: Iterable[str],
    target: Any = None,
    *,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    windows: bool | tuple[int, int] = False,
    batch_tokens: int | None = None,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Explanations:
    """Rank passages by a model's output for the query and each of them, and explain these outputs.

    Parameters
    ----------
    model
        A `CrossEncoder` or a `SentenceTransformer`, or a task for pairs of texts: a `conserva.Text` or a
        `conserva.Similarity`. The query prompt and the document prompt of a `SentenceTransformer` are put before the
        texts, as its `encode_query` and `encode_document` do, and are explained as parts of them.
    query
        The text that the passages are ranked for.
    passages
        The texts to rank.
    target
        The label to rank by, or a contrast "a - b": required for a classifier with several labels.
    method, truncate, windows, batch_tokens, trusted, checkpoint, fingerprint, progress
        As in `conserva.explain`.

    Returns
    -------
    Explanations
        One explanation for each passage, the highest output first. Its sections are "query" and "passage i", where i is
        the index of the passage, from 0; `provenance["passage"]` is the index, too.

    Examples
    --------
    >>> from conserva.integrations.ranking import contrast, explain_ranking
    >>> task = conserva.load()  # a CrossEncoder in its place
    >>> ranking = explain_ranking(task, "a joy?", ["dull.", "a joy."], "positive")
    >>> [one.sections[1][0] for one in ranking]
    ['passage 1', 'passage 0']
    >>> contrast(ranking[0], ranking[1]).target
    'passage 1 - passage 0'
    """
    texts = _texts(query, passages)
    before = _prompts(model)
    task = task_of_pairs(model)
    if target is None and isinstance(task, Text) and task.classes > 1:
        labels = ", ".join(map(repr, task.labels)) or f"0 to {task.classes - 1}"
        raise Error(f"target=None: {task.name} has {task.classes} outputs. Choose the one to rank by: {labels}.")
    options: dict[str, Any] = {
        "method": method,
        "truncate": truncate,
        "windows": windows,
        "batch_tokens": batch_tokens,
        "trusted": trusted,
        "checkpoint": checkpoint,
        "fingerprint": fingerprint,
        "progress": progress,
    }
    many = explain(task, [(before[0] + query, before[1] + text) for text in texts], target, **options)
    return ranked(with_sections(one, "query", f"passage {i}", **{PASSAGE: i}) for i, one in enumerate(many))


def contrast(first: Explanation, second: Explanation) -> Explanation:
    """Explain why one passage stands above another: the difference of two explanations of a ranking.

    The explained output is the difference of the two outputs. A token of the query has the difference of its two
    scores, a token of the first passage its score, and a token of the second passage minus its score. Every entry of
    the ledger is the difference of the two entries, so that it adds up to the difference of the outputs.

    Parameters
    ----------
    first, second
        Two explanations of one ranking, by the same method.

    Returns
    -------
    Explanation
        Its sections are the query, the first and the second passage. Positive scores are in favour of the first.

    Examples
    --------
    >>> from conserva.integrations.ranking import contrast, explain_ranking
    >>> ranking = explain_ranking(conserva.load(), "a joy?", ["dull.", "a joy."], "positive")
    >>> why = contrast(ranking[0], ranking[1])
    >>> [name for name, _ in why.sections], abs(why.output - (ranking[0].output - ranking[1].output)) < 1e-6
    (['query', 'passage 1', 'passage 0'], True)
    """
    _check(first, second)
    assert first.ledger is not None
    assert second.ledger is not None
    (query, border), mine = first.sections
    other = second.sections[1]
    start = min((span[0] for span in second.offsets[border:] if span is not None), default=0)
    shift = len(first.text) + len(BETWEEN) - start
    moved = ((span[0] + shift, span[1] + shift) if span is not None else None for span in second.offsets[border:])
    differences = map(operator.sub, first.scores[:border], second.scores[:border])
    is_labelled = LABELS in first.provenance
    return replace(
        first,
        features=first.features + second.features[border:],
        scores=(*differences, *first.scores[border:], *map(operator.neg, second.scores[border:])),
        special=first.special + second.special[border:],
        words=first.words + second.words[border:],
        offsets=(*first.offsets, *moved),
        unknown=first.unknown + second.unknown[border:],
        text=f"{first.text}{BETWEEN}{second.text[start:]}",
        target=f"{first.target} - {second.target}" if is_labelled else f"{mine[0]} - {other[0]}",
        output=first.output - second.output,
        probability=None,
        ledger=Ledger(*map(operator.sub, astuple(first.ledger), astuple(second.ledger))),
        sections=((query, border), mine, other),
        provenance={key: value for key, value in first.provenance.items() if key != PASSAGE},
        classes=first.classes if is_labelled else (),
        windows=(),
    )


def task_of_pairs(model: Any) -> Text | Similarity:
    """Return the task of a model, if its inputs are pairs of texts; raise an `Error` otherwise."""
    task = model if isinstance(model, Task) else load(model)
    if not (isinstance(task, Similarity) or (isinstance(task, Text) and task.takes_pairs)):
        raise Error(
            f"model is a {type(task).__name__}, which does not score pairs of texts: give a CrossEncoder, a "
            "SentenceTransformer, or a classifier of pairs."
        )
    return task


def with_sections(one: Explanation, first: str, second: str, **known: Any) -> Explanation:
    """Return the explanation of a pair with names for its texts, and with more provenance."""
    sizes = (size for _, size in one.sections)
    return replace(
        one, sections=tuple(zip((first, second), sizes, strict=True)), provenance={**one.provenance, **known}
    )


def ranked(many: Iterable[Explanation]) -> Explanations:
    """Return explanations in the order of their outputs, the highest first; of equal ones, in the given order."""
    return Explanations(tuple(sorted(many, key=lambda one: -one.output)))


def _texts(query: Any, passages: Any) -> list[str]:
    """Return the passages as a list; raise an `Error` for anything else than texts."""
    if not isinstance(query, str):
        raise Error(f"query={query!r:.60} is not a string: give one query at a time.")
    if isinstance(passages, (str, bytes, Mapping)) or not isinstance(passages, Iterable):
        raise Error(f"passages={passages!r:.60} is not a list of texts.")
    texts = list(passages)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise Error(f"passages has {wrong[0]!r:.60}, which is not a string: give a list of texts.")
    if not texts:
        raise Error("passages is empty: there is nothing to rank.")
    return texts


def _prompts(model: Any) -> list[str]:
    """Return the prompts that a SentenceTransformer puts before a query and before a passage."""
    if not any(base.__name__ == "SentenceTransformer" for base in type(model).__mro__):
        return ["", ""]
    prompts = model.prompts
    found = [next((prompts[name] for name in names if name in prompts), None) or "" for names in _PROMPTS]
    if any(found) and not all(getattr(module, "include_prompt", True) for module in model):
        raise Error(
            f"model is a SentenceTransformer that leaves the tokens of its prompts {found!r:.60} out of its pooling, "
            "which is not supported: give its task, conserva.load(model), to rank without prompts."
        )
    return found


def _check(first: Any, second: Any) -> None:
    """Raise an `Error` unless two explanations are of one ranking, and their scores are parts of their outputs."""
    for one in (first, second):
        if not isinstance(one, Explanation) or len(one.sections) != 2:
            raise Error(f"{one!r:.60} is not the explanation of a pair of texts: give two of a ranking.")
        if one.ledger is None:
            raise Error(
                f"method={one.method!r} has no ledger: its scores are not parts of the output, and their differences "
                "are not parts of the difference. Explain with a method that has a ledger, such as 'exact'."
            )
    for name in ("method", "model"):
        if (mine := getattr(first, name)) != (other := getattr(second, name)):
            raise Error(f"The explanations have different {name}s, {mine!r} and {other!r}: give two of one ranking.")
    if first.provenance.get(LABELS) != second.provenance.get(LABELS) or (
        first.target != second.target and LABELS not in first.provenance
    ):
        raise Error(
            f"The explanations are for different targets, {first.target!r} and {second.target!r}: give two of one "
            "ranking."
        )
    if first.features[: first.sections[0][1]] != second.features[: second.sections[0][1]]:
        raise Error(
            f"The explanations have different tokens in the {first.sections[0][0]}: give two of one ranking, without "
            "truncation of the query, and both with or without `merged` or `visible`."
        )
