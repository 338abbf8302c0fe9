"""Results as files: what is written is read again, and a path that leads nowhere is told before it costs anything."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conserva
from conserva import Audit, Explanation, Generation, Trace
from conserva._util.files import check_file, check_folder
from conserva.cli import main
from conserva.results.saving import saved
from conserva.views.generation_terminal import show_generation
from made_up_generations import ONE, generation

BAD_FILES = {
    "no folder": ("none/one.html", r"the folder '.*none' does not exist\. Create it"),
    "a folder in its place": ("folder.html", "is a folder: give a file"),
    "a file in the folder's place": ("file/one.html", r"the folder '.*file' does not exist"),
    "not to be written": ("locked/one.html", "is not writable: give a file in a folder you can write to"),
    "not to be written again": ("read-only.html", "is not writable"),
}

BAD_FOLDERS = {
    "a file in its place": ("file", r"'.*file' is not a folder\. Give another"),
    "a file above it": ("file/one/two", r"'.*file' is not a folder\. Give another"),
    "a link to nothing": ("link", r"'.*link' is not a folder"),
    "not to be written to": ("locked", r"'.*locked' is not writable"),
    "not to be made": ("locked/one/two", r"'.*locked' is not writable\. Give a folder you can write to"),
}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "read-only.html").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    access = os.access  # to the one who owns the machine no mode says no

    def asked(path: Any, mode: int) -> bool:
        return Path(path).name not in ("locked", "read-only.html") and access(path, mode)

    monkeypatch.setattr(os, "access", asked)
    return tmp_path


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_cannot_be_written(places: Path, case: str) -> None:
    name, says = BAD_FILES[case]
    with pytest.raises(conserva.Error, match=says) as error:
        ONE.save(places / name)
    assert f"path={str(places / name)!r}" in str(error.value)


@pytest.mark.parametrize("ending", [".txt", ".png"])
def test_what_the_system_refuses_while_it_is_written(tmp_path: Path, ending: str, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    path = tmp_path / f"one{ending}"
    with pytest.raises(conserva.Error, match="cannot be written: No space left on device") as error:
        saved(path, {".txt": lambda: ""}, full)
    assert str(path) in str(error.value)


def test_a_file_may_be_written_again_and_its_ending_in_capitals(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert Generation.load(ONE.save("ONE.JSON")) == ONE
    check_file(Path("other.json"), "a file beside it")
    check_folder(Path("one/two"), "a folder to be made")
    check_folder(Path("."), "one that is there")
    with pytest.raises(conserva.Error, match=r"'one\.png' ends in '\.png': choose \.json or \.html"):
        ONE.save("one.png")


@pytest.mark.parametrize("kind", [Audit, Explanation, Generation, Trace])
def test_a_file_that_cannot_be_read(tmp_path: Path, kind: Any) -> None:
    cases = ((tmp_path / "none.json", "cannot be read: No such file"), (tmp_path, "is a folder"))
    for path, says in (*cases, ("/dev/zero", "not a regular file"), ("a\0b", "NUL"), ("\ud800", "not valid text")):
        with pytest.raises(conserva.Error, match=says) as error:
            kind.load(path)
        assert f"path={str(path)!r}" in str(error.value)
    (tmp_path / "one.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(conserva.Error, match=r"one\.png' is not UTF-8"):
        kind.load(str(tmp_path / "one.png"))


def test_a_generation_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ONE.show()
    shown = capsys.readouterr().out
    show_generation(ONE)
    assert shown == capsys.readouterr().out
    assert "Paris" in shown


def test_a_generation_with_two_inputs_and_no_books_is_read_again(tmp_path: Path) -> None:
    steps = tuple(replace(one, ledger=None) for one in ONE.steps)
    one = generation(steps=steps, sections=(("text", 8), ("answer", 7)), sink=0, provenance={"conserva": "0"})
    assert Generation.load(one.save(tmp_path / "one.json")) == one


# The places of written tokens


def test_steps_are_counted_from_both_ends() -> None:
    many = len(ONE.steps)
    assert ONE.row(-1) == ONE.row(many - 1) == ONE.row(np.int64(many - 1))  # type: ignore[arg-type]
    assert ONE.span(-2, -1) == ONE.span(many - 2, many - 1)
    assert ONE.span(-many, 1) == ONE.span(0, 1)
    assert ONE.span(-2, -1).target == f"logit of {''.join(ONE.features[-2:])!r}"
    assert ONE.span(0, -1).output == pytest.approx(sum(step.output for step in ONE.steps))


@pytest.mark.parametrize("place", ["Paris", 1.5, None, 7, -8, np.array([1, 2])])
@pytest.mark.parametrize(
    ("name", "ask"),
    [("step", ONE.row), ("first", lambda place: ONE.span(place, 1)), ("last", lambda place: ONE.span(1, place))],
)
def test_what_is_no_step(place: Any, name: str, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(conserva.Error) as error:
        ask(place)
    assert str(error.value) == f"{name}={place!r} is not an index of the 7 generated tokens: give -7 to 6."


def test_a_span_that_ends_before_it_begins() -> None:
    with pytest.raises(conserva.Error, match="first=-1, last=2: first comes after last"):
        ONE.span(-1, 2)


# The command line

FILES = {"explain": ["explain", "a joy."], "compare": ["compare", "a joy."], "audit": ["audit"]}
FOLDERS = {
    "evaluate": ["evaluate", "--data", "reviews.csv"],
    "bias": ["bias", "--data", "reviews.csv"],
    "train": ["train", "sst2"],
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the one line that a command says before it has loaded anything."""

    def computes(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is loaded before the path is looked at")

    monkeypatch.setattr("conserva.tasks.loading.load", computes)
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("option", ["--html", "--png"])
@pytest.mark.parametrize("command", FILES)
def test_a_command_looks_for_its_files_first(
    places: Path, command: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = places / "none" / "one.png"
    said = refused([*FILES[command], option, str(path)], capsys, monkeypatch)
    missing = f"the folder {str(path.parent)!r} does not exist. Create it, or give another path."
    assert said == f"conserva: {option} {path}: {missing}\n"


@pytest.mark.parametrize("ending", ["html", "png"])
@pytest.mark.parametrize("command", [["explain", "a joy."], ["audit", "--text", "a joy.", "--rules", "gi"]])
def test_a_command_says_what_the_system_refuses(
    tmp_path: Path, command: list[str], ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{'x' * 300}.{ending}"
    assert main([*command, f"--{ending}", str(path)]) == 1
    said = f"conserva: --{ending} {path} cannot be written: File name too long. Give another path.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("case", BAD_FOLDERS)
@pytest.mark.parametrize("command", FOLDERS)
def test_a_command_looks_for_its_folder_first(
    places: Path, command: str, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, says = BAD_FOLDERS[case]
    said = refused([*FOLDERS[command], "--out", str(places / name)], capsys, monkeypatch)
    assert said.startswith(f"conserva: --out {places / name}: ")
    with pytest.raises(conserva.Error, match=says):
        check_folder(places / name, "--out")


def test_a_picture_has_an_ending_that_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(["explain", "a joy.", "--png", str(tmp_path / "one.xyz")], capsys, monkeypatch)
    assert "one.xyz ends in '.xyz': choose .png, .svg or .pdf." in said


@pytest.mark.parametrize("given", ["-1", "nan"])
def test_a_gap_that_is_no_share(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(["audit", "--max-gap", given], capsys, monkeypatch)
    assert f"--max-gap {given} is not a share of a ledger: give 0 or more" in said


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"conserva {conserva.__version__}\n"
