"""Lightning: a training with the callback is the one without it, and its loggers get what was explained."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger
from torch import Tensor
from torch.utils.data import DataLoader

import conserva
import tiny_heads
from conserva.integrations.lightning import RelevanceCallback
from doc_pages import shown_and_printed, wrong_examples
from tiny_training import INPUTS, TARGETS, batch, drawing, equal, examples, network
from wandb_files import history

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::DeprecationWarning")


class Classifier(lightning.LightningModule):
    """The module of Lightning's first example, with a classifier of texts in it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, rows: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.model(**rows).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, rows: dict[str, Tensor], index: int) -> None:
        self.log("val_loss", self.model(**rows).loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def loaders() -> tuple[DataLoader, DataLoader]:
    return (
        DataLoader(examples(0, 32), 8, shuffle=True, collate_fn=batch),
        DataLoader(examples(32, 48), 8, collate_fn=batch),
    )


def callback(module: Classifier, **settings: Any) -> RelevanceCallback:
    return RelevanceCallback(module.model, INPUTS, TARGETS, tokenizer=tiny_heads.tokenizer(), **settings)


def trainer(*callbacks: Any, **settings: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    given = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "log_every_n_steps": 1, **quiet, **settings}
    return lightning.Trainer(callbacks=list(callbacks), **given)


def fitted(module: Classifier, *callbacks: Any, **settings: Any) -> lightning.Trainer:
    torch.manual_seed(1)
    found = trainer(*callbacks, **settings)
    found.fit(module, *loaders())
    return found


# The training.


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [0, 4, 8]),
        ({"val_check_interval": 0.5}, [0, 2, 4, 6, 8]),
        ({"val_check_interval": 0.5, "accumulate_grad_batches": 4}, [0, 1, 2]),
        ({"limit_val_batches": 0}, [0, 4, 8]),
        ({"check_val_every_n_epoch": 2}, [0, 8]),
        ({"precision": "bf16-mixed"}, [0, 4, 8]),
        ({"inference_mode": False}, [0, 4, 8]),
    ],
    ids=str,
)
def test_a_training_is_bitwise_the_same(settings: dict[str, Any], steps: list[int]) -> None:
    plain, watched = Classifier(drawing(network())), Classifier(drawing(network()))
    without = fitted(plain, **settings)
    expected = torch.rand(3)
    one = callback(watched)
    found = fitted(watched, one, **settings)
    assert torch.equal(torch.rand(3), expected)
    assert equal(watched.state_dict(), plain.state_dict())
    assert equal(found.optimizers[0].state_dict(), without.optimizers[0].state_dict())
    assert equal(found.logged_metrics, without.logged_metrics)
    assert not equal(plain.state_dict(), Classifier(drawing(network())).state_dict())
    assert all(module.training for module in watched.modules())
    assert [snapshot.step for snapshot in one.history] == steps


def test_snapshots_are_explanations_of_the_model_at_that_time() -> None:
    module = Classifier(network())
    before = conserva.explain(conserva.Text(network().eval(), tiny_heads.tokenizer()), INPUTS[0], TARGETS[0])
    one = callback(module)
    fitted(module, one)
    after = conserva.explain(conserva.Text(module.model.eval(), tiny_heads.tokenizer()), INPUTS[0], TARGETS[0])
    assert one.history[0].explanations[0].scores == before.scores
    assert one.history[-1].explanations[0].scores == after.scores != before.scores
    assert [snapshot.epoch for snapshot in one.history] == [0, 0, 1]


def test_modes_that_a_user_has_set_are_kept() -> None:
    module = Classifier(network())
    module.model.bert.eval()
    fitted(module, callback(module))
    assert module.model.training
    assert not any(part.training for part in module.model.bert.modules())


def test_only_trainings_are_watched() -> None:
    module = Classifier(network())
    one = callback(module)
    found = fitted(module, one)
    found.validate(module, loaders()[1], verbose=False)
    assert len(one.history) == 3
    fresh = callback(module)
    trainer(fresh).validate(module, loaders()[1], verbose=False)
    assert fresh.history == []


class Recorded(RelevanceCallback):
    """Writes at the end of a training what this process has explained."""

    folder: Path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        steps = [snapshot.step for snapshot in self.history]
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(steps))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_only_the_first_process_explains_during_a_training(tmp_path: Path) -> None:
    module = Classifier(network())
    one = Recorded(module.model, INPUTS, TARGETS, tokenizer=tiny_heads.tokenizer())
    one.folder = tmp_path
    fitted(module, one, strategy="ddp_fork", devices=2, logger=CSVLogger(tmp_path))
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[0, 2, 4], [0]]
    assert [row["step"] for row in logged_rows(tmp_path)] == ["0", "2", "4"]


# What is refused.


def test_another_model_ends_the_training_before_its_first_step() -> None:
    module = Classifier(network())
    with pytest.raises(conserva.Error, match="is not a part of the Classifier that is trained"):
        fitted(module, callback(Classifier(network())))
    assert equal(module.model.state_dict(), network().state_dict())


# Loggers.


def logged_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows that a CSVLogger has written for the callback."""
    (file,) = folder.rglob("metrics.csv")
    with file.open(encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row.get("relevance/0/output")]


def test_other_loggers_get_the_numbers(tmp_path: Path) -> None:
    module = Classifier(network())
    one = callback(module)
    fitted(module, one, logger=CSVLogger(tmp_path))
    rows = logged_rows(tmp_path)
    assert [int(row["step"]) for row in rows] == [0, 4, 8]
    for row, snapshot in zip(rows, one.history, strict=True):
        found = {name: float(value) for name, value in row.items() if name.startswith("relevance/") and value}
        assert found == {f"relevance/{name}": value for name, value in snapshot.metrics().items()}


def test_mlflow_gets_pages_and_tables(tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    module = Classifier(network())
    one = callback(module, name="words")
    place = (tmp_path / "artifacts").as_uri()
    logger = MLFlowLogger("tests", tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}", artifact_location=place)
    fitted(module, one, logger=logger)
    client, run = logger.experiment, logger.run_id
    names = {each.path for each in client.list_artifacts(run, "words")}
    assert names == {f"words/step_{step}.{kind}" for step in (0, 4, 8) for kind in ("html", "json", "png")}
    for snapshot in one.history:
        path = Path(client.download_artifacts(run, f"words/step_{snapshot.step}.json"))
        table = json.loads(path.read_text(encoding="utf-8"))
        scores = table["columns"].index("scores")
        assert [row[scores] for row in table["data"]] == [list(each.scores) for each in snapshot.explanations]
    for name in one.history[-1].metrics():
        logged = {each.step: each.value for each in client.get_metric_history(run, f"words/{name}")}
        assert logged == {each.step: each.metrics()[name] for each in one.history if name in each.metrics()}


def test_wandb_gets_pages_and_tables_at_the_trainers_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    module = Classifier(network())
    one = callback(module)
    logger = WandbLogger(project="tests", save_dir=tmp_path, offline=True)
    fitted(module, one, logger=logger)
    run = logger.experiment
    run.finish()
    wandb.teardown()
    rows = [row for row in history(Path(run.dir).parent) if "relevance/page" in row]
    assert [row["trainer/global_step"] for row in rows] == [0, 4, 8]
    for row, snapshot in zip(rows, one.history, strict=True):
        assert {name: row[f"relevance/{name}"] for name in snapshot.metrics()} == snapshot.metrics()
        assert (Path(run.dir) / row["relevance/page"]["path"]).read_text(encoding="utf-8") == snapshot.tracked.page


def test_examples() -> None:
    assert wrong_examples(RelevanceCallback) == ""


def test_the_page_shows_what_its_code_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    monkeypatch.chdir(tmp_path)
    shown, printed = (text.splitlines() for text in shown_and_printed("training"))
    assert [line for line in printed if line in shown] == shown  # trainers print tables and losses beside it
