"""What moves the levels of AUAC: changes that can be checked by hand, and a page that says what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conserva
from conserva.datasets import Dataset
from conserva.evaluation.result import Interval
from conserva.paper.experiments import published as authors
from conserva.paper.training.recipe import RECIPES, TextRecipe
from conserva.paper.views.cells import difference
from markdown_tables import row_in, section, tables
from script_files import loaded

levels, writer = loaded("scripts/levels.py"), loaded("scripts/levels_page.py")
SMALL = TextRecipe(learning_rate=1e-3, epochs=3, batch_size=8, patience=3, tokens=8)
MADE: dict[str, Any] = json.loads((writer.FOLDER / writer.RESULT).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All changes on a small dataset, whose name the paper's tables have."""
    folder = tmp_path_factory.mktemp("levels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "small", SMALL)  # type: ignore[arg-type]
        patch.setitem(levels.DATASETS, "small", tuple(levels.MODELS))
        patch.setattr(levels, "RESAMPLES", 200)
        patch.setitem(authors._all()["au_mse"], "small", {"random": [0.01, "table"]})
        for model in levels.MODELS:
            levels.trained("small", model, "sentiment", folder)
        yield folder, levels.measure_all("small", folder, 10)


def change(found: dict[str, Any], title: str) -> dict[str, Any]:
    [row] = [row for row in found["changes"] if row["title"] == title]
    return dict(row)


def test_the_base_is_the_papers_protocol(data: Dataset, measured: tuple[Path, dict[str, Any]]) -> None:
    folder, found = measured
    task = conserva.load(folder / "small" / "seed-0")
    evaluation = conserva.evaluate(
        task, data.read("test"), ["random", "ah+ln:at=embeddings"], protocol="paper", random_seeds=levels.RANDOM_SEEDS,
        reference=False,
    )  # fmt: skip
    for name, one in zip(levels.NAMES, evaluation.methods, strict=True):
        assert found["base"]["auac"][name][0] == pytest.approx(one.auac.mean)
        assert found["base"]["au_mse"][name] == pytest.approx(one.au_mse.mean)
    curve = evaluation.methods[0].curves["activation"].mean
    assert (found["base"]["start"], found["base"]["end"]) == pytest.approx((curve[0], curve[-1]))
    assert found["base"]["accuracy"] == evaluation.accuracy


def test_every_change_is_measured_and_moves_by_its_difference(measured: tuple[Path, dict[str, Any]]) -> None:
    _, found = measured
    titles = [row["title"] for row in found["changes"]]
    assert titles == [one.title for one in levels.CHANGES]
    for row in found["changes"]:
        for name in levels.NAMES:
            mean, low, high = row["moved"][name]
            assert mean == pytest.approx(row["auac"][name][0] - found["base"]["auac"][name][0])
            assert low <= mean <= high
    assert change(found, "training split")["samples"] == 10
    assert change(found, "stopped after 1 epoch")["auac"] != found["base"]["auac"]


def test_logits_are_scaled(measured: tuple[Path, dict[str, Any]]) -> None:
    _, found = measured
    base = found["base"]["au_mse"]["random"]
    assert change(found, "logits times 2")["au_mse"]["random"] == pytest.approx(4 * base, rel=1e-4)
    assert change(found, "logits times 1/2")["au_mse"]["random"] == pytest.approx(base / 4, rel=1e-4)
    assert change(found, "logits scaled to the paper's AU-MSE")["au_mse"]["random"] == pytest.approx(0.01, rel=1e-4)


def test_a_training_that_is_stopped_is_the_beginning_of_the_whole(measured: tuple[Path, dict[str, Any]]) -> None:
    recipe = levels.StoppedRecipe(epochs=4, learning_rate=1e-3)
    whole = TextRecipe(learning_rate=1e-3)
    assert [recipe.share(step, 4 * 7) for step in range(28)] == [whole.share(step, 20 * 7) for step in range(28)]
    folder, found = measured
    trained = json.loads((folder / "small" / "epochs-8" / "training.json").read_text(encoding="utf-8"))
    assert (trained["kept_epoch"], trained["last_epoch"]) == (8, 8)
    assert found["models"]["stopped after 8 epochs"]["kept_epoch"] == 8


def made(count: int = 6) -> Any:
    rng = np.random.default_rng(0)
    shown, removed = rng.random((2, count, 2, 11))
    labels, right = np.array([0, 0, 0, 0, 1, 1]), np.array([True, False, True, True, False, True])
    return levels.Measured(shown, removed, labels, right, np.ones(count))


def test_weights() -> None:
    one = made()
    right, balanced = one.weighted("right"), one.weighted("balanced")
    assert levels.summary(right)["auac"]["random"][0] == pytest.approx(one.areas[one.right, 0].mean())
    assert levels.summary(right)["samples"] == 4
    assert levels.summary(right)["accuracy"] == 1.0
    means = [one.areas[one.labels == label, 1].mean() for label in (0, 1)]
    assert levels.summary(balanced)["auac"]["ah+ln"][0] == pytest.approx(np.mean(means))
    assert one.weighted("equal") is one


def test_differences_on_the_same_texts_are_paired() -> None:
    one = made()
    higher = replace(one, shown=one.shown + 0.125)
    for name in levels.NAMES:
        assert levels.moved(higher, one, True)[name] == pytest.approx([0.125] * 3)
        mean, low, high = levels.moved(higher, one, False)[name]
        assert mean == pytest.approx(0.125)
        assert low < 0.1 < 0.15 < high


# What notes.md says


def moves(dataset: str, title: str, method: str = "random") -> list[float]:
    return list(change(MADE["datasets"][dataset], title)["moved"][method])


def test_training_and_the_released_model_move_levels_as_the_notes_say() -> None:
    base = MADE["datasets"]["tweeteval-emotion"]["base"]
    for method in levels.NAMES:
        theirs = authors.published("auac", "tweeteval-emotion", method)
        assert theirs is not None
        missing = theirs.value - base["auac"][method][0]
        for title in ("another seed", "stopped after 1 epoch", "stopped after 8 epochs"):
            mean, low, high = moves("tweeteval-emotion", title, method)
            assert abs(mean) > missing
            assert low > 0 or high < 0
            ratio = moves("tweeteval-emotion", title, "ah+ln")[0] / moves("tweeteval-emotion", title)[0]
            assert 1.7 < ratio < 2.9
        mean, low, high = moves("tweeteval-emotion", "quirks of the released code", method)
        assert low < missing < high
    distances = {
        row["title"]: sum(
            abs(row["auac"][method][0] - theirs.value)
            for method in levels.NAMES
            if (theirs := authors.published("auac", "tweeteval-emotion", method)) is not None
        )
        for row in MADE["datasets"]["tweeteval-emotion"]["changes"]
    }
    assert min(distances, key=lambda title: distances[title]) == "quirks of the released code"


def test_removal_and_scale_move_levels_as_the_notes_say() -> None:
    emotion = MADE["datasets"]["tweeteval-emotion"]
    removal = {row["title"]: row["moved"] for row in emotion["changes"] if row["group"] == "removal"}
    for method in levels.NAMES:
        highest = max(removal, key=lambda title: removal[title][method][0])
        assert highest == "hidden from attention, special tokens stay"
        assert removal["token `[MASK]`"][method][1] > 0
        for title in ("special tokens stay", "one token a step"):
            assert abs(removal[title][method][0]) < 0.015
        assert moves("tweeteval-emotion", "logits scaled to the paper's AU-MSE", method)[2] < 0
    near = [row["title"] for row in emotion["changes"] if row["au_mse"]["random"] < 1.5 * 4.25]
    assert near == ["logits times 1/2", "logits scaled to the paper's AU-MSE"]


def test_texts_of_hate_move_levels_as_the_notes_say() -> None:
    hate = MADE["datasets"]["tweeteval-hate"]
    assert hate["base"]["accuracy"] < 0.5
    for title in ("validation split", "training split"):
        row = change(hate, title)
        assert row["auac"]["random"][2] > 0.640
        assert row["au_mse"]["random"] == pytest.approx(9.12, rel=0.1)
    for title in ("predicted class", "only texts classified correctly", "each class counts alike"):
        assert moves("tweeteval-hate", title)[2] < 0


def test_shares_of_classes_move_semaine_as_the_notes_say() -> None:
    found = MADE["datasets"]["semaine"]
    assert found["base"]["start"] > 0.5
    assert abs(found["base"]["auac"]["random"][0] - found["base"]["start"]) < 0.02
    for method in levels.NAMES:
        theirs = authors.published("auac", "semaine", method)
        assert theirs is not None
        assert change(found, "each class counts alike")["auac"][method][0] < theirs.value
    assert 1.92 < change(found, "quirks of the released code")["au_mse"]["random"] < 2.54
    missing = found["base"]["auac"]["random"][0] - 0.432
    assert 0.4 < -moves("semaine", "logits scaled to the paper's AU-MSE")[0] / missing < 0.6
    for title in ("hidden from attention, special tokens stay", "token `[MASK]`"):
        assert moves("semaine", title, "ah+ln")[1] > 0
    assert moves("semaine", "special tokens stay", "ah+ln")[2] < 0


# The page


def test_the_stored_page_is_up_to_date() -> None:
    notes = (writer.FOLDER / writer.NOTES).read_text(encoding="utf-8")
    assert (writer.FOLDER / writer.PAGE).read_text(encoding="utf-8") == writer.page(MADE, notes)


def test_the_page_has_every_change_in_every_dataset() -> None:
    text = writer.page(MADE)
    for method, title in writer.METHODS.items():
        [rows] = tables(section(text, f"By how much {title} moves"))
        for name, one in MADE["datasets"].items():
            column = writer.DATASETS[name].title
            shown = {row["change"] for row in rows if row[column] not in ("", writer.NONE)}
            assert {row["title"] for row in one["changes"]} <= shown
            for row in one["changes"]:
                assert row_in(rows, change=row["title"])[column] == difference(Interval(*row["moved"][method]))
            theirs = authors.published("auac", name, method)
            assert theirs is not None
            to_explain = float(row_in(rows, change="the paper")[column])
            assert to_explain == pytest.approx(theirs.value - one["base"]["auac"][method][0], abs=6e-4)
    assert "What was found" not in text
    assert "## What was found\nThis.\n" in writer.page(MADE, "This.\n")


def test_levels_are_beside_those_of_the_paper() -> None:
    found = tables(section(writer.page(MADE), "Levels"))
    assert len(found) == len(MADE["datasets"])
    for rows, (name, one) in zip(found, MADE["datasets"].items(), strict=True):
        theirs = authors.published("au_mse", name, "random")
        assert theirs is not None
        first = row_in(rows, **{"": "the paper"})
        assert float(first["AU-MSE"]) == pytest.approx(theirs.value, abs=6e-3)
        assert row_in(rows, **{"": "base"})["texts"] == str(one["base"]["samples"])
