"""Attack: standard output that is full, closed or of another encoding, and limits of memory, files and their sizes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attack_runs import Command, Undisturbed, half_written
from attacking import Tally, rng_of, run, start, times

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="devices and limits of Linux")

MEBIBYTE = 2**20
TEXT = "很好看的电影, καλό, e\u0301\u0323 🎬 — a joy"
PRINTING = (
    ["explain", TEXT],
    ["explain", TEXT, "--json"],
    ["explain", TEXT, "--trace"],
    ["compare", TEXT, "--methods", "gi,exact"],
    ["compare", TEXT, "--methods", "gi,exact", "--json"],
    ["audit", "--rules", "gi,exact", "--text", TEXT],
    ["audit", "--rules", "gi,exact", "--text", TEXT, "--json"],
    ["doctor", "--text", TEXT],
    ["doctor", "--text", TEXT, "--json"],
    ["methods"],
    ["methods", "--json"],
    ["--help"],
    ["explain", "--help"],
)
WRITING = (
    ["explain", "a joy", "--html", "folder/page.html"],
    ["explain", "a joy", "--png", "folder/picture.png"],
    ["explain", "a joy", "--trace", "--html", "folder/page.html"],
    ["compare", "a joy", "--methods", "gi,exact", "--png", "folder/picture.png"],
    ["audit", "--html", "folder/page.html"],
    ["audit", "--png", "folder/picture.pdf"],
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


# Standard output.


def test_full_standard_output_is_told(undisturbed: Undisturbed, tmp_path: Path) -> None:
    tally = Tally()
    runs = [[*undisturbed.commands[name].arguments, "--json"] for name in ("evaluate", "bias")]
    for arguments in (*PRINTING, *runs):
        with tally.case(f"{arguments} > /dev/full"):
            outcome = run(arguments, stdout="/dev/full", cwd=tmp_path)
            assert not outcome.faults(1), outcome.faults(1)
            assert "No space left on device" in outcome.error, outcome.error
    tally.check()


def test_a_reader_that_leaves_ends_it_without_a_word(tmp_path: Path) -> None:
    rng, tally = rng_of("broken pipes"), Tally()
    for number, arguments in enumerate(PRINTING):
        pipe, wanted = tmp_path / f"pipe {number}", rng.choice([0, 1, 10, 200])
        os.mkfifo(pipe)
        with tally.case(f"{arguments} | head -c {wanted}"):
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            running = start(arguments, stdout=pipe)
            running.wait_until_begun()
            os.set_blocking(reader, True)
            if wanted:
                os.read(reader, wanted)
            os.close(reader)
            outcome = running.wait()
            assert outcome.code in (0, 1, 141, -signal.SIGPIPE), outcome
            assert not outcome.err, outcome.err
    tally.check()


@pytest.mark.parametrize("number", [1, 2])
def test_standard_streams_may_be_closed(number: int) -> None:
    """In a process that is really new, as Python finds its streams when it starts."""
    command = f"exec {sys.executable} -m conserva.cli explain 'a joy' --json {number}>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True)
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stdout + done.stderr
    if number == 2:
        assert json.loads(done.stdout)["method"]


@pytest.fixture(scope="module")
def in_utf_8() -> dict[str, Any]:
    """Command -> the JSON that it prints."""
    return {str(one): json.loads(run(one).out) for one in PRINTING if "--json" in one}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-16"])
def test_any_encoding_of_the_terminal_will_do(encoding: str, in_utf_8: dict[str, Any]) -> None:
    tally = Tally()
    for arguments in PRINTING:
        with tally.case(f"PYTHONIOENCODING={encoding} conserva {arguments}"):
            outcome = run(arguments, env={"PYTHONIOENCODING": encoding})
            assert outcome.code == 0, outcome
            assert not outcome.err, outcome.err
            out = outcome.out.decode(encoding)
            if "--json" in arguments:
                assert json.loads(out) == in_utf_8[str(arguments)]
    error = run(["explain", "a joy", "--target", TEXT], env={"PYTHONIOENCODING": encoding})
    with tally.case(f"PYTHONIOENCODING={encoding}, an error"):
        assert error.code == 1
        assert error.err.decode(encoding).startswith("conserva: ")
        assert error.err.decode(encoding).count("\n") == 1
    tally.check()


# Folders that cannot be written to.


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that nobody may write to, not even root."""
    folder = tmp_path_factory.mktemp("read-only") / "folder"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    is_root = os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if is_root and (shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode):
        pytest.skip("root may write everywhere, and nothing can be mounted")
    yield folder
    if is_root:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_folder_that_is_read_only_is_told(read_only: Path, undisturbed: Undisturbed) -> None:
    tally = Tally()
    runs = [Command((*one.arguments[:-1], "folder"), one.env) for one in undisturbed.commands.values()]
    for command in (*map(Command, map(tuple, WRITING)), *runs):
        with tally.case(f"{command.arguments} with a folder that is read-only"):
            outcome = run(command.arguments, cwd=read_only.parent, env=command.env)
            assert not outcome.faults(1), outcome.faults(1)
            assert "folder" in outcome.error, outcome.error
            assert not outcome.out, "it did the work before it looked"
    tally.check()


# Limits.


def limited(rng: random.Random) -> dict[str, int]:
    """Return a limit that the commands of these tests sometimes meet."""
    return rng.choice(
        [
            {"RLIMIT_AS": rng.randrange(48 * MEBIBYTE)},
            {"RLIMIT_FSIZE": rng.randrange(4096, 200_000)},
            {"RLIMIT_NOFILE": rng.randrange(8, 24)},
        ]
    )


def test_limits_are_told_in_one_line(tmp_path: Path) -> None:
    rng, tally = rng_of("limits"), Tally()
    for number in range(times(40)):
        limits = limited(rng)
        arguments = list(rng.choice([*PRINTING, *WRITING, *WRITING]))
        folder = tmp_path / str(number) / "folder"
        folder.mkdir(parents=True)
        with tally.case(f"{arguments} under {limits}"):
            outcome = run(arguments, cwd=folder.parent, limits=limits, stdout="/dev/null")
            assert not outcome.faults(0, 1), outcome.faults(0, 1)
            assert not half_written(folder), half_written(folder)
            assert outcome.code == 0 or not list(folder.iterdir()), "something is left"
    tally.check()


@pytest.mark.parametrize("name", ["evaluate", "bias", "train"])
def test_a_run_goes_on_without_the_limit(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    rng, tally = rng_of(f"limits {name}"), Tally()
    command = undisturbed.run(name).command
    for number in range(times(2)):
        folder, limits = tmp_path / str(number), limited(rng)
        folder.mkdir()
        with tally.case(f"{name} under {limits}"):
            outcome = run(command.arguments, cwd=folder, env=command.env, limits=limits)
            assert not outcome.faults(0, 1), outcome.faults(0, 1)
            assert not half_written(folder / "out"), half_written(folder / "out")
            undisturbed.run(name).check_again(folder)
    tally.check()
