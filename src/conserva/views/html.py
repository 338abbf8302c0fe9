"""Explanations as a page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain, islice

from .._util.text import displayed
from ..results.explanation import Explanation
from ..results.explanations import Comparison
from .colours import DARK, LEDGER, LIGHT, hexadecimal, ink, scale_of, shade
from .nodes import called, counted, strongest, virtual_node
from .pictures import svg
from .wording import ENTRIES, caption, ledger_line, number, sink_line

STYLE = """
.conserva{font:16px/1.7 system-ui,sans-serif;color:#1a1a1a;max-width:60rem}
.conserva h2{font-size:1rem;margin:1.6rem 0 .5rem}
.conserva h3{font-size:.85rem;font-weight:600;margin:.6rem 0 .2rem}
.conserva .tokens{margin:0 0 .4rem;overflow-wrap:anywhere}
.conserva .token{background:var(--l);color:var(--li);padding:.12em .3em;border-radius:.25em;margin:0 .06em;
display:inline-block;white-space:pre-wrap;unicode-bidi:isolate}
.conserva .token:focus{outline:2px solid currentColor;outline-offset:1px}
.conserva .special{font-size:.8em;opacity:.85}
.conserva .note{font-size:.85rem;color:#595959;margin:.3rem 0}
.conserva .bar{display:flex;height:.8rem;max-width:40rem;border-radius:.2rem;overflow:hidden;background:#eee}
.conserva .key{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .35em 0 .9em}
.conserva .scale{display:inline-block;width:9rem;height:.7em;margin:0 .5em;border-radius:.2em;
background:linear-gradient(90deg,#2166ac,var(--ground,#fff),#b2182b);border:1px solid #ccc}
.conserva .pictured{display:inline-block;vertical-align:top;width:28rem;max-width:100%;margin-right:1.5rem}
.conserva .picture{margin:.4rem 0}
.conserva .picture svg{display:block;max-width:100%;height:auto}
.conserva [data-node]:hover{stroke:#000;stroke-width:2;vector-effect:non-scaling-stroke}
.conserva .input{overflow-wrap:anywhere}
.conserva .white{--ground:#fff}
.conserva .white .token{background:var(--l);color:var(--li)}
.conserva details{font-size:.85rem;margin:.3rem 0 .6rem}
.conserva summary{cursor:pointer}
.conserva .list{max-height:18rem;overflow:auto}
.conserva td{padding:0 1.2rem 0 0;font-variant-numeric:tabular-nums}
.conserva td+td{text-align:right}
@media (prefers-color-scheme:dark){
.conserva{color:#f2f2f2;--ground:#16181d}.conserva .token{background:var(--d);color:var(--di)}
.conserva .note{color:#b3b3b3}.conserva .bar{background:#333}.conserva .scale{border-color:#444}}
@media print{.conserva .pictured{break-inside:avoid}
.conserva .picture,.conserva .token{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>body{{margin:2rem auto;padding:0 1rem;max-width:60rem;background:#fff}}
@media (prefers-color-scheme:dark){{body{{background:#16181d}}}}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return a whole page, with why methods were refused. Its policy forbids it to load or run anything."""
    return "".join(page_parts(explanations, refused))


def page_parts(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a page part by part, as the explanations come: there may be more than memory holds."""
    rest = iter(explanations)
    first = list(islice(rest, 1))
    title = escape(caption(displayed(first[0]))) if first else "conserva"
    before, after = PAGE.format(title=title, body="\0").split("\0")
    yield before
    yield from _fragment_parts(chain(first, rest), refused)
    yield after


def comparison_page(comparison: Comparison) -> str:
    """Return a whole page of a comparison."""
    return page(comparison, comparison.refused)


def comparison_fragment(comparison: Comparison) -> str:
    """Return a comparison as notebooks take it."""
    return fragment(comparison, comparison.refused)


def fragment(explanations: Iterable[Explanation], refused: Mapping[str, str] | None = None) -> str:
    """Return the part of a page that shows explanations, as notebooks take it."""
    return "".join(_fragment_parts(explanations, refused))


def _fragment_parts(explanations: Iterable[Explanation], refused: Mapping[str, str] | None) -> Iterator[str]:
    yield f'<style>{STYLE}</style>\n<div class="conserva">\n'
    for one in explanations:
        yield f"{_section(displayed(one))}\n"
    for method, reason in displayed(refused or {}).items():
        yield f'<section>\n<h2>{escape(method)}</h2>\n<p class="note">{escape(reason)}</p>\n</section>\n'
    yield "</div>"


def _section(one: Explanation) -> str:
    if one.picture is not None:
        return _pictured(one)
    scale = scale_of([one])
    each = [_token(*three, scale) for three in zip(one.features, one.scores, one.special, strict=True)]
    return "\n".join(
        [
            "<section>",
            f"<h2>{escape(caption(one))}</h2>",
            *_parts(one, each),
            _legend(scale, "a word"),
            *([f'<p class="note">{escape(sink_line(one))}</p>'] if one.sink is not None else []),
            ledger_part(one),
            "</section>",
        ]
    )


def _parts(one: Explanation, tokens: Sequence[str]) -> Iterator[str]:
    """Yield the tokens, those of each input by themselves where there are several."""
    if not one.sections:
        yield f'<p class="tokens">{"".join(tokens)}</p>'
    first = 0
    for name, count in one.sections:
        yield f'<h3>{escape(name)}</h3>\n<p class="tokens">{"".join(tokens[first : first + count])}</p>'
        first += count


def _pictured(one: Explanation) -> str:
    """Return a graph or an image: its picture, the virtual node beside it, and all nodes or patches as a list."""
    scale, name = scale_of([one]), called(one)
    chips = "".join(_token(node, score, True, scale, f" {number(score)}") for node, score in virtual_node(one))
    rows = "".join(
        f'<tr><td>{escape(node)}</td><td data-score="{score:.6g}">{number(score)}</td></tr>'
        for node, score in strongest(one)
    )
    return "\n".join(
        [
            '<section class="pictured">',
            f"<h2>{escape(caption(one))}</h2>",
            f'<p class="note input">{escape(one.text)}</p>',
            f'<div class="picture">{svg(one, scale, in_page=True)}</div>',
            *([f'<p class="tokens white">{chips}</p>'] if chips else []),
            _legend(scale, f"{'an' if name[0] in 'aeiou' else 'a'} {name}", " white"),
            f'<details>\n<summary>{counted(one)}, the largest scores first</summary>\n<div class="list" tabindex="0" '
            f'role="region" aria-label="scores"><table>\n{rows}\n</table></div>\n</details>',
            ledger_part(one),
            "</section>",
        ]
    )


def _legend(scale: float, unit: str, ground: str = "") -> str:
    return (
        f'<p class="note">{number(-scale)}<span class="scale{ground}"></span>{number(scale)} '
        f"red for, blue against; point at {unit} for its number</p>"
    )


def _token(feature: str, score: float, special: bool, scale: float, said: str = "") -> str:
    light, dark = shade(score, scale, LIGHT), shade(score, scale, DARK)
    colours = (
        f"--l:{hexadecimal(light)};--li:{hexadecimal(ink(light))};--d:{hexadecimal(dark)};--di:{hexadecimal(ink(dark))}"
    )
    kind = "token special" if special else "token"
    label = f"{escape(feature, quote=True)} {number(score)}"
    return (
        f'<span class="{kind}" tabindex="0" style="{colours}" data-score="{score:.6g}" title="{label}" '
        f'dir="auto">{escape(feature)}{said}</span>'
    )


def ledger_part(one: Explanation) -> str:
    """Return the books as a bar and a line."""
    if one.ledger is None:
        return f'<p class="note">{escape(ledger_line(one))}</p>'
    sizes = {name: abs(getattr(one.ledger, name)) for name in ENTRIES}
    total = sum(sizes.values()) or 1.0
    parts = "".join(_entry_part(name, getattr(one.ledger, name), size / total) for name, size in sizes.items())
    keys = "".join(
        f'<span class="key" style="background:{LEDGER[name]}"></span>{name} {number(getattr(one.ledger, name))}'
        for name in ENTRIES
    )
    return (
        f'<div class="bar" role="img" aria-label="{escape(ledger_line(one), quote=True)}">{parts}</div>\n'
        f'<p class="note ledger">{keys} = {number(one.output)}</p>'
    )


def _entry_part(name: str, value: float, share: float) -> str:
    style = f"width:{share:.2%};background:{LEDGER[name]}"
    return f'<span data-entry="{name}" data-value="{value:.6g}" title="{name} {number(value)}" style="{style}"></span>'
