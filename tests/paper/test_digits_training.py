"""The training of the small Vision Transformer: its images, its epochs, and what it leaves."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from transformers import AutoImageProcessor, ViTForImageClassification

import conserva
from conserva.datasets import mnist
from conserva.datasets.drawn import drawn_digit
from script_files import loaded

script = loaded("scripts/train_digits.py")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
DRAWN = script.Digits(torch.from_numpy(np.stack([drawn_digit(digit) for digit in range(10)])), torch.arange(10))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def several(times: int) -> Any:
    return script.Digits(DRAWN.images.repeat(times, 1, 1), DRAWN.labels.repeat(times))


def heard(model: ViTForImageClassification, train: Any, held_out: Any, **settings: Any) -> tuple[Any, list[float]]:
    losses: list[float] = []
    given = {"epochs": 6, "batch": 20, "rate": 5e-3, "seed": 0, **settings}
    kept = script.fit(model, train, held_out, hear=lambda _, loss, __: losses.append(loss), **given)
    return kept, losses


# Images.


def test_altered_images_keep_shape_and_range() -> None:
    given = script.shares(several(20).images)
    assert given.shape == (200, 1, 28, 28)
    assert (float(given.min()), float(given.max())) == (0, 1)
    found = script.altered(given, seeded())
    assert found.shape == given.shape
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-6
    assert (found != given).flatten(1).any(1).all()
    assert len(found.unique(dim=0)) == 200  # each in its own way


def test_a_seed_decides_how_images_are_altered() -> None:
    given = script.shares(DRAWN.images)
    once, again, other = (script.altered(given, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_images_are_altered_by_as_much_as_is_said_and_no_more() -> None:
    """Where two dots go says by how much an image was moved, turned and scaled."""
    ends = {"left": (slice(13, 15), slice(4, 6)), "right": (slice(13, 15), slice(22, 24))}
    place: dict[str, torch.Tensor] = {}
    for name, (rows, columns) in ends.items():
        image = torch.zeros(2000, 1, 28, 28)
        image[:, :, rows, columns] = 1
        found = script.altered(image, seeded())[:, 0].double()
        mass = found.sum((1, 2))
        grid = torch.arange(28.0, dtype=torch.float64)
        x, y = ((found.sum(axis) * grid).sum(1) / mass for axis in (1, 2))
        place[name] = torch.stack([x, y], 1)
    along = place["right"] - place["left"]
    turn = torch.rad2deg(torch.atan2(along[:, 1], along[:, 0]))
    size = along.norm(dim=1) / 18
    middle = (place["right"] + place["left"]) / 2 - 13.5
    for found, most in ((turn, script.TURN), (size - 1, script.SCALE), (middle, script.SHIFT)):
        assert 0.95 * most < found.max() < 1.05 * most + 0.005
        assert -1.05 * most - 0.005 < found.min() < -0.95 * most


def test_pixels_are_described_as_the_model_sees_them(tmp_path: Path) -> None:
    script.write_model(script.new_model(0, SMALL), tmp_path)
    reader = AutoImageProcessor.from_pretrained(tmp_path)
    found = reader([Image.fromarray(image.numpy()) for image in DRAWN.images], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found.float(), script.normalised(script.shares(DRAWN.images)), atol=1e-5, rtol=0)


# The data.


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with files like those of MNIST: drawn digits, each image with its number in a corner."""
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    for name, count, first in (("train", 60, 0), ("test", 20, 100)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.stack([drawn_digit(int(label)) for label in labels])
        images[:, 0, 0] = first + np.arange(count)
        for kind, content in (("IMAGES", images), ("LABELS", labels)):
            published = getattr(mnist, kind)[name]
            numbers = np.array([published.magic, *content.shape], ">i4").tobytes() + content.tobytes()
            (tmp_path / "data" / "mnist" / published.file).write_bytes(gzip.compress(numbers))
            md5 = mnist.hashlib.md5(numbers).hexdigest()
            entry = mnist.Idx(published.file, published.magic, content.shape, md5)
            monkeypatch.setitem(getattr(mnist, kind), name, entry)
    monkeypatch.setattr(mnist, "HELD_OUT", 10)
    return tmp_path / "data"


def test_no_image_is_in_two_splits(data: Path) -> None:
    splits = {name: script.read_split(name, data) for name in ("train", "validation", "test")}
    numbers = {name: set(split.images[:, 0, 0].tolist()) for name, split in splits.items()}
    assert {name: len(found) for name, found in numbers.items()} == {"train": 50, "validation": 10, "test": 20}
    assert numbers["train"] | numbers["validation"] == set(range(60))
    assert numbers["test"] == set(range(100, 120))
    for split in splits.values():
        assert split.labels.tolist() == [number % 10 for number in split.images[:, 0, 0].tolist()]
        assert split.images.dtype == torch.uint8
    first = script.read_split("train", data, 7)
    assert torch.equal(first.images, splits["train"].images[:7])
    assert torch.equal(first.labels, splits["train"].labels[:7])


@pytest.mark.parametrize("missing", ["folder", "mnist", "all"])
def test_a_folder_without_the_data_is_refused(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSERVA_DATA", raising=False)
    given = {"folder": tmp_path / "nowhere", "mnist": tmp_path, "all": None}[missing]
    with pytest.raises(conserva.Error) as caught:
        script.train_digits(tmp_path / "out", given, epochs=1, seed=0, batch=1, rate=1e-3)
    said = str(caught.value)
    assert "name a folder that holds mnist/ with its four .gz files, with --data or CONSERVA_DATA" in said
    assert "No folder of datasets" in said if given is None else repr(str(given)) in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["epochs", "batch", "rate", "count"])
def test_settings_that_train_nothing(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batch": 1, "rate": 1e-3, "count": 1, name: 0}
    with pytest.raises(conserva.Error, match=f"{name}=0 must be more than 0"):
        script.train_digits(tmp_path / "out", tmp_path, seed=0, **settings)


# Training.


def test_loss_falls() -> None:
    _, losses = heard(script.new_model(0, SMALL), several(10), DRAWN, epochs=25, rate=1e-2)
    assert losses[-1] < 0.7 * losses[0]


def test_a_seed_decides_the_weights() -> None:
    models = [script.new_model(seed, SMALL) for seed in (3, 3, 4, 3)]
    for model, seed in zip(models, (0, 0, 0, 1), strict=True):
        heard(model, several(2), DRAWN, epochs=2, seed=seed)
    first, same, other_weights, other_order = (model.state_dict()["classifier.weight"] for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other_weights)
    assert not torch.equal(first, other_order)


def test_the_best_epoch_is_kept() -> None:
    """Held-out labels are what the untrained model says: the more it learns, the less it agrees."""
    model = script.new_model(0, SMALL)
    held_out = script.Digits(DRAWN.images, script.predicted(model, DRAWN.images).argmax(1))
    kept, _ = heard(model, several(2), held_out, epochs=40, rate=1e-2)
    assert kept.accuracies[kept.epoch - 1] == max(kept.accuracies) > kept.accuracies[-1]
    found = (script.predicted(model, held_out.images).argmax(1) == held_out.labels).double().mean()
    assert float(found) == pytest.approx(max(kept.accuracies))


def test_the_rate_goes_up_and_down() -> None:
    shares = [script.share_of_rate(step, 100) for step in range(100)]
    top = int(np.argmax(shares))
    assert 5 <= top <= 10
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert 0 < shares[0] <= 0.1
    assert 0.95 < shares[top] <= 1
    assert 0 < shares[-1] < 0.01
    assert script.share_of_rate(0, 1) == 1


# What is told and what is left.


@pytest.mark.parametrize(("right", "count"), [(9925, 10_000), (3, 10), (10, 10), (0, 7)])
def test_intervals_are_wilsons(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert script.interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_confusions_by_their_number() -> None:
    labels = torch.tensor([4, 4, 4, 9, 3, 3, 0, 1])
    guesses = torch.tensor([9, 9, 4, 4, 5, 5, 0, 1])
    assert script.confusions(guesses, labels) == [
        {"digit": 3, "taken_for": 5, "images": 2},
        {"digit": 4, "taken_for": 9, "images": 2},
        {"digit": 9, "taken_for": 4, "images": 1},
    ]


def test_what_is_saved_is_what_was_trained(tmp_path: Path) -> None:
    model = script.new_model(0, SMALL)
    heard(model, DRAWN, DRAWN, epochs=1)
    script.write_model(model, tmp_path)
    again = ViTForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(script.predicted(again, DRAWN.images), script.predicted(model, DRAWN.images))
    assert again.config.id2label == {digit: str(digit) for digit in range(10)}
    assert again.config.label2id == {str(digit): digit for digit in range(10)}


def test_the_bundled_size_stays_under_a_megabyte() -> None:
    model = script.new_model(0)
    assert model.vit.embeddings.position_embeddings.shape == (1, 1 + 49, 64)
    assert 4 * model.num_parameters() < 1_000_000
    assert {one.dtype for one in model.parameters()} == {torch.float32}


def test_the_whole_path(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    out = tmp_path / "model"
    monkeypatch.setenv("CONSERVA_DATA", str(data))
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--out", str(out), "--epochs", "2", "--batch", "10"])
    script.main()
    said = capsys.readouterr()
    metrics = json.loads((out / "metrics.json").read_text("utf-8"))
    model = ViTForImageClassification.from_pretrained(out)
    test = script.read_split("test", data)
    logits = script.predicted(model, test.images)
    accuracy = (logits.argmax(1) == test.labels).double().mean().item()
    assert metrics["accuracy"] == pytest.approx(accuracy)
    assert metrics["images"] == {"train": 50, "validation": 10, "test": 20}
    assert metrics["interval"] == pytest.approx(script.interval(round(20 * accuracy), 20))
    assert metrics["parameters"] == model.num_parameters()
    assert set(metrics["provenance"]) == {"conserva", "torch", "transformers", "python", "device"}
    assert said.out.startswith(f"test accuracy {accuracy:.4f} on 20 images (95 % interval ")
    assert len(said.err.splitlines()) == 2
    card = (out / "README.md").read_text("utf-8")
    assert f"accuracy {accuracy:.4f} on 20 test images" in card
    assert "2 epochs on 50 images" in card
    names = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md", "metrics.json"}
    assert {path.name for path in out.iterdir()} == names


def test_a_refusal_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--out", str(tmp_path / "out"), "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        script.main()
    assert caught.value.code == 2
    assert f"{str(tmp_path)!r} has no folder 'mnist'" in capsys.readouterr().err
