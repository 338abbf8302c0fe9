"""The rows of tables 1 and 2: methods, their titles, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row of the tables."""

    title: str
    method: str
    group: str
    """`paper`: a method of tables 1 and 2; `slides`: of the authors' slides only; `more`: of this project or another
    paper; `released`: what the authors' code computes under a name, where that is not its definition; `yardstick`."""


AT = ":at=embeddings"
"""GI and LRP end where the paper lets them: at the output of the embedding block."""

TEXT_ROWS = (
    Row("Random", "random", "paper"),
    Row("A-Last", "a-last", "paper"),
    Row("A-Flow", "a-flow", "paper"),
    Row("Rollout", "rollout", "paper"),
    Row("GAE", "gae", "paper"),
    Row("GI", f"gi{AT}", "paper"),
    Row("LRP (AH)", f"ah{AT}", "paper"),
    Row("LRP (AH+LN)", f"ah+ln{AT}", "paper"),
    Row("LRP (LN)", f"ln{AT}", "slides"),
    Row("exact", f"exact{AT}", "more"),
    Row("AttnLRP", f"attnlrp{AT}", "more"),
    Row("IG", "ig", "more"),
    Row("Chefer 2021", "chefer", "more"),
    Row("partial LRP", "partial-lrp", "more"),
    Row("Attn-GradCAM", "attn-gradcam", "more"),
    Row("A-Last, all rows", "a-last:rows=all", "released"),
    Row("Rollout, all rows", "rollout:rows=all", "released"),
    Row("GAE as gradient rollout", "gae:variant=rollout", "released"),
    Row("LRP (AH), gamma .01", f"ah{AT}:gamma=0.01", "released"),
    Row("LRP (AH+LN), gamma .01", f"ah+ln{AT}:gamma=0.01", "released"),
    Row("leave-one-out", "leave-one-out", "yardstick"),
)

GRAPH_ROWS = (
    *(
        Row(row.title, row.method.removesuffix(AT), row.group)
        for row in TEXT_ROWS
        if row.group in ("paper", "slides", "more")
    ),
    Row("leave-one-out", "leave-one-out", "yardstick"),
    Row("intensity", "intensity", "yardstick"),
)
"""Relevance of graphs is read at the tokens: the sum of a node's features and its degree."""

OURS = "LRP (AH+LN)"
"""The title of the paper's own method."""

RULES = ("GI", "LRP (AH)", "LRP (LN)", OURS, "exact")
"""The titles of the rule sets whose ledgers are shown."""


def method_of(rows: tuple[Row, ...], title: str) -> str:
    """Return the method of the row with this title."""
    return next(row.method for row in rows if row.title == title)
