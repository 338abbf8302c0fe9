"""`conserva explain --file`: the texts of a file, row by row, printed or written to a table."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import check_file, write_parts
from ..datasets.rows import TextRow, TextRows
from ..errors import Error
from ..results.explanation import Explanation
from ..results.saving import drawn
from ..results.table_files import TABLES, check_table
from .arguments import refuse
from .exits import advise_if_interrupted
from .input_options import target_for, target_of
from .output import print_json_list, print_message, report_written
from .parts import displayed_parts, print_result
from .progress import progress

if TYPE_CHECKING:
    from ..tasks import Task

MOST_DRAWN = 200
"""The maximum number of text explanations in one picture."""

COLUMNS = ("text_column", "with_column", "id_column")


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the options of files of texts and of tables of explanations."""
    files = parser.add_argument_group("files of texts")
    files.add_argument(
        "--file", type=Path, help="a .txt file with one text per line, or a .csv, .tsv, .jsonl or .parquet file"
    )
    files.add_argument("--text-column", metavar="NAME", help="the column of texts (default: guessed by name)")
    files.add_argument("--with-column", metavar="NAME", help="the column of second texts, for models of pairs")
    files.add_argument("--id-column", metavar="NAME", help="the column of ids (default: id, or the number of the row)")
    files.add_argument("--out", type=Path, metavar="PATH", help=f"write a table ({', '.join(TABLES)}); see below")


def check_file_options(given: argparse.Namespace) -> None:
    """Raise an error if the file cannot be read, or the table cannot be written; open the file as `given.rows`."""
    if given.file is None:
        refuse("a single input: it is for --file", given, *COLUMNS, "out")
        return
    option = f"--file {given.file}"
    if given.out is not None:
        refuse("--out, which writes a table: give --out a name that ends in .jsonl", given, "json")
        _check_out(given.out)
        if given.out.resolve() == given.file.resolve():
            raise Error(f"--out {given.out} is the file of --file: give another name.")
    given.rows = TextRows(given.file, option, given.text_column, given.with_column, given.id_column)
    if given.png and given.rows.count > MOST_DRAWN:
        raise Error(
            f"{option} has {given.rows.count} texts, but --png draws at most {MOST_DRAWN}: use --html, or a shorter "
            "file."
        )


def _check_out(out: Path) -> None:
    given = f"--out {out}"
    check_file(out, given)
    if out.suffix.lower() not in TABLES:
        *others, last = TABLES
        raise Error(f"{given} ends in {out.suffix!r}: choose {', '.join(others)} or {last}.")
    check_table(out, given)


def explain_file(task: Task, given: argparse.Namespace) -> None:
    """Explain the rows of --file; print the explanations, or write them to --out."""
    if given.out is None:
        write_pages(_printed((explanation for _, explanation in _explained(task, given)), given), given)
    else:
        _to_table(task, given)


def _outcomes(task: Task, given: argparse.Namespace, skip: int = 0) -> Iterator[tuple[TextRow, Explanation | Error]]:
    """Yield every row after the first `skip` with its explanation, or why there is none."""
    from ..explaining.stream import explain_stream

    waiting: deque[TextRow] = deque()

    def inputs() -> Iterator[Any]:
        for position, row in enumerate(given.rows):
            if position >= skip:
                waiting.append(row)
                yield row.input

    def target(texts: list[Any]) -> Any:
        return [target_for(task, text, given) for text in texts] if given.contrast else target_of(given.target, task)

    stream = explain_stream(
        task,
        inputs(),
        target,
        method=given.method,
        truncate=given.truncate,
        windows=given.windows,
        batch_tokens=given.batch_tokens,
        fingerprint=given.json,
    )
    for outcome in stream:
        yield waiting.popleft(), outcome if isinstance(outcome, Error) else displayed_parts(outcome, given)


def _explained(task: Task, given: argparse.Namespace) -> Iterator[tuple[TextRow, Explanation]]:
    """Yield the rows with their explanations; the first row that cannot be explained is an error."""
    with progress("explaining") as report:
        for done, (row, outcome) in enumerate(_outcomes(task, given), 1):
            if isinstance(outcome, Error):
                raise Error(f"--file {given.file}, row {row.number}: {outcome} With --out, the run goes on without it.")
            yield row, outcome
            report(done, given.rows.count)


def _to_table(task: Task, given: argparse.Namespace) -> None:
    """Explain the rows that the journal does not have yet, and write the table from the journal."""
    from .file_journal import FileJournal

    with FileJournal(task, given) as journal:
        count = given.rows.count
        advise_if_interrupted(lambda: f"{journal.done:,} of {count:,} rows are done, and the same command goes on")
        if journal.done:
            print_message(f"resuming: {journal.done:,} of {count:,} rows are done")
        with progress("explaining") as report:
            report(journal.done, count)
            for row, outcome in _outcomes(task, given, journal.done):
                journal.add(row, outcome)
                report(journal.done, count)
        if given.html or given.png:
            write_pages(journal.explanations(), given)
        wrote = "replaced" if given.out.exists() else "wrote"
        journal.write_table(given.out, f"--out {given.out}")
        failed = f", {journal.failed:,} with an error" if journal.failed else ""
        columns = f"; {given.rows.description}" if given.rows.description else ""
        targets = "" if given.target or given.contrast else "; the target of each row is its prediction"
        print_message(f"{wrote} {given.out} ({journal.done:,} rows{failed}{columns}{targets})")
        if journal.failed == journal.done:
            raise Error(f"--file {given.file}: no row could be explained. The first: {journal.first_error}")


def _printed(explanations: Iterable[Explanation], given: argparse.Namespace) -> Iterator[Explanation]:
    """Print explanations, and yield each after it is printed."""
    if given.json:
        yield from print_json_list(explanations, Explanation.to_dict)
        return
    for explanation in explanations:
        print_result(explanation, given)
        yield explanation


def write_pages(explanations: Iterable[Explanation], given: argparse.Namespace) -> None:
    """Write the files of --html and --png; a page is written incrementally."""
    kept = []

    def keeping() -> Iterator[Explanation]:
        for explanation in explanations:
            if given.png:
                kept.append(explanation)
            yield explanation

    if given.html:
        from ..views.explanation_page import page_parts

        write_parts(given.html, page_parts(keeping()), f"--html {given.html}")
        report_written(given.html)
    else:
        deque(keeping(), maxlen=0)
    if given.png:
        from ..views.explanation_figure import draw

        report_written(drawn(given.png, lambda path: draw(kept, path), f"--png {given.png}"))
