"""Images as a task: files, arrays and modes, patches taken away, pixels, folders, bad input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image as Pictures
from torch import nn

import conserva
from conserva.models.quiet import quiet_loading
from conserva.tasks import Image
from conserva.tasks.image import MASKS, load_image
from conserva.tasks.pixels import read_image
from saved_image_models import saved
from tiny_images import EXACT, clip_config, noise, processor, vit


@pytest.fixture(scope="module")
def task() -> Image:
    return Image(vit(), name="tiny")


@pytest.fixture(scope="module")
def grey_task() -> Image:
    return Image(vit(num_channels=1), name="grey")


def own_size(seed: int = 0) -> np.ndarray:
    """Return an image of the model's own size, which is not resized."""
    return noise(seed, 32, 32)


# What images become


def test_features_are_patches_and_the_picture_is_the_image(task: Image) -> None:
    image = own_size()
    encoded = task.encode(image)
    assert encoded.tokens[:5] == ("r1c1", "r1c2", "r1c3", "r1c4", "r2c1")
    assert encoded.words == tuple(range(16))
    assert not any(encoded.special)
    expected = (image[8:16, 16:24].astype(float) / 255 - 0.5) / 0.5  # r2c3, without a processor
    np.testing.assert_allclose(encoded.patches[6].numpy(), expected.transpose(2, 0, 1).ravel(), atol=1e-6)
    assert np.array_equal(encoded.shown, image)
    one = conserva.explain(task, image)
    assert one.picture is not None
    assert one.picture["kind"] == "image"
    assert one.picture["grid"] == [4, 4]
    assert conserva.Explanation.from_json(one.to_json()) == one
    assert (one.text, one.method, one.model) == ("image", "exact", "tiny")


@pytest.mark.parametrize("given", ["path", "str", "opened", "bytes", "numbers", "array of grey", "upside down"])
def test_the_same_image_in_other_words(task: Image, tmp_path: Path, given: str) -> None:
    image = own_size()
    if given == "array of grey":
        image = np.repeat(image[:, :, :1], 3, axis=2)
    picture, path = Pictures.fromarray(image), tmp_path / "cat.png"
    picture.save(path)
    if given == "upside down":
        exif = Pictures.Exif()
        exif[0x0112] = 3  # the camera was turned by half a turn
        picture.rotate(180).save(path, exif=exif)
    ways: dict[str, Any] = {
        "path": path,
        "str": str(path),
        "opened": Pictures.open(path),
        "bytes": image,
        "numbers": image / 255,
        "array of grey": image[:, :, 0],
        "upside down": path,
    }
    encoded = task.encode(ways[given])
    assert np.array_equal(encoded.shown, image)
    assert encoded.text == ("cat.png" if given in ("path", "str", "opened", "upside down") else "image")


def converted(mode: str, image: np.ndarray, **palette: Any) -> Pictures.Image:
    return Pictures.fromarray(image).convert(mode, **palette)


GREY = np.repeat(own_size()[:, :, :1], 3, axis=2)
SEE_THROUGH = Pictures.fromarray(np.dstack([own_size(), np.full((32, 32), 254, np.uint8)]), "RGBA")

TAKEN = {
    "L": converted("L", GREY),
    "RGB": converted("RGB", GREY),
    "1": converted("1", GREY),
    "P": converted("P", GREY),
    "RGBA": converted("RGBA", GREY),
    "LA": converted("L", GREY).convert("LA"),
}


@pytest.mark.parametrize("mode", TAKEN)
def test_modes_that_lose_nothing_are_converted(task: Image, grey_task: Image, mode: str) -> None:
    expected = np.asarray(TAKEN[mode].convert("RGB"))
    assert np.array_equal(task.encode(TAKEN[mode]).shown, expected)
    if mode != "P":  # whose colours may be near grey
        assert np.array_equal(grey_task.encode(TAKEN[mode]).shown, expected[:, :, 0])


REFUSED = {
    "CMYK": converted("CMYK", GREY),
    "HSV": converted("HSV", GREY),
    "I;16": Pictures.fromarray(GREY[:, :, 0].astype(np.uint16) * 257),
    "I": converted("I", GREY),
    "F": converted("F", GREY),
    "RGBA": SEE_THROUGH,
    "LA": SEE_THROUGH.convert("LA"),
}


@pytest.mark.parametrize("mode", REFUSED)
def test_an_image_of_the_wrong_mode_is_refused(task: Image, mode: str) -> None:
    with pytest.raises(conserva.Error, match=f"'image' has mode '{mode}'"):
        conserva.explain(task, REFUSED[mode])


def test_colours_are_refused_where_grey_is_asked_for(grey_task: Image) -> None:
    with pytest.raises(conserva.Error, match=r"mode 'RGB' and is coloured.*image.convert\('L'\)"):
        conserva.explain(grey_task, own_size())


def spoilt(path: Path, kind: str) -> Path:
    if kind == "text":
        path.write_text("no image at all")
    elif kind == "cut":
        Pictures.fromarray(noise(0, 64, 64)).save(path, "PNG")
        path.write_bytes(path.read_bytes()[:3000])
    elif kind == "frames":
        frames = [Pictures.fromarray(own_size(seed)) for seed in range(3)]
        frames[0].save(path, "GIF", save_all=True, append_images=frames[1:])
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    return path


FILES = {
    "text": "one.png' cannot be read as an image .*cannot identify",
    "cut": "one.png' cannot be read as an image",
    "empty": "one.png' cannot be read as an image",
    "frames": "'one.png' has 3 frames",
    "folder": "one.png' is not a file: give a path to an image file",
    "missing": "one.png' is not a file: give a path to an image file",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_image_is_refused(task: Image, tmp_path: Path, kind: str) -> None:
    with pytest.raises(conserva.Error, match=FILES[kind]):
        conserva.explain(task, spoilt(tmp_path / "one.png", kind))


BAD = [
    ("", "image='' is not a file"),
    (np.zeros((0, 4), np.uint8), r"shape \(0, 4\) and type uint8 is not an image"),
    (np.zeros((4, 4, 4), np.uint8), r"shape \(4, 4, 4\).*height x width x 3"),
    (np.zeros((3, 32, 32, 1)), r"shape \(3, 32, 32, 1\)"),
    (np.zeros((4, 4), np.int64), "type int64 is not an image: give bytes"),
    (np.full((4, 4), 255.0), "numbers from 255 to 255: give them from 0 to 1"),
    (np.full((4, 4), np.nan), "numbers from nan to nan"),
    (torch.zeros(3, 32, 32), r"a tensor of shape \(3, 32, 32\): give a path .* conserva.relevance"),
    (3, "inputs=3 is neither a single image that tiny accepts"),
    ([3], "image=3 is not an image: give a path"),
    (Pictures.new("RGB", (0, 4)), "4 x 0 pixels"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_is_no_image_is_refused(task: Image, given: Any, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.explain(task, given)


def test_targets(task: Image) -> None:
    image = own_size()
    dog, bird = (conserva.explain(task, image, label, method="exact") for label in ("dog", 2))
    assert (dog.target, bird.target) == ("dog", "bird")
    contrast = conserva.explain(task, image, "dog - bird", method="exact")
    np.testing.assert_allclose(contrast.scores, np.subtract(dog.scores, bird.scores), **EXACT)
    with pytest.raises(conserva.Error, match="'fish' is not one of the model's labels: 'cat', 'dog', 'bird'"):
        conserva.explain(task, image, "fish")
    renamed = Image(task.network, labels=["x", "y", "z"])
    assert conserva.explain(renamed, image, "y", method="exact").scores == dog.scores
    assert task.labels == {"cat": 0, "dog": 1, "bird": 2}  # the network's own stay
    with pytest.raises(conserva.Error, match="labels has 2 entries, ViTForImageClassification has 3 classes"):
        Image(task.network, labels=["x", "y"])


# Models and processors


def made(**changes: Any) -> Any:
    settings = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, **changes}
    with quiet_loading():
        return transformers.ViTImageProcessor(**settings)


def test_the_processor_decides(task: Image) -> None:
    own = Image(task.network, made())
    np.testing.assert_allclose(own.encode(own_size()).patches, 2 * task.encode(own_size()).patches, atol=1e-6)
    assert np.array_equal(own.encode(own_size()).shown, own_size())


def bare() -> nn.Module:
    network = nn.Linear(2, 2)
    network.config = transformers.BertConfig()  # type: ignore[assignment]
    return network


WRONG = [
    (lambda: Image(vit(), 3), "processor=3 is not a Hugging Face image processor"),
    (lambda: Image(vit(), made(size={"height": 48, "width": 32})), "images of 48 x 32 pixels, .* takes 32 x 32"),
    (lambda: Image(vit(), made(image_mean=[0.5])), "could not process 'a blank image': mean must have 3"),
    (lambda: Image(3), "model=3 is not a torch.nn.Module"),  # type: ignore[arg-type]
    (lambda: Image(bare()), "has no patch_size and image_size"),
    (lambda: Image(vit(image_size=36)), "36 x 36 pixels cannot be divided into the patches of .*, 8 x 8 pixels"),
    (lambda: Image(vit(num_channels=2)), "takes images with 2 channels"),
    (
        lambda: conserva.explain(Image(vit(), made(do_resize=False)), noise()),
        "'image' becomes 40 x 50 pixels, .* takes 32 x 32",
    ),
    (
        lambda: conserva.explain(Image(vit().vit, labels=["a", "b", "c"]), own_size()),  # type: ignore[arg-type]
        "ViTModel returns no logits: load a classifier",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_models_and_processors_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        make()


def test_a_folder_is_loaded_with_its_processor(tmp_path: Path) -> None:
    found = load_image(str(saved(tmp_path)), {}, name="digits")
    image = own_size()[:, :, 0]
    expected = (image[:8, :8].astype(float) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(found.encode(image).patches[0].numpy(), expected.ravel(), atol=1e-5)
    assert np.array_equal(found.encode(image).shown, image)
    assert found.name == "digits"
    assert set(found.labels) == {"cat", "dog", "bird"}


def test_a_comparison_is_loaded_with_its_tokenizer(tmp_path: Path) -> None:
    with quiet_loading():
        transformers.CLIPModel(clip_config(transformers.CLIPConfig)).save_pretrained(tmp_path)
        processor().save_pretrained(tmp_path)
    found = load_image(str(tmp_path), {}, labels=["a cat", "a dog"])
    assert conserva.explain(found, noise(), "a dog").target == "a dog"
    with pytest.raises(conserva.Error, match=r"not an image classifier: its file has no weights for .*labels=\[...\]"):
        load_image(str(tmp_path), {})


# Taking patches away, and single pixels


@pytest.mark.parametrize("mask", MASKS)
def test_patches_that_are_taken_away(task: Image, mask: str) -> None:
    one, other = task.encode(own_size(0)), task.encode(own_size(1))
    kept = np.ones((2, 16), dtype=bool)
    kept[1, [0, 6]] = False
    parts = [task.masked(one, kept, mask), task.masked(other, kept, mask)[1:]]
    images = task.grid.together(task.stack(parts)["patches"])
    assert images.shape == (3, 3, 32, 32)
    for image, encoded, row in ((images[0], one, 0), (images[1], one, 1), (images[2], other, 1)):
        whole = task.grid.together(encoded.patches[None])[0].double()
        ground = whole.mean((1, 2)) if mask == "mean" else torch.zeros(3).double()
        if row:
            whole[:, :8, :8] = ground[:, None, None]
            whole[:, 8:16, 16:24] = ground[:, None, None]
        np.testing.assert_allclose(image, whole, atol=1e-6)
    keys = task.masked(one, kept, mask).keys()
    assert not np.array_equal(keys[0], keys[1])
    assert not np.array_equal(keys[0], task.masked(other, kept, mask).keys()[0])


def test_masks_are_named(task: Image) -> None:
    assert task.mask(None, ("mask", "drop")) == "mean"
    assert task.mask("grey", ()) == "grey"
    with pytest.raises(conserva.Error, match="mask='black' is unknown: choose one of mean, grey"):
        task.mask("black", ())


def test_methods_are_evaluated(task: Image, tmp_path: Path) -> None:
    for seed, label in enumerate(("cat", "dog", "cat")):
        (tmp_path / label).mkdir(exist_ok=True)
        Pictures.fromarray(own_size(seed)).save(tmp_path / label / f"{seed}.png")
    (tmp_path / "README.md").write_text("not an image")
    order = [(own_size(0), "cat"), (own_size(2), "cat"), (own_size(1), "dog")]
    options: dict[str, Any] = {"methods": ["exact", "random"], "protocol": "paper", "random_seeds": 2}
    listed = conserva.evaluate(task, order, **options)
    found = conserva.evaluate(task, str(tmp_path), **options)
    assert found.protocol["mask"] == "mean"
    assert found.samples == 3
    assert [one.auac for one in found.methods] == [one.auac for one in listed.methods]


def test_data_that_is_none_is_refused(task: Image, tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match="has no images: their names must end in"):
        task.labelled(tmp_path)
    Pictures.fromarray(own_size()).save(tmp_path / "one.png")
    alone = task.labelled(str(tmp_path))
    assert (alone.texts, alone.labels) == ((tmp_path / "one.png",), None)
    (tmp_path / "cat").mkdir()
    Pictures.fromarray(own_size()).save(tmp_path / "cat" / "two.PNG")
    with pytest.raises(conserva.Error, match="1 images beside subfolders"):
        task.labelled(tmp_path)
    with pytest.raises(conserva.Error, match="nowhere' is not a folder"):
        task.labelled(tmp_path / "nowhere")
    with pytest.raises(conserva.Error, match=r"data=\[\] contains no images"):
        task.labelled([])
    with pytest.raises(conserva.Error, match="its entries differ"):
        task.labelled([own_size(), 3])
    with pytest.raises(conserva.Error, match="fish"):
        conserva.evaluate(task, [(own_size(), "fish")], ["gi"], protocol="paper")


@pytest.mark.parametrize("method", ["ah+ln", "exact", conserva.rules("exact", gamma=0.1)])
def test_pixels_sum_to_their_patch(task: Image, method: Any) -> None:
    pixels = task.pixels(own_size(), "dog", rules=method)
    one = conserva.explain(task, own_size(), "dog", method=method)
    assert pixels.shape == (32, 32)
    summed = pixels.reshape(4, 8, 4, 8).sum((1, 3)).ravel()
    np.testing.assert_allclose(summed, one.scores, **EXACT)
    with pytest.raises(conserva.Error, match=r"rules='rollout' is unknown\. Choose one of 'gi'"):
        task.pixels(own_size(), rules="rollout")


def test_reading_leaves_the_given_image_alone() -> None:
    given = Pictures.fromarray(own_size())
    read_image(given, 3)[0].putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(np.asarray(given), own_size())


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(conserva.Error, match=r"pip install 'conserva\[images\]'"):
        Image(vit())
