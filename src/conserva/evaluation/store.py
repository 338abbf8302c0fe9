"""Saving of an evaluation: the result as JSON, all points of all samples as Parquet."""

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
from .summary import CURVES, GAIN_CURVES

_AT_ONCE = 100_000
"""The number of rows that are in memory at a time."""


def save(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write the result, and the points of samples in the folder's journal, if any; return the files written."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [write_text(folder / "evaluation.json", evaluation.to_json() + "\n")]
    journal = folder / NAME
    if journal.exists():
        written.append(_parquet(journal, folder / "curves.parquet"))
    return written


def _parquet(journal: Path, path: Path) -> Path:
    """Write a Parquet file with one row for each sample, method, curve and point."""
    require(f"{path.name}, whose numbers are also in {journal.name},", "pyarrow")
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
        atomic_file(path) as temporary,
        temporary.open("wb") as opened,  # pyarrow does not accept paths that are not UTF-8
        parquet.ParquetWriter(opened, schema, compression="zstd") as file,
    ):
        while block := list(islice(rows, _AT_ONCE)):
            file.write_table(arrow.Table.from_pylist(block, schema=schema))
    return path


def _rows(journal: Path) -> Iterator[dict[str, Any]]:
    for scores, curves in samples_of(journal):
        sample = {key: scores[key] for key in ("sample", "target", "label", "text")}
        for method, points in curves["methods"].items():
            for curve in filter(points.__contains__, (*CURVES, *GAIN_CURVES)):
                steps = len(points[curve]) - 1
                for step, value in enumerate(points[curve]):
                    point = {"curve": curve, "step": step, "fraction": step / steps, "value": value}
                    yield {**sample, "method": method, **point}
