"""The parts of a page that show one explanation, as data of the macros in `templates/explanation.html`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from markupsafe import Markup

from .._util.text import displayed, printable
from ..results.explanation import Explanation
from .colours import scale_of
from .components import Bar, Bars, Cell, LedgerBars, Row, Table, bar_of, plain, share_bars, signed_bars
from .evaluation_wording import value_text
from .picture_nodes import counted, kind_of, node_noun, strongest, virtual_node
from .pictures import svg
from .text_levels import Level, is_located, levels, special_tokens
from .verdict import verdict
from .wording import hidden_line, is_signed, ledger_line, ledger_note, number, sink_line
from .written_text import Piece, section_names, spelled

FEW = 8
"""The number of features whose scores are listed at first."""

MOST = 200
"""The number of features that are listed in all."""

MOST_CLASSES = 5
"""The number of classes that are listed at first, besides the target."""

_LISTS = {
    "multi_label": "Labels, each with a probability of its own",
    "binary": "The model's only output, as a probability",
    "ordinal": "Ordered classes, the most probable first",
}
_EXCERPT = 80


@dataclass(frozen=True)
class Shown:
    """An explanation as templates show it."""

    verdict: str
    about: str
    """The method, the model and the explained output."""
    scale: float
    signed: bool
    """Whether scores are for or against the target."""
    unit: str
    """A part of the picture, such as "a patch"."""
    text: Text | None
    picture: Picture | None
    strongest: Bars
    others: Bars
    """The scores after the strongest."""
    classes: tuple[str, Bars, Bars] | None
    """The title and the bars of the model's outputs: the first of them with the target's, and the others."""
    ledger: LedgerBars
    notes: tuple[str, ...]
    windows: Table | None
    provenance: dict[str, str]


@dataclass(frozen=True)
class Text:
    """An explained text at all levels of detail."""

    levels: list[Level]
    located: bool
    """Whether the text is shown as it was written."""
    apart: list[Piece]
    """Special tokens that are not in the text."""
    unread: str
    asked: str
    """The word that is asked about; empty for other tasks."""


@dataclass(frozen=True)
class Picture:
    """An explained graph or image."""

    name: str
    svg: Markup
    virtual: list[tuple[str, float]]


def shown(explanation: Explanation, most: int = MOST) -> Shown:
    """Return an explanation as templates show it, with at most `most` features in its list."""
    safe = displayed(explanation)
    scale = scale_of([safe])
    named = _ranked(explanation)
    return Shown(
        verdict=verdict(explanation),
        about=f"{safe.method} · {safe.model} · {safe.target}: {number(safe.output)}",
        scale=scale,
        signed=is_signed(safe),
        unit="" if safe.picture is None else _with_article(node_noun(safe)),
        text=text_of(explanation) if safe.picture is None else None,
        picture=None if safe.picture is None else picture_of(safe, scale),
        strongest=_part(named, 0, FEW),
        others=_part(named, FEW, most),
        classes=_classes(safe),
        ledger=ledger_of(safe),
        notes=tuple(_notes(safe, len(named))),
        windows=_windows(explanation),
        provenance=provenance_of(explanation),
    )


def text_of(explanation: Explanation) -> Text:
    """Return an explained text at all levels of detail."""
    found, located = levels(explanation), is_located(explanation)
    last = found[0].sections[-1]
    return Text(found, located, special_tokens(explanation), last.after.rstrip() if located else "", last.asked)


def picture_of(explanation: Explanation, scale: float) -> Picture:
    """Return an explained graph or image, whose full colours are for scores of size `scale`."""
    return Picture(explanation.text, svg(explanation, scale, in_page=True), virtual_node(explanation))


def ledger_of(explanation: Explanation) -> LedgerBars:
    """Return the waterfall of an explanation's ledger, with a note on what is unusual."""
    note = ledger_note(explanation)
    return bar_of(explanation.ledger, explanation.output, ledger_line(explanation), note)


def provenance_of(explanation: Explanation) -> dict[str, str]:
    """Return the provenance of an explanation as text."""
    return {key: value_text(value) for key, value in displayed(explanation.provenance).items()}


def _ranked(explanation: Explanation) -> list[tuple[str, float]]:
    """Return name and score of each word or node, the largest first."""
    if explanation.picture is not None:
        return strongest(displayed(explanation))
    words = explanation.merged()
    sections = [f" ({name})" if name else "" for name in section_names(words)]
    names = map(str.__add__, spelled(words), sections)
    return sorted(zip(names, words.scores, strict=True), key=lambda each: -abs(each[1]))


def _part(named: list[tuple[str, float]], first: int, last: int) -> Bars:
    """Return the bars of some features, on the axis of all of them."""
    bars = signed_bars(named)
    return Bars(bars.bars[first:last], bars.zero)


def _classes(explanation: Explanation) -> tuple[str, Bars, Bars] | None:
    """Return the outputs of all classes: probabilities if there are some, otherwise the outputs themselves."""
    classes = explanation.classes
    head = str(explanation.provenance.get("head"))
    if not classes or (classes[0].probability is None and len(classes) == 1):
        return None
    if classes[0].probability is None:
        title, bars = "Outputs", signed_bars([(each.label, each.output) for each in classes])
    else:
        title = _LISTS.get(head, "Classes, the most probable first")
        bars = share_bars([(each.label, each.probability or 0.0) for each in classes])
    first: list[Bar] = []
    others: list[Bar] = []
    for i, (bar, each) in enumerate(zip(bars.bars, classes, strict=True)):
        is_target = each.label == explanation.target
        shown = first if i < MOST_CLASSES or is_target else others
        shown.append(replace(bar, kind="aim" if is_target else ""))
    return title, replace(bars, bars=first), replace(bars, bars=others)


def _notes(explanation: Explanation, count: int) -> Iterator[str]:
    if explanation.picture is not None:
        names = ", named by row and column: r1c2 is the second in the first row"
        yield f"{counted(explanation)}{names if kind_of(explanation) == 'image' else ''}"
    if any(explanation.unknown):
        tokens = sorted({name for name, odd in zip(explanation.features, explanation.unknown, strict=True) if odd})
        yield f"Underlined with dots: not in the model's vocabulary. The model reads {', '.join(tokens[:3])} instead."
    if explanation.sink:
        yield sink_line(explanation)
    if hidden := hidden_line(explanation):
        yield hidden


def _windows(explanation: Explanation) -> Table | None:
    """Return a table of the windows of a long text."""
    if not explanation.windows:
        return None
    rows = []
    for i, window in enumerate(explanation.windows, start=1):
        spans = [span for span in explanation.offsets[window.first : window.last] if span is not None]
        text = explanation.text[spans[0][0] : spans[-1][1]] if spans else ""
        start = printable(text[:_EXCERPT]) + ("…" if len(text) > _EXCERPT else "")
        cells = [
            Cell(f"{window.first + 1:,} to {window.last:,}"),
            Cell(number(window.output)),
            Cell(start, kind="word"),
        ]
        rows.append(Row(str(i), cells))
    note = "The text is longer than the model takes: it was explained in windows, and the output is the mean of theirs."
    return Table(note, plain(["window", "tokens", "output", "begins with"]), rows)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
