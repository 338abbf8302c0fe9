"""A random order of the features: the baseline for all other methods."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.forward import check_finite
from ..engine.inputs import Inputs
from ..engine.operations.tensors import in_float32
from ..engine.randomness import generator_states, refuse_random
from ..engine.targets import classes_of, labels_of, read_target
from ..engine.untouched import untouched
from .attribution import Attribution


def random(model: nn.Module, inputs: Mapping[str, Tensor], target: Any, *, seed: int) -> Attribution:
    """Return a uniformly random order of each sample's features, as scores from 1/n to 1.

    The order depends on the sample's content and the seed only.
    """
    call = Inputs.of(model, inputs)
    samples = call.samples()
    with untouched(model), torch.no_grad():
        before = generator_states()
        output = call.run(model)
        number = read_target(output, target, labels_of(model), samples)
        refuse_random(model, before, (), partial(_answer, model, call, target))
    check_finite(model, call, [number])
    scores = {}
    for name, x in call.features().items():
        positions = x if not x.is_floating_point() else x[..., 0]
        mask = call.kwargs.get(name.replace("input_ids", "attention_mask").replace("inputs_embeds", "attention_mask"))
        real = (
            mask.bool()
            if isinstance(mask, Tensor) and mask.shape == positions.shape
            else torch.ones_like(positions).bool()
        )
        scores[name] = torch.stack([_order(x[i], real[i], seed) for i in range(samples)]).to(number.device)
    return Attribution(scores, in_float32(number), classes_of(output, samples))


def _answer(model: nn.Module, call: Inputs, target: Any) -> list[Tensor]:
    return [read_target(call.run(model), target, labels_of(model), call.samples())]


def _order(sample: Tensor, real: Tensor, seed: int) -> Tensor:
    """Return the scores of one sample, which depend on its content and the seed, but not on its batch."""
    content = sample[real].detach().cpu()
    digest = hashlib.sha256(f"{seed} {content.tolist()}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    count = int(real.sum())
    scores = torch.zeros(real.shape)
    scores[real.cpu()] = (torch.randperm(count, generator=generator) + 1) / count
    return scores
