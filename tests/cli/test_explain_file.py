"""`conserva explain --file`: files of texts, tables of explanations, and runs that are interrupted and resumed."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.cli import main
from conserva.results.table import COLUMNS

PREDICTIONS = "the target of each row is its prediction"
TEXTS = ["a joy.", "not much of anything.", 'dull, long and "witty"', "naïve\u2028 🎬"]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, with lists as lists and None for what is missing."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: cell or None for name, cell in row.items()} for row in csv.DictReader(file)]
    lists = [name for name, column in COLUMNS.items() if column.type in ("strings", "numbers", "flags", "spans")]
    numbers = [name for name, column in COLUMNS.items() if column.type == "number"]
    for row in rows:
        row |= {name: json.loads(row[name]) for name in lists if row[name] is not None}
        row |= {name: float(row[name]) for name in numbers if row[name] is not None}
    return rows


def table(folder: Path, rows: list[dict[str, Any]], name: str = "texts.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def explain(path: Path, out: Path, *more: str) -> int:
    return main(["explain", "--file", str(path), "--out", str(out), *more])


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_every_row_of_the_file_is_a_row_of_the_table(
    ending: str, tmp_path: Path, task: conserva.Text, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, [{"id": f"k{i}", "text": text} for i, text in enumerate(TEXTS)])
    out = tmp_path / f"why{ending}"
    assert explain(path, out) == 0
    assert capsys.readouterr() == ("", f"wrote {out} (4 rows; texts from 'text', ids from 'id'; {PREDICTIONS})\n")
    rows = read(out)
    assert [list(row) for row in rows] == [list(COLUMNS)] * 4
    assert [row["id"] for row in rows] == ["k0", "k1", "k2", "k3"]
    assert [row["text"] for row in rows] == TEXTS
    for row, one in zip(rows, conserva.explain(task, TEXTS), strict=True):
        assert (row["target"], row["method"], row["model"], row["error"]) == (one.target, "exact", "sentiment", None)
        assert row["tokens"] == list(one.features)
        assert row["scores"] == pytest.approx(one.scores, abs=1e-5)
        assert row["special"] == list(one.special)
        assert row["offsets"] == [span and list(span) for span in one.offsets]
        assert row["output"] == pytest.approx(one.output)
        assert row["probability"] == pytest.approx(one.probability)
        entries = [row[f"ledger_{entry}"] for entry in ("inputs", "positions", "biases", "gap")]
        assert sum(entries) == pytest.approx(row["output"])
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, out.name])


def test_a_bad_row_gets_its_error_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a joy."}, {"text": ""}, {"text": None}, {"text": 5}, {"text": "good " * 600}, {"text": "dull"}]
    path = table(tmp_path, rows)
    for ending in (".csv", ".jsonl", ".parquet"):
        out = tmp_path / f"why{ending}"
        assert explain(path, out) == 0
        assert f"wrote {out} (6 rows, 4 with an error; texts from" in capsys.readouterr().err
        found = read(out)
        assert [str(row["id"]) for row in found] == ["1", "2", "3", "4", "5", "6"]
        for row, says in zip(found, (None, "is empty", "is missing", "is 5, not a", "600", None), strict=True):
            if says is None:
                assert row["error"] is None
                assert row["target"] is not None
            else:
                assert row["error"] is not None
                assert says in row["error"] or "602 tokens" in row["error"]
                assert all(row[name] is None for name in ("target", "output", "tokens", "scores", "ledger_gap"))
    assert main(["explain", "--file", str(path)]) == 1
    captured = capsys.readouterr()
    assert "texts.jsonl, row 2: The text is empty." in captured.err
    assert "--out" in captured.err


def test_a_run_without_any_explanation_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = table(tmp_path, [{"text": ""}, {"text": None}]), tmp_path / "why.csv"
    assert explain(path, out) == 1
    assert "no row could be explained. The first: The text is empty." in capsys.readouterr().err
    assert [row["error"] for row in read(out)] == ["The text is empty.", "The text is missing."]
    assert explain(table(tmp_path, [{"text": "a joy."}]), tmp_path / "other.csv", "--target", "positve") == 1
    assert "Did you mean 'positive'" in capsys.readouterr().err


def test_pairs_have_both_texts(tmp_path: Path, task: conserva.Text) -> None:
    path = table(tmp_path, [{"key": 3, "a": "a joy.", "b": "a bore."}, {"key": 4, "a": "dull", "b": ""}])
    out = tmp_path / "why.jsonl"
    columns = ("--text-column", "a", "--with-column", "b", "--id-column", "key")
    assert explain(path, out, *columns, "--hide-special", "--words", "--method", "gi") == 0
    row, failed = read(out)
    assert (row["id"], row["text"], row["second"]) == (3, "a joy. | a bore.", "a bore.")
    one = conserva.explain(task, ("a joy.", "a bore."), method="gi").merged().visible()
    assert row["tokens"] == list(one.features)
    assert [row["text"][start:end] for start, end in row["offsets"]] == ["a", "joy", ".", "a", "bore", "."]
    assert (failed["id"], failed["text"], failed["error"]) == (4, "dull", "The second text is empty.")


def test_a_table_and_a_page_of_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, [{"text": "a joy."}, {"text": ""}, {"text": "dull"}])
    out, page, picture = tmp_path / "why.csv", tmp_path / "why.html", tmp_path / "why.svg"
    assert explain(path, out, "--html", str(page), "--png", str(picture), "--windows", "64,16") == 0
    assert [row["text"] for row in read(out)] == ["a joy.", None, "dull"]
    assert "joy" in page.read_text(encoding="utf-8")
    assert picture.stat().st_size > 1000
    assert main(["explain", "--file", str(out), "--out", str(out)]) == 1
    assert "is the file of --file" in capsys.readouterr().err


def test_contrast_with_the_prediction_of_each_row(tmp_path: Path) -> None:
    path, out = table(tmp_path, [{"text": "a joy."}, {"text": ""}, {"text": "dull"}]), tmp_path / "why.jsonl"
    assert explain(path, out, "--contrast", "positive") == 0
    targets = [row["target"] for row in read(out)]
    assert targets == ["positive - positive", None, "negative - positive"]


# Interrupted runs

MANY = [f"a film of {number} jokes" for number in range(20)]


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A file of texts, and the table that a run was writing when its disk was full, after eight rows."""
    from conserva._util.journal import Journal

    path, out = tmp_path / "texts.txt", tmp_path / "why.jsonl"
    path.write_text("\n".join(MANY))
    for name, value in (("FEWEST", 4), ("MOST", 4), ("SECONDS", math.inf)):
        monkeypatch.setattr(f"conserva.explaining.stream.{name}", value)
    append, written = Journal.append, []

    def full(self: Journal, record: Any) -> int:
        if len(written) == 8:
            raise conserva.Error("why.jsonl.journal cannot be written: No space left on device.")
        written.append(record)
        return append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", full)
        assert explain(path, out) == 1
    return path, out


def explained_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every text is added that is explained from now on."""
    from conserva.explaining import stream

    texts: list[str] = []
    explain_with = stream.explain_with

    def noted(recorder: Any, task: Any, chunk: list[str], *rest: Any, **options: Any) -> Any:
        texts.extend(chunk)
        return explain_with(recorder, task, chunk, *rest, **options)

    monkeypatch.setattr(stream, "explain_with", noted)
    return texts


def test_the_same_command_goes_on(stopped: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = stopped
    assert not out.exists()
    explained = explained_texts(monkeypatch)
    assert explain(path, out) == 0
    assert explained == MANY[8:]
    assert not out.with_name("why.jsonl.journal").exists()
    assert explain(path, tmp_path / "undisturbed.jsonl") == 0
    assert out.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--method", "gi"], 'method (was "exact", is "gi")'),
        (["--words"], "words (was false, is true)"),
        (["--target", "negative"], 'target (was null, is "negative")'),
        (["--windows"], "windows (was false, is true)"),
        (["--dtype", "bfloat16"], 'provenance.dtype (was "float32", is "bfloat16")'),
    ],
)
def test_another_command_is_refused_by_what_differs(
    stopped: tuple[Path, Path], more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = stopped
    capsys.readouterr()
    assert explain(path, out, *more) == 1
    assert says in capsys.readouterr().err
    assert explain(path, out, "--batch-tokens", "64") == 0  # the same rows


def test_another_file_is_refused(stopped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path, out = stopped
    path.write_text("\n".join([*MANY[:10], "changed", *MANY[11:]]))
    assert explain(path, out) == 1
    assert "content of --file (was " in capsys.readouterr().err


def test_a_wrong_argument_does_not_block_the_corrected_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = table(tmp_path, [{"text": "a joy."}]), tmp_path / "why.jsonl"
    assert explain(path, out, "--target", "positve") == 1
    assert not list(tmp_path.glob("why*"))
    assert explain(path, out, "--target", "positive") == 0


def test_messages_name_the_option(stopped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path, out = stopped
    capsys.readouterr()
    assert explain(path, out, "--words") == 1
    assert "Choose another name for --out, or delete the file." in capsys.readouterr().err


def test_a_damaged_record_is_explained_again(stopped: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = stopped
    journal = out.with_name("why.jsonl.journal")
    lines = journal.read_bytes().split(b"\n")
    lines[4] = lines[4].replace(b"film", b"bore")
    journal.write_bytes(b"\n".join(lines) + b'{"position": 8, "id"')
    explained = explained_texts(monkeypatch)
    assert explain(path, out) == 0
    assert explained == MANY[3:]
    assert [row["text"] for row in read(out)] == MANY


def test_a_table_that_cannot_be_written_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = table(tmp_path, [{"text": text} for text in TEXTS]), tmp_path / "why.csv"
    out.write_text("before")

    def full(path: Path, rows: Any) -> None:
        path.write_text("half")
        next(iter(rows))
        raise OSError(28, os.strerror(28))

    with pytest.MonkeyPatch.context() as patch:
        from conserva.results import table_files

        patch.setitem(table_files.TABLES, ".csv", table_files.TableFormat(full))  # type: ignore[arg-type]
        assert explain(path, out) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert out.read_text() == "before"
    explained = explained_texts(monkeypatch)
    assert explain(path, out) == 0
    assert explained == []
    assert [row["text"] for row in read(out)] == TEXTS


def started(path: Path, out: Path) -> subprocess.Popen[str]:
    """Start the command in a process, and wait until it has written some rows."""
    command = [sys.executable, "-m", "conserva.cli", "explain", "--file", str(path), "--out", str(out)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would inherit that it is ignored
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal = out.with_name(out.name + ".journal")
    while running.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 100):
        time.sleep(0.02)
    return running


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_run_that_is_interrupted_and_killed_ends_like_others(tmp_path: Path) -> None:
    path, out = tmp_path / "texts.txt", tmp_path / "why.jsonl"
    texts = [f"a film of {number} jokes" for number in range(3000)]
    path.write_text("\n".join(texts))
    running = started(path, out)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    done = out.with_name("why.jsonl.journal").read_bytes().count(b"\n") - 1
    assert err == f"conserva: interrupted; {done:,} of 3,000 rows are done, and the same command goes on\n"
    killed = started(path, out)
    killed.kill()
    killed.communicate(timeout=60)
    assert not out.exists()
    assert explain(path, out) == 0
    assert [row["text"] for row in read(out)] == texts
