"""From what was seen at every call to components, heads and norms."""

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
from .result import Component, Head, Norm


@dataclass(frozen=True)
class Measured:
    """One forward and one backward pass under watch."""

    output: Tensor
    ledger: Ledger[Tensor]
    records: Sequence[Record]
    constants: Sequence[Tensor]
    """For each record what its constants took."""
    rest: Mapping[nn.Module | None, Tensor]
    """Constants that joined where no call was watched, by module."""
    norms: Sequence[NormRecord]
    coverage: Sequence[CoverageEntry]
    scale: float


@dataclass
class _Sum:
    """The calls that make up one component."""

    function: str
    kind: str
    rule: str
    entering: Tensor
    constants: Tensor
    leak: Tensor


def summarise(modules: Mapping[str, nn.Module], parts: Sequence[Measured]) -> tuple[Component, ...]:
    """Return the components of all samples, in the order of the forward pass."""
    names = {module: name for name, module in modules.items()}
    found: dict[tuple[str, str, str], list[_Sum]] = {}
    for part in parts:
        for key, one in _components(part, names).items():
            found.setdefault(key, []).append(one)
    samples = sum(len(part.output) for part in parts)
    components = []
    for (module, _, _), sums in found.items():
        entering, constants, leak = (
            torch.cat([getattr(one, name) for one in sums]) for name in ("entering", "constants", "leak")
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
    """Return the calls of one pass as components: the calls of an attention, or of a norm written out, are one."""
    found: dict[tuple[str, str, str], _Sum] = {}
    zero = torch.zeros_like(part.output)
    norms = {id(one.module) for one in part.norms if one.entering is not None}
    for record, constants in zip(part.records, part.constants, strict=True):
        if record.entering is None and record.leaving is None:
            continue  # no relevance came here
        entering = zero if record.entering is None else record.entering.to(zero) / part.scale
        leaving = zero if record.leaving is None else record.leaving.to(zero) / part.scale
        leak = entering - leaving - constants
        function, kind, module = record.function, record.kind, record.module
        if id(module) in norms and module is not None:
            function, kind = type(module).__name__, "norm"
        elif kind == "attention" or any(entry.cancelled for entry in record.entries):
            function, kind = "attention", "attention"  # a mask or a position bias inside a softmax is a part of it
        if record.inside or kind == "norm" or (kind == "attention" and record.kind != "attention"):
            entering = zero  # what enters the whole is what enters its last call
        name = names.get(module, "") if module is not None else ""
        one = found.setdefault((name, kind, function), _Sum(function, kind, record.rule, zero, zero, zero))
        one.entering, one.constants, one.leak = one.entering + entering, one.constants + constants, one.leak + leak
    for norm in part.norms:
        key = (names.get(norm.module, ""), "norm", type(norm.module).__name__)
        if key in found and norm.entering is not None:
            found[key].entering = found[key].entering + by_sample(norm.entering.to(zero), len(zero)) / part.scale
    for (_, kind, _), one in found.items():
        if kind == "norm":
            one.entering = one.entering + one.constants  # a norm's own record leaves its bias out
    for module, constants in part.rest.items():
        name = names.get(module, "") if module is not None else ""
        found[name, "other", "constants"] = _Sum("constants", "other", "", constants, constants, zero)
    _close(part, found, zero)
    return found


def _close(part: Measured, found: dict[tuple[str, str, str], _Sum], zero: Tensor) -> None:
    """Close the books: what no component accounts for is one of its own."""
    rest = part.ledger.gap - sum((one.leak for one in found.values()), zero)
    largest = max(float(one.abs().max()) for one in (part.output, *(c.entering for c in found.values())))
    if float(rest.abs().max()) > 1e-4 * largest:  # less is rounding
        found["", "other", "not watched"] = _Sum("not watched", "other", "", rest, zero, rest)


def heads_of(modules: Mapping[str, nn.Module], parts: Sequence[Measured]) -> tuple[Head, ...]:
    """Return the heads whose scores were followed, as means over samples."""
    names = {module: name for name, module in modules.items()}
    sums: dict[tuple[str, int], list[Tensor]] = {}
    for part in parts:
        for record in part.records:
            for head, values in enumerate(_of_heads(record)):
                key = (names.get(record.module, "") if record.module is not None else "", head)
                sums.setdefault(key, []).append(values / part.scale)
    samples = sum(len(part.output) for part in parts)
    return tuple(
        Head(module, head, *(torch.stack([one.sum(-1) for one in found]).sum(0) / samples).tolist())
        for (module, head), found in sums.items()
    )


def _of_heads(record: Record) -> list[Tensor]:
    """Return for each head what enters, what leaves by values, queries and keys, and the covariance: 5 x samples."""
    if record.covariance is None or "covariance" not in record.heads or (record.scores and record.scores.split):
        return []
    scores = record.heads if record.scores is None else record.scores.heads
    values = record.heads.get("input 2" if record.scores is None else "input 1")
    queries, keys = scores.get("input 0"), scores.get("input 1")
    if values is None or queries is None or keys is None:
        return []
    groups = min(values.shape[1], keys.shape[1], queries.shape[1])  # grouped heads share keys and values
    each = [record.heads["output"], values, queries, keys, record.heads["covariance"]]
    shared = torch.stack([one.unflatten(1, (groups, -1)).sum(2) for one in each])  # type: ignore[no-untyped-call]
    return list(shared.permute(2, 0, 1))


def norms_of(modules: Mapping[str, nn.Module], parts: Sequence[Measured], rules: RuleSet) -> tuple[Norm, ...]:
    """Return the norms that relevance came through, as means over samples."""
    names = {module: name for name, module in modules.items()}
    found: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    shown: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for part in parts:
        count = len(part.output)
        for one in part.norms:
            if one.entering is None or one.leaving is None:
                continue
            share = one.share if rules.norm.differentiates else torch.ones_like(one.share)
            name = names.get(one.module, "")
            three = (one.entering, one.leaving, one.entering * share)
            entering, leaving, predicted = (by_sample(x / part.scale, count) for x in three)
            found.setdefault(name, []).append((entering, leaving, predicted))
            first = (x.reshape(count, -1)[0] / part.scale for x in (one.leaving, one.entering))
            before, after = (tuple(x.tolist()) for x in first)
            shown.setdefault(name, (before, after))
    samples = sum(len(part.output) for part in parts)
    results = []
    for name, calls in found.items():
        means = [sum(float(one[i].sum()) for one in calls) / samples for i in range(3)]
        before, after = shown[name]
        results.append(Norm(name, means[0], means[1], means[2], before, after))
    return tuple(results)
