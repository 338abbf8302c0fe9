"""The README says what is true: its code runs, its list of model types is the one that is tested."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.attribution.registry import options
from conserva.datasets import DATASETS
from types_without_maps import REFUSED as WITHOUT_MAPS
from zoo_types import BILINEAR, REFUSED, WORKING

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
AUDIT, DATA, GRAPHS, BIAS = (
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
    for name in ("audit.md", "datasets.md", "graphs.md", "bias.md")
)


def test_every_line_of_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README + AUDIT + DATA + GRAPHS + BIAS, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "one.html").exists()
    assert [one.target for one in names["many"]] == ["positive", "negative"]
    assert names["R"].shape == (*names["inputs"]["input_ids"].shape, 192)


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "reviews.csv").write_text("text,label\na joy.,positive\nhow dull.,negative\n", encoding="utf-8")
    lines = [line for line in README.splitlines() if line.startswith(("conserva ", "echo "))]
    commands = [line for line in lines if not _needs_files(line)]
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout


def _needs_files(command: str) -> bool:
    """Return whether a command needs datasets, or weights of others: those in docs/tasks.md run with tiny ones."""
    others = "models/" in command or ".gguf" in command
    return others or command.startswith(("conserva train", "conserva reproduce", "conserva bias"))


@pytest.mark.skipif(not os.environ.get("CONSERVA_DATA"), reason="CONSERVA_DATA names no folder of datasets")
def test_the_quick_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    [command] = [line for line in README.splitlines() if line.startswith("conserva reproduce text --quick")]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the numbers mean nothing" in (tmp_path / "quick" / "README.md").read_text(encoding="utf-8")


def test_the_list_of_model_types_is_the_tested_one() -> None:
    listed = re.search(r"<!-- models -->(.*)<!-- /models -->", README, re.DOTALL)
    assert listed is not None
    works, _, refused = listed.group(1).partition("Refused")
    works, _, named = works.partition("With `bilinear` named:")
    assert set(re.findall(r"`([^`]+)`", works)) == {specimen.model_type for specimen in WORKING}
    assert set(re.findall(r"`([^`]+)`", named)) == set(BILINEAR)
    for model_type, reason in REFUSED.items():
        assert f"`{model_type}`" in refused
        assert reason in refused


def test_the_datasets_are_the_real_ones() -> None:
    for one in DATASETS.values():
        [line] = [line for line in DATA.splitlines() if line.startswith(f"| `{one.name}` |")]
        for split in (one.train, one.validation, one.test):
            assert f"`{split.file}`" in line
            assert f"`{split.hub}`" in line or "folder only" in line


def test_the_methods_and_their_options_are_the_real_ones() -> None:
    listed = README.partition("## Methods")[2].partition("## Rule sets")[0]
    for name in conserva.methods():
        assert f"`{name}`" in listed
        for option, value in options(name).items():
            assert f"`{option}={value}`" in listed
    assert f"`gae` serves {len(WORKING) - len(WITHOUT_MAPS)}." in listed
