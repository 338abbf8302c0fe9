"""A bias study as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bias_study.result import BiasStudy, Entity
from ..evaluation.result import Interval
from .bias_excerpts import EACH, Excerpt, extremes
from .bias_figure import histograms_caption, histograms_svg
from .bias_summary import sentences
from .bias_wording import (
    MEANINGS,
    Cells,
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
)
from .components import Cell, Figure, Row, Table
from .evaluation_terminal import value_text
from .rendering import render

ENDS, FLAGGED, QUOTED = 10, 30, 10
"""Numbers of words at each end of the ranking and of flagged words that are not folded; of sentences at each end."""

UNTESTED, WORDS = 60, 80
"""Maximum numbers of listed words with too few mentions, and of listed words left out; the study's JSON has all."""


def page(study: BiasStudy) -> str:
    """Return an HTML page: summary, figure, tables, sentences, and definitions of the terms."""
    study = displayable(study)
    tested = [entity for entity in study.entities if entity.p is not None]
    skipped = list(left_out(study).items())
    return render(
        "bias.html",
        title=f"Bias study: {headline(study)}",
        lines=[headline(study)],
        summary=sentences(study),
        histograms=Figure(histograms_svg(study), histograms_caption(study)) if study.mentions else None,
        groups=_groups(study),
        differences=_differences(study),
        not_compared="There is only one group." if len(study.groups) == 1 else "No groups were compared.",
        tested=_ranking(tested),
        folded_tables=list(_folded(study, tested)),
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
        f"by Holm, for {counted(len(study.differences), 'comparison')}; flagged: corrected p below {study.level:g}."
    )
    titles = ["groups", "difference", "effect", "p", "corrected", "outcome"]
    return _table(note, titles, difference_cells(study), [difference.difference for difference in study.differences])


def _ranking(tested: Sequence[Entity]) -> Table | None:
    """Return a table of the tested words; of many, only both ends and the flagged ones."""
    if not tested:
        return None
    note = (
        "Sorted by the mean over mentions, in logits, from the most positive to the most negative. p: compared with "
        "the same number of mentions drawn at random; corrected: by Benjamini and Hochberg, for "
        f"{counted(len(tested), 'word')}."
    )
    if not _is_long(tested):
        return _entities(note, tested)
    middle = sorted((entity for entity in tested[ENDS : len(tested) - ENDS] if entity.flagged), key=_corrected)[
        :FLAGGED
    ]
    seen = {entity.name for entity in (*tested[:ENDS], *middle, *tested[-ENDS:])}
    shown = [entity for entity in tested if entity.name in seen]
    return _entities(f"{note} Shown: {len(shown)} of {len(tested):,}, both ends and flagged words.", shown)


def _folded(study: BiasStudy, tested: Sequence[Entity]) -> Iterator[tuple[str, Table]]:
    """Yield titles and tables of the folded parts: the whole ranking, and the words that were not tested."""
    if _is_long(tested):
        yield f"All {len(tested):,} words", _entities("All words that were tested.", tested)
    few = [entity for entity in study.entities if entity.p is None]
    if few:
        listed = few if len(few) <= UNTESTED else [*few[: UNTESTED // 2], *few[-UNTESTED // 2 :]]
        rest = "" if listed is few else f" Shown: {len(listed)}, both ends; the study's JSON has all."
        table = _entities(f"Too few mentions to be tested: their means are uncertain.{rest}", listed)
        yield f"{counted(len(few), 'word')} with too few mentions to be tested", table


def _is_long(tested: Sequence[Entity]) -> bool:
    return len(tested) > 2 * ENDS + 5


def _corrected(entity: Entity) -> float:
    return 1.0 if entity.corrected is None else entity.corrected


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
        "mean over the word's mentions."
    )
    titles = ["word", "group", "mentions", "relevance", "falls by", "verdict"]
    return _table(note, titles, swap_cells(study), [swap.change for swap in study.swaps], words=2)


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
    return Cell(mean, aside=f"[{limits}", kind=kind) if is_interval else Cell(text, kind=kind)


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
