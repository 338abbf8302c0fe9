"""Audits as a page that needs nothing from outside: the books of one model under one or several rule sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from .._util.text import displayed
from ..auditing.result import Audit
from ..engine.ledger import ENTRIES
from .audit import (
    BROKEN,
    NUMBERS,
    agrees,
    amounts,
    books,
    closes,
    coverage,
    head_note,
    heads,
    kinds,
    leaks,
    ledger_line,
    named,
    norm_note,
    norms,
    operation,
    samples,
    share,
    some,
    subject,
    untraced,
    verdict,
)
from .colours import LEDGER
from .html import PAGE
from .report import STYLE, _figure, _list, _scrolling
from .table import said
from .waterfall import norm_caption, norm_svg, scatter_caption, scatter_svg, waterfall_caption, waterfall_svg
from .wording import number

MOST, FEW = 20, 8
"""Rows of a table, of components and norms, and of heads: what leaks less is in the audit's JSON."""

MORE_STYLE = """
.conserva{--inputs:#4d4d4d}
.conserva h3{font-size:1rem;margin:1.4rem 0 .3rem}
.conserva .bar{display:flex;height:.8rem;max-width:40rem;border-radius:.2rem;overflow:hidden;background:var(--grid)}
.conserva .key{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .35em 0 .9em}
.conserva .key:first-child{margin-left:0}
.conserva .word{text-align:left}
.conserva td,.conserva tbody th{vertical-align:top}
@media (prefers-color-scheme:dark){.conserva{--inputs:#7d7d7d}}
@media print{.conserva .bar,.conserva .key{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.conserva h3{break-after:avoid}}
"""

MEANINGS = {
    "the books": "output = inputs + positions + biases + gap. Relevance starts as the output and is handed back "
    "through the model to its inputs; positions and biases take a part. The gap is what got lost on the way.",
    "leak": "What enters an operation from the output's side and neither leaves it towards the inputs nor goes to "
    "constants. Below 0 more leaves than enters: relevance is counted twice. All leaks together are the gap.",
    "size": "The leak of each sample without its sign, averaged: where leaks of different samples cancel, this does "
    "not.",
    "constants": "Biases, positions, and everything else that the model adds and that is not an input.",
    "gi": "Gradient x Input: every operation is differentiated.",
    "ah, ln, ah+ln": "The rules of Ali et al. (2022): attention probabilities (ah) and the scales of norms (ln) are "
    "taken as constants. Activations are differentiated, and leak.",
    "exact": "The same, and activations and products are read as linear too: the books close.",
    "Proposition 1": "Under the plain gradient a head hands on more, or less, than it gets: by the covariance of its "
    "scores with its values. “Broke” is what was measured.",
    "Proposition 2": "Under the plain gradient a norm lets only eps / (eps + variance) of its relevance through, which "
    "is next to nothing.",
}


def report(audits: Sequence[Audit]) -> str:
    """Return audits of one model as a whole page: summary, books, waterfall, leaks, propositions, coverage."""
    audits = displayed(some(audits))
    first = audits[0]
    sections = {
        "The books": _books(audits),
        "From the output to the inputs": _figure(waterfall_svg(audits), waterfall_caption(audits)),
        "Leaks by kind of operation": _side_by_side("kind", *leaks(audits), audits, _missed(audits)),
        "What breaks conservation most": _each(audits, _components),
        "Layers": _layers(audits),
        "Sums against outputs": _figure(scatter_svg(audits), scatter_caption(audits)) if first.sums else "",
        "Proposition 1: attention heads": _each(audits, _heads),
        "Proposition 2: norms": _norm_figure(audits) + _each(audits, _norms),
        "Coverage": _each(audits, _coverage),
        "Provenance": _each(audits, lambda one: _list({key: said(value) for key, value in one.provenance.items()})),
        "How to read this": _list(MEANINGS),
    }
    sections = {title: body for title, body in sections.items() if body}
    names = {title: title.partition(":")[0].lower().replace(" ", "-") for title in sections}
    links = " ".join(f'<a href="#{names[title]}">{title.partition(":")[0]}</a>' for title in sections)
    line = f"{subject(first)} · rules {', '.join(one.rules for one in audits)} · {samples(first)}"
    parts = [
        f'<style>{STYLE}{MORE_STYLE}</style>\n<main class="conserva">\n<h1>Do the explanations add up?</h1>',
        f'<p class="note">{escape(line)}</p>',
        *(f'<p class="summary">{escape(text)}</p>' for text in summary(audits)),
        f'<nav aria-label="Sections">{links}</nav>',
        *(f'<section id="{names[title]}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections.items()),
        "</main>",
    ]
    return PAGE.format(title=escape(f"Conservation: {line}"), body="\n".join(parts))


# The summary: rules over numbers that are there


def summary(audits: Sequence[Audit]) -> list[str]:
    """Say in plain words where the books close, where they leak, and whether the propositions hold."""
    first = some(audits)[0]
    start = (
        f"{first.model} gives “{first.target}” {number(first.output)}, on average over {samples(first)}. An "
        "explanation splits this number among the inputs; what biases and positions take, and what gets lost, "
        "is on the books."
    )
    told = [" ".join(_told(one)) for one in audits]
    return [start, *told, *[text for text in [" ".join(_theory(audits))] if text]]


def _told(one: Audit) -> Iterable[str]:
    """Say what the books of one rule set come to, and where most of it leaks."""
    worst = share(one.relative_gap())
    if closes(one):
        yield (
            f"Under “{one.rules}” the books close: of {number(one.output)} the inputs get {number(one.inputs)}, "
            f"positions {number(one.positions)}, biases {number(one.biases)}, and no sample is off by more than "
            f"{worst} of the largest output."
        )
        return
    way = "gets lost on the way" if one.gap >= 0 else "is counted twice"
    yield (
        f"Under “{one.rules}” they do not close: of {number(one.output)} the inputs get {number(one.inputs)}, and "
        f"{number(one.gap)} {way}; the worst sample is off by {worst} of the largest output."
    )
    found, ranked = kinds(one), one.ranked()
    total = sum(size for _, size in found.values())
    if not ranked or not total:
        return
    kind = max(found, key=lambda kind: found[kind][1])
    top = ranked[0]
    yield (
        f"By size, {share(found[kind][1] / total)} of all leaks are in operations of the kind “{kind}”; the largest "
        f"single one is {named(top.module)} ({top.function}, leak {number(top.leak)})."
    )
    if untraced(one):
        yield f"Of the gap, {number(untraced(one))} is in no component: this audit has missed something."


def _theory(audits: Sequence[Audit]) -> Iterable[str]:
    """Say whether the propositions hold where they apply."""
    parts: dict[str, tuple[str, Callable[[Audit], bool]]] = {
        "attention": ("Proposition 1 of Ali et al. (2022), on attention heads,", lambda one: bool(one.heads)),
        "norm": ("Proposition 2, on norms,", lambda one: bool(one.norms)),
    }
    for kind, (name, has) in parts.items():
        for one in audits:
            found = agrees(one, kind) if has(one) else None
            if found is not None:
                yield f"{name} {'agrees' if found else 'does not agree'} with what was measured under “{one.rules}”."


# The sections


def _each(audits: Sequence[Audit], section: Callable[[Audit], str]) -> str:
    """Return a section with a part for each rule set that has something to say."""
    bodies = [(one.rules, section(one)) for one in audits]
    return "\n".join(f"<h3>{escape(rules)}</h3>\n{body}" for rules, body in bodies if body)


def _books(audits: Sequence[Audit]) -> str:
    bars = _each(audits, lambda one: f"{_bar(one)}\n<p class='note'>{escape(verdict(one))}</p>")
    note = "Means over samples; worst gap: of a sample, as a share of the largest output."
    return bars + _side_by_side("entry", *books(audits), audits, note)


def _bar(one: Audit) -> str:
    """Return the ledger as every view has it: the sizes as a bar, the signed numbers below."""
    sizes = {name: abs(getattr(one, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    colours = {**LEDGER, "inputs": "var(--inputs)"}
    parts = "".join(
        f'<span data-entry="{name}" title="{name} {number(getattr(one, name))}" '
        f'style="width:{size / total:.2%};background:{colours[name]}"></span>'
        for name, size in sizes.items()
    )
    keys = "".join(
        f'<span class="key" style="background:{colours[name]}"></span>{name} {number(getattr(one, name))}'
        for name in ENTRIES
    )
    return (
        f'<div class="bar" role="img" aria-label="{escape(ledger_line(one))}">{parts}</div>\n'
        f'<p class="note ledger">{keys} = {number(one.output)}</p>'
    )


def _missed(audits: Sequence[Audit]) -> str:
    missed = [f"{one.rules}: {number(untraced(one))}" for one in audits if untraced(one)]
    return "Below 0: counted twice." + (f" In no component: {', '.join(missed)}." if missed else "")


def _side_by_side(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], audits: Sequence[Audit], note: str
) -> str:
    return _table(
        note, [title, *(one.rules for one in audits)], [[name, *row] for name, row in zip(names, rows, strict=True)]
    )


def _components(one: Audit) -> str:
    ranked = one.ranked()
    if not ranked:
        return '<p class="note">Nothing does: every component hands on all that enters it.</p>'
    rows = [
        [str(rank), f"{named(part.module)}\n{operation(part)}", *amounts(part)]
        for rank, part in enumerate(ranked[:MOST], start=1)
    ]
    titles = ["rank", "module, function · kind · rule", *NUMBERS]
    return _table(f"{BROKEN}.{_rest(len(ranked))}", titles, rows, words=2)


def _layers(audits: Sequence[Audit]) -> str:
    found = [one.layers() for one in audits]
    order = dict.fromkeys(layer for one in found for layer in one)
    titles = [f"{one.rules}: {what}" for one in audits for what in ("constants", "leak")]
    rows = [[layer, *(number(value) for one in found for value in one.get(layer, (0.0, 0.0)))] for layer in order]
    note = "From the output down: what the constants of each layer take, and what leaks; below 0: counted twice."
    return _table(note, ["layer", *titles], rows)


def _heads(one: Audit) -> str:
    if not one.heads:
        return ""
    rows = [
        [named(head.module), str(head.head), number(head.entering), number(head.broke), number(head.covariance)]
        for head in heads(one)[:FEW]
    ]
    titles = ["module", "head", "entering", "broke", "covariance"]
    return _table(head_note(one) + _rest(len(one.heads), FEW), titles, rows)


def _norms(one: Audit) -> str:
    if not one.norms:
        return ""
    rows = [
        [named(norm.module), *map(number, (norm.entering, norm.leaving, norm.predicted))] for norm in norms(one)[:MOST]
    ]
    return _table(norm_note(one) + _rest(len(one.norms)), ["module", "entering", "leaving", "predicted"], rows)


def _norm_figure(audits: Sequence[Audit]) -> str:
    """Return the norm that loses most, as figure 2 of the paper has one; under the plain gradient if there is that."""
    drawable = {i: [norm for norm in one.norms if norm.before and norm.after] for i, one in enumerate(audits)}
    choices = sorted((i for i in drawable if drawable[i]), key=lambda i: agrees(audits[i], "norm") is None)
    if not choices:
        return ""
    one = audits[choices[0]]
    worst = max(drawable[choices[0]], key=lambda norm: abs(norm.entering - norm.leaving))
    return _figure(norm_svg(one, worst.module), norm_caption(one, worst.module))


def _coverage(one: Audit) -> str:
    rows = [[met.kind, met.function, met.rule, str(calls), str(modules)] for met, calls, modules in coverage(one)]
    note = "What met which rule: calls in one forward pass, and the modules that made them."
    return _table(note, ["kind", "function", "rule", "calls", "modules"], rows, words=3) if rows else ""


def _rest(count: int, most: int = MOST) -> str:
    return f" The first {most} of {count}." if count > most else ""


def _table(note: str, titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table whose first columns are words; it scrolls where it is too wide."""
    head = "".join(f'<th scope="col"{_word(i, words)}>{escape(title)}</th>' for i, title in enumerate(titles))
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{_word(i, words)}>{_lines(cell)}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
    return f'<p class="note">{escape(note)}</p>\n{_scrolling(table, note)}'


def _lines(cell: str) -> str:
    """Return a cell; what is on a second line says more of the first, and is grey."""
    first, _, second = cell.partition("\n")
    return escape(first) + (f'<br><span class="low">{escape(second)}</span>' if second else "")


def _word(column: int, words: int) -> str:
    return ' class="word"' if 0 < column < words else ""
