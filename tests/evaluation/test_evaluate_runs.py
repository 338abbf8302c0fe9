"""Runs of an evaluation: kept on disk, stopped, gone on with; from files of every kind; by the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import conserva
from conserva.cli import main
from conserva.evaluation.journal import NAME, SampleJournal
from conserva.evaluation.store import save
from reviews import REVIEWS, Runs

LABELS = [1, 0, 0, 1, 0, 0]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    rows = [f'"{text}",{label}' for text, label in zip(REVIEWS, LABELS, strict=True)]
    path.write_text("sentence,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def without_provenance(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


RUN = """
import sys, time
import conserva
from conserva.evaluation import run
measured = run.curves
def slowly(task, stream, samples, *rest):
    print("measuring", *[one.number for one in samples], flush=True)
    time.sleep(float(sys.argv[2]))
    return measured(task, stream, samples, *rest)
run.curves = slowly
texts = [line for line in open(sys.argv[3], encoding="utf-8").read().splitlines() if line]
found = conserva.evaluate(conserva.load(), texts, ["random", "gi", "ah+ln"], random_seeds=2, out=sys.argv[1], tokens=64)
open(sys.argv[1] + "/result.json", "w", encoding="utf-8").write(found.to_json())
"""


def test_killed_and_started_again_it_ends_the_same(tmp_path: Path) -> None:
    start = Runs(RUN, REVIEWS, tmp_path).start
    unbroken = start("unbroken", "0")
    assert unbroken.wait(timeout=120) == 0
    broken = start("broken", "0.5")
    lines = [broken.stdout.readline() for _ in range(4)]  # it is at work on the fourth sample
    broken.send_signal(signal.SIGKILL)
    broken.wait()
    journal = tmp_path / "broken" / NAME
    with journal.open("ab") as file:
        file.write(b'{"sample": 4, "meth')  # half a line
    again = start("broken", "0")
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    before = [line.split()[1] for line in lines]
    after = [line.split()[1] for line in out.splitlines()]
    assert before[:-1] == [one for one in before if one not in after]  # only the one in flight is measured twice
    assert sorted({*before, *after}, key=int) == [str(i) for i in range(len(REVIEWS))]
    assert without_provenance(tmp_path / "broken" / "result.json") == without_provenance(
        tmp_path / "unbroken" / "result.json"
    )
    assert sorted(journal.read_bytes().splitlines()) == sorted((tmp_path / "unbroken" / NAME).read_bytes().splitlines())


def test_a_finished_run_is_not_repeated(task: conserva.Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = conserva.evaluate(task, REVIEWS, ["gi"], out=tmp_path)
    monkeypatch.setattr("conserva.evaluation.run.curves", None)
    monkeypatch.setattr("conserva.evaluation.run.attributions", None)
    calls: list[tuple[int, int]] = []
    again = conserva.evaluate(task, REVIEWS, ["gi"], out=tmp_path, progress=lambda *at: calls.append(at))
    assert again == first
    assert calls == [(6, 6)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": ["gi", "ah"]}, r"methods\.ah \(was null, is {"),
        ({"data": REVIEWS[:-1]}, r"data \(was "),
        ({"mask": "drop"}, r'mask \(was "mask", is "drop"\)'),
        ({"truncate": True}, r"truncate \(was false, is true\)"),
        (
            {"watch": "true", "data": list(zip(REVIEWS, LABELS, strict=True))},
            r'data \(.*; protocol.target \(was "predicted", is "true"\)',
        ),
    ],
)
def test_a_folder_of_another_run_is_refused(task: conserva.Text, tmp_path: Path, changes: dict, says: str) -> None:
    conserva.evaluate(task, REVIEWS, ["gi"], out=tmp_path, reference=False)
    given = {"data": REVIEWS, "methods": ["gi"], **changes}
    with pytest.raises(conserva.Error, match=f"another run of an evaluation. It differs in {says}"):
        conserva.evaluate(task, out=tmp_path, reference=False, **given)


def test_damaged_and_foreign_journals_are_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b'{"settings": {}}\n{"sample": 1, "sco\n')
    with pytest.raises(conserva.Error, match="its first line is damaged"):
        SampleJournal(tmp_path, {}, 1)
    path.write_bytes(b"[1, 2]\n")
    with pytest.raises(conserva.Error, match="is not a journal"):
        SampleJournal(tmp_path, {}, 1)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = SampleJournal(tmp_path, {}, 1)
    with pytest.raises(conserva.Error, match="being written by another run"):
        SampleJournal(tmp_path, {}, 1)
    first.close()
    SampleJournal(tmp_path, {}, 1).close()


def test_every_point_is_stored(task: conserva.Text, tmp_path: Path) -> None:
    found = conserva.evaluate(task, REVIEWS, ["gi", "random"], random_seeds=2, out=tmp_path)
    written = save(found, tmp_path)
    assert [path.name for path in written] == ["evaluation.json", "curves.parquet"]
    assert conserva.Evaluation.load(written[0]) == found
    table = pyarrow.parquet.read_table(written[1]).to_pydict()
    assert len(table["value"]) == len(REVIEWS) * 4 * 3 * 11
    rows = list(zip(table["method"], table["curve"], table["step"], table["value"], strict=True))
    for step in (0, 4, 10):
        values = [value for method, curve, at, value in rows if (method, curve, at) == ("gi", "activation", step)]
        assert np.mean(values) == pytest.approx(found.methods[0].curves["activation"].mean[step])
    assert set(table["text"]) == set(REVIEWS)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "json"])
def test_the_command_line_reads_every_kind_of_file(
    csv: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"data.{ending}"
    rows = [{"sentence": text, "label": label} for text, label in zip(REVIEWS, LABELS, strict=True)]
    if ending == "csv":
        path = csv
    elif ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif ending == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert main(["evaluate", "--data", str(path), "--methods", "gi,exact", "--no-reference", "--json"]) == 0
    found = conserva.Evaluation.from_json(capsys.readouterr().out)
    assert [one.method for one in found.methods] == ["gi", "exact"]
    assert found.accuracy == 1.0


def test_the_command_line_keeps_everything(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["evaluate", "--data", str(csv), "--methods", "gi,ah+ln", "--protocol", "paper", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "protocol paper" in printed.out
    assert "leave-one-out" in printed.out
    names = {"evaluation.json", "curves.parquet", "curves.png", "conservation.png", "report.html", NAME}
    assert {path.name for path in out.iterdir()} == names
    assert all(f"wrote {out / name}" in printed.err for name in names - {NAME})
    assert "ah+ln" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--data", "missing.csv"], "missing.csv"),
        (["--text-column", "review"], "'review'"),
        (["--label-column", "stars"], "'stars'"),
        (["--methods", "exat"], "Did you mean 'exact'"),
        (["--protocol", "papr"], "protocol='papr' is unknown: choose one of default, paper"),
        (["--watch", "truth"], "watch='truth' is unknown: choose one of predicted, true"),
        (["--mask", "blank"], "mask='blank' is unknown: choose one of unk, mask, pad, drop"),
        (["--mask", "drop", "--protocol", "paper"], "would hide every token"),
        (["--count", "0"], "count=0"),
        (["--random-seeds", "0"], "random_seeds=0"),
        (["--device", "tpu9"], "--device tpu9"),
        (["--model", "no/such-model"], "'sentiment'"),
    ],
)
def test_errors_are_one_line(csv: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--data", str(csv), *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("text,label\n", "no rows|empty|holds no"),
        ("text,label\na joy.,happy\n", "'happy'"),
        ("text,label\na joy.,7\n", "7"),
        ("sentence,other\na joy.,1\n", None),
        ("foo,bar\na joy.,1\n", "foo"),
    ],
)
def test_bad_data(tmp_path: Path, content: str, says: str | None, task: conserva.Text) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content, encoding="utf-8")
    if says is None:  # no labels: fine as long as none is needed
        assert conserva.evaluate(task, path, ["gi"], reference=False).accuracy is None
        with pytest.raises(conserva.Error, match="the data has no labels"):
            conserva.evaluate(task, path, ["gi"], protocol="paper")
        return
    with pytest.raises(conserva.Error, match=says):
        conserva.evaluate(task, path, ["gi"])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "contains no texts"),
        ([("a joy.", 1), "dull"], "its entries differ"),
        (["a joy.", " "], "Sample 2 of texts: text=' ' is empty"),
        ([("a joy.", "happy")], "'happy'"),
        (["good " * 600], "Sample 1 of texts: .*602 tokens"),
        (7, "contains no texts"),
        ("mnist", "data='mnist' is a dataset of graphs, and .* takes texts"),
    ],
)
def test_data_in_memory_that_cannot_be_used(task: conserva.Text, data: object, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.evaluate(task, data, ["gi"])


def test_wrong_calls(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match="is not a task"):
        conserva.evaluate("sentiment", REVIEWS)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match=r"methods=\[\] is empty"):
        conserva.evaluate(task, REVIEWS, [])
    with pytest.raises(conserva.Error, match="tokens=0"):
        conserva.evaluate(task, REVIEWS, ["gi"], tokens=0)


def test_interrupted_it_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("text\n" + "a fine film about many things\n" * 3000, encoding="utf-8")
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "conserva.cli",
        "evaluate",
        "--data",
        str(path),
        "--methods",
        "gi",
        "--out",
        str(out),
    ]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would inherit that it is ignored
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((out / NAME).exists() and (out / NAME).stat().st_size > 5000):
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    assert (out / NAME).read_bytes().endswith(b"\n")
