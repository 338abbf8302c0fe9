"""Training of both classifiers: the same numbers for the same seed, what is written, and the command line."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertModel

import conserva
from chains import IDS, made
from conserva.cli import main
from conserva.datasets import Dataset
from conserva.datasets.graph import batch, structure
from conserva.models.graphormer import Graphormer
from conserva.paper.training.graphs import GraphClassifier
from conserva.paper.training.measures import roc_auc
from conserva.paper.training.recipe import GraphRecipe
from conserva.paper.training.run import train
from conserva.paper.training.trainer import STATE, Trainer
from conserva.tasks.loading import source_of
from training_kinds import GRAPH, KIND_NAMES, KINDS, SHORT, texts, trained

pytestmark = pytest.mark.usefixtures("known_datasets")

# The same seed, the same numbers.


@KIND_NAMES
def test_the_same_seed_gives_the_same_weights(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = trained(kind, tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert trained(kind, tmp_path / "again") == first
    assert trained(kind, tmp_path / "other", seed=1)["weights"] != first["weights"]


@pytest.mark.parametrize("as_released", [False, True])
def test_all_but_the_embeddings_is_trained(as_released: bool, tmp_path: Path) -> None:
    before: dict[str, torch.Tensor] = {}

    def remember(self: Trainer, path: Path) -> None:
        before.update({name: value.clone() for name, value in self.model.state_dict().items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_resume", remember)
        found = texts(tmp_path, as_released=as_released)
    after = conserva.load(tmp_path).model.state_dict()
    assert before.keys() == after.keys()
    same = {name for name in after if torch.equal(before[name], after[name])}
    # Softmax does not see what is added to all keys: the gradient of a key's bias is rounding alone.
    same = {name for name in same if not name.endswith("key.bias")}
    assert same == {name for name in after if name.startswith("embeddings.")}
    assert found["trained_parameters"] == sum(v.numel() for k, v in after.items() if not k.startswith("embeddings."))


def test_texts_what_is_returned_is_what_is_in_the_folder(data: Dataset, tmp_path: Path) -> None:
    found = texts(tmp_path, count=8)
    assert found == json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert found["schema"] == "conserva/training/1"
    assert not (tmp_path / STATE).exists()
    assert found["texts"] == {"train": 8, "validation": 8, "test": 8}
    task = conserva.load(tmp_path)
    assert task.fingerprint == found["weights"]
    assert task.labels == {"negative": 0, "positive": 1}
    assert task.longest == 8
    test = data.read("test").take(8)
    predicted = [task.model(torch.tensor([task.encode(text).ids])).logits.argmax().item() for text in test.texts]
    labels = list(test.labels or ())
    assert found["test_accuracy"] == sum(map(int.__eq__, predicted, labels)) / 8
    assert found["majority"] == max(labels.count(0), labels.count(1)) / 8


def test_graphs_what_is_returned_is_what_is_in_the_folder(tmp_path: Path) -> None:
    changed = GraphClassifier("chains", {"pre_norm": False, "hidden_size": 12})
    found = trained("graphs", tmp_path, changed, count=8)
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


@pytest.mark.parametrize("name", ["small", "chains", "lines"])
def test_it_learns(name: str, tmp_path: Path) -> None:
    if name == "small":
        assert trained("texts", tmp_path)["validation_accuracy"] > 0.6
        return
    classifier = GraphClassifier(name, {"hidden_dropout_prob": 0.0})
    found = train(classifier, tmp_path, recipe=replace(GRAPH, epochs=30, batch_size=4))
    losses = [one["loss"] for one in found["epochs"]]
    assert losses[-1] < 0.3 * losses[0]
    assert found["test_accuracy"] >= 0.8 > found["majority"] == 0.5


def test_the_schedule_is_that_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    update = Trainer._update_average

    def noted(self: Trainer) -> None:
        rates.append(self._optimizer.param_groups[0]["lr"])
        update(self)

    monkeypatch.setattr(Trainer, "_update_average", noted)
    recipe = replace(GRAPH, epochs=2, batch_size=6, warm_up=0.25)  # type: ignore[call-arg]
    trained("graphs", tmp_path / "graphs", recipe=recipe)
    # Each is noted after the schedule has gone on, so it is that of the next step.
    assert rates == pytest.approx([1e-2 * recipe.share(step, 8) for step in range(1, 9)])
    rates.clear()
    texts(tmp_path / "texts")
    assert rates == pytest.approx([1e-3 * (1 - step / 6) for step in range(1, 7)])


@KIND_NAMES
def test_a_loss_that_is_not_finite_is_named(kind: str, tmp_path: Path) -> None:
    said = rf"not finite in epoch 1: lower learning_rate=1e\+30, and check the {KINDS[kind].suspect}\."
    changes = {"warm_up": 0.0} if kind == "graphs" else {}
    with pytest.raises(conserva.Error, match=said):
        trained(kind, tmp_path, recipe=replace(KINDS[kind].recipe, learning_rate=1e30, **changes))


def test_a_loss_that_embeddings_make_infinite_is_named(tmp_path: Path) -> None:
    donor = BertModel.from_pretrained(source_of("sentiment"), dtype=torch.float32)
    donor.embeddings.position_embeddings.weight.data[1] = float("nan")
    donor.save_pretrained(tmp_path / "donor")
    conserva.load().tokenizer.save_pretrained(tmp_path / "donor")
    with pytest.raises(conserva.Error, match=r"epoch 1: lower learning_rate=0.001, and check the embeddings"):
        texts(tmp_path / "nan", embeddings=str(tmp_path / "donor"))


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
        trained("graphs", tmp_path / "model", GraphClassifier("chains", shape))
    assert not (tmp_path / "model").exists()


def test_embeddings_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    shutil.copytree(source_of("sentiment"), tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    for name in ("no/such-bert", str(tmp_path / "cut"), str(tmp_path / "empty")):
        with pytest.raises(conserva.Error, match=re.escape(repr(name))):
            texts(tmp_path / "out", embeddings=name)
    assert not (tmp_path / "out").exists()
    with pytest.raises(conserva.Error, match="could not be loaded"):
        conserva.load(tmp_path / "cut")


# The command line.


def test_the_command_trains_on_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    command = ["train", "small", "--out", str(out), "--embeddings", "sentiment", "--tokens", "8", "--seed", "3"]
    command += ["--epochs", "2", "--batch-size", "8", "--learning-rate", "1e-3", "--patience", "1", "--count", "9"]
    assert main([*command, "--json", "--as-released"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found == json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert captured.err == f"wrote {out}\n"
    assert (found["seed"], found["count"], found["as_released"], found["embeddings"]) == (3, 9, True, "sentiment")
    assert found["recipe"] == asdict(replace(SHORT, patience=1))  # type: ignore[call-arg]
    assert main([*command, "--as-released"]) == 0
    said = capsys.readouterr().out
    assert f"small, seed 3: test accuracy {found['test_accuracy']:.1%}" in said
    assert f"; epoch {found['best_epoch']} of {found['last_epoch']}" in said
    assert main(command) == 1
    assert "differs in as_released" in capsys.readouterr().err


def test_the_command_trains_on_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    command = ["train", "chains", "--out", str(out), "--seed", "3", "--epochs", "2", "--batch-size", "8"]
    command += ["--count", "9", "--learning-rate", "1e-3", "--weight-decay", "0.1", "--average", "0.5"]
    command += ["--keep", "last", "--hold-out", "--width", "16", "--dropout", "0.2", "--post-norm"]
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
    command = ["train", "lines", "--out", str(tmp_path / "all"), "--epochs", "1", "--no-hold-out", "--keep", "last"]
    assert main(command) == 0
    assert "validation was trained on; epoch 1 of 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sst3"], "dataset='sst3' is unknown. Did you mean 'sst2'?"),
        (["sst2", "--epochs", "0"], "epochs=0 must be more than 0"),
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


def test_the_command_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out
