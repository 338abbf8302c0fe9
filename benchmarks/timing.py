"""Interleaved timing: every contender once a round, so that what slows the machine slows all of them."""

from __future__ import annotations

import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import torch

RESULTS = Path(__file__).parent / "results"
OUT_OF_MEMORY = "out of memory"
GIB = 2**30


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


def compare(
    contenders: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Return the median milliseconds of each contender and its peak memory, or why there is none.

    Each is tried first, alone, so that kernels are compiled and one that does not fit is known before the rounds.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, contender in contenders.items():
        found[name] = tried(contender, device)
        print(f"  {name:<42} {found[name].get('skipped', 'runs')}", file=sys.stderr)
    running = {name: contender for name, contender in contenders.items() if "skipped" not in found[name]}
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, contender in running.items():
            times[name].append(milliseconds(contender, device))
    for name, each in times.items():
        found[name] = {"ms": statistics.median(each), "fastest_ms": min(each), "slowest_ms": max(each), **found[name]}
    return found


def tried(contender: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Run a contender to warm up, and again for its peak memory; tell why, where it does not run."""
    try:
        contender()
        return {"gib": peak_gib(contender, device)}
    except torch.OutOfMemoryError:
        reason = OUT_OF_MEMORY
    except Exception as error:  # a contender that fails is a result: the others go on
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    release(device)
    return {"skipped": reason}


def release(device: torch.device) -> None:
    """Give memory back that nobody holds; after a failure its frames are gone only now."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def milliseconds(contender: Callable[[], object], device: torch.device) -> float:
    """Return how long one call takes: by events on a GPU, with everything before it done."""
    if device.type != "cuda":
        start = time.perf_counter()
        contender()
        return 1000 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    contender()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end))


def peak_gib(contender: Callable[[], object], device: torch.device) -> float | None:
    """Return the most memory one call takes above what lay there before; a CPU does not tell."""
    if device.type != "cuda":
        contender()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    contender()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / GIB


def ratios(found: Mapping[str, Mapping[str, Any]], base: str) -> dict[str, float]:
    """Return the medians as multiples of one contender's, where both ran."""
    unit = found.get(base, {}).get("ms")
    return {name: one["ms"] / unit for name, one in found.items() if unit and "ms" in one}


def machine(device: torch.device) -> dict[str, Any]:
    """Return what was measured on."""
    versions = {name: _version(name) for name in ("torch", "transformers", "triton", "captum", "autolrp")}
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "kind": device.type,
        **{name: version for name, version in versions.items() if version},
        "python": platform.python_version(),
        **({"cuda": torch.version.cuda} if on_gpu else {"threads": torch.get_num_threads()}),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def write_rows(path: Path, record: Mapping[str, Any], key: str) -> None:
    """Write a record whose `rows` take the place of those of the same key; rows of another machine are dropped."""
    rows = {row[key]: row for row in record["rows"]}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        same_machine = all(before["machine"].get(name) == record["machine"][name] for name in ("device", "torch"))
        if same_machine and before["model"] == record["model"]:
            rows = {row[key]: row for row in before["rows"]} | rows
            record = {**before, **record}
    write(path, {**record, "rows": [rows[one] for one in sorted(rows)]})


def show(title: str, found: Mapping[str, Mapping[str, Any]], base: str, file: TextIO | None = None) -> None:
    """Print what was measured as a table, ratios to one contender beside it."""
    print(title, file=file)
    times = ratios(found, base)
    for name, one in found.items():
        if "ms" not in one:
            print(f"  {name:<34} {one['skipped']}", file=file)
            continue
        memory = "" if one.get("gib") is None else f"{one['gib']:9.2f} GiB"
        ratio = f"{times[name]:6.2f} x {base}" if name in times else ""
        print(f"  {name:<34} {one['ms']:10.2f} ms {ratio}{memory}", file=file)
