"""Attack: runs that are killed at any moment and started again end as if nobody had touched them."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attack_runs import Moment, Undisturbed, half_written
from attacking import Tally, add_cases, rng_of, times

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals and inotify of Linux")

CASES = {"evaluate": 4, "bias": 3, "train": 4, "reproduce": 1}
SIGNALS = (signal.SIGKILL,) * 3 + (signal.SIGTERM, signal.SIGINT)
ENDS = {signal.SIGKILL: (-9,), signal.SIGTERM: (-15, 143), signal.SIGINT: (130,)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


def disturb(rng: random.Random, name: str, folder: Path, undisturbed: Undisturbed, done: list[str]) -> None:
    """Start a command, end it by a signal at some moment, and check what it left."""
    number, moment = rng.choice(SIGNALS), Moment(rng.random(), by_time=rng.random() < 0.4)
    done.append(f"{signal.Signals(number).name} {moment}")
    add_cases("kills")
    outcome = undisturbed.run(name).again(folder, moment, lambda running: running.kill(number))
    assert not outcome.has_traceback, outcome.err
    assert outcome.code in (0, *ENDS[number]), outcome
    assert outcome.code != 130 or not outcome.faults(130), outcome.faults(130)
    assert not half_written(folder / "out"), f"{half_written(folder / 'out')} are not whole"


@pytest.mark.parametrize("name", list(CASES))
def test_killed_and_started_again_it_ends_the_same(name: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    rng, tally = rng_of(f"kills {name}"), Tally()
    expected = undisturbed.run(name)
    for number in range(times(CASES[name])):
        folder, done = tmp_path / str(number), list[str]()
        folder.mkdir()
        with tally.case(done):
            for _ in range(rng.randint(1, 3)):
                disturb(rng, name, folder, undisturbed, done)
            expected.check_again(folder)
        shutil.rmtree(folder)
    tally.check()


def test_an_interrupted_start_says_so_in_one_line() -> None:
    """In processes that are really new: the interrupt comes while Python imports what a command needs."""
    rng, tally = rng_of("interrupted starts"), Tally()
    command = [sys.executable, "-m", "conserva.cli", "explain", "a joy."]
    for _ in range(times(4)):
        seconds = rng.uniform(0.02, 3.5)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with tally.case(f"SIGINT after {seconds:.3f} s"):
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                add_cases("interrupted starts")
            try:
                _, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise AssertionError("it was swallowed") from None
            said = f"exit code {process.returncode}, {err.decode()!r}"
            if process.returncode == 0:
                assert not err, said
            elif b"conserva" in err and b"_get_module_details" not in err:
                assert err == b"conserva: interrupted\n", said
                assert process.returncode in (130, -2), said  # Python may end itself by the signal: 130 to a shell
            else:  # Python was still looking for the module that handles interrupts
                assert process.returncode in (-2, 1, 130), said
    tally.check()
