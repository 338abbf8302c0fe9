"""Fidelity of signed scores: predictions without the most relevant nodes, and with only these nodes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explainer, Explanation  # type: ignore[import-untyped]
from torch_geometric.explain.config import ExplanationType, ModelMode, ModelReturnType, ModelTaskLevel  # type: ignore[import-untyped]
from torch_geometric.utils import subgraph  # type: ignore[import-untyped]

from ...errors import Error
from .graphormer import sizes_of

REMOVALS = {
    "mask": "the nodes are masked with the model's argument `kept`; the others keep their structure",
    "subgraph": "the nodes and their edges are deleted",
    "zeros": "the features of the nodes are set to 0",
}
"""How nodes are removed -> its description."""


@dataclass(frozen=True)
class Fidelity:
    """Fidelity of explanations to a model, with the settings of the measurement."""

    plus: float
    """The fraction of predictions that change without the most relevant nodes: higher is better."""
    minus: float
    """The fraction of predictions that change with only these nodes: lower is better."""
    unfaithfulness: float
    """The mean of 1 - exp(-KL(p || q)), with probabilities p of the whole graph, and q with only these nodes."""
    removal: str
    top: float
    predictions: int
    """The number of predictions."""

    @property
    def characterisation(self) -> float:
        """The harmonic mean of `plus` and 1 - `minus` (GraphFramEx, Amara et al. 2022); 0 if one of them is 0."""
        kept = 1 - self.minus
        return 2 * self.plus * kept / (self.plus + kept) if self.plus and kept else 0.0


def fidelity(
    explainer: Explainer,
    explanations: Explanation | Sequence[Explanation],
    *,
    top: float = 0.2,
    removal: str | None = None,
) -> Fidelity:
    """Measure how predictions change without the most relevant nodes of each graph, and with only these nodes.

    Nodes are ordered by their signed score, the sum over a row of `node_mask`: nodes with negative relevance come last.
    For explanations of the phenomenon, the change is in whether a prediction is correct. At node level the explained
    nodes are never removed.

    Parameters
    ----------
    explainer
        The explainer with its model.
    explanations
        The explanations that it returned, of one or several calls of the model.
    top
        The fraction of a graph's nodes that counts as its explanation, between 0 and 1; at least one node, and not all.
    removal
        How nodes are removed: "mask" (the model takes `kept`, a boolean for each node), "subgraph" (the nodes and their
        edges are deleted) or "zeros" (their features are set to 0). By default "mask" if the model supports it,
        otherwise "subgraph".
    """
    if explainer.model_config.mode == ModelMode.regression:
        raise Error("mode='regression': fidelity is defined for classification only.")
    if not isinstance(top, (int, float)) or not 0 < top < 1:
        raise Error(f"top={top!r}: give a fraction of nodes between 0 and 1.")
    each = [explanations] if isinstance(explanations, Explanation) else list(explanations)
    if not each:
        raise Error("explanations is empty: give at least one.")
    takes_mask = "kept" in inspect.signature(explainer.model.forward).parameters
    removal = removal or ("mask" if takes_mask else "subgraph")
    if removal not in REMOVALS:
        raise Error(f"removal={removal!r} is unknown: choose one of {', '.join(REMOVALS)}.")
    if removal == "mask" and not takes_mask:
        raise Error(f"removal='mask': {type(explainer.model).__name__} has no argument `kept`. Use 'subgraph'.")
    rows = [_measured(explainer, explanation, top, removal) for explanation in each]
    plus, minus, unfaithful = (torch.cat([row[i] for row in rows]).double().mean().item() for i in range(3))
    return Fidelity(plus, minus, unfaithful, removal, float(top), sum(len(row[0]) for row in rows))


def _measured(
    explainer: Explainer, explanation: Explanation, top: float, removal: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether each prediction changes without the top nodes and with only these, and its unfaithfulness."""
    if explanation.get("node_mask") is None:
        raise Error("An explanation has no node_mask, which fidelity needs: set node_mask_type.")
    stay, index = torch.zeros(len(explanation.x), dtype=torch.bool), explanation.get("index")
    if explainer.model_config.task_level != ModelTaskLevel.graph:
        if explainer.model_config.task_level == ModelTaskLevel.edge or index is None:
            raise Error("Fidelity needs the graph level, or explained nodes: explain with index=...")
        stay[index.cpu()] = True
    best = _top_nodes(explanation.node_mask.sum(-1), explanation.get("batch"), stay, top, removal).to(
        explanation.x.device
    )
    stay = stay.to(explanation.x.device)
    whole = _prediction(explainer, explanation, torch.ones_like(best), removal)
    without, alone = (_prediction(explainer, explanation, kept | stay, removal) for kept in (~best, best))
    if index is not None and explainer.model_config.task_level == ModelTaskLevel.graph:
        whole, without, alone = (output[index] for output in (whole, without, alone))
    classes, *changed = (explainer.get_target(output) for output in (whole, without, alone))
    if explainer.explanation_type == ExplanationType.phenomenon:
        right = explanation.target.reshape(-1) if index is None else explanation.target.reshape(-1)[index]
        classes, *changed = (predicted == right for predicted in (classes, *changed))
    log_p, log_q = (_log_probabilities(explainer, output) for output in (whole, alone))
    far = torch.special.entr(log_p.exp()).neg().sum(-1) - (log_p.exp() * log_q).nan_to_num(0.0).sum(-1)
    return changed[0] != classes, changed[1] != classes, 1 - torch.exp(-far.clamp(min=0))


def _top_nodes(scores: Tensor, batch: Tensor | None, stay: Tensor, top: float, removal: str) -> Tensor:
    """Return a mask of the nodes with the highest scores, a fraction `top` of each graph; of ties, the first."""
    best = torch.zeros(len(scores), dtype=torch.bool)
    start = 0
    for size in sizes_of(len(scores), batch).tolist():
        mine = torch.arange(start, start + size)
        mine, start = mine[~stay[mine]], start + size
        if len(mine) < 2 and removal == "subgraph" and len(mine) == size:
            raise Error("A graph has a single node, so its subgraph is empty: use removal='mask' or 'zeros'.")
        count = min(max(1, math.floor(top * len(mine) + 0.5)), max(1, len(mine) - 1))
        best[mine[scores[mine.to(scores.device)].cpu().argsort(descending=True, stable=True)[:count]]] = True
    return best


def _prediction(explainer: Explainer, explanation: Explanation, kept: Tensor, removal: str) -> Tensor:
    """Return the prediction with only the nodes in `kept`; at node level, for the explained nodes."""
    x, edges, count = explanation.x, explanation.edge_index, len(explanation.x)
    others: dict[str, Any] = {name: explanation[name] for name in explanation._model_args}
    position = torch.arange(count, device=x.device)
    if removal == "mask":
        others["kept"] = kept
    elif removal == "zeros":
        if not x.is_floating_point():
            raise Error(f"removal='zeros' with x in {x.dtype}: 0 is an ordinary id. Use 'subgraph'.")
        x = x * kept[:, None]
    else:
        inside, _, chosen = subgraph(kept, edges, relabel_nodes=True, num_nodes=count, return_edge_mask=True)
        for name, value in others.items():
            if isinstance(value, Tensor) and value.dim():
                of_nodes, of_edges = explanation.is_node_attr(name), explanation.is_edge_attr(name)
                others[name] = value[kept] if of_nodes else value[chosen] if of_edges else value
        x, edges, position = x[kept], inside, torch.cumsum(kept, 0) - 1
    output: Tensor = explainer.get_prediction(x, edges, **others)
    if explainer.model_config.task_level == ModelTaskLevel.node:
        output = output[position[explanation.index.to(position.device)]]
    return output


def _log_probabilities(explainer: Explainer, output: Tensor) -> Tensor:
    """Return the log-probabilities of the classes, for any return type of the model."""
    kind, output = explainer.model_config.return_type, output.double()
    if explainer.model_config.mode == ModelMode.binary_classification:
        output = output.reshape(-1)
        if kind == ModelReturnType.probs:
            return torch.stack([1 - output, output], -1).log()
        return torch.nn.functional.logsigmoid(torch.stack([-output, output], -1))
    if kind == ModelReturnType.raw:
        return output.log_softmax(-1)
    return output if kind == ModelReturnType.log_probs else output.log()
