"""`conserva bias`, called as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

import conserva
from bias_data import GROUPS, LABELS, TEXTS, known
from conserva import BiasStudy
from conserva.cli import main


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, words in GROUPS.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(words), encoding="utf-8")
    rows = [f'"{text}",{label}' for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "lines").write_text("\n\n".join(TEXTS), encoding="utf-8")
    return tmp_path


def test_the_command_prints_the_study(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = conserva.bias(conserva.load(), list(zip(TEXTS, LABELS, strict=True)), GROUPS)
    groups = f"{files}/directors.txt,{files}/actors.txt"
    assert main(["bias", "--data", str(files / "reviews.csv"), "--groups", groups, "--json"]) == 0
    found = BiasStudy.from_json(capsys.readouterr().out)
    assert known(found) == known(study)
    assert found.data.endswith("reviews.csv")


def test_the_command_keeps_everything(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = (files / "lines").rename(files.parent / f"{files.name}.txt")
    out = files / "out"
    assert main(["bias", "--data", str(texts), "--groups", str(files), "--keep-ordinary", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "directors" in captured.out
    assert f"wrote {out / 'report.html'}" in captured.err
    found = BiasStudy.load(out / "bias.json")
    assert (found.texts, found.data, len(found.mentions)) == (8, str(texts), 10)
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "mentions.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "no.txt"], "no.txt cannot be read: No such file"),
        (["--data", "no.csv"], "'no.csv' is not a file"),
        (["--data", "no.txt", "--split", "test"], "has no columns"),
        (["--data", "no.txt", "--tagger", "model"], "both define groups"),
    ],
)
def test_the_command_refuses(files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main(["bias", "--groups", str(files / "actors.txt"), *arguments]) == 1
    assert says in capsys.readouterr().err


def test_the_command_draws_a_part(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bias", "--data", str(files / "reviews.csv"), "--groups", str(files), "--count", "6", "--json"]
    assert main([*command, "--swaps", "0"]) == 0
    assert BiasStudy.from_json(capsys.readouterr().out).texts == 6
