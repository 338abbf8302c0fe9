"""Attack: processes that an experiment has started are killed, or outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attack_runs import Undisturbed, half_written
from attacking import Tally, add_cases, rng_of, times, wait_for

INTERRUPTED = (b"conserva: interrupted\n", b"conserva: interrupted; the same command goes on\n")

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


def workers_of(pid: int) -> list[int]:
    """Return the processes that an experiment has started to work for it."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in found.read_text().split() if is_worker(int(one))]


def is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def started(undisturbed: Undisturbed, folder: Path) -> subprocess.Popen[bytes]:
    """Start an experiment in processes of its own, and wait until they are there."""
    folder.mkdir()
    command = undisturbed.commands["reproduce"]
    arguments = [sys.executable, "-m", "conserva.cli", *command.arguments, "--jobs", "2"]
    with (folder / ".error").open("wb") as error:  # not a pipe, which workers would keep open
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env={**os.environ, **command.env},
            stdout=subprocess.DEVNULL,
            stderr=error,
            start_new_session=True,
        )
    wait_for(lambda: process.poll() is not None or workers_of(process.pid))
    return process


def wait_for_end(process: subprocess.Popen[bytes], workers: list[int]) -> None:
    """Wait for the end of an experiment; one that does not end is killed, and so are its workers."""
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        raise AssertionError("it did not end") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            for one in filter(is_worker, workers):
                os.kill(one, signal.SIGKILL)


def wait_for_files(process: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Wait until an experiment has written some files."""
    wait_for(lambda: process.poll() is not None or len([*folder.rglob("*.*")]) > count, 120)


def test_a_killed_worker_is_told_and_the_run_goes_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    rng, tally = rng_of("killed workers"), Tally()
    for number in range(times(1)):
        folder, count = tmp_path / str(number), rng.randrange(8)
        with tally.case(f"killed after {count} files"):
            process = started(undisturbed, folder)
            wait_for_files(process, folder, count)
            workers = workers_of(process.pid)
            for worker in workers[: rng.randint(1, 2)]:
                os.kill(worker, signal.SIGKILL)
                add_cases("kills")
            wait_for_end(process, workers)
            said = (folder / ".error").read_bytes()
            if process.returncode == 0:  # the worker was killed when it had done its last job
                assert not half_written(folder / "out")
            else:
                assert process.returncode == 1, said
                assert said.startswith(b"conserva: "), said
                assert said.count(b"\n") == 1, said
                assert b"killed" in said, said
                assert b"kept" in said, said
            undisturbed.run("reproduce").check_again(folder)
    tally.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(
    number: signal.Signals, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """An interrupt goes to all of them, as a terminal sends it."""
    rng, tally = rng_of(f"workers alone {number}"), Tally()
    for case in range(times(1)):
        folder, count = tmp_path / str(case), rng.choice([0, 1, rng.randrange(8)])
        with tally.case(f"{number.name} after {count} files"):
            process = started(undisturbed, folder)
            wait_for_files(process, folder, count)
            workers = workers_of(process.pid)
            add_cases("kills")
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            wait_for_end(process, workers)
            try:
                wait_for(lambda: not any(map(is_worker, workers)), 30)  # noqa: B023
            finally:
                for one in filter(is_worker, workers):
                    os.kill(one, signal.SIGKILL)
            said = (folder / ".error").read_bytes()
            assert number != signal.SIGINT or said in INTERRUPTED, said  # others cannot be answered
            undisturbed.run("reproduce").check_again(folder)
    tally.check()
