"""The nodes of a graph, or patches of an image, as every view names and orders them; a virtual node is apart."""

from __future__ import annotations

from typing import Any

from ..errors import Error
from ..results.explanation import Explanation
from .wording import number

_CALLED = {"molecule": "atom", "superpixels": "superpixel", "image": "patch"}


def kind_of(explanation: Explanation) -> str:
    """Return the kind of an explanation's picture, which must be a known one."""
    if explanation.picture is None:
        raise Error(f"{explanation.text[:80]!r} has no picture: draw texts apart from graphs.")
    kind = explanation.picture.get("kind")
    if kind not in _CALLED:
        known = ", ".join(repr(name) for name in _CALLED)
        raise Error(f"The picture of {explanation.text!r} is of the kind {kind!r}: only {known} can be drawn.")
    return str(kind)


def in_picture(explanation: Explanation, kind: str, name: str) -> Any:
    """Return a part of a picture that must be of a kind."""
    found, picture = kind_of(explanation), explanation.picture or {}
    if found != kind:
        raise Error(f"The picture of {explanation.text!r} is of the kind {found!r}, not {kind!r}.")
    if name not in picture:
        raise Error(f"The picture of {explanation.text!r} lacks its {name!r}: it has {', '.join(picture)}.")
    return picture[name]


def called(explanation: Explanation) -> str:
    """Return what a node is: an atom, a superpixel, a patch."""
    return _CALLED[kind_of(explanation)]


def counted(explanation: Explanation) -> str:
    """Return how many nodes have scores."""
    count, name = len(node_scores(explanation)), called(explanation)
    return f"{count} {name}{'' if count == 1 else 'es' if name.endswith('ch') else 's'}"


def node_scores(explanation: Explanation) -> dict[int, float]:
    """Return the score of every node; the virtual node is none of them."""
    shown = explanation.visible()
    return {node: score for node, score in zip(shown.words, shown.scores, strict=True) if node is not None}


def strongest(explanation: Explanation, count: int | None = None, short: bool = False) -> list[tuple[str, float]]:
    """Return names and scores of the nodes, the largest scores in size first."""
    scores = node_scores(explanation)
    order = sorted(scores, key=lambda node: -abs(scores[node]))[:count]
    return [((short_name if short else node_name)(explanation, node), scores[node]) for node in order]


def node_name(explanation: Explanation, node: int) -> str:
    """Return what a node is called; atoms have numbers too, from 0, in the order of the SMILES."""
    name = explanation.features[explanation.words.index(node)]
    return f"{name} (atom {node})" if kind_of(explanation) == "molecule" else name


def short_name(explanation: Explanation, node: int) -> str:
    """Return what a node is called where it is clear what nodes are."""
    name = explanation.features[explanation.words.index(node)]
    return {"molecule": f"{name} {node}", "image": name}.get(kind_of(explanation), str(node))


def tooltip(explanation: Explanation, node: int) -> str:
    """Return the name and the score of a node."""
    return f"{node_name(explanation, node)}: {number(node_scores(explanation)[node])}"


def virtual_node(explanation: Explanation) -> list[tuple[str, float]]:
    """Return name and score of the node that is joined to all others; nothing if it is left out."""
    marked = zip(explanation.features, explanation.scores, explanation.special, strict=True)
    return [(name, score) for name, score, special in marked if special]


def label(explanation: Explanation) -> str:
    """Say in words what a picture shows, for readers who do not see it."""
    listed = ", ".join(f"{name} {number(score)}" for name, score in strongest(explanation, 3))
    return f"{explanation.text}: {counted(explanation)} coloured by score, {explanation.method}. Strongest: {listed}."
