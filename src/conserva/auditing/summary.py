"""Summary of the records of all calls: components, attention heads and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..engine.coverage import CoverageEntry
from ..engine.ledger import Ledger
from ..engine.rules import RuleSet
from .auditor import Record
from .norms import NormRecord, by_sample
from .residuals import ResidualRecord
from .result import Component, Head, Norm


@dataclass(frozen=True)
class Measured:
    """The records of one forward and one backward pass."""

    output: Tensor
    ledger: Ledger[Tensor]
    records: Sequence[Record]
    constants: Sequence[Tensor]
    """For each record the relevance of its constants."""
    rest: Mapping[nn.Module | None, Tensor]
    """Module -> relevance of constants that belong to no recorded call."""
    norms: Sequence[NormRecord]
    coverage: Sequence[CoverageEntry]
    scale: float
    residuals: Sequence[ResidualRecord]


@dataclass
class _Sum:
    """The sums over the calls of one component."""

    function: str
    kind: str
    rule: str
    entering: Tensor
    constants: Tensor
    leak: Tensor


def summarise(modules: Mapping[str, nn.Module], parts: Sequence[Measured]) -> tuple[Component, ...]:
    """Return the components of all samples, in the order of the forward pass."""
    names = {module: name for name, module in modules.items()}
    by_key: dict[tuple[str, str, str], list[_Sum]] = {}
    for part in parts:
        for key, component in _components(part, names).items():
            by_key.setdefault(key, []).append(component)
    samples = sum(len(part.output) for part in parts)
    components = []
    for (module, _, _), sums in by_key.items():
        entering, constants, leak = (
            torch.cat([getattr(part_sum, name) for part_sum in sums]) for name in ("entering", "constants", "leak")
        )
        components.append(
            Component(
                module=module,
                function=sums[0].function,
                kind=sums[0].kind,
                rule=sums[0].rule,
                entering=float(entering.sum()) / samples,
                leaving=float((entering - constants - leak).sum()) / samples,
                constants=float(constants.sum()) / samples,
                leak=float(leak.sum()) / samples,
                size=float(leak.abs().sum()) / samples,
            )
        )
    return tuple(components)


def _components(part: Measured, names: Mapping[nn.Module, str]) -> dict[tuple[str, str, str], _Sum]:
    """Return the components of one pass; the calls of an attention, or of a norm, are a single component."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    zero = torch.zeros_like(part.output)
    norms = {id(norm.module) for norm in part.norms if norm.entering is not None}
    for record, constants in zip(part.records, part.constants, strict=True):
        if record.entering is None and record.leaving is None:
            continue  # no relevance passes through this call
        entering = zero if record.entering is None else record.entering.to(zero) / part.scale
        leaving = zero if record.leaving is None else record.leaving.to(zero) / part.scale
        leak = entering - leaving - constants
        function, kind, module = record.function, record.kind, record.module
        if id(module) in norms and module is not None:
            function, kind = type(module).__name__, "norm"
        elif kind == "attention" or any(entry.cancelled for entry in record.entries):
            function, kind = "attention", "attention"  # a mask or a position bias inside a softmax is a part of it
        if record.inside or kind == "norm" or (kind == "attention" and record.kind != "attention"):
            entering = zero  # only the last call of a component counts
        name = names.get(module, "") if module is not None else ""
        total = sums.setdefault((name, kind, function), _Sum(function, kind, record.rule, zero, zero, zero))
        total.entering = total.entering + entering
        total.constants = total.constants + constants
        total.leak = total.leak + leak
    for norm in part.norms:
        key = (names.get(norm.module, ""), "norm", type(norm.module).__name__)
        if key in sums and norm.entering is not None:
            sums[key].entering = sums[key].entering + by_sample(norm.entering.to(zero), len(zero)) / part.scale
    for (_, kind, _), total in sums.items():
        if kind == "norm":
            total.entering = total.entering + total.constants  # the record of a norm does not include its bias
    for module, constants in part.rest.items():
        name = names.get(module, "") if module is not None else ""
        sums[name, "other", "constants"] = _Sum("constants", "other", "", constants, constants, zero)
    _add_unrecorded(part, sums, zero)
    return sums


def _add_unrecorded(part: Measured, sums: dict[tuple[str, str, str], _Sum], zero: Tensor) -> None:
    """Add the part of the gap that no component accounts for as a component, so that leaks sum to the gap."""
    rest = part.ledger.gap - sum((total.leak for total in sums.values()), zero)
    largest = max(float(x.abs().max()) for x in (part.output, *(total.entering for total in sums.values())))
    if float(rest.abs().max()) > 1e-4 * largest:  # less is rounding
        sums["", "other", "not watched"] = _Sum("not watched", "other", "", rest, zero, rest)


def heads_of(modules: Mapping[str, nn.Module], parts: Sequence[Measured]) -> tuple[Head, ...]:
    """Return the attention heads whose scores could be traced, as means over samples."""
    names = {module: name for name, module in modules.items()}
    sums: dict[tuple[str, int], list[Tensor]] = {}
    for part in parts:
        for record in part.records:
            for head, values in enumerate(_of_heads(record)):
                key = (names.get(record.module, "") if record.module is not None else "", head)
                sums.setdefault(key, []).append(values / part.scale)
    samples = sum(len(part.output) for part in parts)
    return tuple(
        Head(module, head, *(torch.stack([values.sum(-1) for values in calls]).sum(0) / samples).tolist())
        for (module, head), calls in sums.items()
    )


def _of_heads(record: Record) -> list[Tensor]:
    """Return for each head entering relevance, that of values, queries and keys, and the covariance, 5 x samples."""
    if record.covariance is None or "covariance" not in record.heads or (record.scores and record.scores.split):
        return []
    scores = record.heads if record.scores is None else record.scores.heads
    values = record.heads.get("input 2" if record.scores is None else "input 1")
    queries, keys = scores.get("input 0"), scores.get("input 1")
    if values is None or queries is None or keys is None:
        return []
    groups = min(values.shape[1], keys.shape[1], queries.shape[1])  # grouped heads share keys and values
    each = [record.heads["output"], values, queries, keys, record.heads["covariance"]]
    shared = torch.stack([x.unflatten(1, (groups, -1)).sum(2) for x in each])  # type: ignore[no-untyped-call]
    return list(shared.permute(2, 0, 1))


def norms_of(modules: Mapping[str, nn.Module], parts: Sequence[Measured], rules: RuleSet) -> tuple[Norm, ...]:
    """Return the norms that relevance passes through, as means over samples."""
    names = {module: name for name, module in modules.items()}
    by_name: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    shown: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for part in parts:
        count = len(part.output)
        for norm in part.norms:
            if norm.entering is None or norm.leaving is None:
                continue
            share = norm.share if rules.norm.differentiates else torch.ones_like(norm.share)
            name = names.get(norm.module, "")
            three = (norm.entering, norm.leaving, norm.entering * share)
            entering, leaving, predicted = (by_sample(x / part.scale, count) for x in three)
            by_name.setdefault(name, []).append((entering, leaving, predicted))
            first = (x.reshape(count, -1)[0] / part.scale for x in (norm.leaving, norm.entering))
            before, after = (tuple(x.tolist()) for x in first)
            shown.setdefault(name, (before, after))
    samples = sum(len(part.output) for part in parts)
    results = []
    for name, calls in by_name.items():
        means = [sum(float(call[i].sum()) for call in calls) / samples for i in range(3)]
        before, after = shown[name]
        results.append(Norm(name, means[0], means[1], means[2], before, after))
    return tuple(results)
