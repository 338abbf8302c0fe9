"""An evaluation on disk: the result as JSON, every point of every sample as Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from .._util.extras import require
from .._util.files import atomic_file, write_text, writing
from .journal import NAME, samples_of
from .result import Evaluation
from .summary import CURVES

_AT_ONCE = 100_000
"""How many rows are in memory at a time."""


def save(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write the result, and the points of the samples that the run left in the folder; return what was written."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [write_text(folder / "evaluation.json", evaluation.to_json() + "\n")]
    journal = folder / NAME
    if journal.exists():
        written.append(_parquet(journal, folder / "curves.parquet"))
    return written


def _parquet(journal: Path, path: Path) -> Path:
    """Write one row for each sample, method, curve and point."""
    require(f"{path.name}, whose numbers are in {journal.name} too,", "pyarrow")
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    kinds = {
        "sample": arrow.int64(),
        "method": arrow.string(),
        "curve": arrow.string(),
        "step": arrow.int64(),
        "fraction": arrow.float64(),
        "value": arrow.float64(),
        "target": arrow.int64(),
        "label": arrow.int64(),
        "text": arrow.string(),
    }
    schema, rows = arrow.schema(kinds), _rows(journal)
    with (
        writing(path),
        atomic_file(path) as half,
        half.open("wb") as opened,  # pyarrow takes no name that is not UTF-8
        parquet.ParquetWriter(opened, schema, compression="zstd") as file,
    ):
        while some := list(islice(rows, _AT_ONCE)):
            file.write_table(arrow.Table.from_pylist(some, schema=schema))
    return path


def _rows(journal: Path) -> Iterator[dict[str, Any]]:
    for scores, curves in samples_of(journal):
        about = {key: scores[key] for key in ("sample", "target", "label", "text")}
        for method, points in curves["methods"].items():
            for curve in CURVES:
                steps = len(points[curve]) - 1
                for step, value in enumerate(points[curve]):
                    where = {"curve": curve, "step": step, "fraction": step / steps, "value": value}
                    yield {**about, "method": method, **where}
