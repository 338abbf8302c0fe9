"""Integrated Gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine import graph_check, module_tree
from ..engine.context import Propagation
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.ledger import Ledger
from ..engine.operations.tensors import in_float32
from ..engine.rules import RULE_SETS
from ..engine.sources import Sources
from ..engine.targets import classes_of, settled
from ..engine.token_ids import Ids
from ..engine.untouched import untouched
from ..errors import Error
from .attribution import Attribution

ON_CPU, ON_GPU = 64, 2048
"""How many points of paths are run at once."""


class _Path(Sources):
    """Inputs on their way from a baseline: a share of the way for each row of the batch."""

    def __init__(self, modules: Mapping[str, nn.Module], call: Inputs, shares: Tensor, baseline: int | None) -> None:
        super().__init__(modules, call.features(), True, ())
        self.shares, self.baseline = shares, baseline
        self.ways: dict[str, Tensor] = {}
        self._start: Tensor | float = 0.0

    def looked_up(self, context: Propagation, ids: Ids, table: Tensor, rows: Tensor, shadow: Any) -> Tensor:
        if self.baseline is not None:
            if not 0 <= self.baseline < table.shape[0] and table.data_ptr() in self._tables:
                raise Error(f"baseline={self.baseline} is not a token: the model has {table.shape[0]}.")
            self._start = table[self.baseline].detach() if self.baseline < table.shape[0] else 0.0
        return super().looked_up(context, ids, table, rows, shadow)

    def _add_leaf(self, name: str, x: Tensor) -> Tensor:
        if x.shape[0] % len(self.shares):
            raise Error(f"{name} has shape {tuple(x.shape)} inside the model: its rows do not tell the samples apart.")
        shares = self.shares.repeat_interleave(x.shape[0] // len(self.shares)).to(x)
        way = x.detach() - self._start
        leaf = super()._add_leaf(name, self._start + shares.view(-1, *[1] * (x.dim() - 1)) * way)
        self.ways[list(self.leaves)[-1]] = way
        return leaf


def ig(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    target: Any,
    *,
    steps: int = 50,
    baseline: int | None = None,
) -> Attribution:
    """Return Integrated Gradients (Sundararajan et al. 2017) from a baseline, zero vectors or a token given by its id.

    The path's integral is taken by Gauss and Legendre's formula with that many steps. In the ledger what the model says
    about the baseline stands under biases, so the gap is the completeness gap: F(x) - F(baseline) - sum.
    """
    if steps < 1:
        raise Error(f"steps={steps}: the path needs at least one.")
    modules = dict(model.named_modules())
    module_tree.refuse_opaque_modules(modules)
    call = Inputs.of(model, inputs)
    samples = call.samples()

    def run(shares: list[float], wanted: Any) -> tuple[_Path, Propagation, Any, Tensor]:
        along = call.repeated(len(shares))
        path = _Path(modules, along, torch.tensor(shares).repeat_interleave(samples), baseline)
        context = Propagation(RULE_SETS["gi"], None, path)
        output, (number,) = forward(model, along, path, context, [wanted])
        return path, context, output, number

    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = [(0.0, 0.0), *zip((nodes + 1) / 2, weights / 2, strict=True)]  # the first one is the baseline itself
    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad():
        path, context, output, number = run([1.0], target)
        graph_check.check(model, [number], context)
        given, ways = path, path.ways
        fixed = settled(target, output, samples)  # the class of the input, all along its path
        totals = {name: torch.zeros_like(in_float32(way)) for name, way in ways.items()}
        outset = torch.zeros_like(in_float32(number.detach()))
        at_once = max(1, (ON_CPU if number.device.type == "cpu" else ON_GPU) // samples)
        for start in range(0, len(points), at_once):
            part = points[start : start + at_once]
            wanted = fixed * len(part) if isinstance(fixed, list) else fixed
            path, context, _, numbers = run([share for share, _ in part], wanted)
            grads = context.gradient(in_float32(numbers).sum(), list(path.leaves.values()))
            if start == 0:
                outset = in_float32(numbers.detach())[:samples]
            # At the baseline a deep model's gradient may be nan, and it is not a part of the sum.
            skipped = 1 if start == 0 else 0
            each = torch.tensor([weight for _, weight in part[skipped:]])
            for name, grad in zip(path.leaves, grads, strict=True):
                if grad is not None:
                    found = in_float32(grad).unflatten(0, (len(part), -1))  # type: ignore[no-untyped-call]
                    totals[name] += torch.tensordot(each.to(found), found[skipped:], 1)
    scores: dict[str, Tensor] = {}
    for name, total in totals.items():
        first = name.partition("#")[0]
        one = given.in_input_shape(name, in_float32(ways[name]) * total).sum(-1)
        scores[first] = scores[first] + one if first in scores else one
    carried = torch.stack([one.reshape(samples, -1).sum(1) for one in scores.values()]).sum(0)
    answer = in_float32(number.detach())
    ledger = Ledger(answer, carried.to(answer), torch.zeros_like(answer), outset)
    return Attribution(scores, answer, classes_of(output, samples), ledger)
