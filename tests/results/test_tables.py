"""Tables of explanations in Python: data frames, and files of tables."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import conserva
from conserva import Comparison, Explanations
from conserva.results import table_files
from conserva.results.table import COLUMNS

pandas = pytest.importorskip("pandas")
TEXTS = ["a joy.", "\x1b[2J\u202e=cmd()|<b>\u2028,\"'\r\n", "not much of anything."]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def many(task: conserva.Text) -> Explanations:
    return conserva.explain(task, TEXTS)


def test_explanations_are_a_table_with_a_row_each(many: Explanations) -> None:
    table = many.to_pandas()
    assert list(table.columns) == list(COLUMNS)
    assert table["id"].tolist() == [1, 2, 3]
    assert table["text"].tolist() == TEXTS
    assert table["target"].tolist() == [one.target for one in many]
    assert [list(scores) for scores in table["scores"]] == [list(one.scores) for one in many]
    assert table["ledger_gap"].tolist() == [one.ledger.gap for one in many if one.ledger]
    assert len(many[:0].to_pandas()) == 0
    assert list(many[:0].to_pandas().columns) == list(COLUMNS)


def test_an_explanation_is_a_table_with_a_row_for_each_feature(many: Explanations) -> None:
    table = many[0].to_pandas()
    assert list(table.columns) == ["feature", "score", "start", "end", "special", "word", "section"]
    assert table["feature"].tolist() == ["[CLS]", "a", "joy", ".", "[SEP]"]
    assert table["score"].sum() == pytest.approx(sum(many[0].scores))
    inside = table[~table["special"]]
    assert [TEXTS[0][start:end] for start, end in zip(inside["start"], inside["end"], strict=True)] == ["a", "joy", "."]
    assert table["start"].isna().tolist() == [True, False, False, False, True]
    assert {str(table[name].dtype) for name in ("start", "end", "word")} == {"Int64"}


def test_a_comparison_has_a_column_for_each_method(task: conserva.Text) -> None:
    compared = conserva.compare(task, TEXTS[0], methods=["gi", "exact", "random:seed=3"])
    table = compared.to_pandas()
    assert list(table.columns) == [
        "feature",
        "start",
        "end",
        "special",
        "word",
        "section",
        "gi",
        "exact",
        "random:seed=3",
    ]
    for one in compared:
        assert table[one.method].tolist() == list(one.scores)
    mixed = replace(compared, explanations=(compared[0], compared[1].merged().visible()))
    with pytest.raises(conserva.Error, match="different features"):
        mixed.to_pandas()
    assert len(Comparison(()).to_pandas()) == 0


@pytest.mark.parametrize("ending", list(table_files.TABLES))
def test_a_saved_table_is_read_again(ending: str, many: Explanations, tmp_path: Path) -> None:
    path = many.save(tmp_path / f"WHY{ending.upper()}")
    if ending == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        scores = [json.loads(row["scores"]) for row in rows]
    elif ending == ".jsonl":
        content = path.read_text(encoding="utf-8")
        assert content.count("\n") == len(content.splitlines()) == 3  # no other line separators
        rows = [json.loads(line) for line in content.splitlines()]
        scores = [row["scores"] for row in rows]
    else:
        frame = pandas.read_parquet(path)
        rows, scores = frame.to_dict("records"), frame["scores"].tolist()
    assert [row["text"] for row in rows] == TEXTS
    assert [list(each) for each in scores] == [list(one.scores) for one in many]
    assert [str(row["id"]) for row in rows] == ["1", "2", "3"]


def test_a_table_of_nothing_has_columns(many: Explanations, tmp_path: Path) -> None:
    assert list(pandas.read_parquet(many[:0].save(tmp_path / "x.parquet")).columns) == list(COLUMNS)
    assert list(pandas.read_csv(many[:0].save(tmp_path / "x.csv")).columns) == list(COLUMNS)
    assert many[:0].save(tmp_path / "x.jsonl").read_text() == ""


def test_many_rows_are_written_in_parts(many: Explanations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "AT_ONCE", 2)
    assert pandas.read_parquet(many.save(tmp_path / "x.parquet"))["text"].tolist() == TEXTS


def test_only_explanations_are_saved_as_tables(many: Explanations, tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"ends in '\.csv': choose \.json, \.html, \.png, \.svg or \.pdf"):
        many[0].save(tmp_path / "one.csv")
    with pytest.raises(conserva.Error, match=r"ends in '\.xlsx': choose .*\.csv, \.jsonl or \.parquet"):
        many.save(tmp_path / "many.xlsx")


def test_what_is_missing_is_said_before_the_work(
    many: Explanations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conserva._util.extras.find_spec", lambda name: None)
    for make in (many.to_pandas, many[0].to_pandas):
        with pytest.raises(conserva.Error, match=r"to_pandas\(\) needs pandas: pip install 'conserva\[data\]'"):
            make()
    with pytest.raises(conserva.Error, match=r"x\.parquet' needs pyarrow: pip install 'conserva\[data\]'"):
        many.save(tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())
    many.save(tmp_path / "x.csv")


def test_a_format_is_a_function_and_a_line(
    many: Explanations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from conserva.cli import main

    def names(path: Path, rows: object) -> None:
        path.write_text(" ".join(row["target"] for row in rows))  # type: ignore[attr-defined]

    monkeypatch.setitem(table_files.TABLES, ".names", table_files.TableFormat(names))  # type: ignore[arg-type]
    assert many.save(tmp_path / "x.names").read_text() == " ".join(one.target for one in many)
    (tmp_path / "t.txt").write_text("a joy.\ndull\n")
    assert main(["explain", "--file", str(tmp_path / "t.txt"), "--out", str(tmp_path / "y.names")]) == 0
    assert (tmp_path / "y.names").read_text() == "positive negative"
    capsys.readouterr()
    assert main(["explain", "--file", str(tmp_path / "t.txt"), "--out", str(tmp_path / "y.xyz")]) == 1
    assert ".parquet or .names" in capsys.readouterr().err
