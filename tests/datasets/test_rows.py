"""Texts from files, row by row: what is wrong with one row does not stop the others."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.datasets import rows
from conserva.datasets.rows import TextRows

TEXTS = ("a joy.", 'two, "quoted" words', "línea\u2028separada", "tab\tinside", "naïve 🎬")


def rows_of(path: Path, **columns: Any) -> list[rows.TextRow]:
    return list(TextRows(path, f"--file {path.name}", **columns))


def written(folder: Path, ending: str, table: dict[str, list[Any]]) -> Path:
    """Write a table in the format of an ending."""
    path = folder / f"texts{ending}"
    each = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    if ending == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(table), path)
    elif ending in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps(row) + "\n" for row in each))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table), delimiter="\t" if ending == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(each)
    return path


ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_has_the_same_rows(ending: str, tmp_path: Path) -> None:
    table = {"review": list(TEXTS), "id": [f"k{i}" for i in range(len(TEXTS))], "other": list(TEXTS)}
    path = written(tmp_path, ending, table)
    found = rows_of(path)
    assert [row.text for row in found] == list(TEXTS)
    assert [row.id for row in found] == table["id"]
    assert [row.number for row in found] == [1, 2, 3, 4, 5]
    assert {row.error for row in found} == {None}
    pairs = rows_of(path, text="other", second="review", row_id="review")
    assert [row.input for row in pairs] == list(zip(TEXTS, TEXTS, strict=True))
    assert [row.id for row in pairs] == list(TEXTS)
    assert TextRows(path, "x").count == len(TEXTS)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_ids_are_integers_or_strings_in_all_rows(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, ending, {"text": ["a", "b", "c"], "id": [7, None, 9]})
    assert [row.id for row in rows_of(path)] == [7, None, 9]
    if ending == ".jsonl":
        for odd in ("x", 2**70, True):
            path = written(tmp_path, ending, {"text": ["a", "b"], "id": [7, odd]})
            assert [row.id for row in rows_of(path)] == ["7", str(odd)]


def test_a_text_file_has_a_text_per_line_and_line_numbers_as_ids(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\xef\xbb\xbfa joy.\r\n\r\n  a bore.  \n\xff\xfe\nlast")
    found = rows_of(path)
    assert [(row.id, row.text) for row in found] == [(1, "a joy."), (3, "a bore."), (4, None), (5, "last")]
    assert [row.error for row in found] == [None, None, "The text is not valid UTF-8.", None]
    assert [(row.id, row.text) for row in rows_of(path.rename(tmp_path / "texts"))] == [
        (1, "a joy."), (3, "a bore."), (4, None), (5, "last"),
    ]  # fmt: skip


BAD: dict[str, tuple[str, bytes, list[str | None]]] = {
    "empty": (".csv", b"id,text\n1,\n2,a\n3,  \n", ["The text is empty.", None, "The text is empty."]),
    "fields": (".csv", b"id,text\n1\n2,a\n3,a,b\n", ["Row 1 has 1 field(s)", None, "Row 3 has 3 field(s)"]),
    "broken UTF-8": (".csv", b"text\na\n\xffoops\nb\n", [None, "The text is not valid UTF-8.", None]),
    "broken UTF-8 elsewhere": (".csv", b"other,text\n\xff,a\nx,b\n", [None, None]),
    "tabs": (".tsv", b"text\tid\na\t1\n\t2\nb\n", [None, "The text is empty.", "Row 3 has 1 field(s)"]),
    "null": (".jsonl", b'{"text": null}\n{"text": "a"}\n{}\n', ["The text is missing.", None, "The text is missing."]),
    "not a string": (
        ".jsonl",
        b'{"text": 5}\n{"text": ["a"]}\n{"text": "a"}\n',
        ["is 5, not a", "is ['a'], not", None],
    ),
    "not JSON": (
        ".jsonl",
        b'{"text": "a"}\n{"text": \n[1]\n"a"\n',
        [None, "Row 2 is not JSON", "Row 3 is [1]", "Row 4"],
    ),
    "half a character": (".jsonl", b'{"text": "\\ud800"}\n{"text": "a"}\n', ["The text is not valid UTF-8.", None]),
    "deep": (".ndjson", b'{"text": "a"}\n' + b"[" * 100_000 + b"\n", [None, "Row 2 is not JSON"]),
    "digits": (".ndjson", b'{"text": "a"}\n{"text": ' + b"9" * 10_000 + b"}\n", [None, "Row 2 is not JSON"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_has_an_error_and_the_others_are_read(case: str, tmp_path: Path) -> None:
    ending, content, expected = BAD[case]
    path = tmp_path / f"texts{ending}"
    path.write_bytes(content)
    found = rows_of(path)
    assert len(found) == len(expected)
    for row, says in zip(found, expected, strict=True):
        if says is None:
            assert row.error is None
            assert isinstance(row.input, str)
        else:
            assert says in (row.error or "")
            assert isinstance(row.input, conserva.Error)


def test_a_parquet_file_with_broken_utf8_nulls_and_numbers(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "texts.parquet"
    broken = pyarrow.array([b"a", b"\xff", None], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken, "n": [1, 2, 3]}), path)
    assert [row.error for row in rows_of(path)] == [None, "The text is not valid UTF-8.", "The text is missing."]
    assert rows_of(path, text="n")[0].error == "The text is 1, not a string."
    dictionary = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": dictionary}), path)
    assert [row.text for row in rows_of(path)] == ["a", "b", "a"]


WRONG: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "no texts": (".txt", b"\n \n", {}, "has no text"),
    "no rows": (".csv", b"text\n", {}, "has no text"),
    "nothing": (".jsonl", b"", {}, "has no text"),
    "no column": (".csv", b"a,b\n1,2\n", {}, "has no column of texts: choose one with --text-column, from 'a', 'b'"),
    "two columns": (".csv", b"text,Review\n1,2\n", {}, "several columns 'text', 'Review': choose one with --text-col"),
    "a misspelt column": (".csv", b"text,body\n1,2\n", {"text": "bodi"}, r"choose one of 'text', 'body'. Did you mean"),
    "a missing second": (".csv", b"text,b\n1,2\n", {"second": "c"}, r"no column 'c' \(--with-column\)"),
    "a missing id": (".jsonl", b'{"text": "a"}\n', {"row_id": "key"}, r"no column 'key' \(--id-column\)"),
    "columns of lines": (".txt", b"a\n", {"text": "a"}, "has no columns: leave the column 'a' out"),
    "the same twice": (".csv", b"text,x,x\n1,2,3\n", {}, "several columns 'x': rename all but one"),
    "quotes": (".csv", b'text\n"a"b\n', {}, "line 2: .* Correct the quotes there or before"),
    "an open quote": (".csv", b'text\n"a\nb\nc\n', {}, "Correct the quotes there or before"),
    "no Parquet": (".parquet", b"PAR1 nothing", {}, "is not a complete Parquet file"),
    "another ending": (".docx", b"a", {}, "ends in '.docx': choose .txt, .csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_the_whole_file_is_an_error(case: str, tmp_path: Path) -> None:
    ending, content, columns, says = WRONG[case]
    path = tmp_path / f"texts{ending}"
    path.write_bytes(content)
    with pytest.raises(conserva.Error, match=says) as error:
        TextRows(path, f"--file {path.name}", **columns)
    assert str(error.value).startswith(f"--file {path.name}")


def test_a_line_that_is_too_long_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_LINE", 1000)
    for ending in (".txt", ".csv", ".jsonl"):
        path = tmp_path / f"texts{ending}"
        path.write_text("text\n" + "x" * 5000)
        with pytest.raises(conserva.Error, match="line 2 has more than"):
            TextRows(path, "x")
    path.write_text("x" * 1500 + "\n", encoding="utf-8")
    open_quote = tmp_path / "quote.csv"
    open_quote.write_text('text\n"' + "short line\n" * 300)
    with pytest.raises(conserva.Error, match="field larger than field limit"):
        TextRows(open_quote, "x")
    assert csv.field_size_limit() == 131072  # a global setting


def test_a_file_is_read_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("a joy.\n" * 1000)
    read = TextRows(path, "x")
    iterator = iter(read)
    assert next(iterator).number == 1
    path.write_text("a bore.\n" * 3)  # what was not read yet is read from the file
    assert [row.text for row in read] == ["a bore."] * 3


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    for path in (one, other):
        path.write_text("a joy.\n")
    assert TextRows(one, "x").digest == TextRows(other, "x").digest
    other.write_text("a joy!\n")
    assert TextRows(one, "x").digest != TextRows(other, "x").digest
