"""Audits of one model under one or several rule sets as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from .._util.text import displayed
from ..auditing.result import Audit
from .audit_wording import (
    BROKEN,
    GUIDE,
    MEANINGS,
    NUMBERS,
    RESIDUAL,
    TWICE,
    agrees,
    amounts,
    closing_line,
    coverage,
    head_note,
    heads,
    leaks,
    ledger_line,
    ledger_rows,
    module_label,
    norm_note,
    norms,
    operation,
    require_audits,
    samples,
    subject,
    summary,
    untraced,
    verdict,
)
from .components import Cell, Row, Table, bar_of
from .evaluation_wording import value_text
from .rendering import render
from .report_figure import ReportFigure, report_figure
from .waterfall import norm_caption, norm_svg, scatter_caption, scatter_svg, waterfall_caption, waterfall_svg
from .wording import number

MOST, FEW = 20, 8
"""Maximum number of rows of components and norms, and of heads; the audit's JSON has all."""


def page(audits: Sequence[Audit]) -> str:
    """Return an HTML page of audits of one model: summary, ledgers, waterfall, leaks, propositions, coverage."""
    audits = displayed(require_audits(audits))
    first = audits[0]
    line = f"{subject(first)} · rules {', '.join(audit.rules for audit in audits)} · {samples(first)}"
    note = "Means over samples."
    return render(
        "audit.html",
        title=f"Conservation: {line}",
        lines=[line],
        verdict=verdict(audits),
        guide=GUIDE,
        summary=summary(audits),
        bars=[
            (audit.rules, bar_of(audit.ledger, audit.output, ledger_line(audit)), closing_line(audit))
            for audit in audits
        ],
        entries=_side_by_side("entry", *ledger_rows(audits), audits, note),
        waterfall=report_figure(waterfall_svg, waterfall_caption(audits), audits),
        leaks=_side_by_side("kind", *leaks(audits), audits, _missed(audits)),
        components=[(audit.rules, _components(audit)) for audit in audits],
        layers=_layers(audits),
        sums=report_figure(scatter_svg, scatter_caption(audits), audits) if first.ledgers else None,
        heads=[(audit.rules, _heads(audit)) for audit in audits],
        norm=_norm_figure(audits),
        norms=[(audit.rules, _norms(audit)) for audit in audits],
        residuals=[(audit.rules, _residuals(audit)) for audit in audits],
        coverage=[(audit.rules, _coverage(audit)) for audit in audits],
        provenance=[
            (audit.rules, {key: value_text(value) for key, value in audit.provenance.items()}) for audit in audits
        ],
        meanings=MEANINGS,
    )


def _missed(audits: Sequence[Audit]) -> str:
    missed = [f"{audit.rules}: {number(untraced(audit))}" for audit in audits if untraced(audit)]
    return f"Leaks {TWICE}." + (f" In no component: {', '.join(missed)}." if missed else "")


def _side_by_side(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], audits: Sequence[Audit], note: str
) -> Table:
    return _table(
        note, [title, *(audit.rules for audit in audits)], [[name, *row] for name, row in zip(names, rows, strict=True)]
    )


def _components(audit: Audit) -> Table | None:
    ranked = audit.ranked()
    if not ranked:
        return None
    rows = [
        [str(rank), f"{module_label(part.module)}\n{operation(part)}", *amounts(part)]
        for rank, part in enumerate(ranked[:MOST], start=1)
    ]
    titles = ["rank", "module, function · kind · rule", *NUMBERS]
    return _table(f"{BROKEN}.{_rest(len(ranked))}", titles, rows, words=2)


def _layers(audits: Sequence[Audit]) -> Table:
    by_audit = [audit.layers() for audit in audits]
    none = (0.0, 0.0)
    largest = {
        layer: max(abs(layers.get(layer, none)[1]) for layers in by_audit) for layers in by_audit for layer in layers
    }
    titles = [f"{audit.rules}: {what}" for audit in audits for what in ("constants", "leak")]
    rows = [
        [layer, *(number(value) for layers in by_audit for value in layers.get(layer, none))]
        for layer in sorted(largest, key=lambda layer: -largest[layer])
    ]
    note = f"The relevance of each layer's constants, and its leak ({TWICE}). The largest leaks first."
    return _table(note, ["layer", *titles], rows)


def _heads(audit: Audit) -> Table | None:
    if not audit.heads:
        return None
    rows = [
        [module_label(head.module), str(head.head), number(head.entering), number(head.broke), number(head.covariance)]
        for head in heads(audit)[:FEW]
    ]
    titles = ["module", "head", "entering", "broke", "covariance"]
    return _table(head_note(audit) + _rest(len(audit.heads), FEW), titles, rows)


def _norms(audit: Audit) -> Table | None:
    if not audit.norms:
        return None
    rows = [
        [module_label(norm.module), *map(number, (norm.entering, norm.leaving, norm.predicted))]
        for norm in norms(audit)[:MOST]
    ]
    return _table(norm_note(audit) + _rest(len(audit.norms)), ["module", "entering", "leaving", "predicted"], rows)


def _residuals(audit: Audit) -> Table | None:
    if not audit.residuals:
        return None
    rows = [[layer, *(f"{value:.2f}" for value in values)] for layer, values in reversed(audit.cancelling().items())]
    return _table(f"{RESIDUAL}.", ["layer", "cancellation", "amplification"], rows)


def _norm_figure(audits: Sequence[Audit]) -> ReportFigure | None:
    """Return the figure of the norm that loses most (figure 2 of the paper), if possible under the plain gradient."""
    drawable = {i: [norm for norm in audit.norms if norm.before and norm.after] for i, audit in enumerate(audits)}
    choices = sorted((i for i in drawable if drawable[i]), key=lambda i: agrees(audits[i], "norm") is None)
    if not choices:
        return None
    audit = audits[choices[0]]
    worst = max(drawable[choices[0]], key=lambda norm: abs(norm.entering - norm.leaving))
    return report_figure(norm_svg, norm_caption(audit, worst.module), audit, worst.module)


def _coverage(audit: Audit) -> Table | None:
    rows = [
        [entry.kind, entry.function, entry.rule, str(calls), str(modules)]
        for entry, calls, modules in sorted(coverage(audit), key=lambda row: -row[1])
    ]
    note = (
        "Which rule was used for which operation, with the calls in one forward pass and the modules that made them. "
        "The most calls first."
    )
    return _table(note, ["kind", "function", "rule", "calls", "modules"], rows, words=3) if rows else None


def _rest(count: int, most: int = MOST) -> str:
    return f" The first {most} of {count}." if count > most else ""


def _table(note: str, titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> Table:
    """Return a table; the first `words` columns are text, and cells may have a second line."""
    kinds = ["word" if 0 < i < words else "" for i in range(len(titles))]
    return Table(
        note,
        [Cell(title, kind=kind) for title, kind in zip(titles, kinds, strict=True)],
        [Row(name, [_cell(*pair) for pair in zip(cells, kinds[1:], strict=True)]) for name, *cells in rows],
    )


def _cell(text: str, kind: str) -> Cell:
    first, _, second = text.partition("\n")
    return Cell(first, below=second, kind=kind)
