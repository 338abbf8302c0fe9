"""Writing of tables of explanations, row by row; the suffix of the file name chooses the format."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from .._util.extras import require
from .._util.files import atomic_file, writing
from .._util.text import to_json
from .table import COLUMNS, Row

AT_ONCE = 1024
"""The number of rows that are written at a time."""


def _csv(path: Path, rows: Iterable[Row]) -> None:
    """Write a CSV file, with lists as JSON. Missing values are empty cells."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_cell(row[name]) for name in COLUMNS])


def _cell(value: Any) -> Any:
    return to_json(value, indent=None) if isinstance(value, list) else value


def _json_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write a JSON object a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{to_json(dict(row), indent=None)}\n" for row in rows)


def _parquet(path: Path, rows: Iterable[Row]) -> None:
    """Write a Parquet file. All ids are integers, or all are strings."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    types = {
        "string": arrow.string(),
        "number": arrow.float64(),
        "strings": arrow.list_(arrow.string()),
        "numbers": arrow.list_(arrow.float64()),
        "flags": arrow.list_(arrow.bool_()),
        "spans": arrow.list_(arrow.list_(arrow.int64())),
    }
    remaining = iter(rows)
    chunk = list(islice(remaining, AT_ONCE))
    numbered = any(isinstance(row["id"], int) for row in chunk)
    types["id"] = arrow.int64() if numbered else arrow.string()
    schema = arrow.schema([(name, types[column.type]) for name, column in COLUMNS.items()])
    with path.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
        while chunk:
            columns = {name: [row[name] for row in chunk] for name in COLUMNS}
            if not numbered:
                columns["id"] = [None if each is None else str(each) for each in columns["id"]]
            writer.write_table(arrow.table(columns, schema=schema))
            chunk = list(islice(remaining, AT_ONCE))


@dataclass(frozen=True)
class TableFormat:
    """A format of tables: the function that writes a file from rows, and the packages that it needs."""

    write: Callable[[Path, Iterable[Row]], None]
    needs: tuple[str, ...] = ()


TABLES: Mapping[str, TableFormat] = {
    ".csv": TableFormat(_csv),
    ".jsonl": TableFormat(_json_lines),
    ".parquet": TableFormat(_parquet, needs=("pyarrow",)),
}
"""The formats by the suffix of the file name."""


def check_table(path: Path, given: str) -> None:
    """Raise an `Error` if the packages that write this table are not installed."""
    require(given, *TABLES[path.suffix.lower()].needs)


def write_table(path: Path, rows: Iterable[Row], given: str | None = None) -> Path:
    """Write a table atomically, in the format of its suffix; `given` is what error messages call it."""
    check_table(path, str(path) if given is None else given)
    with writing(path, given), atomic_file(path) as temporary:
        TABLES[path.suffix.lower()].write(temporary, rows)
    return path
