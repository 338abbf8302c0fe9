"""The experiments: every cell, several models as one, what is done stays, and what is shown as an example."""

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
from conserva.datasets import DATASETS, Dataset, Labelled
from conserva.datasets.graph import Graph
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.evaluation.result import Evaluation
from conserva.paper.experiments import sentences
from conserva.paper.experiments.findings import columns
from conserva.paper.experiments.graphs import EXAMPLES, SHOWN, GraphPlan
from conserva.paper.experiments.plan import SLICES, Plan
from conserva.paper.experiments.pooling import pool
from conserva.paper.experiments.published import _all, published, published_accuracy, sources
from conserva.paper.experiments.result import AnyResult, GraphResult, TextResult, reached, row_of
from conserva.paper.experiments.rows import OURS, method_of
from conserva.paper.experiments.run import MODEL, reproduce
from conserva.paper.experiments.texts import TextPlan
from conserva.paper.training.recipe import RECIPES
from conserva.tasks.graph import MASKS

REAL = os.environ.get("CONSERVA_DATA", "")
"""The folder of the real datasets; the small one of the other tests takes its place."""
PLANS: dict[str, Plan] = {
    "texts": TextPlan(datasets=("small",), seeds=(0, 1), embeddings="sentiment", quick=True),
    "graphs": GraphPlan(datasets=("chains", "lines"), seeds=(0, 1), quick=True),
}
KINDS = pytest.mark.parametrize("kind", list(PLANS))
Ran = dict[str, tuple[Path, list[Any]]]
"""Kind -> the folder of the run, and its results."""


def superpixels(one: Graph) -> Graph:
    """Return a chain whose nodes are regions of an image, one beside the other."""
    regions = np.arange(len(one))[None].repeat(2, 0)
    image = np.linspace(0, 255, regions.size).astype(np.uint8).reshape(regions.shape)
    return replace(one, picture={"kind": "superpixels", "image": image, "regions": regions})


def lines(split: str, folder: Any, count: int | None, seed: int, progress: Any) -> list[Graph]:
    return [superpixels(one) for one in made(split, numbers=True)[:count]]


@pytest.fixture(autouse=True, scope="module")
def known(data: Dataset, few_resamples: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRAPH_DATASETS, "chains", IDS)  # type: ignore[arg-type]
        patch.setitem(GRAPH_DATASETS, "lines", replace(NUMBERS, reader=lines))  # type: ignore[arg-type]
        yield


@pytest.fixture(scope="module")
def ran(known: None, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in PLANS}
    return {kind: (out, reproduce(PLANS[kind], out)) for kind, out in folders.items()}


def folders_of(out: Path, one: AnyResult, part: str) -> list[Path]:
    return [out / "runs" / one.dataset / f"seed-{seed}" / part for seed in (0, 1)]


def evaluations(folders: list[Path]) -> list[Evaluation]:
    return [Evaluation.load(folder / "evaluation.json") for folder in folders]


# The plans.


NEWER = {"gim", "exact+res", "attnlrp+res", "path"}
"""Methods that the tables do not have."""


@KINDS
def test_every_method_has_a_row_and_every_row_a_method(kind: str) -> None:
    plan = PLANS[kind]
    named = [row.method for row in plan.rows]
    assert len(set(named)) == len(named)
    methods = [find(name) for name in plan.methods()]
    assert {one.name.partition(":")[0] for one in methods} == set(conserva.methods()) - NEWER
    assert [one.name for one in methods] == plan.methods()  # spelled as the results spell them
    assert method_of(plan.rows, OURS) in named


def test_slices_and_recipes_are_of_datasets_that_exist() -> None:
    assert set(SLICES) | set(RECIPES) <= {*DATASETS, *GRAPH_DATASETS}
    assert TextPlan(()).slice("sst2").count is None
    assert TextPlan((), quick=True).slice("imdb").count == 6
    assert [GraphPlan(()).slice(name).steps for name in ("bace", "mnist")] == ["each", 25]


# The authors' numbers.


def test_published_numbers_have_a_source() -> None:
    for metric in ("auac", "au_mse"):
        for dataset, methods in _all()[metric].items():
            assert dataset in {*DATASETS, *GRAPH_DATASETS}
            for method in methods:
                found = published(metric, dataset, method)
                assert found is not None
                assert found.source in sources()
                assert 0 < found.value < (1 if metric == "auac" else 200)
    assert published("auac", "sst2", "ah+ln:at=embeddings") == published("auac", "sst2", "ah+ln")
    assert published("auac", "sst2", "exact") is None
    assert [published_accuracy(name) for name in ("sst2", "semaine", "mnist")] == [0.813, None, 0.972]
    assert published_accuracy("bace", "roc_auc") == 0.835


# A run.


def test_every_row_of_texts_is_in_the_result(ran: Ran) -> None:
    [found] = ran["texts"][1]
    assert [one.method for one in found.evaluation.methods] == [row.method for row in found.rows]
    assert not found.evaluation.refused
    assert found.evaluation.samples == 6
    assert found.evaluation.protocol["name"] == "paper"
    assert found.evaluation.protocol["target"] == "true"
    assert [one.seed for one in found.trained] == [0, 1]
    assert found.trained[0].weights != found.trained[1].weights
    assert found.texts == {"train": 24, "validation": 12, "test": 10}


def test_every_cell_of_graphs_is_in_the_result(ran: Ran) -> None:
    out, results = ran["graphs"]
    chains, images = results
    assert [one.dataset for one in results] == ["chains", "lines"]
    for one in results:
        expected = [row.method for row in one.rows if row.method != "intensity" or one is images]
        assert list(one.evaluations) == list(MASKS)
        for mask, found in one.evaluations.items():
            assert [row.method for row in found.methods] == expected
            assert not found.refused
            assert (found.protocol["mask"], found.protocol["target"], found.samples) == (mask, "true", 4)
            for seed in one.trained:
                assert list(seed.auac[mask]) == list(seed.au_mse[mask]) == expected
        assert [seed.seed for seed in one.trained] == [0, 1]
        assert one.trained[0].weights != one.trained[1].weights
        assert len({row_of(found, "ah+ln").au_mse.mean for found in one.evaluations.values()}) == 3  # type: ignore[union-attr]
    assert (chains.metric, images.metric) == ("roc_auc", "accuracy")
    assert reached(chains) == [one.test_roc_auc for one in chains.trained]
    assert reached(images) == [one.test_accuracy for one in images.trained]
    assert images.trained[0].test_roc_auc is None  # it is accuracy that counts
    training = json.loads((out / "runs" / "chains" / "seed-0" / MODEL / "training.json").read_text(encoding="utf-8"))
    assert chains.parameters == training["trained_parameters"]


@KINDS
def test_points_are_averaged_over_models_before_anything_else(kind: str, ran: Ran) -> None:
    out, results = ran[kind]
    for column in columns(results):
        one, mask, whole = column.result, column.mask, column.evaluation
        each = evaluations(folders_of(out, one, mask or "evaluation"))
        for method in whole.methods:
            parts = [part for found in each if (part := row_of(found, method.method))]
            assert len(parts) == 2
            for metric in ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency"):
                mean = np.mean([getattr(part, metric).mean for part in parts])
                assert getattr(method, metric).mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
            curve = np.mean([part.curves["activation"].mean for part in parts], axis=0)
            assert method.curves["activation"].mean == pytest.approx(curve)
            assert method.conservation.distance == pytest.approx(
                np.mean([part.conservation.distance for part in parts])
            )
            assert method.conservation.sums == parts[0].conservation.sums
            for metric in ("auac", "au_mse"):
                means = [model.means(metric, mask)[method.method] for model in one.trained]
                assert means == [getattr(part, metric).mean for part in parts]
        assert {pair.metric for pair in whole.pairs} == {"auac", "au_mse"}


def test_intervals_are_about_samples(ran: Ran) -> None:
    """One classifier twice is that classifier: the same mean, and no narrower interval."""
    out, [found] = ran["texts"]
    folder, _ = folders_of(out, found, "evaluation")
    [one] = evaluations([folder])
    twice = pool([folder, folder], [one, one], "small")
    for a, b in zip(twice.methods, one.methods, strict=True):
        assert (a.auac.mean, a.auac.low, a.auac.high) == pytest.approx((b.auac.mean, b.auac.low, b.auac.high))


def test_classifiers_on_different_samples_are_not_put_together(ran: Ran) -> None:
    out, [found] = ran["texts"]
    folder, _ = folders_of(out, found, "evaluation")
    [one] = evaluations([folder])
    other = replace(one, provenance={**one.provenance, "data": "others"})
    with pytest.raises(conserva.Error, match="different samples"):
        pool([folder, folder], [one, other], "small")


@KINDS
def test_results_are_stored_and_read_back(kind: str, ran: Ran) -> None:
    out, results = ran[kind]
    loader, noun = {"texts": (TextResult, "text"), "graphs": (GraphResult, "graph")}[kind]
    for one in results:
        text = (out / f"{one.dataset}.json").read_text(encoding="utf-8")
        assert str(out) not in text
        assert os.environ["CONSERVA_DATA"] not in text
        back: Any = loader.from_json(text)
        assert back.to_json() + "\n" == text
        assert (back.dataset, back.labels, back.samples, back.settings) == (
            one.dataset, one.labels, one.samples, json.loads(json.dumps(one.settings)),
        )  # fmt: skip
        mask = list(one.evaluations)[-1]
        means, expected = (each.trained[1].means("auac", mask) for each in (back, one))
        assert means == pytest.approx(expected, rel=1e-4)
        assert [each.text for each in back.examples] == [each.text for each in one.examples]
        assert (back.examples[0].picture is None) == (one.dataset != "lines")
    with pytest.raises(conserva.Error, match=f"not a valid result of the {noun} experiment"):
        loader.from_json('{"schema": "other"}')
    with pytest.raises(conserva.Error, match="truncated"):
        loader.from_json(text[:100])


@KINDS
def test_what_is_done_stays(kind: str, ran: Ran) -> None:
    out, results = ran[kind]
    plan = PLANS[kind]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "runs" in path.parts}
    evaluated = [path for path in before if path.name == "evaluation.json"]
    assert len(evaluated) == len(plan.datasets) * len(plan.seeds) * len(plan.parts())
    evaluated[-1].unlink()
    said: list[tuple[str, int, int]] = []
    again = reproduce(plan, out, say=lambda *told: said.append(told))
    assert [one.to_json() for one in again] == [one.to_json() for one in results]
    assert not [doing for doing, _, _ in said if doing.startswith("training")]
    told = [(done, total) for doing, done, total in said if doing.startswith("evaluating")]
    assert len(told) == len(evaluated)  # each said it once: all of it was in the journal
    assert all(done == total for done, total in told)
    assert {path: path.read_bytes() for path in before} == before


def test_an_evaluation_of_another_kind_is_not_taken_for_this_one(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "methods", lambda plan: ["gi"])
    with pytest.raises(conserva.Error, match=r"another run of an evaluation\. It differs in methods"):
        reproduce(PLANS["texts"], ran["texts"][0])


def test_one_more_seed_keeps_the_others(ran: Ran) -> None:
    out, [found] = ran["texts"]
    weights = (out / "runs" / "small" / "seed-0" / MODEL / "training.json").read_bytes()
    [more] = reproduce(replace(PLANS["texts"], seeds=(0, 1, 2)), out)
    assert [one.seed for one in more.trained] == [0, 1, 2]
    assert more.trained[:2] == found.trained
    assert (out / "runs" / "small" / "seed-0" / MODEL / "training.json").read_bytes() == weights


def test_one_masking_alone_uses_what_is_there(ran: Ran) -> None:
    out, results = ran["graphs"]
    [alone] = reproduce(replace(PLANS["graphs"], datasets=("chains",), masks=("blank",)), out)  # type: ignore[call-arg]
    assert alone.evaluations == {"blank": results[0].evaluations["blank"]}
    assert list(alone.trained[0].auac) == ["blank"]
    reproduce(replace(PLANS["graphs"], datasets=("chains",)), out)  # as the other tests know it


@pytest.mark.parametrize(
    ("kind", "changes"), [("texts", {"as_released": True}), ("graphs", {"shape": {"pre_norm": False}})]
)
def test_other_settings_in_the_same_folder_are_refused(kind: str, changes: dict[str, Any], ran: Ran) -> None:
    with pytest.raises(conserva.Error, match=f"differs in {next(iter(changes))}"):
        reproduce(replace(PLANS[kind], **changes), ran[kind][0])


@pytest.mark.parametrize(
    ("kind", "names", "says"),
    [
        ("texts", ("semaine", "smal"), "'smal' is unknown"),
        ("graphs", ("chains", "bacee"), "'bacee' is unknown. Did you"),
    ],
)
def test_an_unknown_dataset_is_refused_before_anything_runs(
    kind: str, names: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(conserva.Error, match=says):
        reproduce(replace(PLANS[kind], datasets=names), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Several at the same time.


def test_an_error_of_a_job_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_DATA", str(tmp_path))
    with pytest.raises(conserva.Error, match=r"has no file 'silicone_sem/silicone_sem\.parquet'"):
        reproduce(replace(PLANS["texts"], datasets=("semaine",)), tmp_path / "out", jobs=2)


@pytest.mark.skipif(not REAL, reason="CONSERVA_DATA names no folder of datasets")
def test_jobs_at_the_same_time_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_DATA", REAL)
    plan = replace(PLANS["texts"], datasets=("semaine", "meld-s"), seeds=(0,))
    said: list[tuple[str, int, int]] = []
    alone = reproduce(plan, tmp_path / "alone")
    together = reproduce(plan, tmp_path / "together", jobs=2, say=lambda *what: said.append(what))
    assert {("models", 2, 2), ("evaluations", 2, 2)} <= set(said)
    for a, b in zip(alone, together, strict=True):
        for method in plan.methods():
            one, other = (row_of(found.evaluations[""], method) for found in (a, b))
            assert one is not None
            assert other is not None
            assert one.auac.mean == pytest.approx(other.auac.mean, abs=1e-3)  # other threads, other roundings


# Ledgers and examples.


def test_ledgers_close(ran: Ran) -> None:
    for one in ran["graphs"][1]:
        assert [ledger.rules for ledger in one.books] == ["gi", "ah", "ln", "ah+ln", "exact"]
        ledgers = {each.rules: each for each in one.books}
        assert ledgers["exact"].largest_gap < 1e-10
        assert ledgers["gi"].largest_gap > 1e-6
        for each in one.books:
            assert len(each.outputs) == len(each.sums) == 4
            assert each.gap <= each.largest_gap
            assert each.output == pytest.approx(np.abs(each.outputs).mean())


def test_graphs_that_are_shown_are_of_each_class_in_turn(ran: Ran) -> None:
    chains = ran["graphs"][1][0]
    assert len(chains.examples) == min(EXAMPLES, 4) * len(SHOWN)
    assert [one.method for one in chains.examples[: len(SHOWN)]] == list(SHOWN)
    assert [one.text for one in chains.examples[:: len(SHOWN)]] == [f"test {row}" for row in range(4)]
    assert [one.target for one in chains.examples[:: len(SHOWN)]] == ["no", "yes", "no", "yes"]


def test_sentences_are_the_first_right_ones_of_each_class(ran: Ran) -> None:
    [found] = ran["texts"][1]
    texts = list(dict.fromkeys(one.text for one in found.sentences))
    assert 1 <= len(texts) <= 2
    assert len(found.sentences) == len(texts) * len(sentences.METHODS)
    assert [one.method for one in found.sentences[: len(sentences.METHODS)]] == list(sentences.METHODS)


def test_quoted_sentences_come_first_and_hate_is_not_shown() -> None:
    task = conserva.load()
    test = Labelled(("how dull.", "a mess.", "a joy.", "wonderful, so moving."), (1, 0, 1, 1), "texts")
    found = list(dict.fromkeys(one.text for one in sentences.sentences(task, "sst2", test)))
    assert found == [*sentences.QUOTED["sst2"], "a mess.", "a joy."]  # "how dull." is called positive, which is wrong
    assert sentences.sentences(task, "tweeteval-hate", test) == ()
