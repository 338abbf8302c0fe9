"""Integrated Gradients, and the same path for any rule set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..engine import graph_check, module_tree
from ..engine.context import Propagation
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.ledger import Ledger
from ..engine.module_tree import Modules
from ..engine.operations.tensors import in_float32
from ..engine.rules import RULE_SETS
from ..engine.sources import Sources
from ..engine.targets import classes_of, settled
from ..engine.token_ids import Ids
from ..engine.untouched import untouched
from ..errors import Error
from .attribution import Attribution

MEAN = "mean"
"""The baseline whose vectors are the mean of the embedding table."""

ZERO = "zero"
"""The baseline of zero vectors."""

Baseline: TypeAlias = int | Literal["mean"] | None
"""A token id, the mean of the embedding table, or None for zero vectors."""

ON_CPU, ON_GPU = 64, 2048
"""The number of points of paths that are run in one batch."""


class _Path(Sources):
    """Inputs on the path from a baseline: each row of the batch is a fraction of the path away from it."""

    def __init__(self, modules: Modules, call: Inputs, shares: Tensor, baseline: Baseline) -> None:
        super().__init__(modules, call.features(), True, ())
        self.shares, self.baseline = shares, baseline
        self.differences: dict[str, Tensor] = {}
        self._start: Tensor | float = 0.0

    def looked_up(self, context: Propagation, ids: Ids, table: Tensor, rows: Tensor, shadow: Any) -> Tensor:
        if isinstance(self.baseline, str):
            self._start = in_float32(table.detach()).mean(0).to(table)
        elif self.baseline is not None:
            if not 0 <= self.baseline < table.shape[0] and table.data_ptr() in self._tables:
                raise Error(f"baseline={self.baseline} is not a token id: the model has {table.shape[0]} tokens.")
            self._start = table[self.baseline].detach() if self.baseline < table.shape[0] else 0.0
        return super().looked_up(context, ids, table, rows, shadow)

    def _add_leaf(self, name: str, x: Tensor) -> Tensor:
        if x.shape[0] % len(self.shares):
            raise Error(
                f"{name} has shape {tuple(x.shape)} inside the model: it has no batch dimension for points of a path."
            )
        shares = self.shares.repeat_interleave(x.shape[0] // len(self.shares)).to(x)
        difference = x.detach() - self._start
        leaf = super()._add_leaf(name, self._start + shares.view(-1, *[1] * (x.dim() - 1)) * difference)
        self.differences[list(self.leaves)[-1]] = difference
        return leaf


def ig(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    steps: int,
    baseline: int | None,
) -> Attribution:
    """Return Integrated Gradients (Sundararajan et al. 2017) from a baseline, zero vectors or a token given by its id.

    The integral is computed by Gauss-Legendre quadrature with `steps` points. In the ledger, `biases` is the output for
    the baseline, so that its gap is the completeness gap: F(x) - F(baseline) - sum of the scores.
    """
    return path(model, inputs, target, rules="gi", steps=steps, baseline=baseline)


def path(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    rules: str,
    steps: int,
    baseline: Baseline | Literal["zero"],
) -> Attribution:
    """Return the relevance of a rule set, averaged along the straight path from a baseline to the input.

    A score is the change of the input times the mean of its gradient under the rules: (x - baseline) * mean dF/dx. With
    the rule set `gi` it is Integrated Gradients. The points and the ledger are those of `ig`.
    """
    if steps < 1:
        raise Error(f"steps={steps} is too small: a path needs at least one step.")
    if isinstance(baseline, str) and baseline not in (MEAN, ZERO):
        raise Error(
            f"baseline={baseline!r} needs a tokenizer that has this token: give a token id, or another baseline."
        )
    start: Baseline = None if baseline == ZERO else baseline  # type: ignore[assignment]
    modules = Modules.of(model)
    module_tree.refuse_opaque_modules(modules)
    call = Inputs.of(model, inputs)
    samples = call.samples()

    def run(shares: list[float], wanted: Any) -> tuple[_Path, Propagation, Any, Tensor]:
        along = call.repeated(len(shares))
        points = _Path(modules, along, torch.tensor(shares).repeat_interleave(samples), start)
        context = Propagation(RULE_SETS[rules], None, points)
        output, (number,) = forward(model, along, points, context, [wanted])
        return points, context, output, number

    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = [(0.0, 0.0), *zip((nodes + 1) / 2, weights / 2, strict=True)]  # the first one is the baseline itself
    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad():
        given, context, output, number = run([1.0], target)
        graph_check.check(model, [number], context)
        differences = given.differences
        fixed = settled(target, output, samples)  # the class of the input, at all points of its path
        totals = {name: torch.zeros_like(in_float32(difference)) for name, difference in differences.items()}
        at_baseline = torch.zeros_like(in_float32(number.detach()))
        at_once = max(1, (ON_CPU if number.device.type == "cpu" else ON_GPU) // samples)
        for first in range(0, len(points), at_once):
            part = points[first : first + at_once]
            wanted = fixed * len(part) if isinstance(fixed, list) else fixed
            along, context, _, numbers = run([share for share, _ in part], wanted)
            grads = context.gradient(in_float32(numbers).sum(), list(along.leaves.values()))
            if first == 0:
                at_baseline = in_float32(numbers.detach())[:samples]
            # The gradient at the baseline is not part of the sum, and may be nan for a deep model.
            skipped = 1 if first == 0 else 0
            each = torch.tensor([weight for _, weight in part[skipped:]])
            for name, grad in zip(along.leaves, grads, strict=True):
                if grad is not None:
                    by_point = in_float32(grad).unflatten(0, (len(part), -1))  # type: ignore[no-untyped-call]
                    totals[name] += torch.tensordot(each.to(by_point), by_point[skipped:], 1)
    scores: dict[str, Tensor] = {}
    for name, total in totals.items():
        own = name.partition("#")[0]
        score = given.in_input_shape(name, in_float32(differences[name]) * total).sum(-1)
        scores[own] = scores[own] + score if own in scores else score
    sums = torch.stack([score.reshape(samples, -1).sum(1) for score in scores.values()]).sum(0)
    explained = in_float32(number.detach())
    ledger = Ledger.of(explained, sums.to(explained), torch.zeros_like(explained), at_baseline)
    return Attribution(scores, explained, classes_of(output, samples), ledger)
