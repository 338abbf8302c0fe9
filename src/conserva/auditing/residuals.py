"""How far the parts of residual sums cancel, and how far that amplifies relevance (Berend et al. 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..engine.operations.residual import code, shares
from ..engine.operations.tensors import in_float32
from ..engine.rules import RuleSet
from .result import ResidualSum


@dataclass
class ResidualRecord:
    """One residual sum z = a + b, with sums of absolute values over all elements and samples."""

    module: nn.Module | None
    parts: float
    """|a| + |b|."""
    whole: float
    """|z|."""
    leaving: float = 0.0
    """|R_a| + |R_b|."""
    entering: float = 0.0
    """|R_z|."""


def recorded(module: nn.Module | None, a: Tensor, b: Tensor, out: Tensor, rules: RuleSet) -> ResidualRecord:
    """Return the record of a sum. Its relevance is added when the gradient arrives at `out`."""
    parts = [in_float32(x.detach()) for x in (a, b)]
    whole = in_float32(out.detach())
    sizes = [x.abs() for x in parts]
    record = ResidualRecord(module, float(sum(x.sum() for x in sizes)), float(whole.abs().sum()))
    of_parts: Sequence[Tensor | float] = (1.0, 1.0)
    if not rules.residual.differentiates:
        of_parts = shares(code(a, b, rules.residual_gamma), rules.residual_gamma)

    def arrived(grad: Tensor) -> None:
        size = in_float32(grad).abs()
        record.entering += float((whole.abs() * size).sum())
        record.leaving += float(sum((x * share * size).sum() for x, share in zip(sizes, of_parts, strict=True)))

    out.register_hook(arrived)  # type: ignore[no-untyped-call]
    return record


def residuals_of(modules: Mapping[str, nn.Module], parts: Sequence[Sequence[ResidualRecord]]) -> tuple[ResidualSum, ...]:
    """Return the residual sums that relevance passes through, over all samples, in the order of the forward pass."""
    names = {module: name for name, module in modules.items()}
    totals: dict[tuple[nn.Module | None, int], list[float]] = {}
    for records in parts:
        met: dict[nn.Module | None, int] = {}
        for record in records:
            number = met[record.module] = met.get(record.module, -1) + 1
            total = totals.setdefault((record.module, number), [0.0] * 4)
            for i, value in enumerate((record.parts, record.whole, record.leaving, record.entering)):
                total[i] += value
    return tuple(
        ResidualSum(names.get(module, "") if module is not None else "", number, parts / whole, leaving / entering)
        for (module, number), (parts, whole, leaving, entering) in totals.items()
        if whole > 0 and entering > 0
    )
