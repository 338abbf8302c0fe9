"""The summary of a bias study in plain words, and its tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text as Line

from ..bias_study.result import BiasStudy, Difference, Entity, Naive
from .audit_terminal import _grid, _title
from .bias_excerpts import Excerpt, extremes
from .bias_wording import (
    GUIDE,
    NAMED,
    QUESTION,
    Cells,
    by_change,
    by_importance,
    classes,
    counted,
    difference_cells,
    displayable,
    effect_name,
    entity_cells,
    excludes_zero,
    from_to,
    group_cells,
    headline,
    left_out,
    listed,
    naive_cells,
    oriented,
    p_value_text,
    percent,
    scale_of,
    swap_cells,
    swap_outcome,
    verdict,
)
from .colours import hexadecimal, ink, shade
from .evaluation_terminal import Column
from .evaluation_wording import short
from .terminal_text import has_shades, sign
from .wording import number

SHOWN, QUOTED = 6, 3
"""Numbers of words and of sentences at each end of a ranking that are shown in the terminal."""

CAVEATS = (
    "These results are about one model on these texts; they say nothing about people, and other texts may give other "
    "numbers. “Flagged” means that chance is an unlikely cause. “Not flagged” does not prove that there is no "
    "difference."
)


def sentences(study: BiasStudy) -> list[str]:
    """Return a summary in plain words: which groups and words differ, by how much, how certainly, and the caveats."""
    parts = [
        _start(study),
        *_compared(study),
        _stand_out(study),
        _swapped(study),
        _counted(study),
        CAVEATS,
        _not_counted(study),
    ]
    return [part for part in parts if part]


# The sentences, chosen by fixed rules


def _start(study: BiasStudy) -> str:
    first, second = classes(study)
    corpus = counted(study.texts, "text") + ("" if study.data == "texts" else f" ({study.data})")
    groups = [
        f"“{group.name}” ({counted(group.mentions, 'mention')} of {counted(group.entities, 'word')})"
        for group in study.groups
    ]
    return (
        f"This study searched {corpus} for words of {counted(len(study.groups), 'group')}: {listed(groups)}. The "
        f"relevance of a mention is its contribution to the output of {study.model}, in logits. Above 0 it speaks for "
        f"{first}, below 0 for {second}. For comparison: the median of |{study.target}| over texts with a mention is "
        f"{short(study.median_output)} logits."
        if groups
        else f"No word of a group occurs in {corpus}."
    )


def _compared(study: BiasStudy) -> Iterable[str]:
    """Yield sentences on whether groups differ: flagged pairs first, then by corrected p."""
    if not study.differences:
        yield (
            f"There is only one group, “{study.groups[0].name}”, and nothing to compare it with."
            if len(study.groups) == 1
            else "No groups were compared with each other."
        )
        return
    order = by_importance(study.differences)
    yield _difference(study, order[0])
    flagged = [_briefly(study, difference) for difference in order[1:] if difference.flagged]
    if flagged:
        more = f"; and {len(flagged) - NAMED:,} more, see the table" if len(flagged) > NAMED else ""
        yield f"Flagged too: {'; '.join(flagged[:NAMED])}{more}."
    rest = [
        f"“{difference.a}” and “{difference.b}”, first minus second {from_to(difference.difference)}"
        for difference in map(oriented, order[1:])
        if not difference.flagged
    ]
    if rest:
        more = f"; and {len(rest) - NAMED:,} more, see the table" if len(rest) > NAMED else ""
        start = "Not shown to differ" if order[0].flagged else "Nor are these shown to differ"
        yield f"{start}: {'; '.join(rest[:NAMED])}{more}."


def _briefly(study: BiasStudy, difference: Difference) -> str:
    turned = oriented(difference)
    return (
        f"words of “{turned.a}” speak more for {classes(study)[0]} than words of “{turned.b}”, by "
        f"{from_to(turned.difference)}, a {effect_name(turned.effect)} effect (corrected p: "
        f"{percent(turned.corrected, 3)})"
    )


def _difference(study: BiasStudy, difference: Difference) -> str:
    turned, usual = oriented(difference), study.median_output
    words = f"words of “{turned.a}” speak more for {classes(study)[0]} than words of “{turned.b}”"
    words = words if turned.difference.mean else "words of both have the same mean relevance"
    amount = f"by {from_to(turned.difference)} on average"
    part = f", which is {percent(turned.difference.mean / usual)} of the output for a typical text" if usual else ""
    name = effect_name(turned.effect)
    effect = f"by Cliff's delta this is a {name} effect ({turned.effect:+.3f}; 0 is none, 1 the largest)"
    pairs = len(study.differences)
    corrected = f", {percent(turned.corrected, 3)} after correction for {pairs} comparisons"
    corrected = corrected if pairs > 1 and turned.p < study.level else ""
    sure = (
        f"If the same words are split at random, {percent(turned.p, 3)} of the splits differ at least as much"
        f"{corrected}"
    )
    wide = "" if excludes_zero(turned.difference) else " But the interval includes 0: the size is uncertain."
    against_mean = (
        " But most pairs of words differ in the other direction: a few words dominate the mean."
        if turned.effect * turned.difference.mean < 0
        else ""
    )
    if turned.flagged:
        return (
            f"The difference between “{difference.a}” and “{difference.b}” is flagged: {words}, {amount}{part}; "
            f"{effect}. {sure}; below {percent(study.level)} is flagged.{wide}{against_mean}"
        )
    limits = turned.difference.low, turned.difference.high
    low, high = (short(value, limits) for value in limits)
    narrow = " The interval excludes 0, but the test decides." if excludes_zero(turned.difference) else ""
    return (
        f"No difference between “{difference.a}” and “{difference.b}” is shown. In these texts {words}, "
        f"{amount}{part}; {effect}. {sure}; only below {percent(study.level)} is flagged.{narrow}{against_mean} This "
        f"does not prove that there is none: any difference from {low} to {high} logits is compatible with the data."
    )


def _stand_out(study: BiasStudy) -> str:
    """Return a sentence on the flagged words, above and below the mean of all mentions."""
    tested = [entity for entity in study.entities if entity.p is not None]
    few = len(study.entities) - len(tested)
    left = f" {counted(few, 'word')} had too few mentions to be tested." if few else ""
    if not tested:
        return "No word has enough mentions to be tested by itself." if study.entities else ""
    mean, flagged = study.overall_mean, [entity for entity in tested if entity.flagged]
    of_all = f"the mean of all mentions ({number(mean)} logits)"
    if not flagged:
        none = (
            "The one word tested does not stand" if len(tested) == 1 else f"None of {len(tested):,} words tested stands"
        )
        return f"{none} out from {of_all}.{left}"
    above = [
        _entity(entity) for entity in sorted(flagged, key=lambda entity: -entity.mean.mean) if entity.mean.mean >= mean
    ]
    below = [
        _entity(entity) for entity in sorted(flagged, key=lambda entity: entity.mean.mean) if entity.mean.mean < mean
    ]
    stand = "stands" if len(flagged) == 1 else "stand"
    sides = [f"above it {listed(above)}"] if above else []
    sides += [f"below it {listed(below)}"] if below else []
    return (
        f"Of {counted(len(tested), 'word')} tested, {len(flagged):,} {stand} out from {of_all}: {'; '.join(sides)}. Of "
        f"flagged words, up to about {percent(study.level)} are expected by chance.{left}"
    )


def _entity(entity: Entity) -> str:
    return f"“{entity.name}” ({number(entity.mean.mean)} in {counted(entity.mentions, 'mention')})"


def _swapped(study: BiasStudy) -> str:
    # Groups can be flagged even for a model that ignores them, if they occur in different kinds of sentences.
    warning = (
        " A difference between groups can come from the sentences in which they occur: any word has more relevance "
        "where the model is undecided. The words themselves are the cause only if replacing them changes the answer."
        if any(difference.flagged for difference in study.differences)
        else ""
    )
    if not study.swaps:
        return f"Whether replacing the words changes the model's answers was not checked.{warning}"
    verdicts: dict[str, list[str]] = {"agrees": [], "is unsure": [], "disagrees": []}
    for swap in study.swaps:
        verdicts[swap_outcome(swap)].append(f"“{swap.name}”")
    agreeing, unsure, against = verdicts.values()
    return (
        f"As a check, {counted(len(study.swaps), 'word')} {'was' if len(study.swaps) == 1 else 'were'} replaced by "
        "words of the other groups. The answer changed in the direction "
        f"predicted by relevance for {listed(agreeing) if agreeing else 'none'}"
        + (f", in the other direction for {listed(against)}" if against else "")
        + (f", and in no clear direction for {listed(unsure)}" if unsure else "")
        + f".{warning}"
    )


def _counted(study: BiasStudy) -> str:
    """Return sentences on a plain count of predictions, and whether the texts' own labels differ too."""
    if not study.naive:
        return ""
    most, least = (pick(study.naive, key=lambda row: row.predicted) for pick in (max, min))
    first = classes(study)[0]
    start = f"A plain count, without explanations: of texts with “{most.group}”, {percent(most.predicted)} are"
    if most is least:
        whose = f"{percent(most.other)} of the texts without"
        counts = f"{start} predicted as {first}, against {whose}{_tested(study, [most])}."
        labels = "" if most.labelled is None else f" {percent(most.labelled)} of the texts with it have that label."
        return counts + labels
    counts = f"{start} predicted as {first}, of texts with “{least.group}”, {percent(least.predicted)}"
    return f"{counts}{_tested(study, [most, least])}. {_confounded(study, most, least)}{_beside(study, most, least)}"


def _tested(study: BiasStudy, rows: Sequence[Naive]) -> str:
    p = min(row.p for row in rows)
    called = "would be called a difference" if p < study.level else "would not be called a difference"
    return f"; by itself that {called} (p {'' if p < 0.001 else '= '}{p_value_text(p)})"


def _confounded(study: BiasStudy, most: Naive, least: Naive) -> str:
    if most.labelled is None or least.labelled is None:
        return "The texts have no labels, so a count cannot tell whether the texts differ or the model is biased."
    labels = f"{percent(most.labelled)} against {percent(least.labelled)}"
    labelled, predicted = most.labelled - least.labelled, most.predicted - least.predicted
    if min(most.p, least.p) >= study.level:
        return f"{percent(most.labelled)} and {percent(least.labelled)} of the texts have that label."
    if labelled <= 0:
        return f"The texts' own labels do not differ in this direction ({labels})."
    if labelled < predicted / 2:
        return (
            f"The texts' own labels differ in this direction too, but less ({labels}): they account for a part of it."
        )
    return (
        f"But the texts' own labels differ in this direction too ({labels}): the groups occur in different texts, and "
        "a count cannot tell that from a bias of the model."
    )


def _beside(study: BiasStudy, most: Naive, least: Naive) -> str:
    """Return a sentence on whether relevance differs between the same two groups."""
    pair = {most.group, least.group}
    difference = next(
        (oriented(difference) for difference in study.differences if {difference.a, difference.b} == pair), None
    )
    if difference is None:
        return ""
    if not difference.flagged:
        return " Relevance shows no difference between the two."
    direction = "same" if difference.a == most.group else "opposite"
    return f" Relevance shows a difference between the two, in the {direction} direction."


def _not_counted(study: BiasStudy) -> str:
    met = left_out(study)
    if not met:
        return ""
    words = [f"“{word}” ({count:,} times)" for word, count in met.items()]
    return (
        f"Not counted, because they are also ordinary words or belong to two groups: {listed(words)}. Where they are "
        "names, these mentions are missing."
    )


# The terminal


def show(study: BiasStudy, console: Console | None = None) -> None:
    """Print a study: verdict, groups, differences, words and sentences at both ends, counts, swaps, and a summary."""
    console = console or Console()
    study = displayable(study)
    console.print(Line(headline(study), style="bold"))
    console.print(Line(f"{QUESTION} {verdict(study)}"))
    console.print(Line(GUIDE, style="dim"))
    _title(console, "Groups", "relevance in logits; mean: over words [95 % interval]; per mention: over mentions")
    _print(console, "group", ("words", "mentions", "texts", "mean", "per mention", "share"), group_cells(study))
    if study.differences:
        _title(console, "Differences", f"in logits; flagged: p below {study.level:g} after Holm's correction")
        cells_of = difference_cells(by_importance(study.differences))
        rows = [(*cells[:3], *cells[4:]) for cells in cells_of]  # without the uncorrected p
        _print(console, "groups", ("difference", "effect", "p, Holm", ""), rows)
    _words(study, console)
    _quoted(study, console)
    if study.naive:
        _title(console, "A plain count", f"texts predicted as {classes(study)[0]}, with this group and with others")
        _print(console, "group", ("texts", "predicted", "labelled", "others", "p"), naive_cells(study))
    if study.swaps:
        _title(console, "Swaps", "how much the answer falls, in logits, if the word is replaced by other groups' words")
        _print(console, "word", ("group", "mentions", "relevance", "falls by", ""), swap_cells(by_change(study.swaps)))
    _title(console, "In words")
    for i, text in enumerate(sentences(study)):
        if i:
            console.print()
        console.print(Line(text))


def _print(console: Console, name: str, titles: Sequence[str], rows: Cells) -> None:
    names, *columns = ([row[i].replace("not flagged", "") for row in rows] for i in range(len(titles) + 1))
    table_columns = [Column(title, tuple(cells)) for title, cells in zip(titles, columns, strict=True)]
    _grid(console, Column(name, tuple(names)), table_columns)


def _words(study: BiasStudy, console: Console) -> None:
    tested = [entity for entity in study.entities if entity.p is not None]
    if not tested:
        return
    folded = max(0, len(tested) - 2 * SHOWN)
    ends = [*tested[:SHOWN], *tested[SHOWN + folded :]]
    _title(console, "Words", "from the most positive mean to the most negative, in logits")
    rows = [(*cells[:4], *cells[5:]) for cells in entity_cells(ends)]
    _print(console, "word", ("group", "mentions", "mean", "corrected p", ""), rows)
    if folded:
        console.print(Line(f"{folded:,} words between these ends are not shown", style="dim"))


def _quoted(study: BiasStudy, console: Console) -> None:
    scale = scale_of(study)
    for name, excerpts in zip(classes(study), extremes(study, QUOTED), strict=True):
        if excerpts:
            _title(console, f"Most relevance for {name}")
        for excerpt in excerpts:
            console.print(_line(excerpt, scale, console))


def _line(excerpt: Excerpt, scale: float, console: Console) -> Line:
    """Return a sentence with its mention coloured, or in brackets if the terminal has too few colours."""
    score = excerpt.mention.relevance
    ground = shade(score, scale)
    shades = has_shades(console)
    style = f"{hexadecimal(ink(ground))} on {hexadecimal(ground)}" if shades else sign(score)
    name = f" {excerpt.name} " if shades else f"[{excerpt.name}]"
    return Line.assemble(f"{number(score)}  ", excerpt.before, (name, style), excerpt.after)
