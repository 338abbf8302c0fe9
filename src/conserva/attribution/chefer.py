"""Transformer attribution (Chefer et al., CVPR 2021), and partial LRP, a baseline of that paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..engine.constants import Unbatchable
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.module_tree import Modules
from ..engine.operations.tensors import in_float32
from ..engine.single_samples import check_outputs
from ..engine.sources import Sources
from ..engine.targets import of_sample
from ..engine.untouched import untouched
from ..errors import Error
from .attention_pass import AttentionPass, attention_pass, row_means, without_own
from .attribution import Attribution
from .carried import Carrier

Aggregate: TypeAlias = Callable[[AttentionPass, list[Tensor]], Tensor]
"""Returns a matrix of scores, samples x positions x positions, given the relevance of every map."""


def chefer(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    normalise: Literal["no", "yes"],
    start: int,
) -> Attribution:
    """Return the relevance of every layer's attention, weighted by its gradient and multiplied across layers.

    C = (I + A_B) ... (I + A_1) with A_b = mean over heads of (gradient * relevance)+. normalise=yes scales the rows of
    every factor to a sum of 1, and start skips the first layers, as the authors' code for BERT does.
    """

    def aggregate(attended: AttentionPass, relevance: list[Tensor]) -> Tensor:
        stack = attended.stack("chefer")
        if not 0 <= start < len(stack):
            raise Error(f"start={start} is not a layer of the model: it has layers 0 to {len(stack) - 1}.")
        product: Tensor | None = None
        for attention, carried in list(zip(stack, relevance, strict=True))[start:]:
            layer = (attended.gradients[attention.number] * carried).clamp(min=0).mean(1)
            layer = layer + torch.eye(layer.shape[-1]).to(layer)
            layer = layer / layer.sum(-1, keepdim=True) if normalise == "yes" else layer
            product = layer if product is None else layer @ product
        assert product is not None
        return product

    return _one_or_all("chefer", model, inputs, target, aggregate)


def partial_lrp(model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
    """Return the positive relevance of the last layer's attention, averaged over heads (Voita et al. 2019).

    The rules are those of `chefer`, which conserve relevance; in the authors' code linear layers double it here.
    """

    def aggregate(attended: AttentionPass, relevance: list[Tensor]) -> Tensor:
        return relevance[-1].clamp(min=0).mean(1)

    return _one_or_all("partial-lrp", model, inputs, target, aggregate)


def _one_or_all(method: str, model: nn.Module, inputs: Any, target: Any, aggregate: Aggregate) -> Attribution:
    """Explain the batch, or one sample at a time if the batch dimension cannot be inferred from shapes."""
    try:
        return _explain(method, model, inputs, target, aggregate)
    except Unbatchable:
        call = Inputs.of(model, inputs)
        alone = [call.sample(i) for i in range(call.samples())]
        targets = [target if callable(target) else [of_sample(target, i)] for i in range(len(alone))]
    parts = [
        _explain(method, model, single.kwargs or single.args, wanted, aggregate)
        for single, wanted in zip(alone, targets, strict=True)
    ]
    scores = {name: torch.cat([part.scores[name] for part in parts]) for name in parts[0].scores}
    logits = None if parts[0].logits is None else torch.cat([part.logits for part in parts if part.logits is not None])
    output = torch.cat([part.output for part in parts])
    check_outputs(model, call, [target], [output])
    return Attribution(scores, output, logits)


def _explain(method: str, model: nn.Module, inputs: Any, target: Any, aggregate: Aggregate) -> Attribution:
    attended = attention_pass(model, inputs, target)
    attended.stack(method)
    matrix = aggregate(attended, map_relevance(attended, target))
    (sequence,) = attended.read
    return attended.attribution({sequence: row_means(without_own(matrix), attended.rows())})


def map_relevance(attended: AttentionPass, target: Any) -> list[Tensor]:
    """Return the relevance of each attention map, in the shape of its probabilities; that of the target is 1."""
    call, model = attended.call, attended.model
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        sources = Sources(Modules.of(model), call.features(), True, ())
        carrier = Carrier(sources, call.samples(), {each.product for each in attended.maps})
        _, (number,) = forward(model, call, sources, carrier, [target])
        factors = [carrier.factors[each.product] for each in attended.maps]
        operands = [pair[0] if each.is_first else pair[1] for each, pair in zip(attended.maps, factors, strict=True)]
        relevances = torch.autograd.grad(in_float32(number).sum(), operands)
    return [
        attended.widened(each, in_float32(each.shaped(relevance)))
        for each, relevance in zip(attended.maps, relevances, strict=True)
    ]
