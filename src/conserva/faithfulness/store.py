"""An evaluation on disk: the result as JSON, every point of every sample as Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import Error
from .evaluation import Evaluation
from .journal import NAME, read_journal
from .summary import CURVES


def save(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write the result, and the points of the samples that the run left in the folder; return what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "evaluation.json"]
    written[0].write_text(evaluation.to_json() + "\n", encoding="utf-8")
    journal = folder / NAME
    if journal.exists():
        written.append(_parquet(journal, folder / "curves.parquet"))
    return written


def _parquet(journal: Path, path: Path) -> Path:
    """Write one row for each sample, method, curve and point."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise Error(
            f"{path.name} needs pyarrow: pip install 'conserva[data]'. The same numbers are in {journal.name}."
        ) from None
    columns: dict[str, list[Any]] = {
        key: [] for key in ("sample", "method", "curve", "step", "fraction", "value", "target", "label", "text")
    }
    for row in _rows(journal):
        for key, value in row.items():
            columns[key].append(value)
    parquet.write_table(arrow.table(columns), path, compression="zstd")
    return path


def _rows(journal: Path) -> Iterator[dict[str, Any]]:
    scores, curves = read_journal(journal)
    for sample, found in curves.items():
        about = {"sample": sample, **{key: scores[sample][key] for key in ("target", "label", "text")}}
        for method, points in found["methods"].items():
            for curve in CURVES:
                steps = len(points[curve]) - 1
                for step, value in enumerate(points[curve]):
                    where = {"curve": curve, "step": step, "fraction": step / steps, "value": value}
                    yield {**about, "method": method, **where}
