"""Training: batches, the same numbers for the same seed, stops and goes on, and splits that stay apart."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertModel

import conserva
from conserva.cli import main
from conserva.datasets import Dataset, Labelled
from conserva.paper.training import batches, run, trainer
from conserva.paper.training.batches import Batches
from conserva.paper.training.recipe import Recipe
from conserva.paper.training.run import train
from conserva.paper.training.trainer import STATE, Trainer
from conserva.tasks.loading import source_of
from training_data import TEXTS

LONG = Recipe(learning_rate=1e-3, epochs=3, batch_size=1, patience=3, tokens=8)
"""24 texts, one a step: 24 steps an epoch; progress is told after 20 of them, and at the end."""
SHORT = Recipe(learning_rate=1e-3, epochs=2, batch_size=8, tokens=8)


@pytest.fixture(scope="module")
def unbroken(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("unbroken"), recipe=LONG)


def trained(out: Path, **changes: Any) -> dict[str, Any]:
    return train("small", out, **{"embeddings": "sentiment", "recipe": SHORT, **changes})


# Batches.


def table(lengths: list[int]) -> Batches:
    """Texts of such lengths; the words of text 3 are 31, 32, 33, and so on."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(1, length + 1) + 10 * row
    return Batches(ids, torch.tensor(lengths), torch.arange(len(lengths)))


LENGTHS = [3, 7, 1, 5, 5, 2, 8, 4, 6, 1, 3]


@pytest.mark.parametrize("how", ["shuffled", "by_length"])
def test_every_text_is_in_one_batch_with_its_mask(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "STRETCH", 2)
    data, seen = table(LENGTHS), []
    found = data.shuffled(2, torch.Generator().manual_seed(0)) if how == "shuffled" else data.by_length(12)
    for inputs, labels in found:
        width = inputs["input_ids"].shape[1]
        assert width == max(LENGTHS[row] for row in labels.tolist())  # no column of pads alone
        assert len(labels) == 1 or len(labels) * width <= (12 if how == "by_length" else 2 * 8)
        assert inputs["input_ids"].dtype == torch.int64
        for row, ids, mask in zip(labels.tolist(), inputs["input_ids"], inputs["attention_mask"], strict=True):
            assert mask.tolist() == [True] * LENGTHS[row] + [False] * (width - LENGTHS[row])
            assert ids[mask].tolist() == [10 * row + word for word in range(1, LENGTHS[row] + 1)]
            assert (ids[~mask] == 0).all()
        seen.extend(labels.tolist())
    assert sorted(seen) == list(range(len(LENGTHS)))


def test_the_order_depends_on_the_generator_alone() -> None:
    data = table(LENGTHS)

    def order(generator: torch.Generator) -> list[list[int]]:
        return [labels.tolist() for _, labels in data.shuffled(2, generator)]

    torch.manual_seed(5)
    first, other = order(torch.Generator().manual_seed(0)), order(torch.Generator().manual_seed(1))
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(0)
    assert order(generator) == first != other
    assert order(generator) != first  # the next epoch has an order of its own


def test_texts_are_cut_and_padded() -> None:
    tokenizer = conserva.load().tokenizer
    data = Labelled(("a joy", "a long and a very long film about films", "dull"), (1, 0, 0), "here")
    found = Batches.of(data, tokenizer, 6, torch.device("cpu"))
    whole = [tokenizer(text)["input_ids"] for text in data.texts]
    assert len(found) == 3
    assert found.lengths.tolist() == [min(6, len(ids)) for ids in whole]
    assert found.ids.shape == (3, 6)
    assert found.ids[0].tolist() == whole[0] + [tokenizer.pad_token_id] * (6 - len(whole[0]))
    assert found.ids[1].tolist() == [*whole[1][:5], tokenizer.sep_token_id]
    assert found.labels.tolist() == [1, 0, 0]


# The same seed, the same numbers.


def test_the_same_seed_gives_the_same_weights(unbroken: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = trained(tmp_path / "again", recipe=LONG)
    assert torch.equal(torch.get_rng_state(), state)
    assert (again["weights"], again["epochs"]) == (unbroken["weights"], unbroken["epochs"])
    assert trained(tmp_path / "one")["weights"] != trained(tmp_path / "other", seed=1)["weights"]
    assert again["validation_accuracy"] > 0.6  # it has learned something


@pytest.mark.parametrize("as_released", [False, True])
def test_all_but_the_embeddings_is_trained(as_released: bool, data: Dataset, tmp_path: Path) -> None:
    before: dict[str, torch.Tensor] = {}

    def remember(self: Trainer, path: Path) -> None:
        before.update({name: value.clone() for name, value in self.model.state_dict().items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_resume", remember)
        found = trained(tmp_path, as_released=as_released)
    after = conserva.load(tmp_path).model.state_dict()
    assert before.keys() == after.keys()
    same = {name for name in after if torch.equal(before[name], after[name])}
    # Softmax does not see what is added to all keys: the gradient of a key's bias is rounding alone.
    same = {name for name in same if not name.endswith("key.bias")}
    assert same == {name for name in after if name.startswith("embeddings.")}
    assert found["trained_parameters"] == sum(v.numel() for k, v in after.items() if not k.startswith("embeddings."))


def test_what_is_returned_is_what_is_in_the_folder(data: Dataset, tmp_path: Path) -> None:
    found = trained(tmp_path, count=8)
    assert found == json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert found["schema"] == "conserva/training/1"
    assert not (tmp_path / STATE).exists()
    assert found["texts"] == {"train": 8, "validation": 8, "test": 8}
    task = conserva.load(tmp_path)
    assert task.fingerprint == found["weights"]
    assert task.labels == {"negative": 0, "positive": 1}
    assert task.longest == SHORT.tokens
    test = data.read("test").take(8)
    predicted = [task.model(torch.tensor([task.encode(text).ids])).logits.argmax().item() for text in test.texts]
    labels = list(test.labels or ())
    assert found["test_accuracy"] == sum(map(int.__eq__, predicted, labels)) / 8
    assert found["majority"] == max(labels.count(0), labels.count(1)) / 8


# Stopped, and going on.


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
def test_stopped_and_resumed_is_as_unbroken(
    stop: str, unbroken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = {"in the first": stop_in_the_first, "in the second": stop_in_the_second}.get(stop)
    if progress is None:
        stop_after_epoch(1 if stop == "after the first" else LONG.epochs, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, recipe=LONG, progress=progress)
    assert not (tmp_path / "training.json").exists()
    assert (tmp_path / STATE).exists() == (stop != "in the first")
    (tmp_path / f"{STATE}.1.half").write_bytes(b"half a state")
    torch.manual_seed(7)
    steps: list[int] = []
    resumed = trained(tmp_path, recipe=LONG, progress=lambda done, _: steps.append(done))
    left = {"in the first": 3, "in the second": 2, "after the first": 2, "after the last": 0}[stop]
    assert steps == [20, 24, 44, 48, 68, 72][2 * (3 - left) :]
    assert resumed == unbroken
    assert conserva.load(tmp_path).fingerprint == unbroken["weights"]


def test_a_finished_folder_is_left_as_it_is(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.delattr(Trainer, "run")
    assert trained(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_other_settings_is_refused(
    finished: bool, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if finished:
        trained(tmp_path)
    else:
        stop_after_epoch(1, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path)
    for changes, names in (
        ({"seed": 1}, "it differs in seed"),
        ({"recipe": LONG, "count": 20}, "it differs in recipe, count"),
        ({"as_released": True}, "it differs in as_released"),
    ):
        with pytest.raises(conserva.Error) as message:
            trained(tmp_path, **changes)
        assert all(part in str(message.value) for part in (str(tmp_path), "another training", names))


@pytest.mark.parametrize("file", [STATE, "training.json"])
@pytest.mark.parametrize("how", ["cut", "foreign"])
def test_damaged_files_are_named(
    file: str, how: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    path.unlink()
    assert trained(tmp_path)["best_epoch"] >= 1


def test_a_file_in_place_of_the_folder_is_refused(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine", encoding="utf-8")
    with pytest.raises(conserva.Error, match="is a file: name a folder"):
        trained(tmp_path / "model")


# Which epoch is kept, and on which split.


def measuring(monkeypatch: pytest.MonkeyPatch, values: list[tuple[float, float]]) -> list[tuple[list, dict]]:
    """Let the validation split come out so, epoch by epoch; return the texts and the weights of each call."""
    calls: list[tuple[list, dict]] = []

    def measure(model: torch.nn.Module, data: Batches) -> tuple[float, float]:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        calls.append((data.ids.tolist(), weights))
        return values[len(calls) - 1] if len(calls) <= len(values) else (0.25, 1.0)

    monkeypatch.setattr(trainer, "measure", measure)
    monkeypatch.setattr(run, "measure", measure)
    return calls


@pytest.mark.parametrize(
    ("values", "best"),
    {
        "patience is over": ([(0.5, 1.0), (0.8, 1.0), (0.7, 0.1), (0.8, 1.2)], 2),
        "all epochs are": ([(0.5, 1.0), (0.6, 1.0), (0.5, 1.0), (0.7, 1.0), (0.6, 1.0)], 4),
        "of equals the lower loss": ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.9), (0.5, 0.95)], 2),
        "never better": ([(0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], 1),
    }.values(),
)
def test_the_best_epoch_is_kept(
    values: list[tuple[float, float]], best: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measuring(monkeypatch, values)
    found = trained(tmp_path, recipe=replace(SHORT, epochs=5, patience=2))
    assert [(one["validation_accuracy"], one["validation_loss"]) for one in found["epochs"]] == values
    assert (found["best_epoch"], found["validation_accuracy"]) == (best, values[best - 1][0])
    # The test split is measured once, at the end, with the weights that are kept; validation in every epoch.
    assert len(calls) == len(values) + 1
    assert found["test_accuracy"] == 0.25
    tokenizer = conserva.load().tokenizer
    validation, test = (Batches.of(data.read(s), tokenizer, 8, torch.device("cpu")) for s in ("validation", "test"))
    assert [ids for ids, _ in calls] == [validation.ids.tolist()] * len(values) + [test.ids.tolist()]
    kept, last = calls[best - 1][1], calls[len(values) - 1][1]
    saved = conserva.load(tmp_path).model.state_dict()
    assert all(torch.equal(saved[name], value) for name, value in kept.items())
    assert all(torch.equal(calls[-1][1][name], value) for name, value in kept.items())
    assert best == len(values) or any(not torch.equal(saved[name], value) for name, value in last.items())


def test_accuracy_is_measured_with_dropout_off(data: Dataset) -> None:
    task = conserva.load()
    batch = Batches.of(data.read("test"), task.tokenizer, 8, torch.device("cpu"))
    task.model.train()
    accuracy, loss = trainer.measure(task.model, batch)
    logits = torch.stack([task.model(torch.tensor([task.encode(text).ids[:8]])).logits[0] for text, _ in TEXTS["test"]])
    labels = torch.tensor([label for _, label in TEXTS["test"]])
    assert not task.model.training
    assert accuracy == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert loss == pytest.approx(-logits.log_softmax(-1)[range(10), labels].mean().item(), rel=1e-5)


def test_a_loss_that_is_not_finite_is_named(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"not finite in epoch 1: lower learning_rate=1e\+30"):
        trained(tmp_path / "large", recipe=replace(SHORT, learning_rate=1e30))
    donor = BertModel.from_pretrained(source_of("sentiment"), dtype=torch.float32)
    donor.embeddings.position_embeddings.weight.data[1] = float("nan")
    donor.save_pretrained(tmp_path / "donor")
    conserva.load().tokenizer.save_pretrained(tmp_path / "donor")
    with pytest.raises(conserva.Error, match=r"epoch 1: lower learning_rate=0.001, and check the embeddings"):
        trained(tmp_path / "nan", embeddings=str(tmp_path / "donor"))


# What is refused, and the command line.


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, 0) for name in ("learning_rate", "epochs", "batch_size", "clip", "patience", "tokens")]
    + [("learning_rate", float("nan")), ("epochs", -1), ("weight_decay", -0.1), ("tokens", 2)],
)
def test_a_recipe_of_nonsense_is_refused(name: str, value: float) -> None:
    with pytest.raises(conserva.Error, match=f"{name}={value}"):
        Recipe(**{name: value})  # type: ignore[arg-type]


def test_embeddings_that_cannot_be_loaded_are_named(data: Dataset, tmp_path: Path) -> None:
    shutil.copytree(source_of("sentiment"), tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    for name in ("no/such-bert", str(tmp_path / "cut"), str(tmp_path / "empty")):
        with pytest.raises(conserva.Error, match=re.escape(repr(name))):
            trained(tmp_path / "out", embeddings=name)
    assert not (tmp_path / "out").exists()
    with pytest.raises(conserva.Error, match="could not be loaded"):
        conserva.load(tmp_path / "cut")


def test_the_command_trains(data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    command = ["train", "small", "--out", str(out), "--embeddings", "sentiment", "--tokens", "8", "--seed", "3"]
    command += ["--epochs", "2", "--batch-size", "8", "--learning-rate", "1e-3", "--patience", "1", "--count", "9"]
    assert main([*command, "--json", "--as-released"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found == json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert captured.err == f"wrote {out}\n"
    assert (found["seed"], found["count"], found["as_released"], found["embeddings"]) == (3, 9, True, "sentiment")
    assert found["recipe"] == asdict(replace(SHORT, patience=1))
    assert main([*command, "--as-released"]) == 0
    assert f"small, seed 3: test accuracy {found['test_accuracy']:.1%}" in capsys.readouterr().out
    assert main(command) == 1
    assert "differs in as_released" in capsys.readouterr().err


def test_the_command_refuses_and_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sst3", "--out", str(tmp_path / "model")]) == 1
    assert "dataset='sst3' is unknown. Did you mean 'sst2'?" in capsys.readouterr().err
    assert main(["train", "sst2", "--out", str(tmp_path / "model"), "--epochs", "0"]) == 1
    assert "epochs=0 must be more than 0" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out
