"""The text experiment: every row, several classifiers as one, what is done stays, and nothing that is not measured."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import conserva
from conserva.attribution.registry import find
from conserva.cli import main
from conserva.datasets import DATASETS, Dataset, Labelled
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.evaluation.result import Evaluation
from conserva.paper.experiments import sentences as examples
from conserva.paper.experiments.findings import row_of
from conserva.paper.experiments.plan import OURS, ROWS, SLICES, Plan
from conserva.paper.experiments.pooling import pool
from conserva.paper.experiments.published import _all, published, published_accuracy, sources
from conserva.paper.experiments.result import TextResult
from conserva.paper.experiments.text import EVALUATION, MODEL, reproduce
from conserva.paper.training.recipe import RECIPES

REAL = os.environ.get("CONSERVA_DATA", "")
"""The folder of the real datasets; the small one of the other tests takes its place."""
PLAN = Plan(datasets=("small",), seeds=(0, 1), embeddings="sentiment", quick=True)


@pytest.fixture(scope="module")
def ran(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TextResult]:
    out = tmp_path_factory.mktemp("experiment")
    [found] = reproduce(PLAN, out)
    return out, found


def evaluations(out: Path) -> list[Evaluation]:
    folders = [out / "runs" / "small" / f"seed-{seed}" for seed in (0, 1)]
    return [Evaluation.load(folder / EVALUATION / "evaluation.json") for folder in folders]


# The plan.


def test_every_method_has_a_row_and_every_row_a_method() -> None:
    named = [row.method for row in ROWS]
    assert len(set(named)) == len(named)
    methods = [find(name) for name in Plan(()).methods()]
    assert {one.name.partition(":")[0] for one in methods} == set(conserva.methods())
    assert [one.name for one in methods] == Plan(()).methods()  # spelled as the results spell them
    assert OURS in named


def test_slices_and_recipes_are_of_datasets_that_exist() -> None:
    assert set(SLICES) | set(RECIPES) <= set(DATASETS)
    assert Plan(()).slice("sst2").count is None
    assert Plan((), quick=True).slice("imdb").count == 6


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
    assert published("auac", "sst2", OURS) == published("auac", "sst2", "ah+ln")
    assert published("auac", "sst2", "exact") is None
    assert published("au_mse", "meld-s", "gi") is None
    assert published_accuracy("sst2") == 0.813
    assert published_accuracy("semaine") is None


# A run.


def test_every_row_is_in_the_result(ran: tuple[Path, TextResult]) -> None:
    _, found = ran
    assert [one.method for one in found.evaluation.methods] == [row.method for row in ROWS]
    assert not found.evaluation.refused
    assert found.evaluation.samples == 6
    assert found.evaluation.protocol["name"] == "paper"
    assert found.evaluation.protocol["target"] == "true"
    assert [one.seed for one in found.trained] == [0, 1]
    assert found.trained[0].weights != found.trained[1].weights
    assert found.texts == {"train": 24, "validation": 12, "test": 10}


def test_points_are_averaged_over_classifiers_before_anything_else(ran: tuple[Path, TextResult]) -> None:
    out, found = ran
    each = evaluations(out)
    for row in ROWS:
        whole = row_of(found.evaluation, row.method)
        parts = [row_of(one, row.method) for one in each]
        assert whole is not None
        assert all(parts)
        for metric in ("auac", "au_mse", "aupc", "comprehensiveness", "sufficiency"):
            mean = np.mean([getattr(one, metric).mean for one in parts])
            assert getattr(whole, metric).mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
        assert whole.curves["activation"].mean == pytest.approx(
            np.mean([one.curves["activation"].mean for one in parts if one], axis=0)
        )
        assert whole.conservation.gap == pytest.approx(np.mean([one.conservation.gap for one in parts if one]))
        assert whole.conservation.sums == parts[0].conservation.sums  # type: ignore[union-attr]
    assert {pair.metric for pair in found.evaluation.pairs} == {"auac", "au_mse"}
    assert [one.auac[OURS] for one in found.trained] == [row_of(one, OURS).auac.mean for one in each]  # type: ignore[union-attr]


def test_intervals_are_about_samples(ran: tuple[Path, TextResult]) -> None:
    """One classifier twice is that classifier: the same mean, and no narrower interval."""
    out, _ = ran
    folder = out / "runs" / "small" / "seed-0" / EVALUATION
    one = evaluations(out)[0]
    twice = pool([folder, folder], [one, one], "small")
    for a, b in zip(twice.methods, one.methods, strict=True):
        assert (a.auac.mean, a.auac.low, a.auac.high) == pytest.approx((b.auac.mean, b.auac.low, b.auac.high))


def test_classifiers_on_different_samples_are_not_put_together(ran: tuple[Path, TextResult]) -> None:
    out, _ = ran
    folder = out / "runs" / "small" / "seed-0" / EVALUATION
    one = evaluations(out)[0]
    other = replace(one, provenance={**one.provenance, "data": "others"})
    with pytest.raises(conserva.Error, match="different samples"):
        pool([folder, folder], [one, other], "small")


def test_the_result_is_stored_and_read_back(ran: tuple[Path, TextResult]) -> None:
    out, found = ran
    text = (out / "small.json").read_text(encoding="utf-8")
    assert str(out) not in text
    assert os.environ["CONSERVA_DATA"] not in text
    back = TextResult.from_json(text)
    assert back.to_json() + "\n" == text
    assert back.evaluation.methods[3].auac.mean == pytest.approx(found.evaluation.methods[3].auac.mean, rel=1e-4)
    assert [one.text for one in back.sentences] == [one.text for one in found.sentences]
    with pytest.raises(conserva.Error, match="not a valid result of the text experiment"):
        TextResult.from_json('{"schema": "other"}')
    with pytest.raises(conserva.Error, match="truncated"):
        TextResult.from_json(text[:100])


def test_what_is_done_stays(ran: tuple[Path, TextResult]) -> None:
    out, found = ran
    said: list[tuple[str, int, int]] = []
    [again] = reproduce(PLAN, out, say=lambda *told: said.append(told))
    assert again == found
    (out / "runs" / "small" / "seed-1" / EVALUATION / "evaluation.json").unlink()
    [again] = reproduce(PLAN, out, say=lambda *told: said.append(told))
    assert not [doing for doing, _, _ in said if doing.startswith("training")]
    evaluated = [(done, total) for doing, done, total in said if doing.startswith("evaluating")]
    assert len(evaluated) == 2 * len(PLAN.seeds)  # each said it once: all of it was in the journal
    assert all(done == total for done, total in evaluated)
    assert again == found


def test_an_evaluation_of_another_kind_is_not_taken_for_this_one(
    ran: tuple[Path, TextResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = ran
    monkeypatch.setattr(Plan, "methods", lambda plan: ["gi"])
    with pytest.raises(conserva.Error, match=r"another run of an evaluation\. It differs in methods"):
        reproduce(PLAN, out)


def test_one_more_seed_keeps_the_others(ran: tuple[Path, TextResult], tmp_path: Path) -> None:
    out, found = ran
    weights = (out / "runs" / "small" / "seed-0" / MODEL / "training.json").read_bytes()
    [more] = reproduce(replace(PLAN, seeds=(0, 1, 2)), out)
    assert [one.seed for one in more.trained] == [0, 1, 2]
    assert more.trained[:2] == found.trained
    assert (out / "runs" / "small" / "seed-0" / MODEL / "training.json").read_bytes() == weights


def test_another_recipe_in_the_same_folder_is_refused(ran: tuple[Path, TextResult]) -> None:
    out, _ = ran
    with pytest.raises(conserva.Error, match="differs in as_released"):
        reproduce(replace(PLAN, as_released=True), out)


def test_an_unknown_dataset_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match="'smal' is unknown"):
        reproduce(replace(PLAN, datasets=("semaine", "smal")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Side by side.


def test_an_error_of_a_job_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_DATA", str(tmp_path))
    with pytest.raises(conserva.Error, match=r"has no file 'silicone_sem/silicone_sem\.parquet'"):
        reproduce(replace(PLAN, datasets=("semaine",)), tmp_path / "out", jobs=2)


@pytest.mark.skipif(not REAL, reason="CONSERVA_DATA names no folder of datasets")
def test_jobs_side_by_side_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_DATA", REAL)
    plan = replace(PLAN, datasets=("semaine", "meld-s"), seeds=(0,))
    said: list[tuple[str, int, int]] = []
    alone = reproduce(plan, tmp_path / "alone")
    together = reproduce(plan, tmp_path / "together", jobs=2, say=lambda *what: said.append(what))
    assert ("classifiers", 2, 2) in said
    for a, b in zip(alone, together, strict=True):
        for row in ROWS:
            one, other = row_of(a.evaluation, row.method), row_of(b.evaluation, row.method)
            assert one is not None
            assert other is not None
            assert one.auac.mean == pytest.approx(other.auac.mean, abs=1e-3)  # other threads, other roundings


# Sentences.


def test_sentences_are_the_first_right_ones_of_each_class(ran: tuple[Path, TextResult]) -> None:
    _, found = ran
    texts = list(dict.fromkeys(one.text for one in found.sentences))
    assert 1 <= len(texts) <= 2
    assert len(found.sentences) == len(texts) * len(examples.METHODS)
    assert [one.method for one in found.sentences[: len(examples.METHODS)]] == list(examples.METHODS)


def test_quoted_sentences_come_first_and_hate_is_not_shown() -> None:
    task = conserva.load()
    test = Labelled(("how dull.", "a mess.", "a joy.", "wonderful, so moving."), (1, 0, 1, 1), "texts")
    found = list(dict.fromkeys(one.text for one in examples.sentences(task, "sst2", test)))
    assert found == [*examples.QUOTED["sst2"], "a mess.", "a joy."]  # "how dull." is called positive, which is wrong
    assert examples.sentences(task, "tweeteval-hate", test) == ()


# The command line.


def test_the_command_writes_a_page(
    data: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["reproduce", "text", "--quick", "--datasets", "small", "--out", str(tmp_path)]
    assert main(given) == 0
    shown = capsys.readouterr()
    assert "LRP (AH+LN)" in shown.out
    assert f"wrote {tmp_path / 'README.md'}" in shown.err
    assert "the numbers mean nothing" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert main([*given, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["schema"] == "conserva/text-experiment/1"
    assert found["recipe"]["embeddings"] == "sentiment"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--jobs", "0"], "--jobs 0"),
        (["--seeds", "0,x"], "--seeds 0,x"),
        (["--datasets", "imbd"], "Did you mean 'imdb'"),
        (["--device", "nowhere"], "--device nowhere"),
    ],
)
def test_what_cannot_be_run_is_told(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "text", "--out", str(tmp_path / "out"), *given]) == 1
    assert says in capsys.readouterr().err
