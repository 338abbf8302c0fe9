"""An explanation of PyTorch Geometric with a ledger for each explained output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation  # type: ignore[import-untyped]

ENTRIES = ("explained_output", "input_relevance", "virtual_relevance", "position_relevance", "bias_relevance", "gap")
"""The attributes of an explanation that have one number for each explained output."""


class RelevanceExplanation(Explanation):  # type: ignore[misc]
    """An `Explanation` whose ledgers are not taken for attributes of nodes or edges, even if their number is the same.

    Without this, the subgraphs that PyTorch Geometric makes of an explanation would drop a part of the ledgers.
    """

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the dimension of the nodes or edges, None for ledgers."""
        return None if key in ENTRIES else super().__cat_dim__(key, value, *args, **kwargs)


def explanation_of(nodes: Tensor, ledgers: Sequence[dict[str, Tensor]], rules: str) -> RelevanceExplanation:
    """Return the explanation of one or several outputs.

    Parameters
    ----------
    nodes
        The relevance of the nodes, as nodes x 1 or nodes x features.
    ledgers
        The entries of each output by name.
    rules
        The name of the rule set.
    """
    numbers = {name: torch.stack([ledger[name].sum() for ledger in ledgers]).detach() for name in ledgers[0]}
    return RelevanceExplanation(node_mask=nodes.detach(), rules=rules, **numbers)
