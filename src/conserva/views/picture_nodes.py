"""Names, scores and order of the nodes of a graph or the patches of an image; the virtual node is kept separate."""

from __future__ import annotations

from typing import Any

from ..errors import Error
from ..results.explanation import Explanation
from .wording import number

_NOUNS = {"molecule": "atom", "superpixels": "superpixel", "image": "patch"}


def kind_of(explanation: Explanation) -> str:
    """Return the kind of an explanation's picture: "molecule", "superpixels" or "image"."""
    if explanation.picture is None:
        raise Error(
            f"{explanation.text[:80]!r} has no picture: draw explanations of texts in a separate call from those of "
            "graphs and images."
        )
    kind = explanation.picture.get("kind")
    if kind not in _NOUNS:
        known = ", ".join(repr(name) for name in _NOUNS)
        raise Error(f"The picture of {explanation.text!r} has the unknown kind {kind!r}; known kinds: {known}.")
    return str(kind)


def in_picture(explanation: Explanation, kind: str, name: str) -> Any:
    """Return an entry of an explanation's picture; raise `Error` if the picture is of another kind or lacks it."""
    actual, picture = kind_of(explanation), explanation.picture or {}
    if actual != kind:
        raise Error(f"The picture of {explanation.text!r} is of the kind {actual!r}, not {kind!r}.")
    if name not in picture:
        raise Error(f"The picture of {explanation.text!r} lacks the entry {name!r}; it has {', '.join(picture)}.")
    return picture[name]


def node_noun(explanation: Explanation) -> str:
    """Return the word for a node of this picture: "atom", "superpixel" or "patch"."""
    return _NOUNS[kind_of(explanation)]


def counted(explanation: Explanation) -> str:
    """Return the number of nodes with a noun, such as "6 patches"."""
    count, name = len(node_scores(explanation)), node_noun(explanation)
    return f"{count} {name}{'' if count == 1 else 'es' if name.endswith('ch') else 's'}"


def node_scores(explanation: Explanation) -> dict[int, float]:
    """Return node -> score, without the virtual node."""
    shown = explanation.visible()
    return {node: score for node, score in zip(shown.words, shown.scores, strict=True) if node is not None}


def strongest(explanation: Explanation, count: int | None = None, short: bool = False) -> list[tuple[str, float]]:
    """Return names and scores of the nodes, sorted by decreasing |score|."""
    scores = node_scores(explanation)
    order = sorted(scores, key=lambda node: -abs(scores[node]))[:count]
    return [((short_name if short else node_name)(explanation, node), scores[node]) for node in order]


def node_name(explanation: Explanation, node: int) -> str:
    """Return the name of a node; for an atom with its index in the SMILES, from 0."""
    name = explanation.features[explanation.words.index(node)]
    return f"{name} (atom {node})" if kind_of(explanation) == "molecule" else name


def short_name(explanation: Explanation, node: int) -> str:
    """Return a short name of a node, for lists whose heading says what the nodes are."""
    name = explanation.features[explanation.words.index(node)]
    return {"molecule": f"{name} {node}", "image": name}.get(kind_of(explanation), str(node))


def tooltip(explanation: Explanation, node: int) -> str:
    """Return the tooltip of a node: its name and score."""
    return f"{node_name(explanation, node)}: {number(node_scores(explanation)[node])}"


def virtual_node(explanation: Explanation) -> list[tuple[str, float]]:
    """Return name and score of the virtual node, the one connected to all others; empty if it was left out."""
    marked = zip(explanation.features, explanation.scores, explanation.special, strict=True)
    return [(name, score) for name, score, special in marked if special]


def label(explanation: Explanation) -> str:
    """Return the text alternative of a picture, for screen readers."""
    listed = ", ".join(f"{name} {number(score)}" for name, score in strongest(explanation, 3))
    return f"{explanation.text}: {counted(explanation)} coloured by score, {explanation.method}. Strongest: {listed}."
