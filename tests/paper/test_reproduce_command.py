"""The command `conserva reproduce`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import conserva
from conserva.cli import main
from conserva.datasets import DATASETS
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.paper.experiments.graphs import GraphPlan
from conserva.paper.experiments.plan import Plan
from conserva.paper.experiments.texts import TextPlan
from conserva.paper.training.recipe import EMBEDDINGS

pytestmark = pytest.mark.usefixtures("known_datasets", "few_resamples")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["text", "--datasets", "small"], "sentences-small.png"),
        (["graphs", "--datasets", "lines", "--masks", "token,blank"], "lines-examples.png"),
    ],
    ids=["text", "graphs"],
)
def test_the_command_writes_a_page(
    given: list[str], written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", *given, "--quick", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "LRP (AH+LN)" in shown.out
    assert ("LINES blank" in shown.out) == (given[0] == "graphs")
    assert "LINES induced" not in shown.out
    assert f"wrote {tmp_path / 'README.md'}" in shown.err
    assert f"wrote {tmp_path / written}" in shown.err
    assert "the numbers mean nothing" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert main([*command, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["schema"] == f"conserva/{given[0].removesuffix('s')}-experiment/1"
    assert [one["seed"] for one in found["trained"]] == [0]
    if given[0] == "text":
        assert found["recipe"]["embeddings"] == "sentiment"
    else:
        assert list(found["evaluations"]) == ["token", "blank"]


def test_norms_after_the_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["reproduce", "graphs", "--quick", "--datasets", "chains", "--masks", "token", "--post-norm", "--json"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["shape"]["pre_norm"] is False
    assert "`pre_norm` no" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(([kind, *given], says) for kind in ("text", "graphs") for given, says in (
            (["--jobs", "0"], "--jobs 0"),
            (["--seeds", "0,x"], "--seeds 0,x"),
            (["--device", "nowhere"], "--device nowhere"),
        )),
        (["text", "--datasets", "imbd"], "Did you mean 'imdb'"),
        (["graphs", "--datasets", "sst2"], "'sst2' is unknown"),
        (["graphs", "--masks", "token,blnk"], "--masks token,blnk: blnk is not one of token, induced, blank"),
        (["graphs", "--as-released"], "--as-released is an option of reproduce text, not of reproduce graphs"),
        (["graphs", "--embeddings", "x"], "--embeddings is an option of reproduce text, not of reproduce graphs"),
        (["text", "--masks", "token"], "--masks is an option of reproduce graphs, not of reproduce text"),
        (["text", "--post-norm"], "--post-norm is an option of reproduce graphs, not of reproduce text"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_told(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", given[0], "--out", str(tmp_path / "out"), *given[1:]]) == 1
    assert says in capsys.readouterr().err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", lambda: TextPlan(tuple(DATASETS), embeddings=EMBEDDINGS)),
        ("graphs", lambda: GraphPlan(tuple(GRAPH_DATASETS))),
    ],
)
def test_all_datasets_of_the_experiment_run_if_none_is_named(
    kind: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[Plan] = []

    def noted(plan: Plan, *_: Any, **__: Any) -> None:
        plans.append(plan)
        raise conserva.Error("noted")

    monkeypatch.setattr("conserva.paper.experiments.run.reproduce", noted)
    assert main(["reproduce", kind, "--out", str(tmp_path)]) == 1
    assert main(["reproduce", kind, "--out", str(tmp_path), "--quick"]) == 1
    assert "noted" in capsys.readouterr().err
    assert plans[0] == expected()
    assert plans[0].seeds == (0, 1, 2)
    assert (plans[1].seeds, plans[1].quick) == ((0,), True)
