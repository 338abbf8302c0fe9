"""Training on graphs: the same numbers for the same seed, stops and goes on, what is kept, and the command line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import conserva
from chains import IDS, NUMBERS, SIZES, made
from conserva.cli import main
from conserva.datasets.graph import batch, structure
from conserva.datasets.graph_catalogue import GRAPH_DATASETS
from conserva.models.graphormer import Graphormer, GraphormerConfig
from conserva.paper.training import graph_run, graph_trainer
from conserva.paper.training.batches import Samples
from conserva.paper.training.graph_recipe import GraphRecipe
from conserva.paper.training.graph_run import train_graphs
from conserva.paper.training.graph_trainer import GraphTrainer
from conserva.paper.training.measures import roc_auc
from conserva.paper.training.trainer import STATE

RECIPE = GraphRecipe(learning_rate=1e-2, epochs=3, batch_size=1)
"""24 graphs, one a step: 24 steps an epoch; progress is told after 20 of them, and at the end."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAPH_DATASETS, "chains", IDS)  # type: ignore[arg-type]
    monkeypatch.setitem(GRAPH_DATASETS, "lines", NUMBERS)  # type: ignore[arg-type]
    monkeypatch.setattr(graph_trainer, "SAVED_EVERY", 0.0)


def trained(out: Path, **changes: Any) -> dict[str, Any]:
    return train_graphs("chains", out, **{"recipe": RECIPE, **changes})


def weights(out: Path) -> dict[str, torch.Tensor]:
    return AutoModelForSequenceClassification.from_pretrained(out).state_dict()


# A training.


def test_the_schedule_is_that_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    stepped = GraphTrainer._stepped

    def noted(self: GraphTrainer) -> None:
        rates.append(self._optimizer.param_groups[0]["lr"])
        stepped(self)

    monkeypatch.setattr(GraphTrainer, "_stepped", noted)
    recipe = replace(RECIPE, epochs=2, batch_size=6, warm_up=0.25)
    trained(tmp_path, recipe=recipe)
    # Each is noted after the schedule has gone on, so it is that of the next step.
    assert rates == pytest.approx([1e-2 * recipe.share(step, 8) for step in range(1, 9)])


@pytest.mark.parametrize("name", ["chains", "lines"])
def test_it_learns(name: str, tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=30, batch_size=4)
    found = train_graphs(name, tmp_path, recipe=recipe, shape={"hidden_dropout_prob": 0.0})
    losses = [one["loss"] for one in found["epochs"]]
    assert losses[-1] < 0.3 * losses[0]
    assert found["test_accuracy"] >= 0.8 > found["majority"] == 0.5


def test_what_is_returned_is_what_is_in_the_folder(tmp_path: Path) -> None:
    found = trained(tmp_path, shape={"pre_norm": False, "hidden_size": 12}, count=8)
    assert found == json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert not (tmp_path / STATE).exists()
    assert found["graphs"] == {"train": 8, "validation": 8, "test": 8}
    assert (found["schema"], found["metric"]) == ("conserva/training/1", "roc_auc")
    assert found["shape"] == {**IDS.shape, "pre_norm": False, "hidden_size": 12}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(model, Graphormer)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert (model.config.hidden_size, model.config.pre_norm) == (12, False)
    assert found["trained_parameters"] == sum(p.numel() for p in model.parameters())
    graphs = made("test")[:8]
    logits = model(**batch(graphs, [structure(graph, 4, 3) for graph in graphs])).logits
    labels = torch.tensor([graph.label for graph in graphs])
    assert found["test_accuracy"] == (logits.argmax(-1) == labels).double().mean().item()
    assert found["test_roc_auc"] == pytest.approx(roc_auc(logits[:, 1] - logits[:, 0], labels))
    assert found["test_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    kept = found["epochs"][found["kept_epoch"] - 1]
    assert {name: kept[f"validation_{name}"] for name in ("loss", "accuracy", "roc_auc")} == {
        name: found[f"validation_{name}"] for name in ("loss", "accuracy", "roc_auc")
    }


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = trained(tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert trained(tmp_path / "again") == first
    assert trained(tmp_path / "other", seed=1)["weights"] != first["weights"]


def test_a_long_history_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_run, "ROWS", 3)
    values = [0.5, 0.5, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    measuring(monkeypatch, values)
    found = trained(tmp_path, recipe=replace(RECIPE, epochs=10))
    assert [one["epoch"] for one in found["epochs"]] == [3, 4, 8, 10]


def test_a_loss_that_is_not_finite_is_named(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"not finite in epoch 1: lower learning_rate=1e\+30.*the nodes"):
        trained(tmp_path, recipe=replace(RECIPE, learning_rate=1e30, warm_up=0))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"width": 8}, "shape has 'width': a Graphormer has hidden_size, "),
        ({"hidden_size": 0}, "hidden_size=0 must be more than 0"),
        ({"hidden_size": 9}, "hidden_size=9 is not a multiple"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0 must be from 0"),
    ],
)
def test_a_shape_of_nonsense_is_refused(shape: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=message):
        trained(tmp_path / "model", shape=shape)
    assert not (tmp_path / "model").exists()


# Stopped, and going on.


def stop_in_the_second(done: int, total: int) -> None:
    assert total == 3 * 24
    if done > 24:
        raise KeyboardInterrupt


def stop_after_epoch(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    save = GraphTrainer._save

    def saved(self: GraphTrainer, path: Path) -> None:
        save(self, path)
        if len(self.history) == number:
            monkeypatch.setattr(GraphTrainer, "_save", save)
            raise KeyboardInterrupt

    monkeypatch.setattr(GraphTrainer, "_save", saved)


@pytest.mark.parametrize("stop", ["in the second", "after the first", "after the last"])
@pytest.mark.parametrize("changes", [{}, {"average": 0.9, "keep": "last"}], ids=["best", "average of the last"])
def test_stopped_and_resumed_is_as_unbroken(
    stop: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(RECIPE, **changes)
    unbroken = trained(tmp_path / "unbroken", recipe=recipe)
    if stop != "in the second":
        stop_after_epoch(1 if stop == "after the first" else 3, monkeypatch)
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        trained(out, recipe=recipe, progress=stop_in_the_second if stop == "in the second" else None)
    assert (out / STATE).exists()
    assert not (out / "training.json").exists()
    torch.manual_seed(7)
    steps: list[int] = []
    assert trained(out, recipe=recipe, progress=lambda done, _: steps.append(done)) == unbroken
    assert steps == ([] if stop == "after the last" else [44, 48, 68, 72])
    found, expected = weights(out), weights(tmp_path / "unbroken")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3]), (1e9, [3])])
def test_the_state_is_written_now_and_then(
    seconds: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_trainer, "SAVED_EVERY", seconds)
    saves: list[int] = []
    save = GraphTrainer._save

    def saved(self: GraphTrainer, path: Path) -> None:
        saves.append(len(self.history))
        save(self, path)

    monkeypatch.setattr(GraphTrainer, "_save", saved)
    trained(tmp_path)
    assert saves == expected


def test_a_finished_folder_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.delattr(GraphTrainer, "run")
    assert trained(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_other_settings_is_refused(finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if finished:
        trained(tmp_path)
    else:
        stop_after_epoch(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path)
    for changes, names in (
        ({"seed": 1}, "it differs in seed."),
        ({"recipe": replace(RECIPE, average=0.5), "count": 20}, "it differs in recipe, count."),
        ({"shape": {"pre_norm": False}}, "it differs in shape."),
        ({"data": NUMBERS}, "it differs in dataset, shape."),
    ):
        with pytest.raises(conserva.Error) as message:
            train_graphs(**{"data": "chains", "out": tmp_path, "recipe": RECIPE, **changes})  # type: ignore[arg-type]
        assert all(part in str(message.value) for part in (str(tmp_path), "another training", names))


@pytest.mark.parametrize("file", [STATE, "training.json"])
@pytest.mark.parametrize("how", ["cut", "foreign"])
def test_damaged_files_are_named(file: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if file == STATE:
        stop_after_epoch(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path)
    else:
        trained(tmp_path)
    path = tmp_path / file
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif file == STATE:
        torch.save({"model": {}}, path)
    else:
        path.write_text('{"schema": "something/else"}', encoding="utf-8")
    with pytest.raises(conserva.Error) as message:
        trained(tmp_path)
    assert str(message.value).startswith(f"{path} is damaged")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine", encoding="utf-8")
    with pytest.raises(conserva.Error, match="is a file: name a folder"):
        trained(tmp_path / "model")


# Which weights are kept.


def measuring(
    monkeypatch: pytest.MonkeyPatch, values: list[float], accuracies: list[float] | None = None
) -> list[tuple[int, dict[str, torch.Tensor]]]:
    """Let ROC-AUC come out so, epoch by epoch; return the graphs and the weights of each call."""
    calls: list[tuple[int, dict[str, torch.Tensor]]] = []

    def measure(model: torch.nn.Module, data: Samples, metric: str) -> dict[str, float]:
        assert metric == "roc_auc"
        calls.append((len(data), {name: value.clone() for name, value in model.state_dict().items()}))
        row = len(calls) - 1
        accuracy = 0.5 if accuracies is None or row >= len(accuracies) else accuracies[row]
        return {"loss": 1.0 - 0.01 * row, "accuracy": accuracy, "roc_auc": values[row] if row < len(values) else 0.25}

    monkeypatch.setattr(graph_trainer, "graph_measures", measure)
    monkeypatch.setattr(graph_run, "graph_measures", measure)
    return calls


@pytest.mark.parametrize(
    ("keep", "values", "kept", "best"),
    [
        ("best", [0.5, 0.8, 0.7], 2, 2),
        ("best", [0.9, 0.8, 0.7], 1, 1),
        ("best", [0.5, 0.8, 0.8], 3, 3),  # of equals the lower loss
        ("last", [0.5, 0.8, 0.7], 3, 2),
    ],
)
def test_the_epoch_that_the_recipe_names_is_kept(
    keep: str, values: list[float], kept: int, best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measuring(monkeypatch, values, [0.9, 0.1, 0.1])  # accuracy is not what BACE is judged by
    found = trained(tmp_path, recipe=replace(RECIPE, keep=keep))
    assert (found["kept_epoch"], found["best_epoch"], found["last_epoch"]) == (kept, best, 3)
    assert (found["validation_roc_auc"], found["test_roc_auc"]) == (values[kept - 1], 0.25)
    # The test split is measured once, at the end, with the weights that are kept.
    assert [count for count, _ in calls] == [SIZES["validation"]] * 3 + [SIZES["test"]]
    saved = weights(tmp_path)
    assert all(torch.equal(saved[name], value) for name, value in calls[kept - 1][1].items())
    assert all(torch.equal(calls[-1][1][name], value) for name, value in saved.items())
    assert kept == 3 or any(not torch.equal(saved[name], value) for name, value in calls[2][1].items())


def test_without_validation_all_is_trained_on(tmp_path: Path) -> None:
    found = trained(tmp_path, recipe=replace(RECIPE, hold_out=False, keep="last"))
    assert found["graphs"] == {"train+validation": 36, "test": 10}
    assert (found["kept_epoch"], found["best_epoch"], found["validation_roc_auc"]) == (3, None, None)
    assert found["epochs"] == [{"epoch": one["epoch"], "loss": one["loss"]} for one in found["epochs"]]


def test_the_average_is_that_of_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[torch.Tensor]] = []
    stepped = GraphTrainer._stepped

    def noted(self: GraphTrainer) -> None:
        seen.append([p.detach().clone() for p in self.model.parameters()])
        stepped(self)

    monkeypatch.setattr(GraphTrainer, "_stepped", noted)
    plain = trained(tmp_path / "plain", recipe=replace(RECIPE, keep="last"))
    course, seen = seen, []
    found = trained(tmp_path / "mean", recipe=replace(RECIPE, keep="last", average=0.99))
    # What is trained does not know of it.
    assert all(
        torch.equal(a, b) for one, other in zip(course, seen, strict=True) for a, b in zip(one, other, strict=True)
    )
    weight = [min(0.99, step / (step + 9)) for step in range(1, len(seen) + 1)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Graphormer(GraphormerConfig(**IDS.shape, num_labels=2))
    expected = [p.detach() * float(np.prod(weight)) for p in model.parameters()]
    rest = 1.0
    for left, one in zip(reversed(weight), reversed(seen), strict=True):
        expected = [mean + rest * (1 - left) * p for mean, p in zip(expected, one, strict=True)]
        rest *= left
    saved = weights(tmp_path / "mean")
    names = [name for name, _ in model.named_parameters()]
    for name, mean in zip(names, expected, strict=True):
        torch.testing.assert_close(saved[name], mean, rtol=1e-4, atol=1e-6)
    assert found["weights"] != plain["weights"]


# The command line.


def test_the_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    command = [
        "train",
        "chains",
        "--out",
        str(out),
        "--seed",
        "3",
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--count",
        "9",
    ]
    command += ["--learning-rate", "1e-3", "--weight-decay", "0.1", "--average", "0.5", "--keep", "last", "--hold-out"]
    command += ["--width", "16", "--dropout", "0.2", "--post-norm"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found == json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert captured.err == f"wrote {out}\n"
    changes = {"learning_rate": 1e-3, "epochs": 2, "batch_size": 8, "weight_decay": 0.1, "average": 0.5, "keep": "last"}
    assert found["recipe"] == asdict(GraphRecipe(**changes))  # type: ignore[arg-type]
    shape = {"hidden_size": 16, "ffn_size": 16, "hidden_dropout_prob": 0.2, "pre_norm": False}
    assert found["shape"] == {**IDS.shape, **shape}
    assert (found["seed"], found["count"]) == (3, 9)
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"chains, seed 3: test ROC-AUC {found['test_roc_auc']:.1%}, accuracy {found['test_accuracy']:.1%}" in said
    assert f"validation ROC-AUC {found['validation_roc_auc']:.1%}" in said
    assert (
        main(["train", "lines", "--out", str(tmp_path / "all"), "--epochs", "1", "--no-hold-out", "--keep", "last"])
        == 0
    )
    assert "validation was trained on; epoch 1 of 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chains", "--tokens", "8"], "--tokens is for texts, and 'chains' is a dataset of graphs: leave it out."),
        (["chains", "--as-released"], "--as-released is for texts"),
        (["sst2", "--width", "8"], "--width is for graphs, and 'sst2' is a dataset of texts"),
        (["sst2", "--no-hold-out"], "--no-hold-out is for graphs"),
        (["sst2", "--average", "0"], "--average is for graphs"),
        (["bacee"], "dataset='bacee' is unknown. Did you mean 'bace'?"),
        (["chains", "--no-hold-out"], "keep='best' needs the validation split"),
        (["chains", "--width", "9"], "hidden_size=9 is not a multiple"),
    ],
)
def test_the_command_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments, "--out", str(tmp_path / "model")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
