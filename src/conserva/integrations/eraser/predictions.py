"""Explanations as a file of predictions for ERASER's scorer, a JSON object a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._util.files import check_file, write_parts
from ..._util.text import to_json
from ...errors import Error
from ...results.explanation import Explanation
from ...results.explanations import Explanations
from .rationale import hard_rationale, section_scores, spans_of

ROUNDING = 1e-3
"""The largest distance from 1 of the sum of probabilities."""


def write_eraser(
    path: str | Path,
    explanations: Explanations | Sequence[Explanation],
    ids: Sequence[str],
    docids: Sequence[str | Sequence[str | None]] | None = None,
    *,
    top: int | float | None = None,
    threshold: float | None = None,
) -> Path:
    """Write explanations as predictions for ERASER's scorer.

    `soft_rationale_predictions` are the scores of the words between spaces, as by `word_scores`: explain ERASER's
    documents as they are in its files. With `top` or `threshold` there are `hard_rationale_predictions`, too. The
    predicted class and its probabilities are written if all explanations have probabilities of all classes.

    Parameters
    ----------
    path
        The file, whose name ends in .jsonl.
    explanations
        Explanations of texts, or of pairs of texts.
    ids
        The `annotation_id` of each.
    docids
        The document of each; of a pair the two documents, where None leaves one out, such as a query. None takes `ids`.
    top, threshold
        Which words are in the hard rationale, as in `hard_rationale`. None writes no hard rationales.

    Returns
    -------
    Path
        The path.

    Examples
    --------
    >>> from conserva.integrations.eraser import write_eraser
    >>> many = conserva.explain(conserva.load(), ["a joy .", "not much ."])
    >>> path = write_eraser("predictions.jsonl", many, ["first", "second"], top=1)  # doctest: +SKIP
    """
    path = Path(path)
    given = f"path={str(path)!r}"
    if path.suffix.lower() != ".jsonl":
        raise Error(f"{given} ends in {path.suffix!r}: give a name that ends in .jsonl.")
    check_file(path, given)
    if isinstance(explanations, Explanation):
        raise Error("explanations is a single one: give a list, and a list of ids.")
    documents = ids if docids is None else docids
    for name, values in (("ids", ids), ("docids", documents)):
        if isinstance(values, str) or len(values) != len(explanations):
            raise Error(f"{name} has {len(values)} entries for {len(explanations)} explanation(s): give one for each.")
    if twice := [one for one, count in Counter(ids).items() if count > 1]:
        raise Error(f"ids has {twice[0]!r} more than once: ERASER's annotations have different ids.")
    instances = [
        {"annotation_id": str(identity), "rationales": list(_rationales(one, docid, top, threshold))}
        for one, identity, docid in zip(explanations, ids, documents, strict=True)
    ]
    classes = [_classes(one) for one in explanations]
    if all(classes):
        instances = [{**instance, **known} for instance, known in zip(instances, classes, strict=True)]
    return write_parts(path, (f"{to_json(instance, indent=None)}\n" for instance in instances), given)


def _rationales(
    explanation: Explanation, docids: str | Sequence[str | None], top: int | float | None, threshold: float | None
) -> list[dict[str, Any]]:
    """Return the rationale in each document of an explanation."""
    names = list(docids) if isinstance(docids, (list, tuple)) else [docids]
    sections = section_scores(explanation)
    if len(names) != len(sections):
        raise Error(
            f"docids has {docids!r} for {explanation.text[:40]!r}, which has {len(sections)} text(s): give a document "
            "for each, or None for one that is left out."
        )
    rationales = []
    for docid, scores in zip(names, sections, strict=True):
        if docid is None:
            continue
        rationale: dict[str, Any] = {"docid": str(docid), "soft_rationale_predictions": scores}
        if top is not None or threshold is not None:
            spans = spans_of(hard_rationale(scores, top=top, threshold=threshold))
            rationale["hard_rationale_predictions"] = [{"start_token": a, "end_token": b} for a, b in spans]
        rationales.append(rationale)
    return rationales


def _classes(explanation: Explanation) -> dict[str, Any]:
    """Return the predicted class and the distribution over the classes; {} if it is not known."""
    probabilities = {one.label: one.probability for one in explanation.classes}
    known = [probability for probability in probabilities.values() if probability is not None]
    if len(known) < len(explanation.classes) or abs(sum(known) - 1) > ROUNDING:
        return {}
    return {"classification": explanation.classes[0].label, "classification_scores": probabilities}
