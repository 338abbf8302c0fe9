"""The benchmark of cost against size: its exponents, its file, and what it does where memory ends."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
HERE = {"device": "a made-up GPU", "torch": "9.9.9"}


@pytest.fixture(scope="module")
def scaling() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("scaling")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back how the benchmark sets up the allocator."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def _row(size: int, **costs: tuple[float, float | None] | None) -> dict[str, Any]:
    """Return a row of milliseconds and GiB; None is out of memory."""
    found = {
        name: {"skipped": "out of memory"} if cost is None else {"ms": cost[0], "gib": cost[1]}
        for name, cost in costs.items()
    }
    return {"size": size, "contenders": found}


def test_exponents_are_those_of_the_upper_half(scaling: Any) -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    rows = [
        _row(size, forward=(7 * size**1.5, 0.1 * size), GI=(size**2, None) if size < 32 else None)
        if size > 4
        else _row(size, forward=(1000, 50), GI=(1000, 50))
        for size in sizes
    ]
    found = scaling.exponents(rows, sizes)
    assert found.keys() == {"forward", "GI"}
    assert found["forward"] == {"sizes": [8, 32], "time": pytest.approx(1.5), "memory": pytest.approx(1)}
    assert found["GI"] == {"sizes": [8, 16], "time": pytest.approx(2)}
    assert scaling.exponents(rows[:4], sizes) == {}  # one size has no slope


def test_a_sweep_replaces_its_own_part(scaling: Any, tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"

    def write(machine: dict[str, str], sweep: str, what: str) -> dict[str, Any]:
        scaling.write_sweep(path, machine, sweep, {"what": what})
        return json.loads(path.read_text(encoding="utf-8"))["sweeps"]

    write(HERE, "layers", "old")
    write(HERE, "tokens", "one")
    assert list(write(HERE, "layers", "new").items()) == [("tokens", {"what": "one"}), ("layers", {"what": "new"})]
    assert write({**HERE, "device": "another"}, "batch", "two") == {"batch": {"what": "two"}}


def test_few_rounds_for_large_sizes(scaling: Any) -> None:
    rounds = [scaling.rounds_for(tokens) for tokens in scaling.SIZES["tokens"]]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] == scaling.MOST_ROUNDS
    assert rounds[-2:] == [0, 0]


def test_a_single_run_tells_what_went_wrong(scaling: Any) -> None:
    def hungry() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken() -> None:
        raise ValueError("no such thing\nand more")

    calls: list[int] = []
    assert scaling.once(lambda: calls.append(1), CPU)["ms"] >= 0
    assert calls == [1]
    assert scaling.once(hungry, CPU) == {"skipped": "out of memory"}
    assert scaling.once(broken, CPU) == {"skipped": "ValueError: no such thing"}


def test_beyond_the_memory_of_gi_few_contenders_run(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def gradient(subject: Any) -> None:
        tried.append(subject.inputs["input_ids"].shape[1])
        if tried[-1] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(scaling.ways, "gradient_times_input", gradient)
    *_, part = scaling.swept("tokens", True, 0, CPU)
    small, first, *larger = part["rows"]
    assert tried == [16, 32]
    assert "ms" in small["contenders"]["GI"]
    assert first["contenders"]["GI"] == {"skipped": "out of memory"}
    assert "ms" in first["contenders"]["exact, with the ledger"]
    assert larger
    for row in larger:
        assert row["contenders"].keys() == {"forward", "ah+ln", "GI"}
        assert row["contenders"]["GI"] == {"skipped": "out of memory"}
        assert row["to forward"].keys() == {"forward", "ah+ln"}


def test_tiny_sweeps_run(scaling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--tiny", "--rounds", "1", "--out", str(tmp_path)])
    scaling.main()
    sweeps = json.loads((tmp_path / "scaling.json").read_text(encoding="utf-8"))["sweeps"]
    assert sweeps.keys() == scaling.SIZES.keys()
    for name, sweep in sweeps.items():
        assert [row["size"] for row in sweep["rows"]] == list(scaling.TINY_SIZES[name])
        assert all("ms" in one for row in sweep["rows"] for one in row["contenders"].values())
        assert sweep["exponents"].keys() == {"forward", "GI", *scaling.OURS}
        assert sweep["rows"][0]["plans"] == dict.fromkeys(scaling.OURS, "whole")


def test_tiny_models_do_not_overwrite_the_results(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--tiny"])
    with pytest.raises(SystemExit):
        scaling.main()
