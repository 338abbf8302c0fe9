"""Texts from a file, row by row in constant memory; rows that cannot be used have an error in place of their text."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, TypeAlias

from .._util.files import MEBIBYTE, check_readable, reason
from .._util.nearest import did_you_mean
from ..errors import Error
from .labelled import TEXT_COLUMNS, listed
from .tables import opened_parquet, quotes_are_text

ID_COLUMNS = ("id",)
"""Default names of the column of ids, matched case-insensitively."""

LONGEST_LINE = 64 * MEBIBYTE
"""The maximum length of a line or a field: a file without line ends must not be read into memory."""

LARGEST_STREAM = 2**50
"""The maximum size in bytes of a file that is read row by row: in effect, no limit."""

_AT_ONCE = 64
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

Fields: TypeAlias = "Mapping[str, object] | str"
"""A row of a file: its values by column, or why it cannot be read."""


@dataclass(frozen=True)
class TextRow:
    """A row of a file."""

    number: int
    """Counted from 1; in a .txt file, the number of the line."""
    id: str | int | None
    """The value in the id column; for files without an id column, the same as `number`."""
    text: str | None
    """None if it is not valid text."""
    second: str | None
    """The second text of a pair, if there is a column of second texts."""
    error: str | None
    """Why the row cannot be used."""

    @property
    def input(self) -> str | tuple[str, str] | Error:
        """The text or the pair of texts; an `Error` if there is none."""
        if self.error is not None or self.text is None:
            return Error(self.error or "")
        return self.text if self.second is None else (self.text, self.second)


class TextRows:
    """The rows of a file, which every iteration reads anew.

    Parameters
    ----------
    path
        A .txt file with one text per line, without empty lines; or a .csv, .tsv, .jsonl, .ndjson or .parquet file.
    given
        What error messages call the file.
    text, second, row_id
        The columns of texts, of second texts, and of ids. By default, the columns of texts and of ids are found by
        common names, and there are no second texts.
    """

    def __init__(
        self, path: Path, given: str, text: str | None = None, second: str | None = None, row_id: str | None = None
    ) -> None:
        self._path, self._given = path, given
        check_ending(path, given)
        check_readable(path, given, LARGEST_STREAM)
        self._reader = READERS[path.suffix.lower()]
        chosen = [name for name in (text, second, row_id) if name is not None]
        if self._reader is READERS[".txt"] and chosen:
            raise Error(f"{given} has no columns: leave the column {chosen[0]!r} out, or give a table such as .csv.")
        self.digest = _digest(path, given)
        """A hash of the file."""
        names, self.count = self._reader.survey(path, given)
        """The number of rows."""
        if not self.count:
            raise Error(f"{given} has no text.")
        found = _column(names, given, "text", text, TEXT_COLUMNS)
        if found is None:
            raise Error(f"{given} has no column of texts: choose one with --text-column, from {listed(names)}.")
        self._text, self._second = found, _column(names, given, "with", second, ())
        self._id = _column(names, given, "id", row_id, ID_COLUMNS)
        self._ids_are_integers = self._id is not None and names[self._id]

    @property
    def description(self) -> str:
        """The columns that are read, such as "texts from 'review', ids from 'id'"; empty for files of lines."""
        if self._reader is READERS[".txt"]:
            return ""
        second = "" if self._second is None else f", second texts from {self._second!r}"
        ids = "row numbers as ids (--id-column NAME takes others)" if self._id is None else f"ids from {self._id!r}"
        return f"texts from {self._text!r}{second}, {ids}"

    def __iter__(self) -> Iterator[TextRow]:
        columns = [name for name in (self._text, self._second, self._id) if name is not None]
        for number, fields in self._reader.read(self._path, self._given, columns):
            yield self._row(number, fields)

    def _row(self, number: int, fields: Fields) -> TextRow:
        if isinstance(fields, str):
            return TextRow(number, number if self._id is None else None, None, None, fields)
        row_id = number if self._id is None else _id(fields.get(self._id), self._ids_are_integers)
        text, error = _text(fields.get(self._text), "text")
        second, second_error = None, None
        if self._second is not None:
            second, second_error = _text(fields.get(self._second), "second text")
        return TextRow(number, row_id, text, second, error or second_error)


def check_ending(path: Path, given: str) -> None:
    """Raise an `Error` if files with this ending are not read."""
    if path.suffix.lower() not in READERS:
        raise Error(f"{given} ends in {path.suffix!r}: choose {', '.join(filter(None, READERS))}.")


def _text(value: object, name: str) -> tuple[str | None, str | None]:
    """Return a text and None; or what can be shown of an unusable one, and why it is unusable."""
    if value is None:
        return None, f"The {name} is missing."
    if isinstance(value, UnicodeDecodeError) or (isinstance(value, str) and _HALF_CHARACTER.search(value)):
        return None, f"The {name} is not valid UTF-8."
    if not isinstance(value, str):
        return None, f"The {name} is {shortened(value)}, not a string."
    return value, None if value.strip() else f"The {name} is empty."


def _id(value: object, integers: bool) -> str | int | None:
    """Return an id; all ids of a file are integers, or all are strings."""
    if value is None:
        return None
    return value if integers and isinstance(value, int) else str(value).encode("utf-8", "backslashreplace").decode()


def _column(names: Collection[str], given: str, kind: str, chosen: str | None, usual: tuple[str, ...]) -> str | None:
    """Return the chosen column, or the one with a usual name; None if there is none."""
    if chosen is not None and chosen not in names:
        hint = did_you_mean(chosen, names)
        raise Error(f"{given} has no column {chosen!r} (--{kind}-column): choose one of {listed(names)}.{hint}")
    found = [name for name in names if name.lower() in usual] if chosen is None else [chosen]
    if len(found) > 1:
        raise Error(f"{given} has several columns {listed(found)}: choose one with --{kind}-column.")
    return found[0] if found else None


def _digest(path: Path, given: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while part := file.read(MEBIBYTE):
                found.update(part)
    except OSError as error:
        raise Error(f"{given} cannot be read: {reason(error)}.") from None
    return found.hexdigest()


# The formats


@dataclass(frozen=True)
class _Reader:
    """A format of files."""

    read: Callable[[Path, str, Sequence[str]], Iterator[tuple[int, Fields]]]
    """Yields the number of each row and its fields, at least the given columns."""
    survey: Callable[[Path, str], tuple[Mapping[str, bool], int]]
    """Returns the columns, each with whether all its values are integers, and the number of rows."""


def _surveyed(
    read: Callable[[Path, str, Sequence[str]], Iterator[tuple[int, Fields]]],
) -> Callable[[Path, str], tuple[Mapping[str, bool], int]]:
    def survey(path: Path, given: str) -> tuple[Mapping[str, bool], int]:
        names: dict[str, bool] = {}
        count = 0
        for _, fields in read(path, given, ()):
            count += 1
            if not isinstance(fields, str):
                for name, value in fields.items():
                    names[name] = names.get(name, True) and (value is None or _is_integer(value))
        return names, count

    return survey


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _lines(path: Path, given: str) -> Iterator[str]:
    """Yield the lines with their ends; bytes that are not UTF-8 become lone surrogates."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise Error(f"{given}, line {number} has more than {LONGEST_LINE / MEBIBYTE:.0f} MiB: split it.")
                yield line
    except OSError as error:
        raise Error(f"{given} cannot be read: {reason(error)}.") from None


def _texts(path: Path, given: str, columns: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    for number, line in enumerate(_lines(path, given), 1):
        if text := line.strip():
            yield number, {"text": text}


def _csv(path: Path, given: str, columns: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    return _delimited(path, given, ",", quoted=True)


def _tsv(path: Path, given: str, columns: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    quoted = not quotes_are_text(line.rstrip("\r\n") for line in _lines(path, given))
    return _delimited(path, given, "\t", quoted=quoted)


def _delimited(path: Path, given: str, delimiter: str, *, quoted: bool) -> Iterator[tuple[int, Fields]]:
    reader = csv.reader(
        _lines(path, given),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    names: list[str] | None = None
    number = 0
    while (fields := _next(reader, given)) is not None:
        if not fields:
            continue
        if names is None:
            names = [name.strip() for name in fields]
            if twice := [name for name in names if name and names.count(name) > 1]:
                raise Error(f"{given} has several columns {twice[0]!r}: rename all but one of them.")
            continue
        number += 1
        if len(fields) == len(names):
            yield number, dict(zip(names, fields, strict=True))
        else:
            yield number, f"Row {number} has {len(fields)} field(s) for {len(names)} column(s)."


def _next(reader: Any, given: str) -> list[str] | None:
    """Return the fields of the next row; None at the end."""
    before = csv.field_size_limit(LONGEST_LINE)  # global, so it is restored
    try:
        return next(reader, None)
    except csv.Error as error:
        raise Error(f"{given}, line {reader.line_num}: {error}. Correct the quotes there or before.") from None
    finally:
        csv.field_size_limit(before)


def _json_lines(path: Path, given: str, columns: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    lines: Iterable[str] = filter(str.strip, _lines(path, given))
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"Row {number} is not JSON: {error}."
            continue
        yield number, row if isinstance(row, dict) else f"Row {number} is {shortened(row)}, not an object {{...}}."


def _parquet(path: Path, given: str, columns: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    number = 0
    with opened_parquet(path, given) as file:
        for batch in file.iter_batches(_AT_ONCE, columns=list(columns)):  # small: values may be highly compressed
            values = [_values(column) for column in batch.columns]
            for row in zip(*values, strict=True):
                number += 1
                yield number, dict(zip(batch.schema.names, row, strict=True))


def _values(column: Any) -> list[object]:
    column = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _parquet_survey(path: Path, given: str) -> tuple[Mapping[str, bool], int]:
    with opened_parquet(path, given) as file:
        columns = {column.name: str(column.type).startswith("int") for column in file.schema_arrow}
        return columns, file.metadata.num_rows


READERS: Mapping[str, _Reader] = {
    ".txt": (lines := _Reader(_texts, _surveyed(_texts))),
    "": lines,
    ".csv": _Reader(_csv, _surveyed(_csv)),
    ".tsv": _Reader(_tsv, _surveyed(_tsv)),
    ".jsonl": (objects := _Reader(_json_lines, _surveyed(_json_lines))),
    ".ndjson": objects,
    ".parquet": _Reader(_parquet, _parquet_survey),
}
"""The formats by the ending of the file name."""
