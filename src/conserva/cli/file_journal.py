"""The journal of `conserva explain --file --out`, from which the table is written and an interrupted run is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._util.journal import Journal
from ..attribution import find
from ..datasets.rows import TextRow
from ..errors import Error
from ..explaining.explained import provenance_of
from ..results.explanation import Explanation
from ..results.schema import written
from ..results.table import Row, failed_row, row_of
from ..results.table_files import write_table

if TYPE_CHECKING:
    from ..tasks import Task

SUFFIX = ".journal"


class FileJournal:
    """The rows of a table that are done, in a file beside it.

    A context manager: on exit it removes the file if the table is written or if no row is done.
    """

    def __init__(self, task: Task, given: argparse.Namespace) -> None:
        method = find(given.method)
        self._provenance = provenance_of(task, method, True)
        settings = {
            "content of --file": given.rows.digest,
            **{name.replace("_", "-"): getattr(given, name) for name in _OPTIONS},
            "method": method.name,
            "model": task.name,
            "provenance": self._provenance,
        }
        self._path = given.out.with_name(given.out.name + SUFFIX)
        self._method, self._model = method.name, task.name
        self._journal = Journal(self._path, settings, "explain --file", "name for --out")
        self.done = self.failed = 0
        """The number of rows, and of those that could not be explained."""
        self.first_error = ""
        self._is_written = False
        for record in self._records():
            self._count(record)

    def _records(self) -> Iterator[dict[str, Any]]:
        """Yield one record for each row in order, up to the first row without a record."""
        position = 0
        for _, record in self._journal.records:
            if record["position"] == position:
                yield record
                position += 1

    def _count(self, record: dict[str, Any]) -> None:
        self.done += 1
        if record["error"] is not None:
            self.failed += 1
            self.first_error = self.first_error or record["error"]

    def add(self, row: TextRow, outcome: Explanation | Error) -> None:
        """Write the record of the next row."""
        record: dict[str, Any] = {"position": self.done, "id": row.id, "text": row.text, "second": row.second}
        if isinstance(outcome, Error):
            record |= {"error": str(outcome), "explanation": None}
        else:
            bare = replace(outcome, provenance={})  # the provenance is one of the settings
            record |= {"error": None, "explanation": written(bare, Explanation._schema, indent=None)}
        self._journal.append(record)
        self._count(record)

    def explanations(self) -> Iterator[Explanation]:
        """Yield the explanations, without the rows that could not be explained."""
        for record in self._records():
            if record["explanation"] is not None:
                yield self._explanation(record)

    def _explanation(self, record: dict[str, Any]) -> Explanation:
        return replace(Explanation.from_json(record["explanation"]), provenance=self._provenance)

    def _rows(self) -> Iterator[Row]:
        for record in self._records():
            known = {name: record[name] for name in ("id", "second")}
            if record["error"] is not None:
                texts = {"text": record["text"], "method": self._method, "model": self._model}
                yield failed_row(record["error"], **known, **texts)
            else:  # with the text that its offsets refer to
                yield row_of(self._explanation(record), **known)

    def write_table(self, path: Path, given: str) -> None:
        """Write the table of all rows; `given` is what error messages call it."""
        write_table(path, self._rows(), given)
        self._is_written = True

    def __enter__(self) -> FileJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()
        if self._is_written or not self.done:  # a wrong argument must not block the corrected command
            self._path.unlink(missing_ok=True)


_OPTIONS = (
    *("text_column", "with_column", "id_column", "target", "contrast", "truncate", "windows"),
    *("words", "hide_special", "hide_sink", "device"),
)
"""The options that the rows depend on. The size of batches is none of them: it changes rounding errors only."""
