"""Methods that use attention alone: attention of the last layer, attention rollout, attention flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.interrupts import ImmediateSignals
from .attention_pass import AttentionPass, Rows, attention_pass, row_means
from .attribution import Attribution
from .flow import attention_flows


def a_last(model: nn.Module, inputs: Mapping[str, Tensor], target: Any, *, rows: Rows) -> Attribution:
    """Return the attention of the last layer, averaged over heads."""
    attended = attention_pass(model, inputs, target)
    maps = attended.stack(_named("a-last", rows), rows)
    return _read(attended, attended.probabilities(maps[-1]).mean(1), rows)


def rollout(model: nn.Module, inputs: Mapping[str, Tensor], target: Any, *, rows: Rows) -> Attribution:
    """Return attention rollout (Abnar & Zuidema 2020): the product of all layers, with residual connections."""
    attended = attention_pass(model, inputs, target)
    product: Tensor | None = None
    for layer in layers(attended, "rollout", rows):
        product = layer if product is None else layer @ product
    assert product is not None
    return _read(attended, product, rows)


def a_flow(model: nn.Module, inputs: Mapping[str, Tensor], target: Any, *, rows: Rows) -> Attribution:
    """Return attention flow (Abnar & Zuidema 2020): the maximum flow from the positions that are read to each input.

    With rows=all the flows from each position are scaled to a sum of 1 and added, as in Ali et al.'s code.
    """
    attended = attention_pass(model, inputs, target)
    stack = torch.stack(layers(attended, "a-flow", rows), 1).double().cpu()
    chosen = attended.rows() if rows == "read" else attended.real(stack.shape[-1])
    sources = [mask.nonzero().flatten().tolist() for mask in chosen.cpu()]
    with ImmediateSignals():  # the search may take minutes
        flows = attention_flows([sample.numpy() for sample in stack], sources)
    each = [torch.from_numpy(flow) for flow in flows]
    scores = [flow.mean(0) if rows == "read" else (flow / flow.sum(1, keepdim=True)).sum(0) for flow in each]
    (sequence,) = attended.read
    return attended.attribution({sequence: torch.stack(scores).to(attended.output)})


def layers(attended: AttentionPass, method: str, rows: Rows) -> list[Tensor]:
    """Return the attention of every layer, averaged over heads, with the residual connection: rownorm(A + I)."""
    matrices = []
    for attention in attended.stack(_named(method, rows), rows):
        joint = attended.probabilities(attention).mean(1)
        joint = joint + torch.eye(joint.shape[-1]).to(joint)
        matrices.append(joint / joint.sum(-1, keepdim=True))
    return matrices


def _named(method: str, rows: Rows) -> str:
    return method if rows == "read" else f"{method}:rows={rows}"


def _read(attended: AttentionPass, matrix: Tensor, rows: Rows) -> Attribution:
    (sequence,) = attended.read
    if rows == "read":
        return attended.attribution({sequence: row_means(matrix, attended.rows())})
    real = attended.real(matrix.shape[-1]).to(matrix)
    return attended.attribution({sequence: torch.einsum("bq,bqk->bk", real, matrix) * real})
