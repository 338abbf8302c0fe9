"""Freed memory is returned to the system."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import torch

import conserva
from conserva._util.free_memory import release_freed_memory
from conserva.explaining import stream


def resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)
def test_memory_that_the_heap_keeps_is_returned() -> None:
    pieces = [torch.zeros(2**14) for _ in range(2**11)]  # 128 MiB in pieces that come from the heap
    kept = pieces[-1]  # at the end of the heap, so that freeing the others cannot shrink it
    del pieces
    before = resident()
    release_freed_memory()
    assert before - resident() > 2**26
    assert kept.sum() == 0


def test_a_stream_returns_memory_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    released = []
    monkeypatch.setattr(stream, "release_freed_memory", lambda: released.append(True))
    monkeypatch.setattr(stream, "RELEASED", 20)
    outcomes = stream.explain_stream(conserva.load(), iter(["a joy."] * 50), lambda chunk: None)
    assert sum(1 for _ in outcomes) == 50
    assert len(released) == 1  # after 16 and 32 inputs
