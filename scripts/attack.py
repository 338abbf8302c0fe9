"""Run the attack tests again and again, each time with a fresh seed and more cases, until the time is up.

    make attack SECONDS=3600 SCALE=4                # or: python scripts/attack.py --seconds 3600 --scale 4

The first failure ends it, with exit code 1 and the command that repeats the round. A round that has begun is ended.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def attack(seed: int, scale: float, tests: str) -> tuple[int, int]:
    """Run one round, and return pytest's exit code and how many tests passed."""
    parallel = ["-n", "2"] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *parallel, tests]
    environment = {**os.environ, "ATTACK_SEED": str(seed), "ATTACK_SCALE": f"{scale:g}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [line for line in running.stdout if sys.stdout.write(line)]
    found = re.search(r"(\d+) passed", lines[-1] if lines else "")
    return running.returncode, int(found[1]) if found else 0


def main() -> int:
    """Run rounds until the time is up, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="no round begins after so many seconds")
    parser.add_argument("--scale", type=float, default=4, help="how many times the cases of a plain test run")
    parser.add_argument("--seed", type=int, help="of the first round, to repeat one")
    parser.add_argument("tests", nargs="?", default="tests/attack", help="a folder or a file of tests")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    rounds = passed = 0
    while rounds == 0 or time.monotonic() < end:
        seed = given.seed if given.seed is not None and rounds == 0 else secrets.randbelow(2**32)
        print(f"Round {rounds + 1}: ATTACK_SEED={seed} ATTACK_SCALE={given.scale:g}", flush=True)
        code, count = attack(seed, given.scale, given.tests)
        rounds, passed = rounds + 1, passed + count
        if code:
            again = f"python scripts/attack.py --seconds 0 --scale {given.scale:g} --seed {seed} {given.tests}"
            print(
                f"Round {rounds} failed with ATTACK_SEED={seed} (exit code {code}). To repeat it: {again}", flush=True
            )
            return 1
        print(f"Round {rounds} passed, {max(0.0, end - time.monotonic()):.0f} s left.", flush=True)
    print(f"{rounds} rounds without a failure: {passed} tests passed, each with {given.scale:g} times its cases.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
