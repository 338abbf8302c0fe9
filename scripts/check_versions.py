"""Run a part of the tests with every Python of this machine, and with the oldest, the pinned and the newest packages.

    make versions                                   # or: python scripts/check_versions.py
    python scripts/check_versions.py --all          # also where torch brings gigabytes of packages for GPUs
    python scripts/check_versions.py --python 3.12 --packages newest

What is claimed comes from pyproject.toml: the Pythons from its classifiers, the oldest packages from its lower bounds.
Every combination gets a virtual environment of its own, which is deleted afterwards. What cannot be installed here is
skipped, with the reason; the exit code is 1 if a test failed, or if nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "engine/test_replicas", "engine/test_ledger", "explaining/test_explain", "cli/test_cli", "engine/test_propagation",
    "engine/test_operations", "views/test_views", "attribution/test_methods", "engine/test_compiled",
    "models/test_bundled_graphs", "models/test_bundled_digits",
)  # fmt: skip
MODEL_TYPES = ("bert", "gpt2", "llama", "mixtral", "modernbert", "t5", "vit", "whisper")
TESTS = (
    *(f"tests/{name}.py" for name in FILES),
    *(f"tests/engine/test_zoo.py::test_books_close_and_forward_is_unchanged[{name}]" for name in MODEL_TYPES),
)
FOR_GPUS = ("nvidia-", "cuda-")
"""How the names of packages begin that only a build of torch for GPUs needs."""


@dataclass
class Outcome:
    """What became of one combination."""

    python: str
    packages: str
    torch: str = ""
    transformers: str = ""
    result: str = ""
    has_failed: bool = False


class CannotInstall(Exception):  # noqa: N818
    """A combination cannot be had on this machine."""


def claimed_pythons() -> list[str]:
    """Return the versions of Python that the package claims, oldest first."""
    names = metadata("conserva").get_all("Classifier") or []
    found = [match[1] for name in names if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name))]
    return sorted(found, key=Version)


def interpreter(version: str) -> str | None:
    """Return a Python of this version, from PATH or pyenv, if there is one that can make virtual environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    built = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=lambda path: Version(path.parts[-3]))
    for command in (*map(str, reversed(built)), shutil.which(f"python{version}")):
        if command and subprocess.run([command, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return command
    return None


def requirements(extra: str = "test") -> Iterator[Requirement]:
    """Yield what the package needs, with an extra and the extras in it."""
    for text in metadata("conserva").get_all("Requires-Dist") or []:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            if one.name == "conserva":
                for inner in sorted(one.extras):
                    yield from (found for found in requirements(inner) if "extra" in str(found.marker))
            else:
                yield one


def wanted(packages: str) -> list[str]:
    """Return what pip is asked for: the oldest series of every package, the pinned versions, or the newest."""
    if packages == "oldest":
        return [re.sub(r">=([\d.]+)$", r"==\1.*", f"{one.name}{one.specifier}") for one in requirements()]
    names = [f"{one.name}{one.specifier}" for one in requirements()]
    return [*names, "--constraint", str(ROOT / "constraints.txt")] if packages == "pinned" else names


def install(python: Path, packages: str, *, even_for_gpus: bool) -> None:
    """Install a set of packages and this one, unless that takes packages for GPUs that are not wanted."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
    asked = ["--only-binary", ":all:", *wanted(packages)]
    if not even_for_gpus:
        report = json.loads(_run([*pip, "--dry-run", "--report", "-", *asked]))
        names = [one["metadata"]["name"] for one in report["install"]]
        if any(name.startswith(FOR_GPUS) for name in names):
            raise CannotInstall("torch needs packages for GPUs: give --all")
    _run([*pip, *asked])
    _run([*pip, "--no-deps", "--editable", str(ROOT)])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotInstall(errors[0].removeprefix("ERROR: ")[:100] if errors else f"pip ended with {done.returncode}")
    return done.stdout


def check(outcome: Outcome, command: str, *, even_for_gpus: bool, workers: str) -> None:
    """Make an environment, run the tests in it, and note what was found."""
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        subprocess.run([command, "-m", "venv", folder], check=True)
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        try:
            install(python, outcome.packages, even_for_gpus=even_for_gpus)
        except CannotInstall as error:
            outcome.result = f"skipped: {error}"
            return
        versions = "import importlib.metadata as m; print(m.version('torch'), m.version('transformers'))"
        outcome.torch, outcome.transformers = _run([str(python), "-c", versions]).split()
        pytest = [str(python), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-n", workers, *TESTS]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(pytest, cwd=ROOT, env=environment, capture_output=True, text=True)
        outcome.has_failed = done.returncode != 0
        lines = done.stdout.splitlines()
        outcome.result = re.sub(r" in [\d.]+s.*", "", lines[-1]).strip("= ") if lines else done.stderr[-200:]
        if outcome.has_failed:
            print(*[line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))][:60], sep="\n", flush=True)


def main() -> int:
    """Run all combinations, print a table of them, and return the exit code."""
    pythons = claimed_pythons()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also builds of torch for GPUs, of several gigabytes each")
    parser.add_argument("--python", choices=pythons, action="append", help="only this Python; may be given again")
    parser.add_argument("--packages", choices=("oldest", "pinned", "newest"), action="append", help="only this set")
    parser.add_argument("--workers", default="2", help="how many tests run at once")
    given = parser.parse_args()
    outcomes = []
    for version in given.python or pythons:
        for packages in given.packages or ("oldest", "pinned", "newest"):
            if packages == "oldest" and version != pythons[0]:
                continue  # the oldest packages have no builds for newer Pythons
            outcome = Outcome(version, packages)
            command = interpreter(version)
            if command is None:
                outcome.result = "skipped: this Python is not on the machine"
            else:
                check(outcome, command, even_for_gpus=given.all, workers=given.workers)
            outcomes.append(outcome)
            print(f"Python {version}, {packages}: {outcome.result}", flush=True)
    print("\n| Python | packages | torch | transformers | result |\n|---|---|---|---|---|")
    for one in outcomes:
        print(f"| {one.python} | {one.packages} | {one.torch} | {one.transformers} | {one.result} |")
    was_run = any(one.torch for one in outcomes)
    return int(not was_run or any(one.has_failed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
