"""Tables of texts and labels: CSV, TSV, JSON, JSON lines and Parquet files, and Hugging Face datasets."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from reprlib import repr as shortened
from types import ModuleType
from typing import Any

from .._util.files import LARGEST, check_readable, read_text
from ..errors import Error

_LINE_END = re.compile(r"\r\n|\r|\n")  # not str.splitlines: texts can contain U+0085 or U+2028
_QUOTED = re.compile(r'"([^"]|"")*"')


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, which are read on demand, since a file can have many that are not used."""

    source: str
    names: list[str]
    length: int
    column: Callable[[str], list[object]]


def read_file(path: Path) -> Table:
    """Read a file as a table, by the ending of its name."""
    reader = READERS[path.suffix.lower()]
    check_readable(path, repr(str(path)), sys.maxsize if reader is _parquet else LARGEST)
    if not path.stat().st_size:
        raise Error(f"{str(path)!r} is empty.")
    return reader(path)


def _extra(module: str, needed_by: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise Error(f"{needed_by} needs the package {package}: pip install 'conserva[data]'.") from None


def _csv(path: Path) -> Table:
    return _delimited(path, read_text(path, repr(str(path))), ",", quoted=True)


def _tsv(path: Path) -> Table:
    content = read_text(path, repr(str(path)))
    return _delimited(path, content, "\t", quoted=not quotes_are_text(_LINE_END.split(content)))


def quotes_are_text(lines: Iterable[str]) -> bool:
    """Return whether quotes in a TSV are ordinary characters, as in GLUE, or enclose fields, as spreadsheets write.

    They are ordinary if all lines have equally many fields without quoting, and a field has quotes that do not enclose
    it.
    """
    columns: set[int] = set()
    has_other_quotes = False
    for line in filter(None, lines):
        fields = line.split("\t")
        columns.add(len(fields))
        has_other_quotes = has_other_quotes or any('"' in field and not _QUOTED.fullmatch(field) for field in fields)
    return has_other_quotes and len(columns) == 1 and columns != {1}


def _delimited(path: Path, content: str, delimiter: str, *, quoted: bool) -> Table:
    before = csv.field_size_limit()
    csv.field_size_limit(max(before, len(content)))  # fields can be long; the limit is global, so it is restored
    reader = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    rows: list[list[str]] = []
    try:
        for fields in reader:
            # More fields than columns are an error too: after an unquoted comma the columns would be shifted.
            if rows and fields and len(fields) != len(rows[0]):
                raise Error(
                    f"{str(path)!r}, row {len(rows)} (up to line {reader.line_num}) has {len(fields)} field(s) for "
                    f"{len(rows[0])} column(s): complete it, and quote fields that contain the delimiter {delimiter!r}."
                )
            if fields:
                rows.append(fields)
    except csv.Error as error:
        raise Error(f"{str(path)!r}, line {reader.line_num}: {error}. Correct the quotes there or before.") from None
    finally:
        csv.field_size_limit(before)
    if not rows:
        raise Error(f"{str(path)!r} is empty.")
    names = [name.strip() for name in rows.pop(0)]
    return Table(str(path), names, len(rows), lambda name: [fields[names.index(name)] for fields in rows])


def _json(path: Path) -> Table:
    rows = _parsed(path, read_text(path, repr(str(path))), 1)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Error(f"{str(path)!r} is not a list of objects: write [{{...}}, ...], or one object a line as .jsonl.")
    return _objects(path, rows)


def _json_lines(path: Path) -> Table:
    rows = []
    for number, line in enumerate(_LINE_END.split(read_text(path, repr(str(path)))), 1):
        if line.strip():
            row = _parsed(path, line, number)
            if not isinstance(row, dict):
                raise Error(f"{str(path)!r}, line {number} is {shortened(row)}: it must be an object, {{...}}.")
            rows.append(row)
    return _objects(path, rows)


def _parsed(path: Path, content: str, first_line: int) -> object:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise Error(f"{str(path)!r}, line {line} is not JSON: {error.msg}, column {error.colno}.") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or deeply nested lists
        raise Error(f"{str(path)!r}, line {first_line} or after cannot be read: {error}.") from None


def _objects(path: Path, rows: list[dict[str, object]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(str(path), names, len(rows), lambda name: [row.get(name) for row in rows])


def _parquet(path: Path) -> Table:
    def column(name: str) -> list[object]:
        values, size = list[object](), 0
        with opened_parquet(path, repr(str(path))) as file:
            for batch in file.iter_batches(64, columns=[name]):  # small, since values may be highly compressed
                (part,) = batch.columns
                part = part.dictionary_decode() if hasattr(part, "dictionary_decode") else part
                if (size := size + part.nbytes + 8 * len(part)) > LARGEST:
                    raise Error(f"{str(path)!r} has more than {LARGEST >> 20} MiB in the column {name!r}: split it.")
                values += part.to_pylist()
        return values

    with opened_parquet(path, repr(str(path))) as file:
        return Table(str(path), file.schema_arrow.names, file.metadata.num_rows, column)


@contextmanager
def opened_parquet(path: Path, given: str) -> Iterator[Any]:
    """Open a Parquet file; `given` is what error messages call it."""
    needed_by = f"Reading {given}"
    _, parquet = _extra("pyarrow", needed_by), _extra("pyarrow.parquet", needed_by)
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except Error:
        raise
    except Exception as error:  # Arrow raises many types of exceptions
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise Error(f"{given} is not a complete Parquet file ({why}): write or download it again.") from None


def read_hub(source: str, split: str) -> Table:
    """Read a split of a Hugging Face dataset as a table."""
    datasets = _extra("datasets", f"{source!r} is not a file, and reading it as a Hugging Face dataset")
    name, _, configuration = source.partition(":")
    try:
        dataset = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # errors of the hub, of the network or of a dataset's files
        why = " ".join(str(error).split())[:240]
        raise Error(f"{source!r} is neither a file nor a Hugging Face dataset with split={split!r} ({why}).") from None
    return Table(source, list(dataset.column_names), len(dataset), lambda column: list(dataset[column]))


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
