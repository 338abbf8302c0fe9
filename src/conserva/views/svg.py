"""SVG as trees of elements. Writing a tree escapes every text and attribute, so that no text can become markup."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def element(name: str, attributes: Mapping[str, str], *children: Element, text: str = "") -> Element:
    """Return an element with its children, each on a line of its own, or with a text."""
    found = Element(name, dict(attributes))
    found.text = text or ("\n" if children else None)
    for child in children:
        child.tail = "\n"
        found.append(child)
    return found


def markup(root: Element) -> Markup:
    """Return a tree as text that templates insert as it is."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def embedded(figure: Figure, label: str, prefix: str, colours: Mapping[str, str]) -> Markup:
    """Return a matplotlib figure as SVG to stand in a page: nothing is loaded, and the page decides its size.

    Parameters
    ----------
    figure
        The figure.
    label
        What screen readers say of it.
    prefix
        What its ids start with: two figures of a page must not share ids.
    colours
        Colours that the page decides -> the CSS values that replace them.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue().encode())
    for child in [child for child in root if _local(child.tag) == "metadata"]:
        root.remove(child)
    for one in root.iter():
        one.tag = _local(one.tag)
        one.attrib = {_local(name): _in_page(_local(name), value, prefix, colours) for name, value in one.items()}
    root.attrib = {"role": "img", "aria-label": label, "viewBox": root.attrib["viewBox"]}
    return markup(root)


def _local(name: str) -> str:
    """Return a name without its namespace, which pages do not need."""
    return name.rpartition("}")[2]


def _in_page(name: str, value: str, prefix: str, colours: Mapping[str, str]) -> str:
    if name == "id":
        value = prefix + value
    if name == "href":
        value = re.sub("^#", f"#{prefix}", value)
    value = value.replace("url(#", f"url(#{prefix}")
    value = re.sub(r"(\.\d\d)\d+", r"\1", value)  # hundredths of a point are enough, and half as long
    value = re.sub(r"'DejaVu Sans'[^;]*", "system-ui, sans-serif", value)
    for colour, variable in colours.items():
        value = value.replace(colour, variable)
    return value
