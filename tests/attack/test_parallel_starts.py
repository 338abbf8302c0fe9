"""Attack: several processes start the same run in the same folder at the same moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attack_runs import differences, make_data, results
from attacking import Tally, add_cases, rng_of, run, start, times, wait_for
from conserva import Error
from conserva._util.journal import Journal, open_records

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SETTINGS = {"data": "reviews.csv", "methods": ["gi"]}
PROCESSES = 3


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes forked by the tests wait for a lock as often as others, but not as long."""
    monkeypatch.setattr("conserva._util.journal._SECONDS_BETWEEN_ATTEMPTS", 0.002)


WON, REFUSED, BROKE = 0, 10, 20
STEPS = ("open", "os.truncate", "fcntl.flock")
REFUSAL = "is being written by another run"


def forked(work: Callable[[], int]) -> int:
    """Run a function in a process of its own, which ends with what it returns."""
    child = os.fork()
    if child:
        return child
    code = BROKE
    try:
        code = work()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal."""
    with open_records(path, "an evaluation") as records:
        return [record for _, record in records]


def start_together(path: Path, seed: int) -> list[int]:
    """Open a journal in several processes at once, and return how they end.

    Each pauses for a moment before it opens, locks or cuts a file, so that all orders of these steps occur. The one
    that may keep the journal does so until all have tried.
    """
    gate, all_tried = os.pipe(), os.pipe()

    def work(number: int) -> int:
        rng = random.Random(f"{seed} {number}")
        os.close(gate[1])
        os.read(gate[0], 1)  # until the parent closes its end
        sys.addaudithook(lambda event, _: time.sleep(rng.uniform(0, 0.002)) if event in STEPS else None)
        try:
            journal = Journal(path, SETTINGS, "an evaluation")
        except Error as error:
            os.close(all_tried[1])
            return REFUSED if REFUSAL in str(error) else BROKE
        for sample in range(3):
            journal.append({"sample": sample, "by": os.getpid()})
        os.close(all_tried[1])
        os.read(all_tried[0], 1)
        journal.append({"sample": 3, "by": os.getpid()})
        journal.close()
        return WON

    children = [forked(partial(work, number)) for number in range(PROCESSES)]
    for end in (gate[0], all_tried[1], gate[1], all_tried[0]):
        os.close(end)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.parametrize(("before", "count"), [("nothing", 80), ("half a line", 40), ("a stopped run", 40)])
def test_one_of_several_journals_wins(tmp_path: Path, before: str, count: int) -> None:
    rng, tally = rng_of(f"parallel journals {before}"), Tally()
    for number in range(times(count)):
        path = tmp_path / str(number) / "samples.jsonl"
        kept = 0
        if before != "nothing":
            journal = Journal(path, SETTINGS, "an evaluation")
            journal.append({"sample": 9, "by": 0})
            journal.close()
            kept = 1
        if before == "half a line":
            kept = 0
            path.write_bytes(path.read_bytes()[: rng.randrange(1, 40)])
        seed = rng.randrange(2**32)
        with tally.case(f"start {number}, start_together(path, {seed})"):
            add_cases("parallel starts")
            ends = start_together(path, seed)
            assert sorted(ends) == [WON, *[REFUSED] * (PROCESSES - 1)], ends
            records = read(path)
            assert [one["sample"] for one in records] == [9] * kept + [0, 1, 2, 3]
            assert len({one["by"] for one in records[kept:]}) == 1
            assert len(path.read_bytes().splitlines()) == 1 + len(records)
    tally.check()


def test_what_a_winner_leaves_is_gone_on_with(tmp_path: Path) -> None:
    """Processes that come one after the other, in part at once: each record is there once, none is lost."""
    rng, tally = rng_of("journals in a row"), Tally()
    for number in range(times(25)):
        path = tmp_path / str(number) / "samples.jsonl"

        def work() -> int:
            while True:
                try:
                    journal = Journal(path, SETTINGS, "an evaluation")  # noqa: B023
                except Error as error:
                    if REFUSAL not in str(error):
                        raise
                    continue
                done = {record["sample"] for _, record in journal.records}
                if len(done) == 8:
                    return WON
                journal.append({"sample": len(done)})
                if len(done) % 3 == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                journal.close()

        with tally.case(f"start {number}"):
            add_cases("parallel starts")
            children = [forked(work) for _ in range(rng.randint(3, 6))]
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert set(ends) <= {WON, -signal.SIGKILL}, ends
            assert [one["sample"] for one in read(path)] == list(range(8))
            assert len(path.read_bytes().splitlines()) == 9
    tally.check()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


COMMANDS = {
    "evaluate": ["evaluate", "--methods", "gi", "--steps", "3", "--no-reference", "--data", "x.csv", "--out", "out"],
    "bias": ["bias", "--data", "x.txt", "--groups", "groups", "--swaps", "0", "--out", "out"],
}


def copied(data: Path, folder: Path) -> Path:
    """Return a new folder that has the data."""
    shutil.copytree(data, folder)
    return folder


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The results of each command that nobody disturbs."""
    found = {}
    for name, arguments in COMMANDS.items():
        folder = copied(data, tmp_path_factory.mktemp(name) / "alone")
        assert not run(arguments, cwd=folder).faults(0)
        found[name] = results(folder / "out")
    return found


@pytest.mark.parametrize("name", list(COMMANDS))
def test_commands_that_start_at_once(name: str, data: Path, alone: dict, tmp_path: Path) -> None:
    """One is done, the others are refused; one that comes when the first is done may find it done."""
    tally = Tally()
    for number in range(times(2)):
        folder = copied(data, tmp_path / str(number))
        with tally.case(f"start {number}"):
            add_cases("parallel starts")
            gate = folder / "gate"
            running = [start(COMMANDS[name], cwd=folder, gate=gate) for _ in range(PROCESSES)]
            for one in running:
                one.wait_until_begun()
            gate.touch()
            outcomes = [one.wait() for one in running]
            assert not [fault for one in outcomes for fault in one.faults(0, 1)]
            assert 0 in [one.code for one in outcomes]
            assert all(REFUSAL in one.error for one in outcomes if one.code == 1), outcomes
            assert not differences(alone[name], results(folder / "out"))
    tally.check()


@pytest.mark.parametrize("name", list(COMMANDS))
def test_commands_are_refused_for_as_long_as_one_is_at_work(name: str, data: Path, alone: dict, tmp_path: Path) -> None:
    """The first is halted at some moment after it has opened its journal, so the others surely come meanwhile."""
    rng, tally = rng_of(f"halted {name}"), Tally()
    for number in range(times(1)):
        folder = copied(data, tmp_path / str(number))
        with tally.case(f"start {number}"):
            add_cases("parallel starts")
            first = start(COMMANDS[name], cwd=folder)
            wait_for(lambda: any((folder / "out").glob("*.jsonl")) or not first.is_alive())  # noqa: B023
            time.sleep(rng.uniform(0, 0.05))
            first.kill(signal.SIGSTOP)
            others = [start(COMMANDS[name], cwd=folder) for _ in range(PROCESSES - 1)]
            ends = [one.wait() for one in others]
            first.kill(signal.SIGCONT)
            end = first.wait()
            assert not [fault for one in ends for fault in one.faults(1)]
            assert all(REFUSAL in one.error for one in ends), ends
            assert not end.faults(0), end.faults(0)
            assert not differences(alone[name], results(folder / "out"))
    tally.check()
