"""Tables of a run: the measures by kind and method with 95 % intervals, and differences to the best method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conserva.evaluation.comparison import Interval
from conserva.evaluation.statistics import Bootstrap, Table

from .measures import NAMES
from .reading import SCOPES
from .run import Found

HEADS = {"top1": "top-1", "pointing": "pointing", "iou": "IoU", "ap": "AP", "recall": "recall at 10 %", "lds": "LDS"}
MAIN = ("document token", "document word")
THIRDS = ("early", "middle", "late")
COMPARED = ("top1", "ap", "lds")


def tables(
    found: Found,
    kinds: Mapping[str, Sequence[str]],
    wanted: Sequence[str],
    labels: Sequence[str] = (),
    seed: int = 0,
) -> str:
    """Return the tables as markdown.

    Parameters
    ----------
    found
        What was measured.
    kinds
        The keys of the measured items by kind.
    wanted
        The methods.
    labels
        The labels that top-1 is shown by, for the kinds that have them.
    seed
        That of the bootstrap.
    """
    parts = [answered(found, kinds)]
    for kind, keys in kinds.items():
        names = [name for name in wanted if any("measures" in found.rows[key, name] for key in keys)]
        if not names:
            continue
        parts.append(f"## {kind}, {len(keys)} items")
        for name in (name for name in wanted if name not in names):
            parts.append(f"Not measured: {name}. {found.rows[keys[0], name].get('skipped', 'No score is finite.')}")
        for where in MAIN:
            columns = [*NAMES, "lds"] if where == MAIN[0] and _has(found, keys, names, "lds") else list(NAMES)
            parts.append(_table(found, keys, names, where, columns, seed))
        parts.append(_differences(found, keys, names, seed))
        parts.append(_scopes(found, keys, names))
        parts += [_by(found, keys, names, label) for label in labels if label in found.tried[keys[0]]["labels"]]
    return "\n\n".join(parts) + "\n"


def answered(found: Found, kinds: Mapping[str, Sequence[str]]) -> str:
    """Return a table of how many items of each kind were answered rightly."""
    lines = ["| kind | tried | answered | share | first token right | measured |", "|---|---:|---:|---:|---:|---:|"]
    for kind, keys in kinds.items():
        tried = [row for row in found.tried.values() if row["kind"] == kind]
        right, first = (sum(row[name] for row in tried) for name in ("right", "first"))
        share = right / len(tried) if tried else 0.0
        lines.append(f"| {kind} | {len(tried)} | {right} | {share:.2f} | {first} | {len(keys)} |")
    return "\n".join(lines)


def values(found: Found, keys: Sequence[str], method: str, where: str, measure: str) -> list[float]:
    """Return a measure of a method on each item; where it has none, since it failed or its scores are not finite, 0."""
    rows = [found.rows[key, method] for key in keys]
    if measure == "lds":
        return [row.get("lds", 0.0) for row in rows]
    return [row["measures"][where][measure] if "measures" in row else 0.0 for row in rows]


def compared(columns: Mapping[str, Sequence[float]], seed: int) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Return the mean of each method, and its paired difference to the method with the highest mean."""
    bootstrap = Bootstrap(Table.of(np.array(list(columns.values())).T), seed)
    means = bootstrap.intervals(slice(None))
    best = max(range(len(means)), key=lambda i: means[i].mean)
    less = [bootstrap.intervals(slice(i, i + 1), slice(best, best + 1))[0] for i in range(len(means))]
    return dict(zip(columns, means, strict=True)), dict(zip(columns, less, strict=True))


def _has(found: Found, keys: Sequence[str], names: Sequence[str], measure: str) -> bool:
    return any(measure in found.rows[key, name] for key in keys for name in names)


def _table(
    found: Found, keys: Sequence[str], names: Sequence[str], where: str, columns: Sequence[str], seed: int
) -> str:
    scope, level = where.split()
    numbers = {
        measure: compared({name: values(found, keys, name, where, measure) for name in names}, seed)[0]
        for measure in columns
    }
    heads = [HEADS[measure] for measure in columns]
    random = np.mean([found.tried[key]["chance"][where] for key in keys])
    lines = [
        f"Tokens of the {scope}, by {level}, with 95 % intervals; cost in forward passes; failed or not finite. "
        f"A random {level} is evidence in {random:.2f} of cases:",
        "",
    ]
    lines += _head(["method", *heads, "cost", "failed"])
    for name in names:
        cells = [_cell(numbers[measure][name]) for measure in columns]
        rows = [found.rows[key, name] for key in keys]
        costs = [row["cost"] for row in rows if "cost" in row]
        cost = f"{statistics.median(costs):.1f}" if costs else "-"
        broken = sum("measures" not in row for row in rows)
        lines.append(f"| {' | '.join([name, *cells, cost, str(broken)])} |")
    return "\n".join(lines)


def _differences(found: Found, keys: Sequence[str], names: Sequence[str], seed: int) -> str:
    columns = [(where, measure) for where in MAIN for measure in COMPARED if measure != "lds"]
    if _has(found, keys, names, "lds"):
        columns.append((MAIN[0], "lds"))
    lines = ["Difference to the best method, in pairs:", ""]
    lines += _head(["method", *(HEADS[m] if m == "lds" else f"{HEADS[m]}, {where.split()[1]}" for where, m in columns)])
    less = [compared({name: values(found, keys, name, *column) for name in names}, seed)[1] for column in columns]
    for name in names:
        lines.append(f"| {' | '.join([name, *(_cell(one[name]) for one in less)])} |")
    return "\n".join(lines)


def _scopes(found: Found, keys: Sequence[str], names: Sequence[str]) -> str:
    lines = [
        "Top-1 by token in the document, with the question, and with template and first token too; where the rest is:"
    ]
    lines += ["", *_head(["method", *SCOPES, "share of the first token", "share of the template"])]
    for name in names:
        cells = [np.mean(values(found, keys, name, f"{scope} token", "top1")) for scope in SCOPES]
        cells += [np.mean(values(found, keys, name, "shares", share)) for share in ("sink", "template")]
        lines.append(f"| {' | '.join([name, *(f'{cell:.2f}' for cell in cells)])} |")
    return "\n".join(lines)


def _by(found: Found, keys: Sequence[str], names: Sequence[str], label: str) -> str:
    groups: dict[Any, list[str]] = {}
    for key in keys:
        value = found.tried[key]["labels"][label]
        group = THIRDS[min(2, int(3 * value))] if label == "depth" else value
        groups.setdefault(group, []).append(key)
    columns = sorted(groups, key=THIRDS.index if label == "depth" else None)
    lines = [f"Top-1 by token in the document, by {label}:", ""]
    lines += _head(["method", *(f"{column} ({len(groups[column])})" for column in columns)])
    for name in names:
        cells = [np.mean(values(found, groups[column], name, MAIN[0], "top1")) for column in columns]
        lines.append(f"| {' | '.join([name, *(f'{cell:.2f}' for cell in cells)])} |")
    return "\n".join(lines)


def _head(names: Sequence[Any]) -> list[str]:
    return [f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(names) - 1)}"]


def _cell(one: Interval) -> str:
    return f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]"
