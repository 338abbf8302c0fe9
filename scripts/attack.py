"""Run the attack tests again and again, each time with a fresh seed and more cases, until the time is up.

    make attack SECONDS=3600 SCALE=4                # or: python scripts/attack.py --seconds 3600 --scale 4

A round that has begun is finished. The exit code is 1 if a round has failed; the commands that repeat such rounds are
printed in the end.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def attack(seed: int, scale: float, tests: str, counts: Path) -> tuple[int, int]:
    """Run one round, and return pytest's exit code and how many tests passed; its cases are counted in a file."""
    parallel = ["-n", "2"] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", *parallel, tests]
    environment = {**os.environ, "ATTACK_SEED": str(seed), "ATTACK_SCALE": f"{scale:g}"}
    environment["ATTACK_COUNTS"] = str(counts)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [line for line in running.stdout if sys.stdout.write(line)]
    found = re.search(r"(\d+) passed", lines[-1] if lines else "")
    return running.returncode, int(found[1]) if found else 0


def totals(counts: Path) -> str:
    """Return how many cases of each kind there were."""
    found = Counter[str]()
    for line in counts.read_text().splitlines():
        what, number = line.split("\t")
        found[what] += int(number)
    return ", ".join(f"{number:,} {what}" for what, number in sorted(found.items()))


def main() -> int:
    """Run rounds until the time is up, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="no round begins after so many seconds")
    parser.add_argument("--scale", type=float, default=4, help="how many times the cases of a plain test run")
    parser.add_argument("--seed", type=int, help="of the first round, to repeat one")
    parser.add_argument("tests", nargs="?", default="tests/attack", help="a folder or a file of tests")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        (counts := Path(folder, "counts")).touch()
        code = attack_until(end, given, counts)
        print(f"Cases: {totals(counts)}.")
    return code


def attack_until(end: float, given: argparse.Namespace, counts: Path) -> int:
    """Run rounds until a moment, and return the exit code: 1 if a round has failed."""
    rounds = passed = 0
    again: list[str] = []
    while rounds == 0 or time.monotonic() < end:
        seed = given.seed if given.seed is not None and rounds == 0 else secrets.randbelow(2**32)
        print(f"Round {rounds + 1}: ATTACK_SEED={seed} ATTACK_SCALE={given.scale:g}", flush=True)
        code, number = attack(seed, given.scale, given.tests, counts)
        rounds, passed = rounds + 1, passed + number
        if code:
            again.append(f"python scripts/attack.py --seconds 0 --scale {given.scale:g} --seed {seed} {given.tests}")
        outcome = f"failed (exit code {code})" if code else "passed"
        print(f"Round {rounds} {outcome}, {max(0.0, end - time.monotonic()):.0f} s left.", flush=True)
    print(f"{len(again)} of {rounds} rounds failed; {passed} tests passed, each with {given.scale:g} times its cases.")
    for command in again:
        print(f"To repeat a round that failed: {command}")
    return 1 if again else 0


if __name__ == "__main__":
    sys.exit(main())
