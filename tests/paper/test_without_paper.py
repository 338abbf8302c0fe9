"""An installation without `conserva.paper`: all else works, and its commands are not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import conserva
from integration_packages import can_be_imported

PACKAGE = Path(conserva.__file__).parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, folder / "conserva", ignore=shutil.ignore_patterns("paper"))
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=installed)


def test_every_other_module_can_be_imported(installed: Path) -> None:
    names = [
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((installed / "conserva").rglob("*.py"))
        if path.name not in ("__main__.py", "maxflow.py", "segments.py")  # which are programs
        and path.parent.name != "kernels"  # which need Triton
        and path.name not in ("train_command.py", "reproduce_command.py")  # the commands of the paper
    ]
    names = list(filter(can_be_imported, names))
    assert len(names) > 150
    script = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\nprint(len({names!r}))"
    done = run(installed, "-c", script)
    assert (done.returncode, done.stdout) == (0, f"{len(names)}\n"), done.stderr


def test_commands_work_and_those_of_the_paper_are_not_there(installed: Path) -> None:
    done = run(installed, "-m", "conserva.cli", "explain", "a joy.", "--json")
    assert done.returncode == 0, done.stderr
    assert '"features"' in done.stdout
    listed = run(installed, "-m", "conserva.cli", "--help").stdout
    assert "explain" in listed
    assert "reproduce" not in listed
    assert run(installed, "-m", "conserva.cli", "train", "sst2", "--out", "x").returncode == 2
