"""A bias study as a page that needs nothing from outside, for readers of every kind."""

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
    entity_cells,
    gated,
    group_cells,
    headline,
    left_out,
    naive_cells,
    scale_of,
    swap_cells,
)
from .components import Cell, Figure, Row, Table
from .evaluation_terminal import said
from .rendering import render

ENDS, FLAGGED, QUOTED = 10, 30, 10
"""Words at each end of the ranking and words flagged that are always seen, and sentences at each end."""

UNTESTED, WORDS = 60, 80
"""Words with too few mentions, and words left out, that are listed: the study's JSON has all."""


def page(study: BiasStudy) -> str:
    """Return a study as a whole page: what it says, the figure, all tables, sentences, and how to read them."""
    study = gated(study)
    tested = [one for one in study.entities if one.p is not None]
    skipped = list(left_out(study).items())
    return render(
        "bias.html",
        title=f"Bias study: {headline(study)}",
        lines=[headline(study)],
        summary=sentences(study),
        histograms=Figure(histograms_svg(study), histograms_caption(study)) if study.mentions else None,
        groups=_groups(study),
        differences=_differences(study),
        not_compared="There is but one group." if len(study.groups) == 1 else "No groups were compared.",
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


# Tables: every mean with its interval drawn on an axis that the rows share


def _groups(study: BiasStudy) -> Table:
    note = "Relevance in logits. Mean: over the words of a group, with its 95 % interval; per mention: over mentions."
    titles = ["group", "words", "mentions", "texts", "mean", "per mention", "share of |relevance|"]
    return _table(note, titles, group_cells(study), [one.mean for one in study.groups])


def _differences(study: BiasStudy) -> Table | None:
    if not study.differences:
        return None
    note = (
        "First minus second group, in the means over words, in logits. p: by permutation; corrected: by Holm, for "
        f"{counted(len(study.differences), 'comparison')}; flagged: corrected below {study.level:g}."
    )
    titles = ["groups", "difference", "effect", "p", "corrected", "outcome"]
    return _table(note, titles, difference_cells(study), [one.difference for one in study.differences])


def _ranking(tested: Sequence[Entity]) -> Table | None:
    """Return the words that were tested: of many, both ends and what is flagged."""
    if not tested:
        return None
    note = (
        "From the most positive mean over mentions to the most negative, in logits. p: against as many mentions "
        f"drawn at random; corrected: by Benjamini and Hochberg, for {counted(len(tested), 'word')}."
    )
    if not _is_long(tested):
        return _entities(note, tested)
    middle = sorted((one for one in tested[ENDS : len(tested) - ENDS] if one.flagged), key=_corrected)[:FLAGGED]
    seen = {one.name for one in (*tested[:ENDS], *middle, *tested[-ENDS:])}
    shown = [one for one in tested if one.name in seen]
    return _entities(f"{note} {len(shown)} of {len(tested):,}: both ends, and what is flagged.", shown)


def _folded(study: BiasStudy, tested: Sequence[Entity]) -> Iterator[tuple[str, Table]]:
    """Yield tables that are folded, with their titles: the whole ranking, and the words that were not tested."""
    if _is_long(tested):
        yield f"All {len(tested):,} words", _entities("All words that were tested.", tested)
    few = [one for one in study.entities if one.p is None]
    if few:
        listed = few if len(few) <= UNTESTED else [*few[: UNTESTED // 2], *few[-UNTESTED // 2 :]]
        rest = "" if listed is few else f" The {len(listed)} at both ends; the study's JSON has all."
        table = _entities(f"Too few mentions to be tested: their means say little.{rest}", listed)
        yield f"{counted(len(few), 'word')} with too few mentions to be tested", table


def _is_long(tested: Sequence[Entity]) -> bool:
    return len(tested) > 2 * ENDS + 5


def _corrected(one: Entity) -> float:
    return 1.0 if one.corrected is None else one.corrected


def _entities(note: str, entities: Sequence[Entity]) -> Table:
    titles = ["word", "group", "mentions", "mean", "p", "corrected", "outcome"]
    return _table(note, titles, entity_cells(entities), [one.mean for one in entities], words=2)


def _naive(study: BiasStudy) -> Table | None:
    if not study.naive:
        return None
    first, others = classes(study)[0], "texts without" if len(study.naive) == 1 else "texts with other groups"
    note = (
        f"How often texts with a group's words are predicted as {first}, and labelled so, against {others}. p: "
        "Fisher's exact test, not corrected."
    )
    titles = ["group", "texts", "predicted", "labelled", f"{others}, predicted", "p"]
    return _table(note, titles, naive_cells(study), [])


def _swaps(study: BiasStudy) -> Table | None:
    if not study.swaps:
        return None
    note = (
        "By how much the explained difference falls, in logits, in the mean over a word's mentions, when words of the "
        "other groups stand in its place."
    )
    titles = ["word", "group", "mentions", "relevance", "falls by", "verdict"]
    return _table(note, titles, swap_cells(study), [one.change for one in study.swaps], words=2)


def _table(note: str, titles: Sequence[str], rows: Cells, drawn: Sequence[Interval], words: int = 1) -> Table:
    """Return a table whose first columns are words; a column with an outcome is marked, intervals are drawn last."""
    reach = 1.05 * max((abs(value) for one in drawn for value in (one.low, one.mean, one.high)), default=0.0) or 1.0
    outcome = titles[-1] in ("outcome", "verdict")
    kinds = [""] + ["word name"] * (words - 1) + [""] * (len(titles) - words)
    kinds[-1] = "flag" if outcome else kinds[-1]
    found = []
    for i, (name, *texts) in enumerate(rows):
        cells = [_cell(*pair) for pair in zip(texts, kinds[1:], strict=True)]
        kind = "flagged" if outcome and texts[-1] == "flagged" else ""
        found.append(Row(name, [*cells, *([_reach(drawn[i], reach)] if drawn else [])], kind))
    return Table(
        note,
        [Cell(title, kind="word" if kind else "") for title, kind in zip(titles, kinds, strict=True)],
        found,
        reach=reach if drawn else None,
    )


def _cell(text: str, kind: str) -> Cell:
    """Return a cell; the limits of an interval are grey."""
    mean, bracket, limits = text.partition(" [")
    is_interval = bracket and kind != "word name"
    return Cell(mean, aside=f"[{limits}", kind=kind) if is_interval else Cell(text, kind=kind)


def _reach(one: Interval, reach: float) -> Cell:
    """Return a mean and its interval on an axis from -reach to reach; the numbers stand beside it."""
    low, mean, high = (50 + 50 * value / reach for value in (one.low, one.mean, one.high))
    style = f"--a:{low:.1f}%;--w:{high - low:.1f}%;--m:{mean:.1f}%"
    return Cell("", kind="reach" if one.mean > 0 else "reach against", style=style)


# Sentences, and where it all comes from


def _excerpts(study: BiasStudy) -> list[tuple[str, list[Excerpt]]]:
    """Return the mentions with the most relevance for each of the two classes."""
    if not study.mentions:
        return []
    return [(name, list(found)) for name, found in zip(classes(study), extremes(study, QUOTED), strict=True)]


def _provenance(study: BiasStudy) -> dict[str, str]:
    own = {
        "model": study.model,
        "data": study.data,
        "texts read": f"{study.texts:,}",
        "explained": study.target,
        "method": study.method,
        "level": f"{study.level:g}",
    }
    return {**own, **{key: said(value) for key, value in study.provenance.items() if key not in own}}
