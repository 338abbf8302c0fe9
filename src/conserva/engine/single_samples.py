"""Samples explained one at a time, and the check that each of them has the output that it has in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from .inputs import Inputs
from .ledger import Ledger
from .targets import labels_of, read_target
from .untouched import untouched

ROUNDING = (1e-4, 1e-6)
"""How much outputs may differ, relatively and absolutely: models in float64 compute parts in float32."""

HALF = (0.05, 0.01)
"""The same for models that have parameters of a half type, or outputs of one."""


def check_outputs(
    model: nn.Module,
    call: Inputs,
    targets: Sequence[Any],
    singles: Sequence[Tensor],
    ledgers: Sequence[Ledger[Tensor] | None] = (),
) -> None:
    """Raise an `Error` unless samples that were explained one at a time have the outputs that they have in the batch.

    They have others if the model, or a function that is given as target, reads a list or a variable that has an entry
    for each sample: only tensors with the batch dimension are split.

    Parameters
    ----------
    model, call, targets
        The model, its arguments for the whole batch, and what is explained.
    singles
        For each target the outputs of the samples by themselves.
    ledgers
        Their ledgers, if there are any: rounding is relative to the entries of each sample. Without them, it is
        estimated from the largest output.
    """
    with untouched(model), torch.no_grad():
        output = call.run(model)
        batch = [read_target(output, target, labels_of(model), call.samples()) for target in targets]
    halves = (torch.float16, torch.bfloat16)
    is_half = any(parameter.dtype in halves for parameter in model.parameters())
    for expected, found, ledger in zip_longest(batch, singles, ledgers):
        relative, absolute = HALF if is_half or expected.dtype in halves else ROUNDING
        size = expected.abs().max() if ledger is None else ledger.size
        excess = (expected.to(found) - found).abs() - (relative * size.to(found) + absolute)
        if bool((excess > 0).any()):
            i = int(excess.argmax())
            raise Error(
                f"Sample {i} has the output {float(expected[i]):.6g} in the batch and {float(found[i]):.6g} by itself. "
                "The samples of this batch can only be explained one at a time, and the model or the target reads "
                "values that are not split by sample, such as a list of lengths: pass these to the model as a tensor "
                "with the batch dimension, or explain each sample in a call of its own."
            )
