"""A bias study as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from ..bias_study.result import BiasStudy, Entity
from ..evaluation.comparison import Interval
from .bias_excerpts import EACH, Excerpt, extremes
from .bias_figure import histograms_caption, histograms_svg
from .bias_summary import sentences
from .bias_wording import (
    GUIDE,
    MEANINGS,
    QUESTION,
    Cells,
    by_change,
    by_importance,
    classes,
    counted,
    difference_cells,
    displayable,
    entity_cells,
    group_cells,
    headline,
    left_out,
    naive_cells,
    scale_of,
    swap_cells,
    verdict,
    words_by_importance,
)
from .components import Cell, Row, Table
from .evaluation_wording import value_text
from .rendering import render
from .report_figure import report_figure
from .wording import number

QUOTED = 10
"""Number of sentences at each end."""

UNTESTED, WORDS = 60, 80
"""Maximum numbers of listed words with too few mentions, and of listed words left out; the study's JSON has all."""


def page(study: BiasStudy) -> str:
    """Return an HTML page: summary, figure, tables, sentences, and definitions of the terms."""
    study = displayable(study)
    skipped = list(left_out(study).items())
    return render(
        "bias.html",
        title=f"Bias study: {headline(study)}",
        lines=[headline(study)],
        heading=QUESTION,
        verdict=verdict(study),
        guide=GUIDE,
        summary=sentences(study),
        histograms=report_figure(histograms_svg, histograms_caption(study), study) if study.mentions else None,
        groups=_groups(study),
        differences=_differences(study),
        not_compared="There is only one group." if len(study.groups) == 1 else "No groups were compared.",
        tested=_tested(study),
        untested=_untested(study),
        scale=scale_of(study),
        each=EACH,
        excerpts=_excerpts(study),
        naive=_naive(study),
        swaps=_swaps(study),
        left_out=skipped[:WORDS],
        more=max(0, len(skipped) - WORDS),
        provenance=_provenance(study),
        meanings=MEANINGS,
    )


# Tables: intervals are drawn on an axis shared by all rows


def _groups(study: BiasStudy) -> Table:
    note = "Relevance in logits. Mean: over the words of a group, with 95 % interval; per mention: over all mentions."
    titles = ["group", "words", "mentions", "texts", "mean", "per mention", "share of |relevance|"]
    return _table(note, titles, group_cells(study), [group.mean for group in study.groups])


def _differences(study: BiasStudy) -> Table | None:
    if not study.differences:
        return None
    note = (
        "Mean over the words of the first group minus that of the second, in logits. p: permutation test; corrected: "
        f"by Holm, for {counted(len(study.differences), 'comparison')}; flagged, and shown first, if "
        f"corrected p is below {study.level:g}."
    )
    titles = ["groups", "difference", "effect", "p", "corrected", "outcome"]
    order = by_importance(study.differences)
    return _table(note, titles, difference_cells(order), [difference.difference for difference in order])


def _tested(study: BiasStudy) -> Table | None:
    tested = words_by_importance(study)
    if not tested:
        return None
    note = (
        "Mean over mentions, in logits; flagged words first, then the furthest from the mean of all mentions, "
        f"{number(study.overall_mean)}. p: compared with the same number of mentions drawn at random; corrected: by "
        f"Benjamini and Hochberg, for {counted(len(tested), 'word')}."
    )
    return _entities(note, tested)


def _untested(study: BiasStudy) -> tuple[str, Table] | None:
    """Return a title and a table of the words that were not tested; of many, both ends."""
    few = [entity for entity in study.entities if entity.p is None]
    if not few:
        return None
    listed = few if len(few) <= UNTESTED else [*few[: UNTESTED // 2], *few[-UNTESTED // 2 :]]
    rest = "" if listed is few else f" Shown: {len(listed)}, both ends; the study's JSON has all."
    table = _entities(f"Their means are uncertain.{rest}", listed)
    return f"{counted(len(few), 'word')} with too few mentions to be tested", table


def _entities(note: str, entities: Sequence[Entity]) -> Table:
    titles = ["word", "group", "mentions", "mean", "p", "corrected", "outcome"]
    return _table(note, titles, entity_cells(entities), [entity.mean for entity in entities], words=2)


def _naive(study: BiasStudy) -> Table | None:
    if not study.naive:
        return None
    first, others = classes(study)[0], "texts without" if len(study.naive) == 1 else "texts with other groups"
    note = (
        f"Share of the texts with a group's words that are predicted as {first}, and that are labelled so, compared "
        f"with {others}. p: Fisher's exact test, not corrected."
    )
    titles = ["group", "texts", "predicted", "labelled", f"{others}, predicted", "p"]
    return _table(note, titles, naive_cells(study), [])


def _swaps(study: BiasStudy) -> Table | None:
    if not study.swaps:
        return None
    note = (
        "How much the explained difference falls, in logits, when a word is replaced by words of the other groups: "
        "mean over the word's mentions. The largest changes first."
    )
    titles = ["word", "group", "mentions", "relevance", "falls by", "verdict"]
    order = by_change(study.swaps)
    return _table(note, titles, swap_cells(order), [swap.change for swap in order], words=2)


def _table(note: str, titles: Sequence[str], rows: Cells, drawn: Sequence[Interval], words: int = 1) -> Table:
    """Return a table; the first `words` columns are text, and the intervals `drawn` are a last column."""
    reach = (
        1.05
        * max((abs(value) for estimate in drawn for value in (estimate.low, estimate.mean, estimate.high)), default=0.0)
        or 1.0
    )
    outcome = titles[-1] in ("outcome", "verdict")
    kinds = [""] + ["word name"] * (words - 1) + [""] * (len(titles) - words)
    kinds[-1] = "flag" if outcome else kinds[-1]
    table_rows = []
    for i, (name, *texts) in enumerate(rows):
        cells = [_cell(*pair) for pair in zip(texts, kinds[1:], strict=True)]
        kind = "flagged" if outcome and texts[-1] == "flagged" else ""
        table_rows.append(Row(name, [*cells, *([_reach(drawn[i], reach)] if drawn else [])], kind))
    return Table(
        note,
        [Cell(title, kind="word" if kind else "") for title, kind in zip(titles, kinds, strict=True)],
        table_rows,
        reach=reach if drawn else None,
    )


def _cell(text: str, kind: str) -> Cell:
    """Return a cell; the limits of an interval are in grey."""
    mean, bracket, limits = text.partition(" [")
    is_interval = bracket and kind != "word name"
    return Cell(mean, below=f"[{limits}", kind=kind) if is_interval else Cell(text, kind=kind)


def _reach(estimate: Interval, reach: float) -> Cell:
    """Return a cell that draws a mean and its interval on an axis from -reach to reach."""
    low, mean, high = (50 + 50 * value / reach for value in (estimate.low, estimate.mean, estimate.high))
    style = f"--a:{low:.1f}%;--w:{high - low:.1f}%;--m:{mean:.1f}%"
    return Cell("", kind="reach" if estimate.mean > 0 else "reach against", style=style)


# Sentences and provenance


def _excerpts(study: BiasStudy) -> list[tuple[str, list[Excerpt]]]:
    """Return the mentions with the most relevance for each of the two classes."""
    if not study.mentions:
        return []
    return [(name, list(excerpts)) for name, excerpts in zip(classes(study), extremes(study, QUOTED), strict=True)]


def _provenance(study: BiasStudy) -> dict[str, str]:
    own = {
        "model": study.model,
        "data": study.data,
        "texts read": f"{study.texts:,}",
        "explained": study.target,
        "method": study.method,
        "level": f"{study.level:g}",
    }
    return {**own, **{key: value_text(value) for key, value in study.provenance.items() if key not in own}}
