"""Trainings that are stopped and continued, and folders that hold another training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import conserva
from chains import NUMBERS
from conserva.paper.training.checkpoint import read_state, write_state
from conserva.paper.training.graphs import GraphClassifier
from conserva.paper.training.recipe import Recipe
from conserva.paper.training.trainer import STATE, Trainer
from training_kinds import KIND_NAMES, KINDS, trained, weights

pytestmark = pytest.mark.usefixtures("known_datasets")


@pytest.fixture(scope="module")
def finished(known_datasets: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of an unbroken training of a kind, which is not to be changed."""

    @cache
    def folder(kind: str, recipe: Recipe) -> Path:
        out = tmp_path_factory.mktemp("finished")
        torch.manual_seed(0)
        trained(kind, out, recipe=recipe)
        return out

    return lambda kind, recipe=None: folder(kind, recipe or KINDS[kind].recipe)


def stop_in_the_second(done: int, total: int) -> None:
    assert total == 3 * 24
    if done > 24:
        raise KeyboardInterrupt


def stop_in_the_first(done: int, total: int) -> None:
    raise KeyboardInterrupt


def stop_after_epoch(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Trainer._save

    def saved(self: Trainer, path: Path) -> None:
        save(self, path)
        if len(self.history) == number:
            monkeypatch.setattr(Trainer, "_save", save)
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save", saved)


@pytest.mark.parametrize("stop", ["in the first", "in the second", "after the first", "after the last"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [("texts", {}), ("graphs", {}), ("graphs", {"average": 0.9, "keep": "last"})],
    ids=["texts", "graphs", "average of the last"],
)
def test_stopped_and_resumed_is_as_unbroken(
    stop: str,
    kind: str,
    changes: dict[str, Any],
    finished: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = replace(KINDS[kind].recipe, **changes)
    whole = finished(kind, recipe)
    unbroken = trained(kind, whole, recipe=recipe)  # as it is
    out = tmp_path / "stopped"
    progress = {"in the first": stop_in_the_first, "in the second": stop_in_the_second}.get(stop)
    if progress is None:
        stop_after_epoch(1 if stop == "after the first" else 3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(kind, out, recipe=recipe, progress=progress)
    assert not (out / "training.json").exists()
    assert (out / STATE).exists() == (stop != "in the first")
    out.mkdir(exist_ok=True)
    (out / f"{STATE}.1.half").write_bytes(b"half a state")
    torch.manual_seed(7)
    steps: list[int] = []
    assert trained(kind, out, recipe=recipe, progress=lambda done, _: steps.append(done)) == unbroken
    left = {"in the first": 3, "in the second": 2, "after the first": 2, "after the last": 0}[stop]
    assert steps == [20, 24, 44, 48, 68, 72][2 * (3 - left) :]
    found, expected = weights(out), weights(whole)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert conserva.load(out).fingerprint == unbroken["weights"]


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3]), (1e9, [3])])
def test_the_state_is_written_now_and_then(
    seconds: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphClassifier, "saved_every", seconds)
    saves: list[int] = []
    save = Trainer._save

    def saved(self: Trainer, path: Path) -> None:
        saves.append(len(self.history))
        save(self, path)

    monkeypatch.setattr(Trainer, "_save", saved)
    trained("graphs", tmp_path)
    assert saves == expected


@KIND_NAMES
def test_a_finished_folder_is_left_as_it_is(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(kind, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.delattr(Trainer, "run")
    assert trained(kind, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


@KIND_NAMES
@pytest.mark.parametrize("ended", [True, False])
def test_a_folder_of_other_settings_is_refused(
    kind: str, ended: bool, finished: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ended:
        shutil.copytree(finished(kind), tmp_path, dirs_exist_ok=True)
    else:
        stop_after_epoch(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trained(kind, tmp_path)
    one = KINDS[kind]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "it differs in seed."),
        ({"recipe": replace(one.recipe, clip=0.5), "count": 20}, "it differs in recipe, count"),
        ({"classifier": one.make(**one.other)}, f"it differs in {', '.join(one.other)}"),
    ]
    if kind == "graphs":
        cases.append(({"classifier": GraphClassifier(NUMBERS)}, "it differs in dataset, shape."))
    for changes, names in cases:
        with pytest.raises(conserva.Error) as message:
            trained(kind, tmp_path, **changes)
        assert all(part in str(message.value) for part in (str(tmp_path), "another training", names))


@KIND_NAMES
@pytest.mark.parametrize("file", [STATE, "training.json"])
@pytest.mark.parametrize("how", ["cut", "foreign"])
def test_damaged_files_are_named(
    kind: str, file: str, how: str, finished: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file == STATE:
        stop_after_epoch(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trained(kind, tmp_path)
    else:
        shutil.copytree(finished(kind), tmp_path, dirs_exist_ok=True)
    path = tmp_path / file
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif file == STATE:
        torch.save({"model": {}}, path)
    else:
        path.write_text('{"schema": "something/else"}', encoding="utf-8")
    with pytest.raises(conserva.Error) as message:
        trained(kind, tmp_path)
    says = "is damaged" if file == STATE else "is not a valid result of a training"
    assert str(message.value).startswith(f"{path} {says}")
    path.unlink()
    assert trained(kind, tmp_path)["best_epoch"] >= 1


@KIND_NAMES
def test_a_file_in_place_of_the_folder_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine", encoding="utf-8")
    with pytest.raises(conserva.Error, match="is a file: name a folder"):
        trained(kind, tmp_path / "model")


def test_a_state_without_an_average_is_continued(
    finished: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of texts were once written without one."""
    unbroken = trained("texts", finished("texts"))  # as it is
    out = tmp_path / "stopped"
    stop_after_epoch(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained("texts", out)
    state = read_state(out / STATE, torch.device("cpu"))
    write_state(out / STATE, {name: value for name, value in state.items() if name not in ("average", "made")})
    assert trained("texts", out) == unbroken
