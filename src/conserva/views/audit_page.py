"""Audits as a page that needs nothing from outside: the ledgers of one model under one or several rule sets."""

from __future__ import annotations

from collections.abc import Sequence

from .._util.text import displayed
from ..auditing.result import Audit
from .audit_terminal import (
    BROKEN,
    NUMBERS,
    agrees,
    amounts,
    books,
    coverage,
    head_note,
    heads,
    leaks,
    ledger_line,
    named,
    norm_note,
    norms,
    operation,
    samples,
    some,
    subject,
    untraced,
    verdict,
)
from .audit_wording import MEANINGS, summary
from .components import Cell, Figure, Row, Table, bar_of
from .evaluation_terminal import said
from .rendering import render
from .waterfall import norm_caption, norm_svg, scatter_caption, scatter_svg, waterfall_caption, waterfall_svg
from .wording import number

MOST, FEW = 20, 8
"""Rows of a table, of components and norms, and of heads: what leaks less is in the audit's JSON."""


def page(audits: Sequence[Audit]) -> str:
    """Return audits of one model as a whole page: summary, ledgers, waterfall, leaks, propositions, coverage."""
    audits = displayed(some(audits))
    first = audits[0]
    line = f"{subject(first)} · rules {', '.join(one.rules for one in audits)} · {samples(first)}"
    note = "Means over samples; worst gap: of a sample, as a share of the largest output."
    return render(
        "audit.html",
        title=f"Conservation: {line}",
        lines=[line],
        summary=summary(audits),
        bars=[(one.rules, bar_of(one, one.output, ledger_line(one)), verdict(one)) for one in audits],
        entries=_side_by_side("entry", *books(audits), audits, note),
        waterfall=Figure(waterfall_svg(audits), waterfall_caption(audits)),
        leaks=_side_by_side("kind", *leaks(audits), audits, _missed(audits)),
        components=[(one.rules, _components(one)) for one in audits],
        layers=_layers(audits),
        sums=Figure(scatter_svg(audits), scatter_caption(audits)) if first.sums else None,
        heads=[(one.rules, _heads(one)) for one in audits],
        norm=_norm_figure(audits),
        norms=[(one.rules, _norms(one)) for one in audits],
        coverage=[(one.rules, _coverage(one)) for one in audits],
        provenance=[(one.rules, {key: said(value) for key, value in one.provenance.items()}) for one in audits],
        meanings=MEANINGS,
    )


def _missed(audits: Sequence[Audit]) -> str:
    missed = [f"{one.rules}: {number(untraced(one))}" for one in audits if untraced(one)]
    return "Below 0: counted twice." + (f" In no component: {', '.join(missed)}." if missed else "")


def _side_by_side(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], audits: Sequence[Audit], note: str
) -> Table:
    return _table(
        note, [title, *(one.rules for one in audits)], [[name, *row] for name, row in zip(names, rows, strict=True)]
    )


def _components(one: Audit) -> Table | None:
    ranked = one.ranked()
    if not ranked:
        return None
    rows = [
        [str(rank), f"{named(part.module)}\n{operation(part)}", *amounts(part)]
        for rank, part in enumerate(ranked[:MOST], start=1)
    ]
    titles = ["rank", "module, function · kind · rule", *NUMBERS]
    return _table(f"{BROKEN}.{_rest(len(ranked))}", titles, rows, words=2)


def _layers(audits: Sequence[Audit]) -> Table:
    found = [one.layers() for one in audits]
    order = dict.fromkeys(layer for one in found for layer in one)
    titles = [f"{one.rules}: {what}" for one in audits for what in ("constants", "leak")]
    rows = [[layer, *(number(value) for one in found for value in one.get(layer, (0.0, 0.0)))] for layer in order]
    note = "From the output down: what the constants of each layer take, and what leaks; below 0: counted twice."
    return _table(note, ["layer", *titles], rows)


def _heads(one: Audit) -> Table | None:
    if not one.heads:
        return None
    rows = [
        [named(head.module), str(head.head), number(head.entering), number(head.broke), number(head.covariance)]
        for head in heads(one)[:FEW]
    ]
    titles = ["module", "head", "entering", "broke", "covariance"]
    return _table(head_note(one) + _rest(len(one.heads), FEW), titles, rows)


def _norms(one: Audit) -> Table | None:
    if not one.norms:
        return None
    rows = [
        [named(norm.module), *map(number, (norm.entering, norm.leaving, norm.predicted))] for norm in norms(one)[:MOST]
    ]
    return _table(norm_note(one) + _rest(len(one.norms)), ["module", "entering", "leaving", "predicted"], rows)


def _norm_figure(audits: Sequence[Audit]) -> Figure | None:
    """Return the norm that loses most, as figure 2 of the paper has one; under the plain gradient if there is that."""
    drawable = {i: [norm for norm in one.norms if norm.before and norm.after] for i, one in enumerate(audits)}
    choices = sorted((i for i in drawable if drawable[i]), key=lambda i: agrees(audits[i], "norm") is None)
    if not choices:
        return None
    one = audits[choices[0]]
    worst = max(drawable[choices[0]], key=lambda norm: abs(norm.entering - norm.leaving))
    return Figure(norm_svg(one, worst.module), norm_caption(one, worst.module))


def _coverage(one: Audit) -> Table | None:
    rows = [[met.kind, met.function, met.rule, str(calls), str(modules)] for met, calls, modules in coverage(one)]
    note = "What met which rule: calls in one forward pass, and the modules that made them."
    return _table(note, ["kind", "function", "rule", "calls", "modules"], rows, words=3) if rows else None


def _rest(count: int, most: int = MOST) -> str:
    return f" The first {most} of {count}." if count > most else ""


def _table(note: str, titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> Table:
    """Return a table whose first columns are words; a second line of a cell says more of the first."""
    kinds = ["word" if 0 < i < words else "" for i in range(len(titles))]
    return Table(
        note,
        [Cell(title, kind=kind) for title, kind in zip(titles, kinds, strict=True)],
        [Row(name, [_cell(*pair) for pair in zip(cells, kinds[1:], strict=True)]) for name, *cells in rows],
    )


def _cell(text: str, kind: str) -> Cell:
    first, _, second = text.partition("\n")
    return Cell(first, below=second, kind=kind)
