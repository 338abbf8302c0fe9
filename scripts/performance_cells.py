"""How what was measured is written in the tables of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conserva.views.markdown import listed, stacked

GI, OUT_OF_MEMORY = "GI", "out of memory"

Found = Mapping[str, Any]


def number(value: float) -> str:
    """Return a number with three digits, or all of its whole ones."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def duration(milliseconds: float) -> str:
    """Return a time in the unit that suits it."""
    return f"{number(milliseconds / 1000)} s" if milliseconds >= 10_000 else f"{number(milliseconds)} ms"


def span(values: Sequence[float], unit: str = "") -> str:
    """Return the least and the most of some numbers."""
    low, high = (f"{number(one)}{unit}" for one in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def made_with(machine: Found) -> str:
    """Return the sentence about the machine and the versions."""
    versions = [f"{name} {machine[name]}" for name in ("torch", "transformers", "triton", "cuda") if name in machine]
    return f"Measured on {machine['device']}, with {listed(versions)}."


def absent(one: Found | None) -> str:
    """Return what stands in a cell where there is no time."""
    return "-" if one is None else OUT_OF_MEMORY if one["skipped"] == OUT_OF_MEMORY else "did not run"


def cost(one: Found | None, unit: Found | None) -> str:
    """Return a contender's time, its ratio to another's and its memory."""
    if one is None or "ms" not in one:
        return absent(one)
    ratio = f"{number(one['ms'] / unit['ms'])} x GI" if unit is not None and "ms" in unit else ""
    memory = "" if one.get("gib") is None else f"{number(one['gib'])} GiB"
    return stacked(duration(one["ms"]), ratio, memory)


def reasons(found: Sequence[Mapping[str, Found]]) -> list[str]:
    """Return who did not run, and why, once each; out of memory stands in the table."""
    reasons = {
        f"`{name}`: {one['skipped']}"
        for contenders in found
        for name, one in contenders.items()
        if one.get("skipped", OUT_OF_MEMORY) != OUT_OF_MEMORY
    }
    return [f"Did not run: {'; '.join(sorted(reasons))}."] if reasons else []
