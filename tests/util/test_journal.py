"""Journals: one writer at a time, lines that are whole and its own, and runs that go on or are told what differs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conserva import Error
from conserva._util.journal import Journal, open_records

SETTINGS = {"data": "reviews.csv", "methods": ["gi", "ah"], "seed": 0}
RECORDS = [{"sample": i, "text": text} for i, text in enumerate(("a joy", "ü\u2028\x1b", "\ud800", "{}\n"))]


def journal(path: Path, settings: Any = None) -> Journal:
    return Journal(path, SETTINGS if settings is None else settings, "an evaluation")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "samples.jsonl"


@pytest.fixture
def written(path: Path) -> Path:
    """A journal with four records that was closed."""
    one = journal(path)
    for record in RECORDS:
        one.append(record)
    one.close()
    return path


def found(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal that is opened again to go on."""
    one = journal(path)
    records = [record for _, record in one.records]
    one.close()
    return records


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal that is opened to be read."""
    with open_records(path, "an evaluation") as records:
        return [record for _, record in records]


# What was written is read.


def test_records_are_read_as_they_were_written(written: Path) -> None:
    assert found(written) == RECORDS
    assert read(written) == RECORDS
    assert len(written.read_bytes().splitlines()) == 1 + len(RECORDS)
    for line in written.read_bytes().splitlines():
        json.loads(line)


def test_a_record_is_found_at_its_place(path: Path) -> None:
    one = journal(path)
    places = [one.append(record) for record in RECORDS]
    assert [one.records.at(place) for place in places] == RECORDS
    assert list(one.records) == list(zip(places, RECORDS, strict=True))
    again = one.append({"sample": 9})
    assert one.records.at(again) == {"sample": 9}
    assert one.records.at(places[1]) == RECORDS[1]
    one.close()


def test_a_place_whose_record_was_changed_is_refused(path: Path) -> None:
    one = journal(path)
    place = one.append(RECORDS[0])
    path.write_bytes(path.read_bytes().replace(b"joy", b"job"))
    with pytest.raises(Error, match="was changed while it was in use"):
        one.records.at(place)
    one.close()


def test_records_that_json_cannot_hold_are_not_half_written(written: Path) -> None:
    before = written.read_bytes()
    one = journal(written)
    for value in (float("nan"), float("inf"), {1, 2}, object()):
        with pytest.raises((Error, ValueError, TypeError)):
            one.append({"sample": value})
    one.close()
    assert written.read_bytes() == before


# One writer at a time.


def test_a_second_writer_is_refused_and_the_journal_stays(path: Path) -> None:
    first = journal(path)
    first.append(RECORDS[0])
    before = path.read_bytes()
    for settings in (None, {"other": "settings"}):
        with pytest.raises(Error, match="is being written by another run"):
            journal(path, settings)
    assert path.read_bytes() == before
    first.append(RECORDS[1])
    first.close()
    assert found(path) == RECORDS[:2]


def test_it_is_locked_before_it_is_read(path: Path) -> None:
    """Another run has opened a new journal and has not written its first line, or half of it."""
    fcntl = pytest.importorskip("fcntl")
    path.parent.mkdir(parents=True)
    for there in (b"", b'{"settings": {"da', b"of another program\n"):
        path.write_bytes(there)
        with path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(Error, match="is being written by another run"):
                journal(path)
            assert path.read_bytes() == there


def test_the_lock_ends_with_the_process(path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from conserva._util.journal import Journal\n"
        f"one = Journal(pathlib.Path(sys.argv[1]), {SETTINGS!r}, 'an evaluation')\n"
        "one.append({'sample': 0}); print('open', flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    with pytest.raises(Error, match="is being written by another run"):
        journal(path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert found(path) == [{"sample": 0}]


def test_a_refused_journal_leaves_no_file_open(written: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(3):
        with pytest.raises(Error, match="another run"):
            journal(written, {"other": 1})
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
    assert found(written) == RECORDS


# Lines that are not whole, or not its own.


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_half_a_last_line_is_cut_off(written: Path, kept: int) -> None:
    whole = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join(whole[:-1]) + whole[-1][:kept])
    one = journal(written)
    assert [record for _, record in one.records] == RECORDS[:-1]
    one.append(RECORDS[-1])
    one.close()
    assert written.read_bytes().splitlines(keepends=True) == whole


@pytest.mark.parametrize("kept", [0, 1, 5, 13, -1])
def test_half_a_first_line_is_begun_anew(written: Path, kept: int) -> None:
    """A process was killed while it wrote the settings."""
    first = written.read_bytes().splitlines(keepends=True)[0]
    written.write_bytes(first[:kept])
    assert found(written) == []
    assert written.read_bytes() == first


def damaged(lines: list[bytes], how: str) -> tuple[list[bytes], list[int]]:
    """Return lines with a fault, and which records are left."""
    header, *rest = lines
    if how == "altered text":
        return [header, rest[0].replace(b"joy", b"job"), *rest[1:]], [1, 2, 3]
    if how == "altered number":
        return [header, rest[0].replace(b'"sample": 0', b'"sample": 1'), *rest[1:]], [1, 2, 3]
    if how == "removed":
        return [header, *rest[1:]], [1, 2, 3]
    if how == "cut in the middle":
        return [header, rest[0], rest[1][: len(rest[1]) // 2] + b"\n", *rest[2:]], [0, 2, 3]
    if how == "joined":
        return [header, rest[0].rstrip(b"\n") + rest[1], *rest[2:]], [2, 3]
    if how == "no checksum":
        return [*lines, b'{"sample": 7}\n'], [0, 1, 2, 3]
    if how == "no JSON":
        return [*lines, b"\xff\x00 \n", b"\n", b"[]\n", b"7\n"], [0, 1, 2, 3]
    assert how == "zeros"  # as some file systems leave after a loss of power
    return [header, rest[0], b"\x00" * 4096 + b"\n", *rest[1:]], [0, 1, 2, 3]


HOW = ("altered text", "altered number", "removed", "cut in the middle", "joined", "no checksum", "no JSON", "zeros")


@pytest.mark.parametrize("how", HOW)
def test_damaged_lines_are_ignored(written: Path, how: str) -> None:
    lines, left = damaged(written.read_bytes().splitlines(keepends=True), how)
    written.write_bytes(b"".join(lines))
    assert read(written) == [RECORDS[i] for i in left]
    assert found(written) == [RECORDS[i] for i in left]


def test_lines_of_another_run_are_ignored(written: Path, tmp_path: Path) -> None:
    other = journal(tmp_path / "other.jsonl", {**SETTINGS, "seed": 1})
    other.append({"sample": 9})
    other.close()
    with written.open("ab") as file:
        file.write((tmp_path / "other.jsonl").read_bytes())
    assert found(written) == RECORDS
    assert read(written) == RECORDS


def test_no_single_flipped_bit_is_taken_for_a_record(written: Path) -> None:
    whole = written.read_bytes()
    begin = whole.index(b"\n") + 1
    for place in range(begin, len(whole) - 1, 3):
        altered = bytearray(whole)
        altered[place] ^= 1 << (place % 8)
        written.write_bytes(bytes(altered))
        for record in read(written):
            assert record in RECORDS, f"byte {place}"


def test_lines_may_be_longer_than_what_is_read_at_once(path: Path) -> None:
    long = [{"sample": i, "text": "ü" * size} for i, size in enumerate((2**15, 2**16, 2**17 + 1, 1, 2**18))]
    one = journal(path)
    places = [one.append(record) for record in long]
    assert [one.records.at(place) for place in places] == long
    one.close()
    assert found(path) == read(path) == long


def test_a_journal_grows_while_it_is_read(path: Path) -> None:
    one = journal(path)
    one.append({"sample": 0})
    seen = []
    for _, record in one.records:
        seen.append(record["sample"])
        if len(seen) < 5:
            one.append({"sample": len(seen)})
    assert seen == [0, 1, 2, 3, 4]
    one.close()
    assert [record["sample"] for record in found(path)] == seen


def test_a_journal_without_a_path_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = Journal(None, SETTINGS, "an evaluation")
    places = [one.append(record) for record in RECORDS]
    assert list(one.records) == list(zip(places, RECORDS, strict=True))
    assert [one.records.at(place) for place in reversed(places)] == RECORDS[::-1]
    one.close()
    assert not list(tmp_path.iterdir())


# Other runs, other files.


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({**SETTINGS, "seed": 1}, ["seed", "0", "1"]),
        ({**SETTINGS, "methods": ["gi"]}, ["methods"]),
        ({"data": "reviews.csv", "methods": ["gi", "ah"]}, ["seed"]),
        ({**SETTINGS, "mask": "pad"}, ["mask", "pad"]),
        ({**SETTINGS, "data": "x" * 5000, "seed": "\x1b[2J"}, ["data", "seed"]),
        ({**SETTINGS, **{f"key {i}": i for i in range(50)}}, ["key 0"]),
    ],
)
def test_other_settings_are_refused_and_the_difference_is_named(
    written: Path, settings: dict[str, Any], named: list[str]
) -> None:
    before = written.read_bytes()
    with pytest.raises(Error, match="belongs to another run") as refused:
        journal(written, settings)
    said = str(refused.value)
    assert all(name in said for name in named)
    assert "reviews.csv" not in said or settings["data"] != "reviews.csv"  # what is the same is not named
    assert said.isprintable()
    assert len(said) <= 2100
    assert written.read_bytes() == before


def test_settings_are_the_same_in_any_order_and_type(written: Path) -> None:
    journal(written, {"seed": 0, "methods": ("gi", "ah"), "data": "reviews.csv"}).close()


@pytest.mark.parametrize("how", ["altered", "zeros", "removed", "empty line"])
def test_a_damaged_first_line_is_refused(written: Path, how: str) -> None:
    header, *rest = written.read_bytes().splitlines(keepends=True)
    lines = {
        "altered": [header.replace(b"reviews", b"reviewz"), *rest],
        "zeros": [b"\x00" * len(header) + b"\n", *rest],
        "removed": rest,
        "empty line": [b"\n", header, *rest],
    }[how]
    written.write_bytes(b"".join(lines))
    with pytest.raises(Error, match="first line is damaged"):
        journal(written)
    with pytest.raises(Error, match="first line is damaged"):
        read(written)
    assert written.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("content", [b"text,label\na joy,1\n", b"[1, 2]\n", b"\xff\xfe\x00\n", b"{}\n", b"half a line"])
def test_a_file_that_is_no_journal_is_refused_and_stays(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(Error, match="is not a journal of an evaluation"):
        journal(path)
    assert path.read_bytes() == content


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_what_is_no_regular_file_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(Error, match="not a regular file"):
        journal(path)
    with pytest.raises(Error, match="not a regular file"):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(Error, match=r"is a folder|Is a directory|not a regular file"):
        journal(path)
    path.rmdir()
    path.symlink_to("/dev/null")
    with pytest.raises(Error, match="not a regular file"):
        journal(path)


@pytest.mark.parametrize("name", ["x" * 300, "nul\x00", "\ud800", "file/samples.jsonl"])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Error) as refused:
        journal(tmp_path / name)
    assert str(refused.value).isprintable()


def test_a_disk_that_is_full_is_told_and_what_is_done_is_kept(written: Path) -> None:
    resource = pytest.importorskip("resource")
    one = journal(written)
    before, limits = written.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(Error, match=r"File too large.* The results so far are kept"):
            one.append({"sample": 4, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        one.close()
    assert found(written) == RECORDS


def test_only_journals_that_are_there_are_read(tmp_path: Path) -> None:
    with pytest.raises(Error, match="No such file"):
        read(tmp_path / "none.jsonl")
