"""The Trainer of transformers: a training with the callback is the one without it, and its runs get explanations."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

import torch
from transformers import Trainer, TrainingArguments

import conserva
import tiny_heads
from conserva.integrations.trainer import RelevanceCallback
from doc_pages import wrong_examples
from tiny_training import INPUTS, TARGETS, drawing, equal, examples, network
from wandb_files import history

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def callback(model: Any, **settings: Any) -> RelevanceCallback:
    return RelevanceCallback(model, INPUTS, TARGETS, tokenizer=tiny_heads.tokenizer(), **settings)


def trainer(folder: Path, model: Any, *callbacks: Any, **settings: Any) -> Trainer:
    given = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **settings,
    }
    return Trainer(
        model,
        TrainingArguments(str(folder), **given),
        train_dataset=examples(0, 32),
        eval_dataset=examples(32, 48),
        processing_class=tiny_heads.tokenizer(),
        callbacks=list(callbacks),
    )


def trained(folder: Path, model: Any, *callbacks: Any, **settings: Any) -> Trainer:
    found = trainer(folder, model, *callbacks, **settings)
    found.train()
    return found


# The training.


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [0, 4, 8]),
        ({"eval_strategy": "steps", "eval_steps": 3}, [0, 3, 6, 8]),
        ({"eval_strategy": "steps", "eval_steps": 1, "gradient_accumulation_steps": 2}, [0, 1, 2, 3, 4]),
        ({"eval_strategy": "no"}, [0, 4, 8]),
        ({"eval_on_start": True}, [0, 4, 8]),
        ({"bf16": True}, [0, 4, 8]),
    ],
    ids=str,
)
def test_a_training_is_bitwise_the_same(settings: dict[str, Any], steps: list[int], tmp_path: Path) -> None:
    plain, watched = drawing(network()), drawing(network())
    without = trained(tmp_path, plain, **settings)
    expected = torch.rand(3)
    one = callback(watched)
    found = trained(tmp_path, watched, one, **settings)
    assert torch.equal(torch.rand(3), expected)
    assert equal(watched.state_dict(), plain.state_dict())
    assert equal(found.optimizer.state_dict(), without.optimizer.state_dict())
    losses = [[row["loss"] for row in each.state.log_history if "loss" in row] for each in (found, without)]
    assert losses[0] == losses[1]
    assert not equal(plain.state_dict(), drawing(network()).state_dict())
    assert [snapshot.step for snapshot in one.history] == steps
    assert not any(snapshot.errors for snapshot in one.history)


def test_snapshots_are_explanations_of_the_model_at_that_time(tmp_path: Path) -> None:
    model = network()
    before = conserva.explain(conserva.Text(network().eval(), tiny_heads.tokenizer()), INPUTS[0], TARGETS[0])
    one = callback(model)
    trained(tmp_path, model, one)
    after = conserva.explain(conserva.Text(model.eval(), tiny_heads.tokenizer()), INPUTS[0], TARGETS[0])
    assert one.history[0].explanations[0].scores == before.scores
    assert one.history[-1].explanations[0].scores == after.scores != before.scores
    assert [snapshot.epoch for snapshot in one.history] == [0, 1, 2]


def test_several_sets_are_evaluated_and_the_model_is_explained_once(tmp_path: Path) -> None:
    model = network()
    one = callback(model)
    found = trainer(tmp_path, model, one)
    found.eval_dataset = {"a": examples(32, 40), "b": examples(40, 48)}
    found.train()
    assert [snapshot.step for snapshot in one.history] == [0, 4, 8]


def test_only_trainings_are_watched(tmp_path: Path) -> None:
    model = network()
    one = callback(model)
    found = trainer(tmp_path, model, one)
    found.evaluate()
    assert one.history == []
    found.train()
    found.evaluate()
    assert len(one.history) == 3


def test_a_resumed_training_begins_with_the_checkpoint(tmp_path: Path) -> None:
    first, again = network(), network()
    trained(tmp_path, first, callback(first), save_strategy="epoch")
    one = callback(again)
    trainer(tmp_path, again, one).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert [snapshot.step for snapshot in one.history] == [4, 8]
    assert [snapshot.epoch for snapshot in one.history] == [1, 2]
    assert equal(first.state_dict(), again.state_dict())


def test_only_the_first_process_explains_during_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    one = callback(model)
    found = trainer(tmp_path, model, one)
    monkeypatch.setattr(found, "is_world_process_zero", lambda: False)
    found.train()
    assert [snapshot.step for snapshot in one.history] == [0]


# What is refused.


def test_another_model_ends_the_training_before_its_first_step(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(conserva.Error, match="is not a part of the BertForSequenceClassification that is trained"):
        trained(tmp_path, model, callback(network()))
    assert equal(model.state_dict(), network().state_dict())


# Trackers.


def test_mlflow_gets_pages_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import mlflow

    monkeypatch.setattr(logging.getLogger("mlflow"), "disabled", True)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("tests", (tmp_path / "artifacts").as_uri()))
    model = network()
    one = callback(model, name="words")
    try:
        with mlflow.start_run() as active:
            trained(tmp_path, model, one, report_to="mlflow")
        client, run = mlflow.MlflowClient(), active.info.run_id
        names = {each.path for each in client.list_artifacts(run, "words")}
        assert names == {f"words/step_{step}.{kind}" for step in (0, 4, 8) for kind in ("html", "json", "png")}
        for snapshot in one.history:
            page = Path(client.download_artifacts(run, f"words/step_{snapshot.step}.html"))
            assert page.read_text(encoding="utf-8") == snapshot.tracked.page
        for name in one.history[-1].metrics():
            logged = {each.step: each.value for each in client.get_metric_history(run, f"words/{name}")}
            assert logged == {each.step: each.metrics()[name] for each in one.history if name in each.metrics()}
    finally:
        mlflow.set_tracking_uri(before)


def test_wandb_gets_pages_and_tables_at_the_trainers_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    model = network()
    one = callback(model)
    with wandb.init(project="tests", mode="offline", dir=str(tmp_path)) as run:
        trained(tmp_path, model, one, report_to="wandb", eval_strategy="no", logging_steps=3)
    wandb.teardown()
    rows = [row for row in history(Path(run.dir).parent) if "relevance/page" in row]
    assert [row["train/global_step"] for row in rows] == [0, 4, 8]
    for row, snapshot in zip(rows, one.history, strict=True):
        assert {name: row[f"relevance/{name}"] for name in snapshot.metrics()} == snapshot.metrics()
        table = json.loads((Path(run.dir) / row["relevance/table"]["path"]).read_text(encoding="utf-8"))
        scores = table["columns"].index("scores")
        assert [each[scores] for each in table["data"]] == [list(each.scores) for each in snapshot.explanations]


def test_examples() -> None:
    assert wrong_examples(RelevanceCallback) == ""
