"""What a bias study says, in sentences for readers of every kind and as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text as Line

from ..bias_study.result import BiasStudy, Difference, Entity, Naive
from .audit_terminal import _grid, _title
from .bias_excerpts import Excerpt, extremes
from .bias_wording import (
    NAMED,
    Cells,
    centre,
    chance,
    classes,
    counted,
    difference_cells,
    entity_cells,
    excludes_zero,
    forward,
    from_to,
    gated,
    group_cells,
    headline,
    left_out,
    listed,
    naive_cells,
    percent,
    scale_of,
    size,
    swap_cells,
    typical,
    verdict,
)
from .colours import hexadecimal, ink, shade
from .evaluation_terminal import Column, short
from .terminal_pictures import has_shades, sign
from .wording import number

SHOWN, QUOTED = 6, 3
"""Words and sentences at each end of a ranking that a terminal shows."""

CAVEATS = (
    "All this is about one model on these texts; it says nothing about people, and other texts may give other numbers. "
    "“Flagged” means that chance alone would rarely do that. What is not flagged is not shown, which does not mean "
    "that it is absent."
)


def sentences(study: BiasStudy) -> list[str]:
    """Say in plain words which groups and words differ, by how much and how surely, and what speaks against it."""
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


# The sentences: rules over numbers that are there


def _start(study: BiasStudy) -> str:
    first, second = classes(study)
    corpus = counted(study.texts, "text") + ("" if study.data == "texts" else f" ({study.data})")
    groups = [
        f"“{one.name}” ({counted(one.mentions, 'mention')} of {counted(one.entities, 'word')})" for one in study.groups
    ]
    return (
        f"In {corpus}, words of {counted(len(study.groups), 'group')} were "
        f"looked for: {listed(groups)}. For each mention it was measured how much it adds to what {study.model} "
        f"answers: its relevance, in logits. Above 0 it speaks for {first}, below 0 for {second}. To compare: a "
        f"typical text gets {short(typical(study))} logits for one or the other (median size of “{study.target}”)."
        if groups
        else f"In {corpus} no word of a group was met."
    )


def _compared(study: BiasStudy) -> Iterable[str]:
    """Say of each pair of groups whether they differ: those that are flagged first, the largest differences first."""
    if not study.differences:
        yield (
            f"There is one group, “{study.groups[0].name}”: nothing to compare it with."
            if len(study.groups) == 1
            else "No groups were compared with each other."
        )
        return
    order = sorted(study.differences, key=lambda one: (not one.flagged, one.corrected, one.p))
    yield _difference(study, order[0])
    flagged = [_briefly(study, one) for one in order[1:] if one.flagged]
    if flagged:
        more = f"; and {len(flagged) - NAMED:,} more, see the table" if len(flagged) > NAMED else ""
        yield f"Flagged too: {'; '.join(flagged[:NAMED])}{more}."
    rest = [
        f"“{one.a}” and “{one.b}”, first minus second {from_to(one.difference)}"
        for one in map(forward, order[1:])
        if not one.flagged
    ]
    if rest:
        more = f"; and {len(rest) - NAMED:,} more, see the table" if len(rest) > NAMED else ""
        start = "Not shown to differ" if order[0].flagged else "Nor are these shown to differ"
        yield f"{start}: {'; '.join(rest[:NAMED])}{more}."


def _briefly(study: BiasStudy, found: Difference) -> str:
    one = forward(found)
    return (
        f"words of “{one.a}” speak more for {classes(study)[0]} than words of “{one.b}”, by {from_to(one.difference)}, "
        f"a {size(one.effect)} effect, with {percent(one.corrected, 3)} after correction"
    )


def _difference(study: BiasStudy, found: Difference) -> str:
    one, usual = forward(found), typical(study)
    words = f"words of “{one.a}” speak more for {classes(study)[0]} than words of “{one.b}”"
    words = words if one.difference.mean else "words of both speak alike"
    amount = f"by {from_to(one.difference)} in the mean"
    part = f", which is {percent(one.difference.mean / usual)} of what a typical text gets" if usual else ""
    effect = f"by Cliff's delta this is a {size(one.effect)} effect ({one.effect:+.3f}; 0 is none, 1 the largest)"
    pairs = len(study.differences)
    corrected = f", {percent(one.corrected, 3)} after correction for {pairs} comparisons"
    corrected = corrected if pairs > 1 and one.p < study.level else ""
    sure = f"When the same words are split at random, {percent(one.p, 3)} of the splits differ as much{corrected}"
    wide = "" if excludes_zero(one.difference) else " The interval includes 0, though: the size is uncertain."
    turned = (
        " Most pairs of words point the other way, though: a few words decide the mean."
        if one.effect * one.difference.mean < 0
        else ""
    )
    if one.flagged:
        return (
            f"The difference between “{found.a}” and “{found.b}” is flagged: {words}, {amount}{part}; {effect}. "
            f"{sure}; below {percent(study.level)} is flagged.{wide}{turned}"
        )
    limits = one.difference.low, one.difference.high
    low, high = (short(value, limits) for value in limits)
    narrow = " The interval excludes 0, but the test decides." if excludes_zero(one.difference) else ""
    return (
        f"No difference between “{found.a}” and “{found.b}” is shown. In these texts {words}, {amount}{part}; "
        f"{effect}. {sure}; only below {percent(study.level)} is flagged.{narrow}{turned} This does not prove "
        f"that there is none: anything from {low} to {high} logits would fit."
    )


def _stand_out(study: BiasStudy) -> str:
    """Say which words lie apart from all mentions, above their mean or below it."""
    tested = [one for one in study.entities if one.p is not None]
    few = len(study.entities) - len(tested)
    left = f" {counted(few, 'word')} had too few mentions to be tested." if few else ""
    if not tested:
        return "No word has enough mentions to be tested by itself." if study.entities else ""
    mean, found = centre(study), [one for one in tested if one.flagged]
    of_all = f"the mean of all mentions ({number(mean)} logits)"
    if not found:
        none = (
            "The one word tested does not stand" if len(tested) == 1 else f"None of {len(tested):,} words tested stands"
        )
        return f"{none} out from {of_all}.{left}"
    above = [_entity(one) for one in sorted(found, key=lambda one: -one.mean.mean) if one.mean.mean >= mean]
    below = [_entity(one) for one in sorted(found, key=lambda one: one.mean.mean) if one.mean.mean < mean]
    stand = "stands" if len(found) == 1 else "stand"
    sides = [f"above it {listed(above)}"] if above else []
    sides += [f"below it {listed(below)}"] if below else []
    return (
        f"Of {counted(len(tested), 'word')} tested, {len(found):,} {stand} out from {of_all}: {'; '.join(sides)}. Of "
        f"words flagged so, up to about {percent(study.level)} are to be expected by chance.{left}"
    )


def _entity(one: Entity) -> str:
    return f"“{one.name}” ({number(one.mean.mean)} in {counted(one.mentions, 'mention')})"


def _swapped(study: BiasStudy) -> str:
    # A blind model's groups can be flagged, too, if they stand in sentences of different kinds.
    warning = (
        " A difference between groups can come from the sentences they stand in: a word weighs more where the model is "
        "undecided, whichever word it is. Only where other words in the same places change the answer is it the words."
        if any(one.flagged for one in study.differences)
        else ""
    )
    if not study.swaps:
        return f"Whether the model answers otherwise with other words in the same places was not checked.{warning}"
    verdicts: dict[str, list[str]] = {"agrees": [], "is unsure": [], "disagrees": []}
    for one in study.swaps:
        verdicts[verdict(one)].append(f"“{one.name}”")
    agreeing, unsure, against = verdicts.values()
    return (
        f"As a check, words of the other groups were put in the place of {counted(len(study.swaps), 'word')}. The "
        f"answer moved as relevance says for {listed(agreeing) if agreeing else 'none'}"
        + (f", the other way for {listed(against)}" if against else "")
        + (f", and not clearly either way for {listed(unsure)}" if unsure else "")
        + f".{warning}"
    )


def _counted(study: BiasStudy) -> str:
    """Say what counting predictions would have said, and whether the texts' own labels differ likewise."""
    if not study.naive:
        return ""
    most, least = (pick(study.naive, key=lambda one: one.predicted) for pick in (max, min))
    first = classes(study)[0]
    start = f"A plain count, without explanations: of texts with “{most.group}” {percent(most.predicted)} are"
    if most is least:
        whose = f"{percent(most.other)} of the texts without"
        counts = f"{start} predicted as {first}, against {whose}{_tested(study, [most])}."
        labels = "" if most.labelled is None else f" Labelled so are {percent(most.labelled)} of the texts with it."
        return counts + labels
    counts = f"{start} predicted as {first}, of texts with “{least.group}” {percent(least.predicted)}"
    return f"{counts}{_tested(study, [most, least])}. {_confounded(study, most, least)}{_beside(study, most, least)}"


def _tested(study: BiasStudy, rows: Sequence[Naive]) -> str:
    p = min(one.p for one in rows)
    called = "would be called a difference" if p < study.level else "would not be called a difference"
    return f"; by itself that {called} (p {'' if p < 0.001 else '= '}{chance(p)})"


def _confounded(study: BiasStudy, most: Naive, least: Naive) -> str:
    if most.labelled is None or least.labelled is None:
        return "The texts have no labels here: whether the texts differ or the model does, a count cannot tell."
    labels = f"{percent(most.labelled)} against {percent(least.labelled)}"
    apart, predicted = most.labelled - least.labelled, most.predicted - least.predicted
    if min(most.p, least.p) >= study.level:
        return f"Labelled so are {percent(most.labelled)} and {percent(least.labelled)}."
    if apart <= 0:
        return f"The texts' own labels do not differ that way ({labels})."
    if apart < predicted / 2:
        return f"The texts' own labels differ that way too, but less ({labels}): they account for a part of it."
    return (
        f"But the texts' own labels differ that way too ({labels}): the groups stand in different texts, and a count "
        "cannot tell that from what the model makes of the words."
    )


def _beside(study: BiasStudy, most: Naive, least: Naive) -> str:
    """Say what relevance says of the same two groups."""
    pair = {most.group, least.group}
    found = next((forward(one) for one in study.differences if {one.a, one.b} == pair), None)
    if found is None:
        return ""
    if not found.flagged:
        return " Relevance shows no difference between the two."
    return f" Relevance shows a difference between the two, the {'same' if found.a == most.group else 'other'} way."


def _not_counted(study: BiasStudy) -> str:
    met = left_out(study)
    if not met:
        return ""
    words = [f"“{word}” ({count:,} times)" for word, count in met.items()]
    return (
        f"Not counted, because they are ordinary words too or stand in two groups: {listed(words)}. Names among them "
        "are missed."
    )


# The terminal


def show(study: BiasStudy, console: Console | None = None) -> None:
    """Print a study: what it says, groups, differences, words and sentences at both ends, counts and swaps."""
    console = console or Console()
    study = gated(study)
    console.print(Line(headline(study), style="bold"))
    for text in sentences(study):
        console.print()
        console.print(Line(text))
    _title(console, "Groups", "relevance in logits: mean over words [95 % interval]; mean over mentions")
    _print(console, "group", ("words", "mentions", "texts", "mean", "per mention", "share"), group_cells(study))
    if study.differences:
        _title(console, "Differences", f"in logits; flagged: p below {study.level:g} after Holm's correction")
        rows = [
            (*cells[:3], *cells[4:]) for cells in difference_cells(study)
        ]  # the corrected p is the one that decides
        _print(console, "groups", ("difference", "effect", "p, Holm", ""), rows)
    _words(study, console)
    _quoted(study, console)
    if study.naive:
        _title(console, "A plain count", f"texts predicted as {classes(study)[0]}, with the group and with others")
        _print(console, "group", ("texts", "predicted", "labelled", "others", "p"), naive_cells(study))
    if study.swaps:
        _title(console, "Swaps", "by how much the answer falls, in logits, with words of other groups in the place")
        _print(console, "word", ("group", "mentions", "relevance", "falls by", ""), swap_cells(study))


def _print(console: Console, name: str, titles: Sequence[str], rows: Cells) -> None:
    names, *columns = ([row[i].replace("not flagged", "") for row in rows] for i in range(len(titles) + 1))
    found = [Column(title, tuple(cells)) for title, cells in zip(titles, columns, strict=True)]
    _grid(console, Column(name, tuple(names)), found)


def _words(study: BiasStudy, console: Console) -> None:
    tested = [one for one in study.entities if one.p is not None]
    if not tested:
        return
    folded = max(0, len(tested) - 2 * SHOWN)
    ends = [*tested[:SHOWN], *tested[SHOWN + folded :]]
    _title(console, "Words", "from the most positive mean to the most negative, in logits")
    rows = [(*cells[:4], *cells[5:]) for cells in entity_cells(ends)]
    _print(console, "word", ("group", "mentions", "mean", "corrected p", ""), rows)
    if folded:
        console.print(Line(f"{folded:,} between these ends are left out here", style="dim"))


def _quoted(study: BiasStudy, console: Console) -> None:
    scale = scale_of(study)
    for name, found in zip(classes(study), extremes(study, QUOTED), strict=True):
        if found:
            _title(console, f"Most relevance for {name}")
        for one in found:
            console.print(_line(one, scale, console))


def _line(one: Excerpt, scale: float, console: Console) -> Line:
    """Return a sentence with its mention on its colour; where a terminal has no shades, in brackets."""
    score = one.mention.relevance
    ground = shade(score, scale)
    shades = has_shades(console)
    style = f"{hexadecimal(ink(ground))} on {hexadecimal(ground)}" if shades else sign(score)
    name = f" {one.name} " if shades else f"[{one.name}]"
    return Line.assemble(f"{number(score)}  ", one.before, (name, style), one.after)
