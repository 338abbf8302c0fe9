"""A generation as a page: point at a token that was written, and the tokens that it came from light up."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any

from .._util.text import displayed
from ..engine.ledger import ENTRIES, Ledger
from ..results.generation import Generation, Step
from . import html
from .colours import AGAINST, DARK, FOR, LEDGER, LIGHT
from .generation_script import SCRIPT, STYLE
from .generation_wording import NO_LEDGER, first_token, headline, shown, strongest
from .wording import number

DIGITS = 4
"""Significant digits of a score in the page: of many scores, more would only make it heavy."""


def generation_page(generation: Generation) -> str:
    """Return a page that needs nothing from outside; its policy lets nothing run but its own script."""
    generation = displayed(generation)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = "style-src 'unsafe-inline'"
    page = html.PAGE.replace(policy, f"{policy}; script-src 'sha256-{digest}'")
    return page.format(title=escape(headline(generation)), body=_body(generation))


def _body(generation: Generation) -> str:
    return "\n".join(
        [
            f'<style>{html.STYLE}{STYLE}</style>\n<main class="conserva generation">',
            f"<h1>{escape(headline(generation))}</h1>",
            '<p id="choices" hidden><label><input type="checkbox" id="first"> leave the first token out of the picture'
            "</label></p>",
            f'<div id="text">{"".join(_blocks(generation))}</div>',
            _PANEL,
            _table(generation),
            "</main>",
            f'<script type="application/json" id="data">{_data(generation)}</script>',
            f"<script>{SCRIPT}</script>",
        ]
    )


_PANEL = """<section id="panel" class="panel" aria-label="why" hidden>
<p id="said" class="said" role="status" aria-live="polite"></p>
<p id="hint" class="note">Point at a token that was written (underlined): the tokens that it came from light up. \
Point at one that was read: those that it fed light up. Click or Enter holds a token, Shift with a click or an arrow \
key takes several, Escape lets go. With the keyboard: Tab, then the arrow keys.</p>
<p id="sources" class="note"></p>
<p id="others" class="note"></p>
<div id="bar" class="bar" role="img" aria-label="ledger" hidden></div>
<p id="keys" class="note ledger"></p>
<p id="scale" class="note" hidden><span id="low"></span><span class="scale"></span><span id="high"></span> red for, \
blue against</p>
<p id="share" class="note"></p>
</section>"""


def _blocks(generation: Generation) -> Iterator[str]:
    """Yield the running text, or a block for each input where there are several."""
    parts = generation.sections or (("", len(generation.features)),)
    first = 0
    for name, count in parts:
        pieces = "".join(_piece(generation, i) for i in range(first, first + count))
        label = name or "what was read, then what was written"
        heading = f"<h2>{escape(name)}</h2>" if name else ""
        yield (
            f'{heading}<div class="pieces" role="listbox" aria-multiselectable="true" dir="auto" '
            f'aria-label="{escape(label, quote=True)}">{pieces}</div>'
        )
        first += count


def _piece(generation: Generation, i: int) -> str:
    kinds = ["piece", *(["special"] if generation.special[i] else []), *(["written"] if i >= generation.start else [])]
    text = escape(generation.features[i]).replace("↵", '<span class="newline" aria-hidden="true">↵</span>\n')
    return (
        f'<span class="{" ".join(kinds)}" role="option" aria-selected="false" tabindex="-1" data-i="{i}">{text}</span>'
    )


def _table(generation: Generation) -> str:
    """Return what the page says without a script."""
    rows = "\n".join(_row(generation, step) for step in generation.steps)
    return (
        "<details>\n<summary>the strongest sources of each written token</summary>\n"
        '<div tabindex="0" role="region" aria-label="sources"><table>\n<thead><tr>'
        f'<th scope="col">token</th><th scope="col">probability</th><th scope="col">{escape(generation.score)}</th>'
        '<th scope="col">strongest sources</th><th scope="col">first token</th><th scope="col">gap</th></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n</details>"
    )


def _row(generation: Generation, step: Step) -> str:
    sources = ", ".join(f"{shown(name)} {number(score)}" for name, score in strongest(generation, step))
    gap = "" if step.ledger is None else number(step.ledger.gap)
    return (
        f'<tr><th scope="row">{escape(shown(step.token))}</th><td class="number">{step.probability:.1%}</td>'
        f'<td class="number">{number(step.output)}</td><td class="sources">{escape(sources)}</td>'
        f'<td class="number">{escape(first_token(generation, step))}</td><td class="number">{gap}</td></tr>'
    )


def _data(generation: Generation) -> str:
    """Return what the script works on, as JSON in which nothing is taken for the end of its element."""
    found = {
        "features": generation.features,
        "start": generation.start,
        "score": generation.score,
        "steps": [_step(one) for one in generation.steps],
        "entries": ENTRIES,
        "ledger": LEDGER,
        "no_ledger": NO_LEDGER,
        "for": FOR,
        "against": AGAINST,
        "light": LIGHT,
        "dark": DARK,
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _step(step: Step) -> dict[str, Any]:
    return {
        "scores": [_rounded(score) for score in step.scores],
        "output": _rounded(step.output, 6),
        "probability": _rounded(step.probability),
        "ledger": _entries(step.ledger),
        "others": [[token, _rounded(probability)] for token, probability in step.others],
    }


def _entries(ledger: Ledger[float] | None) -> list[float] | None:
    return None if ledger is None else [_rounded(getattr(ledger, name), 6) for name in ENTRIES]


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
