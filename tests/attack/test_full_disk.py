"""Attack: the disk is full, before a command begins, while it works, or when it writes its results."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_runs import Moment, Undisturbed, half_written
from attacking import Outcome, Tally, rng_of, run, times
from saved_models import SAVED

SIZE = 64 * 2**20
FULL = ("No space left on device", "MiB of disk space are free")
WRITTEN = {
    "explain page": (["explain", "a joy and a bore", "--html", "page.html"], "page.html"),
    "explain picture": (["explain", "a joy and a bore", "--png", "picture.png"], "picture.png"),
    "trace page": (["explain", "a joy and a bore", "--trace", "--html", "page.html"], "page.html"),
    "audit page": (["audit", "--html", "page.html"], "page.html"),
    "audit picture": (["audit", "--png", "picture.png"], "picture.png"),
    "compare picture": (["compare", "a joy", "--methods", "gi,exact,ah", "--png", "picture.png"], "picture.png"),
    "generation page": (["explain", "--prompt", "a joy", "--generate", "4", "--html", "page.html"], "page.html"),
}
"""Commands that write one file."""
CASES = {"evaluate": 3, "bias": 2, "train": 2, "reproduce": 1}
"""Commands that write a folder, and how often they are disturbed."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own, in memory."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a disk in memory cannot be mounted: it needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVED["Causal"](tmp_path_factory.mktemp("language model"))


def emptied(disk: Path) -> Path:
    """Delete everything on the disk."""
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return disk


def fill(disk: Path, left: int) -> Path:
    """Fill the disk but for so many bytes; return the file that does it."""
    filler = disk / ".filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 2**18)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    os.truncate(filler, max(0, filler.stat().st_size - left))
    return filler


def check_is_told(outcome: Outcome, *names: str) -> None:
    """Check that a command said in one line that the disk is full, and where."""
    assert not outcome.faults(1), outcome.faults(1)
    assert any(why in outcome.error for why in FULL), outcome.error
    assert any(name in outcome.error for name in names), outcome.error


@pytest.mark.parametrize("name", list(WRITTEN))
def test_a_file_is_written_whole_or_not_at_all(
    name: str, disk: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng, tally = rng_of(f"full disk {name}"), Tally()
    arguments, file = WRITTEN[name]
    if "--prompt" in arguments:
        arguments = [*arguments, "--model", str(request.getfixturevalue("language_model"))]
    assert not run(arguments, cwd=tmp_path).faults(0)
    whole = (tmp_path / file).read_bytes()
    for _ in range(times(1)):
        path = emptied(disk) / file
        left, before = round(rng.choice([0, rng.random(), 1.1]) * len(whole)), rng.choice([None, b"as it was"])
        with tally.case(f"{arguments} with {left} bytes left, before: {before}"):
            if before is not None:
                path.write_bytes(before)
            filler = fill(disk, left)
            outcome = run(arguments, cwd=disk)
            if outcome.code != 0:
                check_is_told(outcome, file)
                assert (path.read_bytes() if path.exists() else None) == before
            filler.unlink()
            assert outcome.code != 0 or path.read_bytes() == whole
            assert {one.name for one in disk.iterdir()} <= {file}, "something is left beside it"
            assert not run(arguments, cwd=disk).faults(0)
            assert path.read_bytes() == whole
    tally.check()


def test_output_to_a_full_disk_is_told(disk: Path) -> None:
    rng, tally = rng_of("full disk output"), Tally()
    for arguments in (["explain", "a joy", "--json"], ["audit"], ["audit", "--json"], ["compare", "a joy"]):
        whole = len(run(arguments).out)
        left = int(rng.random() * whole)
        with tally.case(f"{arguments} with {left} bytes left"):
            filler = fill(emptied(disk), left // 4096 * 4096)
            outcome = run(arguments, stdout=disk / "output")
            check_is_told(outcome, "output")
            filler.unlink()
    tally.check()


def run_on_a_full_disk(rng: random.Random, name: str, disk: Path, undisturbed: Undisturbed, done: list[str]) -> None:
    """Run a command while the disk becomes full at some moment, and check what it says and leaves."""
    moment, left = Moment(rng.random(), by_time=rng.random() < 0.4), rng.choice([0, rng.randrange(300_000)])
    if rng.random() < 0.2:
        moment = Moment(0, by_time=True)  # full before it begins
    done.append(f"{left} bytes left {moment}")
    outcome = undisturbed.run(name).again(disk, moment, lambda running: fill(disk, left) and None)
    (disk / ".filler").unlink()
    if outcome.code != 0:
        check_is_told(outcome, "out/", "--out out", "out='out'")
    assert not half_written(disk / "out"), f"{half_written(disk / 'out')} are not whole"


@pytest.mark.parametrize("name", list(CASES))
def test_a_run_goes_on_once_there_is_room(name: str, disk: Path, undisturbed: Undisturbed) -> None:
    rng, tally = rng_of(f"full disk {name}"), Tally()
    for _ in range(times(CASES[name])):
        done = list[str]()
        emptied(disk)
        with tally.case(done):
            for _ in range(rng.randint(1, 2)):
                run_on_a_full_disk(rng, name, disk, undisturbed, done)
            undisturbed.run(name).check_again(disk)
    tally.check()


@pytest.mark.parametrize("name", list(CASES))
def test_a_disk_that_is_full_is_noticed_before_the_work(name: str, disk: Path, undisturbed: Undisturbed) -> None:
    command = undisturbed.run(name).command
    fill(emptied(disk), 200_000)
    outcome = run(command.arguments, cwd=disk, env=command.env)
    check_is_told(outcome, "--out out")
    assert {one.name for one in disk.iterdir()} == {".filler"}
