"""The methods of the benchmark: those of conserva that need few passes, and leave-one-out. Their cost is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import conserva
from conserva.attribution import find
from conserva.tasks import Causal

from .ablation import leave_one_out
from .reading import Read, explained, inputs_of, total

LEAVE_ONE_OUT = "leave-one-out"
COSTLY = ("ig", "a-flow", "chefer", "partial-lrp")
"""Methods that take many passes or much longer than one: they are measured if they are asked for."""


def default() -> list[str]:
    """Return the names of the methods that are measured by default: of conserva all but costly ones."""
    return [*(name for name in conserva.methods() if name not in COSTLY), LEAVE_ONE_OUT]


def scores(task: Causal, one: Read, method: str, parts: np.ndarray, target: str) -> np.ndarray:
    """Return a score for each token of the prompt.

    Parameters
    ----------
    task, one
        The model, and the item.
    method
        The name of a method of conserva, or leave-one-out.
    parts
        What leave-one-out removes.
    target
        "first" for the logit of the answer's first token, "sum" for the sum of all its tokens' logits.
    """
    if method == LEAVE_ONE_OUT:
        return leave_one_out(task, one, parts, target)
    tokens = explained(one, target)

    def answer(output: Any) -> Tensor:
        return total(output.logits, tokens)

    inputs = inputs_of(task, [[*one.encoded.ids, *tokens[:-1]]], len(tokens))
    found = find(method).apply(task.model, inputs, tokens[0] if len(tokens) == 1 else answer)
    numbers: np.ndarray = found.scores["input_ids"][0, : len(one)].detach().double().cpu().numpy()
    return numbers


def forward(task: Causal, one: Read) -> None:
    """Run the forward pass by which costs are measured."""
    with torch.inference_mode():
        task.model(**inputs_of(task, [one.encoded.ids]))


def timed(task: Causal, call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and the seconds that it took."""
    _synchronise(task)
    start = time.perf_counter()
    found = call()
    _synchronise(task)
    return found, time.perf_counter() - start


def _synchronise(task: Causal) -> None:
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
