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
    """One residual sum z = a + b, with sums of absolute values over all elements that relevance reaches."""

    module: nn.Module | None
    parts: float = 0.0
    """|a| + |b|."""
    whole: float = 0.0
    """|z|."""
    leaving: float = 0.0
    """|R_a| + |R_b|."""
    entering: float = 0.0
    """|R_z|."""


def recorded(module: nn.Module | None, a: Tensor, b: Tensor, out: Tensor, rules: RuleSet) -> ResidualRecord:
    """Return the record of a sum, which is filled when the gradient arrives at `out`."""
    record = ResidualRecord(module)
    size_a, size_b, size = (in_float32(x.detach()).abs() for x in (a, b, out))
    of_a: Tensor | float = 1.0
    of_b: Tensor | float = 1.0
    if not rules.residual.differentiates:
        of_a, of_b = shares(code(a, b, rules.residual_gamma), rules.residual_gamma)

    def arrived(grad: Tensor) -> None:
        slope, is_reached = in_float32(grad).abs(), grad != 0
        record.parts += float(((size_a + size_b) * is_reached).sum())
        record.whole += float((size * is_reached).sum())
        record.leaving += float(((size_a * of_a + size_b * of_b) * slope).sum())
        record.entering += float((size * slope).sum())

    out.register_hook(arrived)  # type: ignore[no-untyped-call]
    return record


def residuals_of(
    modules: Mapping[str, nn.Module], parts: Sequence[Sequence[ResidualRecord]]
) -> tuple[ResidualSum, ...]:
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
