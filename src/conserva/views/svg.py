"""SVG built as element trees, whose serialisation escapes all text and attributes."""

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
    """Return an element with children, each on its own line, or with text."""
    node = Element(name, dict(attributes))
    node.text = text or ("\n" if children else None)
    for child in children:
        child.tail = "\n"
        node.append(child)
    return node


def markup(root: Element) -> Markup:
    """Return a serialised tree that templates insert without escaping it again."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def embedded(figure: Figure, label: str, prefix: str, colours: Mapping[str, str]) -> Markup:
    """Return a matplotlib figure as self-contained inline SVG, whose size is set by the page.

    Parameters
    ----------
    figure
        The figure.
    label
        The text alternative, for screen readers.
    prefix
        Prefix of its ids, which must be unique on a page.
    colours
        Colour in the figure -> CSS value that replaces it.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue().encode())
    for child in [child for child in root if _local(child.tag) == "metadata"]:
        root.remove(child)
    for node in root.iter():
        node.tag = _local(node.tag)
        node.attrib = {_local(name): _in_page(_local(name), value, prefix, colours) for name, value in node.items()}
    root.attrib = {"role": "img", "aria-label": label, "viewBox": root.attrib["viewBox"]}
    return markup(root)


def _local(name: str) -> str:
    """Return a tag or attribute name without its XML namespace, which HTML pages do not need."""
    return name.rpartition("}")[2]


def _in_page(name: str, value: str, prefix: str, colours: Mapping[str, str]) -> str:
    if name == "id":
        value = prefix + value
    if name == "href":
        value = re.sub("^#", f"#{prefix}", value)
    value = value.replace("url(#", f"url(#{prefix}")
    value = re.sub(r"(\.\d\d)\d+", r"\1", value)  # two decimals are enough, and halve the size
    value = re.sub(r"'DejaVu Sans'[^;]*", "system-ui, sans-serif", value)
    for colour, variable in colours.items():
        value = value.replace(colour, variable)
    return value
