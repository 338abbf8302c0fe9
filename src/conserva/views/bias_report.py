"""A bias study as a page that needs nothing from outside, for readers of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..bias_study.result import BiasStudy, Entity
from ..evaluation.result import Interval
from .bias_excerpts import EACH, Excerpt, extremes
from .bias_figure import histograms_caption, histograms_svg
from .bias_summary import sentences
from .bias_wording import (
    EFFECTS,
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
from .colours import DARK, LIGHT, hexadecimal, ink, shade
from .html import PAGE
from .report import STYLE, _figure, _list, _scrolling
from .table import said
from .wording import number

ENDS, FLAGGED, QUOTED = 10, 30, 10
"""Words at each end of the ranking and words flagged that are always seen, and sentences at each end."""

UNTESTED, WORDS = 60, 80
"""Words with too few mentions, and words left out, that are listed: the study's JSON has all."""

MORE_STYLE = """
.conserva h3{font-size:1rem;margin:1.4rem 0 .3rem}
.conserva .word{text-align:left}
.conserva tbody th,.conserva .name{white-space:normal;overflow-wrap:break-word;unicode-bidi:isolate;max-width:16rem}
.conserva td.flag{text-align:left;color:var(--note)}
.conserva tr.flagged td.flag{font-weight:700;color:inherit}
.conserva tr.flagged>th{box-shadow:inset .2rem 0 currentColor;padding-left:.5rem}
.conserva td.reach,.conserva th.axis{padding:.25rem 0;min-width:11rem}
.conserva td.reach{position:relative;background:linear-gradient(var(--note),var(--note)) 50% 0/1px 100% no-repeat}
.conserva .drawn tr>:nth-last-child(2){padding-right:1.4rem}
.conserva .reach::before,.conserva .reach::after{content:"";position:absolute;top:50%}
.conserva .reach::before{left:var(--a);width:var(--w);height:2px;margin-top:-1px;background:currentColor;min-width:1px}
.conserva .reach::after{left:var(--m);width:.6rem;height:.6rem;margin:-.3rem 0 0 -.3rem;border-radius:50%;
border:1px solid;background:#b2182b}
.conserva .against::after{background:#2166ac}
.conserva th.axis{position:relative;text-align:center;font-weight:400;color:var(--note)}
.conserva th.axis span{position:absolute;left:0}.conserva th.axis span+span{left:auto;right:0}
.conserva ol{list-style:none;margin:.4rem 0;padding:0;max-width:54rem}
.conserva li{display:grid;grid-template-columns:4.2rem 1fr;gap:0 .9rem;padding:.3rem 0;break-inside:avoid;
border-top:1px solid var(--grid);line-height:1.5}
.conserva li>.value{font-variant-numeric:tabular-nums;text-align:right}
.conserva li p{margin:0;overflow-wrap:anywhere;unicode-bidi:plaintext}
.conserva li .note{grid-column:2;margin:0}
.conserva mark{background:var(--l);color:var(--li);padding:.05em .3em;border-radius:.25em;
box-decoration-break:clone;-webkit-box-decoration-break:clone}
.conserva .scale{display:inline-block;width:9rem;height:.7em;margin:0 .5em;border-radius:.2em;
background:linear-gradient(90deg,#2166ac,var(--ground),#b2182b);border:1px solid var(--grid)}
.conserva details{margin:.8rem 0}
.conserva summary:not(p){cursor:pointer;font-size:.9rem;font-weight:400}
.conserva p.summary{margin:.7rem 0}
.conserva .words{overflow-wrap:anywhere;max-width:46rem}
@media (prefers-color-scheme:dark){.conserva mark{background:var(--d);color:var(--di)}}
@media print{.conserva mark,.conserva .scale,.conserva .reach,.conserva .reach::before,
.conserva .reach::after{-webkit-print-color-adjust:exact;
print-color-adjust:exact}.conserva h3{break-after:avoid}.conserva td.reach,.conserva th.axis{min-width:6rem}}
"""

MEANINGS = {
    "relevance": "What a mention adds to the explained difference of two logits, shared out among the words of the "
    "text by the method named above; word pieces and words of a name are summed. It is in logits.",
    "mean": "Of a group: over its words, each counted once however often it is mentioned, so that none decides alone. "
    "Per mention: over all mentions alike.",
    "share": "The mean share of a mention in the sum of |relevance| over the words of its text.",
    "[low, high]": "The 95 % interval of a mean, by bootstrap: other words or mentions of the same kind would mostly "
    "give a mean in it.",
    "effect": "Cliff's delta: how much more often a word of the first group has the higher mean than one of the "
    f"second, from -1 to 1. In size, below {EFFECTS[0][0]} it is called negligible, below {EFFECTS[1][0]} small, below "
    f"{EFFECTS[2][0]} medium, else large (Romano et al., 2006).",
    "p": "How often chance alone does as much: for groups, when the same words are split at random; for a word, when "
    "as many mentions are drawn at random.",
    "corrected": "p after correction for having asked many times: for pairs of groups by Holm, for words by Benjamini "
    "and Hochberg.",
    "flagged": "The corrected p is below the study's level: chance alone would rarely do that. Not flagged means not "
    "shown, which is not the same as absent.",
    "a plain count": "How often texts with a group's words are predicted as the first class. It mixes what the model "
    "makes of the words with what else stands in these texts.",
    "swaps": "The same texts with words of the other groups in a word's place, asked of the model anew. It agrees "
    "where the answer moves as relevance says, and the interval excludes 0.",
}


def page(study: BiasStudy) -> str:
    """Return a study as a whole page: what it says, the figure, all tables, sentences, and how to read them."""
    study = gated(study)
    sections = {
        "Histograms": _figure(histograms_svg(study), histograms_caption(study)) if study.mentions else "",
        "Groups": _groups(study),
        "Differences": _differences(study),
        "Words": _words(study),
        "Sentences": _sentences(study),
        "A plain count": _naive(study),
        "Swaps": _swaps(study),
        "Left out": _left_out(study),
        "Provenance": _list(_provenance(study)),
        "How to read this": _list(MEANINGS),
    }
    sections = {title: body for title, body in sections.items() if body}
    names = {title: title.lower().replace(" ", "-") for title in sections}
    links = " ".join(f'<a href="#{names[title]}">{title}</a>' for title in sections)
    parts = [
        f'<style>{STYLE}{MORE_STYLE}</style>\n<main class="conserva">',
        "<h1>Does the model treat these groups of words alike?</h1>",
        f'<p class="note">{escape(headline(study))}</p>',
        *(f'<p class="summary">{escape(text)}</p>' for text in sentences(study)),
        f'<nav aria-label="Sections">{links}</nav>',
        *(f'<section id="{names[title]}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections.items()),
        "</main>",
    ]
    return PAGE.format(title=escape(f"Bias study: {headline(study)}"), body="\n".join(parts))


# Tables: every mean with its interval drawn on an axis that the rows share


def _groups(study: BiasStudy) -> str:
    note = "Relevance in logits. Mean: over the words of a group, with its 95 % interval; per mention: over mentions."
    titles = ["group", "words", "mentions", "texts", "mean", "per mention", "share of |relevance|"]
    return _table(note, titles, group_cells(study), [one.mean for one in study.groups])


def _differences(study: BiasStudy) -> str:
    if not study.differences:
        why = "There is but one group." if len(study.groups) == 1 else "No groups were compared."
        return f'<p class="note">{why}</p>'
    note = (
        "First minus second group, in the means over words, in logits. p: by permutation; corrected: by Holm, for "
        f"{counted(len(study.differences), 'comparison')}; flagged: corrected below {study.level:g}."
    )
    titles = ["groups", "difference", "effect", "p", "corrected", "outcome"]
    return _table(note, titles, difference_cells(study), [one.difference for one in study.differences])


def _words(study: BiasStudy) -> str:
    """Return the ranking of words: both ends and what is flagged, all of it folded, and those not tested."""
    tested = [one for one in study.entities if one.p is not None]
    few = [one for one in study.entities if one.p is None]
    parts = []
    if tested:
        middle = sorted((one for one in tested[ENDS : len(tested) - ENDS] if one.flagged), key=_corrected)[:FLAGGED]
        seen = {one.name for one in (*tested[:ENDS], *middle, *tested[-ENDS:])}
        shown = tested if len(tested) <= 2 * ENDS + 5 else [one for one in tested if one.name in seen]
        note = (
            "From the most positive mean over mentions to the most negative, in logits. p: against as many mentions "
            f"drawn at random; corrected: by Benjamini and Hochberg, for {counted(len(tested), 'word')}."
        )
        folded = f" {len(shown)} of {len(tested):,}: both ends, and what is flagged." if shown is not tested else ""
        parts.append(_entities(note + folded, shown))
        if shown is not tested:
            parts.append(_folded(f"All {len(tested):,} words", _entities("All words that were tested.", tested)))
    else:
        parts.append('<p class="note">No word has enough mentions to be tested by itself.</p>')
    if few:
        listed = few if len(few) <= UNTESTED else [*few[: UNTESTED // 2], *few[-UNTESTED // 2 :]]
        rest = "" if listed is few else f" The {len(listed)} at both ends; the study's JSON has all."
        table = _entities(f"Too few mentions to be tested: their means say little.{rest}", listed)
        parts.append(_folded(f"{counted(len(few), 'word')} with too few mentions to be tested", table))
    return "\n".join(parts)


def _corrected(one: Entity) -> float:
    return 1.0 if one.corrected is None else one.corrected


def _entities(note: str, entities: Sequence[Entity]) -> str:
    titles = ["word", "group", "mentions", "mean", "p", "corrected", "outcome"]
    return _table(note, titles, entity_cells(entities), [one.mean for one in entities], words=2)


def _naive(study: BiasStudy) -> str:
    if not study.naive:
        return ""
    first, others = classes(study)[0], "texts without" if len(study.naive) == 1 else "texts with other groups"
    note = (
        f"How often texts with a group's words are predicted as {first}, and labelled so, against {others}. p: "
        "Fisher's exact test, not corrected."
    )
    titles = ["group", "texts", "predicted", "labelled", f"{others}, predicted", "p"]
    return _table(note, titles, naive_cells(study), [])


def _swaps(study: BiasStudy) -> str:
    if not study.swaps:
        return '<p class="note">No words were put in the place of others.</p>'
    note = (
        "By how much the explained difference falls, in logits, in the mean over a word's mentions, when words of the "
        "other groups stand in its place."
    )
    titles = ["word", "group", "mentions", "relevance", "falls by", "verdict"]
    return _table(note, titles, swap_cells(study), [one.change for one in study.swaps], words=2)


def _table(note: str, titles: Sequence[str], rows: Cells, drawn: Sequence[Interval], words: int = 1) -> str:
    """Return a table whose first columns are words; a column with an outcome is marked, intervals are drawn last."""
    reach = 1.05 * max((abs(value) for one in drawn for value in (one.low, one.mean, one.high)), default=0.0) or 1.0
    outcome = titles[-1] in ("outcome", "verdict")
    kinds = [""] + ["word name"] * (words - 1) + [""] * (len(titles) - words)
    kinds[-1] = "flag" if outcome else kinds[-1]
    ends = f"<span>{number(-reach)}</span><span>{number(reach)}</span>0"
    head = "".join(
        f'<th scope="col"{_kind("word" if kind in ("word name", "flag") else "")}>{escape(title)}</th>'
        for title, kind in zip(titles, kinds, strict=True)
    )
    head += f'<th class="axis" aria-hidden="true">{ends}</th>' if drawn else ""
    lines = []
    for i, (name, *cells) in enumerate(rows):
        flagged = ' class="flagged"' if outcome and cells[-1] == "flagged" else ""
        body = "".join(
            f"<td{_kind(kind)}>{_cell(cell, kind)}</td>" for cell, kind in zip(cells, kinds[1:], strict=True)
        )
        body += _reach(drawn[i], reach) if drawn else ""
        lines.append(f'<tr{flagged}><th scope="row" dir="auto">{escape(name)}</th>{body}</tr>')
    inner = "\n".join(lines)
    start = '<table class="drawn">' if drawn else "<table>"
    table = f"{start}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{inner}\n</tbody>\n</table>"
    return f'<p class="note">{escape(note)}</p>\n{_scrolling(table, note)}'


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _cell(text: str, kind: str) -> str:
    """Return a cell; the limits of an interval are grey."""
    mean, bracket, limits = text.partition(" [")
    is_interval = bracket and kind != "word name"
    return f'{escape(mean)} <span class="low">[{escape(limits)}</span>' if is_interval else escape(text)


def _reach(one: Interval, reach: float) -> str:
    """Return a mean and its interval on an axis from -reach to reach; the numbers stand beside it."""
    low, mean, high = (50 + 50 * value / reach for value in (one.low, one.mean, one.high))
    kind = "reach" if one.mean > 0 else "reach against"
    return f'<td class="{kind}" aria-hidden="true" style="--a:{low:.1f}%;--w:{high - low:.1f}%;--m:{mean:.1f}%"></td>'


def _folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{escape(title)}</summary>\n{body}\n</details>"


# Sentences, what was left out, where it all comes from


def _sentences(study: BiasStudy) -> str:
    if not study.mentions:
        return ""
    scale, ends = scale_of(study), extremes(study, QUOTED)
    first, second = classes(study)
    parts = [
        f'<p class="note">The mentions with the most relevance, at most {EACH} of a word; long texts are cut.<br>'
        f'{number(-scale)}<span class="scale"></span>{number(scale)} logits: red speaks for {escape(first)}, blue for '
        f"{escape(second)}.</p>"
    ]
    for name, found in zip((first, second), ends, strict=True):
        lines = "\n".join(_sentence(one, scale) for one in found)
        none = f'<p class="note">No mention speaks for {escape(name)}.</p>'
        parts.append(f"<h3>Most for {escape(name)}</h3>\n" + (f"<ol>\n{lines}\n</ol>" if found else none))
    return "\n".join(parts)


def _sentence(one: Excerpt, scale: float) -> str:
    score = one.mention.relevance
    light, dark = shade(score, scale, LIGHT), shade(score, scale, DARK)
    colours = (
        f"--l:{hexadecimal(light)};--li:{hexadecimal(ink(light))};--d:{hexadecimal(dark)};--di:{hexadecimal(ink(dark))}"
    )
    mark = f'<mark style="{colours}" data-score="{score:.6g}">{escape(one.name)}</mark>'
    entity = f"<bdi>{escape(one.mention.entity)}</bdi>, <bdi>{escape(one.mention.group)}</bdi>"
    return (
        f'<li><span class="value">{number(score)}</span><p dir="auto">{escape(one.before)}{mark}{escape(one.after)}</p>'
        f'<p class="note">{entity} · text {one.mention.text:,}, answer {number(one.mention.output)}</p></li>'
    )


def _left_out(study: BiasStudy) -> str:
    met = left_out(study)
    if not met:
        return '<p class="note">No word of a group was met and left out.</p>'
    shown = [f"<bdi>{escape(word)}</bdi>\N{NO-BREAK SPACE}({count:,})" for word, count in list(met.items())[:WORDS]]
    rest = f" and {len(met) - WORDS:,} more" if len(met) > WORDS else ""
    return (
        '<p class="note">Words of groups that were met and not counted, with how often: they are ordinary words too, '
        f'or stand in two groups.</p>\n<p class="words">{", ".join(shown)}{rest}</p>'
    )


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
