"""The benchmark of evidence as tests import it, and files of items small enough to read."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SQUAD = [
    {"question": "Where is Paris?", "answer": "france", "context": "Paris is in France.", "answer_span": [12, 18]},
    {"question": "What is in Italy?", "answer": "Rome", "context": "  Rome is in Italy. ", "answer_span": [2, 6]},
]
KNOWN = [
    {"prompt": "The capital of France is", "subject": "France", "attribute": "Paris", "relation_id": "P36"},
    {"prompt": "Rome is in", "subject": "Rome", "attribute": "Italy", "relation_id": "P17"},
    {"prompt": "Rome and Rome are in", "subject": "Rome", "attribute": "Italy", "relation_id": "P17"},
]
IOI = [
    {"prompt": "When Ann and Anna met, Anna said Paris to", "answer": "Ann"},
    {"prompt": "After Bob and Joe met, Joe said Rome to", "answer": "Bob"},
]
FILES = {"squad_v2_answerable.jsonl": SQUAD, "known_1000.jsonl": KNOWN, "ioi.jsonl": IOI}


def part(name: str) -> Any:
    """Return a module of the benchmark."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(f"evidence.{name}")
    finally:
        sys.path.remove(str(BENCHMARKS))


def write_files(folder: Path) -> Path:
    for name, rows in FILES.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder
