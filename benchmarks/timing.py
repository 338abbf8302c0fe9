"""Interleaved timing: every contender once a round, so that what slows the machine slows all of them."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def medians(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def report(title: str, seconds: Mapping[str, float], base: str, settings: Mapping[str, Any], path: Path) -> None:
    """Print the ratios to one contender and write them down, with what they were measured on."""
    ratios = {name: one / seconds[base] for name, one in seconds.items()}
    print(f"{title} (times {base})")
    for name, ratio in ratios.items():
        print(f"  {name:<42} {ratio:5.2f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads()}
    path.write_text(
        json.dumps({"title": title, "base": base, "ratios": ratios, **settings, **machine}, indent=2) + "\n"
    )
