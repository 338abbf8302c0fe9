"""Attack: the journal of a run was damaged while nobody looked; going on gives the right result, or is refused."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attack_runs import Run, Undisturbed, differences, half_written, results
from attacking import Tally, rng_of, run, times


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


def altered_number(rng: random.Random, lines: list[bytes]) -> None:
    place = rng.randrange(len(lines))
    digits = list(re.finditer(rb"[0-9]", lines[place]))
    at = rng.choice(digits).start()
    lines[place] = lines[place][:at] + b"%d" % rng.randrange(10) + lines[place][at + 1 :]


def altered_bit(rng: random.Random, lines: list[bytes]) -> None:
    place = rng.randrange(len(lines))
    line = bytearray(lines[place])
    line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    lines[place] = bytes(line)


def removed(rng: random.Random, lines: list[bytes]) -> None:
    del lines[rng.randrange(1, len(lines))]


def repeated(rng: random.Random, lines: list[bytes]) -> None:
    lines.insert(rng.randrange(1, len(lines) + 1), rng.choice(lines[1:]))


def exchanged(rng: random.Random, lines: list[bytes]) -> None:
    first, second = rng.randrange(1, len(lines)), rng.randrange(1, len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def cut(rng: random.Random, lines: list[bytes]) -> None:
    place = rng.randrange(len(lines))
    lines[place:] = [lines[place][: rng.randrange(len(lines[place]))]]


def cut_within(rng: random.Random, lines: list[bytes]) -> None:
    place = rng.randrange(len(lines))
    lines[place] = lines[place][: rng.randrange(len(lines[place]))] + rng.choice([b"", b"\n"])


def strange_line(rng: random.Random, lines: list[bytes]) -> None:
    content = rng.choice(
        [b"", b"\0" * 4096, b"[]", b"{}", b"null", b"[" * 9999, b"\xff\xfe", b'{"sample": 0}', lines[1]]
    )
    lines.insert(rng.randrange(len(lines) + 1), content + b"\n")


def ended_otherwise(rng: random.Random, lines: list[bytes]) -> None:
    lines[:] = [line.replace(b"\n", b"\r\n") for line in lines]


Damage = Callable[[random.Random, list[bytes]], None]
DAMAGES: tuple[Damage, ...] = (
    *(altered_number, altered_bit, removed, repeated, exchanged, cut, cut_within, strange_line, ended_otherwise),
)


def check(expected: Run, folder: Path) -> None:
    """Run the command again: it ends as if nothing had happened, or is refused and leaves everything as it is."""
    [journal] = (folder / "out").rglob("*.jsonl")
    content, before = journal.read_bytes(), results(folder / "out")
    outcome = run(expected.command.arguments, cwd=folder, env=expected.command.env)
    assert not outcome.faults(0, 1), outcome.faults(0, 1)
    assert not half_written(folder / "out"), half_written(folder / "out")
    if outcome.code == 1:
        assert journal.name in outcome.error, outcome.error
        assert journal.read_bytes() == content
        assert results(folder / "out") == before
        assert "first line" in outcome.error or "no journal" in outcome.error or "another run" in outcome.error
    else:
        changed = differences(expected.results, results(folder / "out"))
        assert not changed, f"{changed} are not as in an undisturbed run"


@pytest.mark.parametrize("name", ["evaluate", "bias"])
def test_a_damaged_journal_does_not_change_the_result(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    rng, tally = rng_of(f"damaged journals {name}"), Tally()
    expected = undisturbed.run(name)
    done = tmp_path / "done"
    done.mkdir()
    expected.check_again(done)
    [journal] = (done / "out").rglob("*.jsonl")
    whole = journal.read_bytes().splitlines(keepends=True)
    for number in range(times(9)):
        folder, damage, seed = tmp_path / str(number), DAMAGES[number % len(DAMAGES)], rng.randrange(2**32)
        lines = whole[: rng.choice([len(whole), len(whole), rng.randint(3, len(whole))])]
        damage(random.Random(seed), lines)
        shutil.copytree(done, folder)
        (folder / journal.relative_to(done)).write_bytes(b"".join(lines))
        with tally.case(f"{damage.__name__}, seed {seed}, {len(lines)} lines"):
            check(expected, folder)
        shutil.rmtree(folder)
    tally.check()
