"""The colour scale of all views: red for, blue against the target, the background colour at 0, symmetric."""

from __future__ import annotations

from collections.abc import Iterable

from ..results.explanation import Explanation

FOR, AGAINST = (0xB2, 0x18, 0x2B), (0x21, 0x66, 0xAC)
LIGHT, DARK = (0xFF, 0xFF, 0xFF), (0x16, 0x18, 0x1D)
INK_ON_LIGHT, INK_ON_DARK = (0x00, 0x00, 0x00), (0xFF, 0xFF, 0xFF)  # other pairs fall below a contrast of 4.5
LEDGER = {"inputs": "#4d4d4d", "positions": "#8c6bb1", "biases": "#bdbdbd", "gap": "#e08214"}
"""The colours of the ledger's entries, which differ in lightness too."""

GLYPHS = dict(zip(LEDGER, "█▓▒░", strict=True))
"""Entry -> the character that fills its part of a bar, for terminals without colours."""

LEDGER_ON_PAGES = {**LEDGER, "inputs": "var(--inputs)"}
"""The same as CSS: the darkest grey depends on whether the page is light or dark."""

LEDGER_IN_TERMINALS = {"inputs": "", "positions": "#8c6bb1", "biases": "#878787", "gap": "#d7770f"}
"""The same for terminals, whose background may be light or dark; inputs have the colour of the text."""

GREY = (0x76, 0x76, 0x76)
"""As far from black as from white: scores in terminals fade to it, since their background is unknown."""

FAINT = {FOR: "#af5f5f", AGAINST: "#5f5fff"}
"""Text colours of small scores in terminals, with a contrast of 4.5 on black and on white, also with 256 colours."""

NEUTRAL = 0.05
"""The share of the largest score below which scores in terminals have no colour."""

STEPS = ((0.75, 1.0), (0.5, 0.7), (0.25, 0.35))
"""Share of the largest score -> share of the full colour in the background; below the last there is only `FAINT`."""

RGB = tuple[int, int, int]


def scale_of(explanations: Iterable[Explanation]) -> float:
    """Return the largest |score|, which is shown in the full colours; virtual nodes of graphs do not count."""
    shown = (explanation if explanation.picture is None else explanation.visible() for explanation in explanations)
    return max((abs(score) for explanation in shown for score in explanation.scores), default=0.0) or 1.0


def shade(score: float, scale: float, ground: RGB = LIGHT) -> RGB:
    """Return the colour of a score: the background (`ground`) at 0, a full colour at `scale`."""
    share = min(1.0, abs(score) / scale)
    end = FOR if score > 0 else AGAINST
    mixed = [round(low + (high - low) * share) for low, high in zip(ground, end, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def terminal_style(score: float, scale: float) -> str:
    """Return the rich style of a score, for light and dark terminals: none near 0, a coloured text, then a background.

    White text has a contrast of at least 4.5 on all backgrounds, also with 256 colours.
    """
    share, end = abs(score) / scale, FOR if score > 0 else AGAINST
    for least, strength in STEPS:
        if share >= least:
            background = shade(strength if score > 0 else -strength, 1.0, GREY)
            return f"{hexadecimal(INK_ON_DARK)} on {hexadecimal(background)}"
    return "" if share < NEUTRAL else FAINT[end]


def ink(background: RGB) -> RGB:
    """Return the text colour with the higher contrast on a background."""
    return max((INK_ON_LIGHT, INK_ON_DARK), key=lambda colour: contrast(colour, background))


def luminance(colour: RGB) -> float:
    """Return the relative luminance of a colour, as defined by WCAG."""
    linear = [(c / 255 / 12.92) if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: RGB, b: RGB) -> float:
    """Return the contrast ratio of two colours, 1 to 21."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def hexadecimal(colour: RGB) -> str:
    """Return a colour in CSS notation, such as "#b2182b"."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def shades(score: float, scale: float) -> str:
    """Return CSS variables: background (l, d) and text colour (li, di) of a score on light and on dark pages."""
    light, dark = shade(score, scale, LIGHT), shade(score, scale, DARK)
    return ";".join(
        f"--{name}:{hexadecimal(ground)};--{name}i:{hexadecimal(ink(ground))}"
        for name, ground in (("l", light), ("d", dark))
    )


def grounds(score: float, scale: float) -> str:
    """Return CSS variables: background (l, d) of a score on light and on dark pages."""
    return f"--l:{hexadecimal(shade(score, scale, LIGHT))};--d:{hexadecimal(shade(score, scale, DARK))}"


def tint(score: float, scale: float) -> str:
    """Return the CSS variable of a score: how much of the full colour its background has, in percent."""
    return f"--s:{100 * min(1.0, abs(score) / scale):.0f}%"


def tint_kind(score: float, scale: float) -> str:
    """Return the CSS classes of a score, each after a space: whether it is negative, and whether white text has the
    higher contrast on light pages.
    """
    deep = ink(shade(score, scale)) == INK_ON_DARK
    return f"{' against' if score < 0 else ''}{' deep' if deep else ''}"
