"""The README and the docs say what is true: their code runs, their lists are those that are tested."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.attribution.registry import options
from conserva.cli import main
from conserva.datasets import DATASETS
from types_without_maps import REFUSED as WITHOUT_MAPS
from zoo_types import BILINEAR, REFUSED, WORKING

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in (
        "explanations", "methods", "models", "relevance", "cost", "faithfulness", "paper", "audit", "datasets",
        "graphs", "bias",
    )
}  # fmt: skip
README = (ROOT / "README.md").read_text(encoding="utf-8")
ALL = {"README": README, **PAGES}


def test_every_line_of_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for page, text in ALL.items():
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, page, "exec"), names)
    assert (tmp_path / "one.html").exists()
    assert [one.target for one in names["many"]] == ["positive", "negative"]
    assert names["R"].shape == (*names["inputs"]["input_ids"].shape, 192)


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("page", list(ALL))
def test_every_command_runs(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if page != "README":  # whose commands draw every kind of figure
        request.getfixturevalue("without_figures")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "reviews.csv").write_text("text,label\na joy.,positive\nhow dull.,negative\n", encoding="utf-8")
    (tmp_path / "tickets.csv").write_text("ticket,body\nT1,a joy.\nT2,how dull.\n", encoding="utf-8")
    (tmp_path / "molecules.csv").write_text("smiles,label\nCCO,inactive\nCCN,active\n", encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", ALL[page], re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("conserva ", "echo "))]
    for command in lines:
        if _needs_files(command):
            continue
        if not command.startswith("conserva ") or set("|&$><") & set(command.partition("#")[0]):
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:  # in this process, which has imported torch
            code = main(shlex.split(command, comments=True)[1:])
            out, err = capsys.readouterr()
        assert code == 0, (command, err)
        assert out or "wrote" in err


def _needs_files(command: str) -> bool:
    """Return whether a command needs datasets, or weights of others: those in docs/tasks.md run with tiny ones."""
    others = any(one in command for one in ("models/", "path/to/", ".gguf"))
    return others or command.startswith(("conserva train", "conserva reproduce", "conserva bias"))


@pytest.mark.skipif(not os.environ.get("CONSERVA_DATA"), reason="CONSERVA_DATA names no folder of datasets")
def test_the_quick_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    [command] = [line for line in PAGES["paper"].splitlines() if line.startswith("conserva reproduce text --quick")]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the numbers mean nothing" in (tmp_path / "quick" / "README.md").read_text(encoding="utf-8")


def test_the_list_of_model_types_is_the_tested_one() -> None:
    listed = re.search(r"<!-- models -->(.*)<!-- /models -->", PAGES["models"], re.DOTALL)
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
        [line] = [line for line in PAGES["datasets"].splitlines() if line.startswith(f"| `{one.name}` |")]
        for split in (one.train, one.validation, one.test):
            assert f"`{split.file}`" in line
            assert f"`{split.hub}`" in line or "folder only" in line


def test_the_methods_and_their_options_are_the_real_ones() -> None:
    listed = PAGES["methods"].partition("## Methods")[2].partition("## Rule sets")[0]
    for name in conserva.methods():
        assert f"`{name}`" in listed
        for option, value in options(name).items():
            assert f"`{option}={value}`" in listed
    assert f"`gae` works for {len(WORKING) - len(WITHOUT_MAPS)} of the tested" in listed


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_every_link_leads_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            if link.startswith("http"):
                continue
            target = path if not file else (path.parent / file).resolve()
            assert target.exists(), (path.name, link)
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
                assert anchor in anchors, (path.name, link)


def test_numbers_of_the_readme_are_those_of_the_docs() -> None:
    for auac, method in re.findall(r"(\d\.\d{3}) (?:for|and) `([a-z+]+)`", README):
        assert re.search(rf"\| `{re.escape(method)}` \| {auac} ", PAGES["faithfulness"]), (method, auac)
    assert f"{len(WORKING)} Hugging Face model types" in README
    found = re.search(r"time of (\d\.\d\d)\s+forward passes, .* frozen parameters that of (\d\.\d\d)", README)
    own, plain = found.groups()  # type: ignore[union-attr]
    assert f"| conserva exact, with the ledger | {own} |" in PAGES["cost"]
    assert f"| the same, parameters frozen | {plain} |" in PAGES["cost"]
