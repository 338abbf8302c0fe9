"""Norm layers of any class: relevance of every position at their output and input, and Proposition 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.hooks import hooked
from ..engine.operations.tensors import in_float32, live


@dataclass
class NormRecord:
    """One call of a norm: relevance of each position at its output and input, and the fraction that should leave."""

    module: nn.Module
    share: Tensor
    """eps / (eps + Var) of each position, the fraction that leaves under the plain gradient (Proposition 2)."""
    entering: Tensor | None = None
    """Relevance at the output, without that of the bias."""
    leaving: Tensor | None = None
    """Relevance at the input."""


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm over the features of each position, by its class name and its epsilon."""
    name = type(module).__name__
    others = ("BatchNorm", "GroupNorm", "InstanceNorm")  # these normalise over positions, or over both
    return "Norm" in name and not any(other in name for other in others) and epsilon(module) is not None


def epsilon(module: nn.Module) -> float | None:
    """Return the epsilon of a norm."""
    for name in ("eps", "variance_epsilon", "epsilon"):
        if isinstance(value := getattr(module, name, None), float):
            return value
    return None


@contextlib.contextmanager
def watching(modules: Mapping[str, nn.Module], records: list[NormRecord]) -> Iterator[None]:
    """Record the calls of all norms of a model in the block."""
    norms = [module for module in modules.values() if is_norm(module)]
    before, after = _before(records), _after(records)
    with hooked(before=[(norm, before) for norm in norms], after=[(norm, after) for norm in norms]):
        yield


def _before(records: list[NormRecord]) -> Any:
    def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
        weight = getattr(module, "weight", None)
        if not args or not live(args[0]) or any(map(live, args[1:])):  # a gated norm is not covered by Proposition 2
            return None
        if isinstance(weight, Tensor) and weight.shape[-1:] != args[0].shape[-1:]:
            return None
        alias = args[0].view_as(args[0])  # a view, to observe the gradient of this norm alone
        value = in_float32(alias.detach())
        centred = isinstance(module, nn.LayerNorm) or isinstance(getattr(module, "bias", None), nn.Parameter)
        spread = value.var(-1, correction=0) if centred else value.square().mean(-1)
        eps = epsilon(module) or 0.0
        record = NormRecord(module, eps / (eps + spread))
        records.append(record)

        def left(grad: Tensor) -> None:
            record.leaving = (value * in_float32(grad)).sum(-1)

        alias.register_hook(left)  # type: ignore[no-untyped-call]
        return (alias, *args[1:])

    return enter


def _after(records: list[NormRecord]) -> Any:
    def leave(module: nn.Module, args: Any, out: Any) -> None:
        record = next((each for each in reversed(records) if each.module is module and each.entering is None), None)
        if record is None or not live(out) or out.shape[:-1] != record.share.shape or out.shape != args[0].shape:
            return  # a call that returns only a scale is not a norm
        value, bias = in_float32(out.detach()), getattr(module, "bias", None)

        def entered(grad: Tensor) -> None:
            own = value if bias is None else value - in_float32(bias.detach())
            record.entering = (own * in_float32(grad)).sum(-1)

        out.register_hook(entered)  # type: ignore[no-untyped-call]

    return leave


@torch.no_grad()
def by_sample(values: Tensor, samples: int) -> Tensor:
    """Return the sum over the positions of each sample."""
    return values.reshape(samples, -1).sum(1)
