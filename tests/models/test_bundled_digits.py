"""The bundled model of images: what it is, what it reads, what is said of it, and its commands."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

import conserva
from conserva.cli import main
from conserva.datasets import mnist
from conserva.datasets.drawn import drawn_digit
from tiny_images import vit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "conserva" / "models" / "digits"
DATA = os.environ.get("CONSERVA_DATA")
with_data = pytest.mark.skipif(not DATA, reason="CONSERVA_DATA names no folder of datasets")
over_digits = pytest.mark.parametrize("digit", range(10))


@functools.cache
def task() -> conserva.Image:
    found = conserva.load("digits")
    assert isinstance(found, conserva.Image)
    return found


@functools.cache
def precise() -> conserva.Image:
    """Return the task in float64."""
    network = copy.deepcopy(task().network).double()
    return conserva.Image(network, task()._pixels.processor, name="digits")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command printed that went well."""
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def close(scores: Sequence[float]) -> Any:
    """Return what equals scores but for rounding: weights elsewhere in memory may be summed in another order."""
    return pytest.approx(list(scores), rel=1e-4, abs=1e-5)


# What it reads


def test_it_is_a_task_of_images() -> None:
    assert (task().name, list(task().labels)) == ("digits", [str(digit) for digit in range(10)])
    grid = task().grid
    assert (grid.rows, grid.columns, grid.height, grid.width, grid.channels) == (7, 7, 28, 28, 1)


@over_digits
def test_a_drawn_digit_is_seen_as_what_it_is(digit: int) -> None:
    one = conserva.explain(task(), drawn_digit(digit), method="exact")
    assert one.target == str(digit)
    assert one.probability is not None
    assert one.probability > 0.5
    assert len(one.scores) == 49
    assert one.features == tuple(f"r{row}c{column}" for row in range(1, 8) for column in range(1, 8))


@over_digits
def test_patches_positions_and_biases_add_up_to_the_logit(digit: int) -> None:
    image = drawn_digit(digit)
    pixels = torch.from_numpy((image / 255 - 0.1307) / 0.3081)[None, None]
    with torch.no_grad():
        logits = precise().network(pixel_values=pixels).logits[0].tolist()
    for target in range(10):
        one = conserva.explain(precise(), image, target, method="exact")
        assert one.ledger is not None
        # The processor prepares pixels in 32 bits.
        assert math.fsum(one.scores) + one.ledger.positions + one.ledger.biases == pytest.approx(
            logits[target], abs=1e-5
        )
        assert abs(one.ledger.gap) < 1e-10


@pytest.mark.parametrize("method", conserva.methods())
def test_every_method_tells_the_patches_apart(method: str) -> None:
    one = conserva.explain(task(), drawn_digit(5), method=method)
    assert len(one.scores) == 49
    assert np.isfinite(one.scores).all()
    assert np.ptp(one.scores) > 0


def test_relevance_is_where_the_ink_is() -> None:
    """Of ten digits most of the relevance, by size, lies on patches with ink, which are less than half."""
    shares, inked = [], []
    for digit in range(10):
        image = drawn_digit(digit)
        ink = image.reshape(7, 4, 7, 4).any((1, 3)).ravel()
        scores = np.abs(conserva.explain(task(), image, method="exact").scores)
        shares.append(scores[ink].sum() / scores.sum())
        inked.append(ink.mean())
    assert np.mean(inked) < 0.5
    assert np.mean(shares) > 0.7


@with_data
def test_accuracy_on_published_digits() -> None:
    images, labels = mnist.read("test", DATA)[1:3]
    encoded = [task().encode(image) for image in images[:500]]
    with torch.inference_mode():
        found = task().model(**task().batch(encoded)).logits.argmax(1).numpy()
    assert (found == labels[:500]).mean() >= 0.98


# What comes with the package


def test_its_files_are_small_and_packed() -> None:
    names = {"README.md", "config.json", "metrics.json", "model.safetensors", "preprocessor_config.json"}
    files = list(FOLDER.iterdir())
    assert {path.name for path in files} == names
    assert sum(path.stat().st_size for path in files) < 1_000_000
    (listed,) = re.findall(
        r"^conserva = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S
    )
    packed = {path for pattern in re.findall(r'"(.*?)"', listed) for path in (ROOT / "src" / "conserva").glob(pattern)}
    assert set(files) <= packed


def test_its_card_says_what_was_measured() -> None:
    card = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    metrics = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
    low, high = metrics["interval"]
    pairs = (f"{one['digit']} taken for {one['taken_for']} ({one['images']})" for one in metrics["confusions"])
    for told in (
        f"accuracy {metrics['accuracy']:.4f} on {metrics['images']['test']:,} test images",
        f"(95 % interval {low:.4f} to {high:.4f})",
        f"{metrics['held_out_accuracy']:.4f} on the {metrics['images']['validation']:,} held out",
        f"it reads {metrics['drawn']}.",
        f"Most often confused: {', '.join(pairs)}.",
        f"{metrics['parameters']:,} parameters",
        f"seed {metrics['seed']};",
        f"{metrics['epochs']} epochs on {metrics['images']['train']:,} images",
        f"number {metrics['kept']}.",
    ):
        assert told in card, told
    assert metrics["parameters"] == sum(one.numel() for one in task().network.parameters())
    assert metrics["drawn"] == 10  # which the tests above see for themselves


def test_a_name_that_is_none_is_told_which_there_are() -> None:
    with pytest.raises(conserva.Error, match="bundled models are 'sentiment', 'bace', 'mnist', 'digits'"):
        conserva.load("no/such-model")


# Commands


def test_a_digit_is_an_image_to_a_model_of_images(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "explain", "--model", "digits", "--digit", "3")
    assert out.startswith("3: ")
    assert "exact · digits" in out
    assert "a drawn 3" in out
    assert "49 patches" in out
    assert "75 superpixels" in said(capsys, "explain", "--digit", "3")  # without a model, a graph


def test_the_bundled_model_reads_images_if_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "five.png"
    Pictures.fromarray(drawn_digit(5)).save(path)
    found = conserva.Explanation.from_json(said(capsys, "explain", "--image", str(path), "--json"))
    assert (found.target, found.text, found.model) == ("5", "five.png", "digits")
    assert list(found.scores) == close(conserva.explain(task(), path).scores)
    again = json.loads(said(capsys, "explain", "--model", "digits", "--digit", str(path), "--json"))
    assert again["text"] == "five.png"
    assert again["scores"] == close(found.scores)


def test_a_photograph_is_for_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Pictures.fromarray(colours).save(tmp_path / "cat.png")
    assert main(["explain", "--image", str(tmp_path / "cat.png")]) == 1
    assert "'cat.png' has mode 'RGB' and is coloured" in (err := capsys.readouterr().err)
    assert "or load a model that takes colour images" in err


def test_an_array_of_a_file_is_an_image_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name, image in (("bytes.npy", drawn_digit(2)), ("shares.npy", drawn_digit(2) / 255)):
        np.save(tmp_path / name, image)
        one = json.loads(said(capsys, "explain", "--model", "digits", "--digit", str(tmp_path / name), "--json"))
        assert (one["target"], one["text"]) == ("2", name)
        found.append(one["scores"])
    expected = close(conserva.explain(task(), drawn_digit(2)).scores)
    assert found == [expected, expected]


def test_what_is_no_grey_picture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grey = Pictures.fromarray(drawn_digit(3))
    through = grey.copy()
    through.putalpha(grey)
    coloured = Pictures.merge("RGB", (grey, Pictures.new("L", grey.size), grey))
    for name, image, mode in (("through.png", through, "LA"), ("coloured.png", coloured, "RGB")):
        image.save(tmp_path / name)
        assert main(["explain", "--model", "digits", "--digit", str(tmp_path / name)]) == 1
        assert f"has mode '{mode}': a digit is white on black" in capsys.readouterr().err
    for mode in ("RGB", "RGBA", "LA"):
        grey.convert(mode).save(tmp_path / "grey.png")
        assert said(capsys, "explain", "--model", "digits", "--digit", str(tmp_path / "grey.png")).startswith("3: ")


@with_data
def test_an_image_of_mnist_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "explain", "--model", "digits", "--digit", "test:12", "--json"))
    expected = conserva.explain(task(), mnist.read("test", DATA).images[12])
    assert (found["text"], found["target"]) == ("test 12", "9")
    assert found["scores"] == close(expected.scores)


def test_pages_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "three.html", tmp_path / "three.png"
    said(capsys, "explain", "--model", "digits", "--digit", "3", "--html", str(page), "--png", str(picture))
    text = page.read_text(encoding="utf-8")
    assert "a drawn 3" in text
    assert len(set(re.findall(r'data-node="(\d+)"', text))) == 49
    seen = np.asarray(Pictures.open(picture).convert("RGB")).astype(int)
    assert (seen[:, :, 0] - seen[:, :, 2] > 60).sum() > 1000  # red over the strokes
    out = said(capsys, "compare", "--model", "digits", "--digit", "3", "--png", str(picture))
    assert out.startswith("3: ")
    assert all(f"\n{name} " in out for name in conserva.methods())


def test_evaluate_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for digit in (3, 7):
        (tmp_path / str(digit)).mkdir()
        Pictures.fromarray(drawn_digit(digit)).save(tmp_path / str(digit) / "one.png")
    base = ("evaluate", "--model", "digits", "--data", str(tmp_path), "--methods", "gi,exact", "--json")
    found = json.loads(said(capsys, *base))
    assert (found["samples"], found["accuracy"], found["protocol"]["mask"]) == (2, 1.0, "mean")
    assert [one["method"] for one in found["methods"]] == ["gi", "exact", "leave-one-out", "intensity"]
    assert json.loads(said(capsys, *base, "--mask", "grey"))["protocol"]["mask"] == "grey"


def test_the_yardstick_of_grey_images_is_their_brightness() -> None:
    image = drawn_digit(4)
    (found,) = task().encode(image).controls().values()
    order = np.argsort(image.reshape(7, 4, 7, 4).mean((1, 3)).ravel(), kind="stable")
    assert (np.diff(found[order]) >= -1e-6).all()
    assert conserva.Image(vit()).encode(np.zeros((32, 32, 3), np.uint8)).controls() == {}


@with_data
def test_evaluate_mnist(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("evaluate", "--model", "digits", "--data", "mnist", "--count", "5", "--methods", "random,exact", "--json")
    found = json.loads(said(capsys, *base))
    assert (found["samples"], found["accuracy"], found["data"]) == (5, 1.0, "mnist (test)")
    assert len(task().labelled("mnist")) == 10_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", "--model", "digits", "--digit", "77"], "'77' is not a digit: give 0 to 9"),
        (["explain", "--model", "digits", "--smiles", "CCO"], "--smiles 'CCO': digits takes images"),
        (["explain", "--image", "nowhere.png"], "image='nowhere.png' is not a file"),
        (["explain", "--image", "a.png", "--model", "sentiment"], "the bundled 'digits', or give a model of images"),
        (["explain", "--digit", "7", "--model", "sentiment"], "'mnist', or give a model of graphs or images"),
        (["evaluate", "--model", "digits", "--data", "nowhere"], "data='nowhere' is not a folder"),
        (["evaluate", "--model", "digits", "--data", "mnist", "--split", "train"], "--split 'train' does not apply"),
        (["explain", "--model", "digits", "--digit", "3", "--words"], "--words does not apply to an image"),
        (["audit", "digits"], "digits takes images, and none is given: give files, such as --text"),
    ],
    ids=lambda one: " ".join(one)[:60] if isinstance(one, list) else "",
)  # fmt: skip
def test_errors_are_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_audit_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Pictures.fromarray(drawn_digit(8)).save(tmp_path / "eight.png")
    found = json.loads(said(capsys, "audit", "digits", "--text", str(tmp_path / "eight.png"), "--json"))
    exact, other = (conserva.Audit.from_json(json.dumps(found[rules])) for rules in ("exact", "gi"))
    assert exact.gap_share() < 1e-5 < other.gap_share()


@pytest.mark.parametrize("arguments", [["--model", "digits", "--digit", "3"], ["--image", "three.png"]], ids=str)
def test_without_pillow_it_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setattr("conserva.tasks.image.part_of", lambda *_: pytest.fail("transformers was asked first"))
    assert main(["explain", *arguments]) == 1
    assert "pip install 'conserva[images]'" in capsys.readouterr().err
