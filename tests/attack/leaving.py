"""What is checked of everything that leaves: nothing in it acts, and it has the shape of its harmless twin."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from rich.console import Console

BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
SGR = re.compile(r"\x1b\[[0-9;]*m")
WIDE = 30_000
"""Wide enough for every line, so that one more is one that a text has made."""


def check_terminal(draw: Callable[[Any, Console], object], hostile: Any, twin: Any, *, lines: bool) -> None:
    """No command reaches a terminal but rich's own colours; where lines are counted, no text makes a new one."""
    outputs = {}
    for name, width, colours in (("plain", 100, None), ("coloured", 100, "truecolor"), ("wide", WIDE, None)):
        output = io.StringIO()
        settings: dict[str, Any] = {"force_terminal": colours is not None, "color_system": colours}
        draw(hostile, Console(file=output, width=width, legacy_windows=False, **settings))
        outputs[name] = output.getvalue()
    assert "\x1b[31m" not in outputs["coloured"]  # which no view asks for where there are shades
    outputs["coloured"] = SGR.sub("", outputs["coloured"])
    for text in outputs.values():
        assert not BAD.search(text), BAD.search(text)
    if lines:
        output = io.StringIO()
        draw(twin, Console(file=output, width=WIDE, color_system=None))
        assert outputs["wide"].count("\n") == output.getvalue().count("\n")


class Elements(HTMLParser):
    """Counts elements by their names and those of their attributes; what is within pictures once, as letters differ."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.outside: Counter[tuple[str, ...]] = Counter()
        self.inside: set[tuple[str, ...]] = set()
        self.links: list[str] = []
        self._depth = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.links += [value or "" for name, value in attrs if name.split(":")[-1] in ("href", "src", "action")]
        found = (tag, *sorted(name for name, _ in attrs))
        self._depth += tag == "svg"
        if self._depth:
            self.inside.add(found)
        elif dict(attrs).get("class") != "newline":  # a sign for every line of a text
            self.outside[found] += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "svg"

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)


def check_page(draw: Callable[[Any], str], hostile: Any, twin: Any) -> str:
    """A page has no element, attribute or link that its harmless twin does not have."""
    page = draw(hostile)
    page.encode("utf-8")
    assert not BAD.search(page), BAD.search(page)
    found, expected = Elements(page), Elements(draw(twin))
    assert found.outside == expected.outside
    assert found.inside <= expected.inside | {("g",), ("tspan", "style", "x", "y")}
    assert all(link.startswith(("#", "data:image/png")) for link in found.links)
    return page


def check_svg(text: str, twin: str) -> None:
    """A picture is well-formed XML, with no kind of element that its harmless twin does not have."""
    assert not BAD.search(text), BAD.search(text)
    found, expected = (
        {(one.tag, *sorted(one.attrib)) for one in ElementTree.fromstring(svg.encode()).iter()} for svg in (text, twin)
    )
    assert found <= expected, found - expected
    for one in ElementTree.fromstring(text.encode()).iter():
        links = [value for name, value in one.attrib.items() if name.endswith("href")]
        assert all(link.startswith(("#", "data:image/png")) for link in links)


def check_markdown(draw: Callable[[Any], str], hostile: Any, twin: Any) -> None:
    """A page in Markdown has the lines, cells, headings, links and elements of its harmless twin."""
    page, tame = draw(hostile), draw(twin)
    page.encode("utf-8")
    assert not BAD.search(page), BAD.search(page)
    for pattern in (r"\n", r"(?<!\\)\|", r"(?m)^#+ ", r"\]\([^)]*\)", r"</?[a-zA-Z!][^>]*>", r"`", r"\*\*"):
        assert len(re.findall(pattern, page)) == len(re.findall(pattern, tame)), pattern
