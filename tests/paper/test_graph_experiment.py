"""The graph experiment on small graphs: every cell, several models as one, what is done stays, and the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conserva
from chains import IDS, NUMBERS, made
from conserva.attribution.registry import find
from conserva.cli import main
from conserva.datasets.graph import Graph
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.evaluation.result import Evaluation
from conserva.paper.experiments.findings import row_of
from conserva.paper.experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS, RULES, SLICES, GraphPlan
from conserva.paper.experiments.graph_result import GraphResult
from conserva.paper.experiments.graphs import EXAMPLES, SHOWN, reproduce_graphs
from conserva.paper.experiments.published import published, published_accuracy
from conserva.tasks.graph import MASKS

PLAN = GraphPlan(datasets=("chains", "lines"), seeds=(0, 1), quick=True)
PAPER = [row.method for row in GRAPH_ROWS if row.group == "paper"]


def superpixels(one: Graph) -> Graph:
    """Return a chain whose nodes are regions of an image, one beside the other."""
    regions = np.arange(len(one))[None].repeat(2, 0)
    image = np.linspace(0, 255, regions.size).astype(np.uint8).reshape(regions.shape)
    return replace(one, picture={"kind": "superpixels", "image": image, "regions": regions})


def lines(split: str, folder: Any, count: int | None, seed: int, progress: Any) -> list[Graph]:
    return [superpixels(one) for one in made(split, numbers=True)[:count]]


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRAPH_DATASETS, "chains", IDS)  # type: ignore[arg-type]
        patch.setitem(GRAPH_DATASETS, "lines", replace(NUMBERS, reader=lines))  # type: ignore[arg-type]
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GraphResult]]:
    out = tmp_path_factory.mktemp("experiment")
    return out, reproduce_graphs(PLAN, out)


# The plan.


def test_every_row_has_a_method_and_the_paper_a_number_for_each() -> None:
    named = [row.method for row in GRAPH_ROWS]
    assert len(set(named)) == len(named)
    methods = [find(name) for name in GraphPlan(()).methods()]
    assert {one.name for one in methods} == set(conserva.methods())
    assert [one.name for one in methods] == GraphPlan(()).methods()  # spelled as the results spell them
    assert {"bace", "mnist"} <= set(SLICES) <= set(GRAPH_DATASETS)
    empty = [
        (name, method) for name in ("bace", "mnist") for method in PAPER if published("auac", name, method) is None
    ]
    assert empty == [("mnist", "a-flow")]
    assert (published_accuracy("bace", "roc_auc"), published_accuracy("mnist", "accuracy")) == (0.835, 0.972)


# A run.


def test_every_cell_is_there(ran: tuple[Path, list[GraphResult]]) -> None:
    chains, images = ran[1]
    assert [one.dataset for one in ran[1]] == ["chains", "lines"]
    for one in ran[1]:
        expected = [row.method for row in GRAPH_ROWS if row.method != "intensity" or one is images]
        assert list(one.evaluations) == list(MASKS)
        for mask, found in one.evaluations.items():
            assert [row.method for row in found.methods] == expected
            assert not found.refused
            assert (found.protocol["mask"], found.protocol["target"], found.samples) == (mask, "true", 4)
            assert {pair.metric for pair in found.pairs} == {"auac", "au_mse"}
            for seed in one.trained:
                assert list(seed.auac[mask]) == list(seed.au_mse[mask]) == expected
        assert [seed.seed for seed in one.trained] == [0, 1]
        assert one.trained[0].weights != one.trained[1].weights
    assert (chains.metric, images.metric) == ("roc_auc", "accuracy")
    assert chains.reached() == np.mean([one.test_roc_auc for one in chains.trained])
    assert images.reached() == np.mean([one.test_accuracy for one in images.trained])
    assert images.trained[0].test_roc_auc is None  # it is accuracy that counts
    assert chains.parameters == json.loads(
        (ran[0] / "runs" / "chains" / "seed-0" / "model" / "training.json").read_text(encoding="utf-8")
    )["trained_parameters"]  # fmt: skip


def test_maskings_differ_and_models_are_averaged(ran: tuple[Path, list[GraphResult]]) -> None:
    out, results = ran
    for one in results:
        token, induced, blank = (row_of(one.evaluations[mask], GRAPH_OURS) for mask in MASKS)
        assert token is not None
        assert induced is not None
        assert blank is not None
        assert len({found.au_mse.mean for found in (token, induced, blank)}) == 3
        for mask in MASKS:
            folders = [out / "runs" / one.dataset / f"seed-{seed}" / mask for seed in (0, 1)]
            each = [row_of(Evaluation.load(folder / "evaluation.json"), GRAPH_OURS) for folder in folders]
            whole = row_of(one.evaluations[mask], GRAPH_OURS)
            assert whole is not None
            assert whole.auac.mean == pytest.approx(np.mean([found.auac.mean for found in each if found]), rel=1e-9)
            assert [seed.auac[mask][GRAPH_OURS] for seed in one.trained] == [found.auac.mean for found in each if found]


def test_books_close(ran: tuple[Path, list[GraphResult]]) -> None:
    for one in ran[1]:
        assert [books.rules for books in one.books] == list(RULES)
        books = {each.rules: each for each in one.books}
        assert books["exact"].largest_gap < 1e-10
        assert books["gi"].largest_gap > 1e-6
        for each in one.books:
            assert len(each.outputs) == len(each.sums) == 4
            assert each.gap <= each.largest_gap
            assert each.output == pytest.approx(np.abs(each.outputs).mean())


def test_examples_are_of_each_class_in_turn(ran: tuple[Path, list[GraphResult]]) -> None:
    chains, _ = ran[1]
    assert len(chains.examples) == min(EXAMPLES, 4) * len(SHOWN)
    assert [one.method for one in chains.examples[: len(SHOWN)]] == list(SHOWN)
    assert [one.text for one in chains.examples[:: len(SHOWN)]] == [f"test {row}" for row in range(4)]
    assert [one.target for one in chains.examples[:: len(SHOWN)]] == ["no", "yes", "no", "yes"]


def test_results_are_stored_and_read_back(ran: tuple[Path, list[GraphResult]]) -> None:
    out, results = ran
    for one in results:
        text = (out / f"{one.dataset}.json").read_text(encoding="utf-8")
        assert str(out) not in text
        back = GraphResult.from_json(text)
        assert back.to_json() + "\n" == text
        assert (back.dataset, back.labels, back.graphs, back.parameters) == (
            one.dataset, one.labels, one.graphs, one.parameters,
        )  # fmt: skip
        assert back.trained[1].auac["blank"]["gi"] == pytest.approx(one.trained[1].auac["blank"]["gi"], rel=1e-4)
        assert [each.text for each in back.examples] == [each.text for each in one.examples]
        assert (back.examples[0].picture is None) == (one.dataset == "chains")
    with pytest.raises(conserva.Error, match="not a valid result of the graph experiment"):
        GraphResult.from_json('{"schema": "other"}')
    with pytest.raises(conserva.Error, match="truncated"):
        GraphResult.from_json(text[:100])


def test_what_is_done_stays(ran: tuple[Path, list[GraphResult]]) -> None:
    out, results = ran
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "runs" in path.parts}
    assert len(before) > 2 * 2 * len(MASKS)
    (out / "runs" / "lines" / "seed-1" / "blank" / "evaluation.json").unlink()
    said: list[tuple[str, int, int]] = []
    again = reproduce_graphs(PLAN, out, say=lambda *told: said.append(told))
    assert [one.to_json() for one in again] == [one.to_json() for one in results]
    assert not [doing for doing, _, _ in said if doing.startswith("training")]
    assert all(done == total for doing, done, total in said if doing != "putting together")
    assert {path: path.read_bytes() for path in before} == before


def test_one_masking_alone_uses_what_is_there(ran: tuple[Path, list[GraphResult]]) -> None:
    out, results = ran
    [alone] = reproduce_graphs(replace(PLAN, datasets=("chains",), masks=("blank",)), out)
    assert alone.evaluations == {"blank": results[0].evaluations["blank"]}
    assert list(alone.trained[0].auac) == ["blank"]
    reproduce_graphs(replace(PLAN, datasets=("chains",)), out)  # as the other tests know it


def test_another_shape_in_the_same_folder_is_refused(ran: tuple[Path, list[GraphResult]]) -> None:
    with pytest.raises(conserva.Error, match="differs in shape"):
        reproduce_graphs(replace(PLAN, shape={"pre_norm": False}), ran[0])


def test_an_unknown_dataset_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"'bacee' is unknown\. Did you mean 'bace'"):
        reproduce_graphs(replace(PLAN, datasets=("chains", "bacee")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The command line.


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["reproduce", "graphs", "--quick", "--datasets", "lines", "--masks", "token,blank", "--out", str(tmp_path)]
    assert main(given) == 0
    shown = capsys.readouterr()
    assert "LRP (AH+LN)" in shown.out
    assert "LINES blank" in shown.out
    assert "LINES induced" not in shown.out
    assert f"wrote {tmp_path / 'README.md'}" in shown.err
    assert f"wrote {tmp_path / 'lines-examples.png'}" in shown.err
    assert "the numbers mean nothing" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert main([*given, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["schema"] == "conserva/graph-experiment/1"
    assert list(found["evaluations"]) == ["token", "blank"]
    assert [one["seed"] for one in found["trained"]] == [0]


def test_norms_after_the_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["reproduce", "graphs", "--quick", "--datasets", "chains", "--masks", "token", "--post-norm", "--json"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["shape"]["pre_norm"] is False
    assert "norms after the sums" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["graphs", "--masks", "token,blnk"], "--masks token,blnk: blnk is not one of token, induced, blank"),
        (["graphs", "--datasets", "sst2"], "'sst2' is unknown"),
        (["graphs", "--jobs", "0"], "--jobs 0"),
        (["graphs", "--seeds", "0,x"], "--seeds 0,x"),
        (["graphs", "--device", "nowhere"], "--device nowhere"),
        (["graphs", "--as-released"], "--as-released is an option of reproduce text, not of reproduce graphs"),
        (["graphs", "--embeddings", "x"], "--embeddings is an option of reproduce text, not of reproduce graphs"),
        (["text", "--masks", "token"], "--masks is an option of reproduce graphs, not of reproduce text"),
        (["text", "--post-norm"], "--post-norm is an option of reproduce graphs, not of reproduce text"),
    ],
)
def test_what_cannot_be_run_is_told(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", given[0], "--out", str(tmp_path / "out"), *given[1:]]) == 1
    assert says in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_all_datasets_of_the_experiment_run_if_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[GraphPlan] = []

    def noted(plan: GraphPlan, *_: Any, **__: Any) -> list[GraphResult]:
        plans.append(plan)
        raise conserva.Error("noted")

    monkeypatch.setattr("conserva.paper.experiments.graphs.reproduce_graphs", noted)
    assert main(["reproduce", "graphs", "--out", str(tmp_path)]) == 1
    assert main(["reproduce", "graphs", "--out", str(tmp_path), "--quick"]) == 1
    assert "noted" in capsys.readouterr().err
    assert plans[0] == GraphPlan(tuple(GRAPH_DATASETS), (0, 1, 2), MASKS)
    assert {"bace", "mnist"} <= set(plans[0].datasets)
    assert (plans[1].seeds, plans[1].quick) == ((0,), True)
