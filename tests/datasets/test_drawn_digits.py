"""Digits to try things on: drawn by a few strokes, of MNIST by number, and of files."""

from __future__ import annotations

import functools
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import conserva
from conserva.datasets import drawn, mnist
from conserva.datasets.drawn import digit_graph, drawn_digit, read_digit
from conserva.datasets.superpixels import superpixels

DATA = os.environ.get("CONSERVA_DATA")
over_digits = pytest.mark.parametrize("digit", range(10))
with_data = pytest.mark.skipif(not DATA, reason="CONSERVA_DATA names no folder of datasets")


@functools.cache
def task() -> conserva.Task:
    return conserva.load("mnist")


# Strokes.


def distance(p: complex, a: complex, b: complex) -> float:
    """How far a point is from a segment: from an end where the angle there is obtuse, else from the line."""
    along = b - a
    if ((p - a) * along.conjugate()).real <= 0:
        return abs(p - a)
    if ((p - b) * (-along).conjugate()).real <= 0:
        return abs(p - b)
    return abs(((p - a) * along.conjugate()).imag) / abs(along)


@over_digits
def test_a_pixel_is_as_bright_as_it_is_near_to_a_stroke(digit: int) -> None:
    image = drawn_digit(digit)
    assert (image.shape, image.dtype) == ((28, 28), np.uint8)
    segments = [(complex(*a), complex(*b)) for stroke in drawn._STROKES[digit] for a, b in itertools.pairwise(stroke)]
    for row in range(28):
        for column in range(28):
            far = min(distance(complex(column, row), a, b) for a, b in segments)
            bright = 255 if far <= 0.75 else 0 if far >= 1.75 else 255 * (1.75 - far)
            assert abs(int(image[row, column]) - bright) <= 0.5 + 1e-9


def test_arcs_go_clockwise_from_the_right() -> None:
    points = drawn._arc((10, 20), (4, 2), 0, 360)
    for x, y in points:
        assert ((x - 10) / 4) ** 2 + ((y - 20) / 2) ** 2 == pytest.approx(1)
    assert points[0] == pytest.approx((14, 20))
    assert points[-1] == pytest.approx((14, 20))
    assert drawn._arc((10, 20), (4, 2), 0, 90)[-1] == pytest.approx((10, 22))  # down: rows grow downwards
    steps = [math.atan2((y - 20) / 2, (x - 10) / 4) for x, y in points]
    turns = [(b - a) % (2 * math.pi) for a, b in itertools.pairwise(steps)]
    assert turns == pytest.approx([2 * math.pi / 23] * 23)


@over_digits
def test_drawn_digits_stay_off_the_border_like_those_of_mnist(digit: int) -> None:
    image = drawn_digit(digit)
    inner = np.zeros((28, 28), bool)
    inner[3:25, 3:25] = True
    assert not image[~inner].any()
    assert 40 < (image > 0).sum() < 250


@pytest.mark.parametrize("digit", [-1, 10, "7", None])
def test_there_are_ten(digit: object) -> None:
    with pytest.raises(conserva.Error, match=f"digit={digit!r} is unknown: give 0 to 9"):
        drawn_digit(digit)  # type: ignore[arg-type]


@over_digits
def test_a_drawn_digit_is_seen_as_what_it_is(digit: int) -> None:
    found = conserva.explain(task(), digit_graph(str(digit)), method="gi")
    assert found.target == str(digit)
    assert found.probability is not None
    assert found.probability > 0.5


# Ways to give one.


def same(a: object, b: object) -> None:
    for name in ("nodes", "edges"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_a_digit_by_its_number_and_by_a_file(tmp_path: Path) -> None:
    image = drawn_digit(7)
    expected = superpixels(image)
    found = digit_graph("7")
    same(found, expected)
    assert found.name == "a drawn 7"
    assert found.label is None
    np.testing.assert_array_equal(found.picture["image"], image)
    np.save(tmp_path / "seven.npy", image)
    np.save(tmp_path / "shares.npy", image / 255)
    Image.fromarray(image).save(tmp_path / "grey.png")
    Image.fromarray(image).convert("RGB").save(tmp_path / "colour.png")
    for file in ("seven.npy", "shares.npy", "grey.png", "colour.png"):
        read = digit_graph(str(tmp_path / file))
        same(read, expected)
        assert read.name == file


@with_data
@pytest.mark.parametrize(("given", "split", "place"), [("test:12", "test", 12), ("validation:0", "validation", 0)])
def test_an_image_of_mnist_by_its_number(given: str, split: str, place: int) -> None:
    found = digit_graph(given, DATA)
    file, images, labels, rows = mnist.read(split, DATA)
    same(found, superpixels(images[rows[place]]))
    assert (found.label, found.name) == (labels[rows[place]], f"{file} {rows[place]}")
    read = read_digit(given, DATA)
    np.testing.assert_array_equal(read.image, images[rows[place]])
    assert read[1:] == (found.label, found.name)
    if given == "test:12":  # the first images of the test file are 7 2 1 0 4 1 4 9 5 9 0 6 9
        assert found.label == 9


@with_data
def test_a_number_that_mnist_does_not_have() -> None:
    with pytest.raises(conserva.Error, match="Image 99999 of test does not exist: it has 0 to 9999"):
        digit_graph("test:99999", DATA)


def test_an_image_of_mnist_needs_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSERVA_DATA", raising=False)
    with pytest.raises(conserva.Error, match="CONSERVA_DATA"):
        digit_graph("test:12")


@pytest.mark.parametrize("given", ["77", "x", "", "-1", "test:", "test:-1", "dev:3", "no-such-file.png", "."])
def test_what_is_no_digit(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(conserva.Error) as caught:
        digit_graph(given)
    assert str(caught.value).startswith(f"{given!r} is not a digit: give 0 to 9")


def test_files_that_are_no_picture(tmp_path: Path) -> None:
    Image.fromarray(drawn_digit(7)).save(tmp_path / "whole.png")
    (tmp_path / "text.png").write_text("no picture", encoding="utf-8")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:45])
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.npy").write_text("no array", encoding="utf-8")
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for file in ("text.png", "cut.png", "empty.png", "text.npy", "empty.npy", "objects.npy"):
        with pytest.raises(conserva.Error, match=f"{file}' is not a picture"):
            digit_graph(str(tmp_path / file))


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((20, 30), np.uint8), "image.npy' is 20 x 30 pixels"),
        (np.zeros((28, 28, 3), np.uint8), "is 28 x 28 x 3 pixels"),
        (np.zeros((28, 28), np.int64), "int64: give 28 x 28 bytes"),
        (np.full((28, 28), 255.0), "to 255.0: give bytes, or numbers from 0 to 1"),
        (np.full((28, 28), np.nan), "nan"),
    ],
    ids=["size", "colours", "integers", "bytes as numbers", "nan"],
)
def test_arrays_of_another_kind(array: np.ndarray, says: str, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", array)
    with pytest.raises(conserva.Error, match=says):
        digit_graph(str(tmp_path / "image.npy"))


def test_a_picture_of_another_size(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "large.png")
    with pytest.raises(conserva.Error, match="' is 32 x 32 pixels"):
        digit_graph(str(tmp_path / "large.png"))
