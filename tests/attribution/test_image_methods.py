"""Vision Transformers as tasks: books that close, attention over patches, comparisons of images with texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import conserva
from conserva.tasks import Image
from conserva.tasks.patches import Grid, grid_of
from tiny import shake
from tiny_images import EXACT, PATCHES, SMALL, clip_config, noise, processor, vit


def of(model: str, config: str, **changes: object) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        settings = {**SMALL, **PATCHES, "num_labels": 3, **changes}
        torch.manual_seed(0)
        network = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return shake(network).double().eval()

    return made


def swin() -> nn.Module:
    shape = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 2, "num_labels": 3}
    torch.manual_seed(0)
    config = transformers.SwinConfig(**shape, image_size=32, patch_size=4)
    return shake(transformers.SwinForImageClassification(config)).double().eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], int | None]] = {
    "vit": (vit, 1),
    "deit": (of("DeiTForImageClassification", "DeiTConfig"), 2),
    "dinov2": (of("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2), 1),
    "registers": (
        of("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", num_register_tokens=3), 4,
    ),
    "beit": (of("BeitForImageClassification", "BeitConfig", use_relative_position_bias=True), 1),
    "swin": (swin, None),
    "clip": (lambda: shake(transformers.CLIPForImageClassification(clip_config(transformers.CLIPConfig))).double(), 1),
}  # fmt: skip
"""Name -> a model, and how many places it has before its patches; None if it attends within windows."""


# Books


@pytest.mark.parametrize("kind", MODELS)
def test_books_close_and_a_batch_says_what_single_images_say(kind: str) -> None:
    task = Image(MODELS[kind][0](), name=kind)
    before = {name: x.clone() for name, x in task.network.state_dict().items()}
    images = [noise(0), noise(1)]
    many = conserva.explain(task, images, method="exact")
    for image, one in zip(images, many, strict=True):
        assert one.ledger is not None
        assert abs(one.ledger.gap) < 1e-10
        assert sum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-10)
        assert len(one.scores) == len(task.grid)
        assert (one.ledger.positions != 0) == (kind != "swin")  # which has no class token and adds no places
        alone = conserva.explain(task, image, method="exact")
        np.testing.assert_allclose(alone.scores, one.scores, **EXACT)
        pixels = task._pixels.numbers(*_read(task, image))[None].double()
        with torch.no_grad():
            logits = task.network(pixel_values=pixels).logits[0].tolist()
        assert one.output == pytest.approx(max(logits), abs=1e-10)
    assert all(torch.equal(x, before[name]) for name, x in task.network.state_dict().items())


def _read(task: Image, image: np.ndarray) -> tuple[Any, str]:
    from conserva.tasks.pixels import read_image

    return read_image(image, task.grid.channels)


def test_patches_are_put_back_where_they_were() -> None:
    grid = Grid(channels=2, height=6, width=4, rows=3, columns=2, is_own=True)
    pixels = torch.arange(2 * 2 * 6 * 4.0).view(2, 2, 6, 4)
    patches = grid.apart(pixels)
    assert patches.shape == (2, 6, 8)
    assert torch.equal(patches[1, 3], pixels[1, :, 2:4, 2:4].flatten())  # the second row's second
    assert torch.equal(grid.together(patches), pixels)
    assert grid.names == ("r1c1", "r1c2", "r2c1", "r2c2", "r3c1", "r3c2")


GRIDS = [
    (224, 16, (14, 14)),
    (512, 16, (32, 32)),
    (224, 4, (28, 28)),  # Swin: two patches each way
    (384, 4, (32, 32)),
    (518, 14, (37, 37)),  # a prime number of them: nothing to merge
    ((64, 32), (8, 16), (8, 2)),
]


@pytest.mark.parametrize(("size", "patch", "expected"), GRIDS)
def test_grid_is_the_networks_own_unless_that_is_finer_than_32(size: Any, patch: Any, expected: tuple) -> None:
    network = nn.Identity()
    network.config = transformers.SwinConfig(image_size=size, patch_size=patch)
    high, wide = size if isinstance(size, tuple) else (size, size)
    grid = grid_of(network, high, wide, "net")
    down = patch[0] if isinstance(patch, tuple) else patch
    assert (grid.rows, grid.columns) == expected
    assert grid.is_own == (expected[0] == high // down)


# Attention


@pytest.mark.parametrize("method", ["a-last", "rollout", "gae", "chefer", "partial-lrp", "attn-gradcam", "a-flow"])
@pytest.mark.parametrize("kind", ["vit", "registers"])
def test_attention_methods_tell_the_patches_apart(kind: str, method: str) -> None:
    one = conserva.explain(Image(MODELS[kind][0]()), noise(), method=method)
    assert len(one.scores) == 16
    assert np.ptp(one.scores) > 0


@pytest.mark.parametrize("kind", [kind for kind, (_, places) in MODELS.items() if places])
def test_attention_is_cut_after_the_networks_own_places(kind: str) -> None:
    network = MODELS[kind][0]()
    network.set_attn_implementation("eager")
    task = Image(network)
    inputs = task.batch([task.encode(noise(seed)) for seed in range(2)])
    maps = task.network(pixel_values=task.grid.together(inputs["patches"]), output_attentions=True).attentions
    places = MODELS[kind][1]
    assert task._prefix_length == places
    last = maps[-1].mean(1)
    # Some classifiers read the mean of all patches, DINOv2 with the class token beside it, the others that token alone.
    rows = {"beit": [*range(1, 17)], "clip": [*range(1, 17)], "dinov2": [*range(17)], "registers": [0, *range(4, 20)]}
    expected = last[:, rows.get(kind, [0])].mean(1)[:, places:].detach().numpy()
    for row, one in enumerate(conserva.explain(task, [noise(0), noise(1)], method="a-last")):
        np.testing.assert_allclose(one.scores, expected[row], **EXACT)


def test_windows_and_other_places_are_refused() -> None:
    with pytest.raises(conserva.Error, match="attends within windows"):
        conserva.explain(Image(MODELS["swin"][0]()), noise(), method="rollout")
    task = Image(vit())
    inputs = task.batch([task.encode(noise())])
    for wide in (15, 18):
        with pytest.raises(conserva.Error, match=rf"attends over {wide} positions, which are not its 4 x 4 patches"):
            task.feature_scores(inputs, {"patches": torch.zeros(1, wide)})
    assert torch.equal(
        task.feature_scores(inputs, {"patches": torch.arange(17.0)[None]}), torch.arange(1.0, 17.0)[None]
    )


class Shuffled(nn.Module):
    """A ViT whose patches stand before its class token, or in another order."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.vit, self.order = vit(), order
        self.config = self.vit.config

    def forward(self, pixel_values: torch.Tensor, output_hidden_states: bool = False) -> Any:
        output = self.vit(pixel_values=pixel_values, output_hidden_states=output_hidden_states)
        if output_hidden_states:
            output.hidden_states = tuple(states[:, self.order] for states in output.hidden_states)
        return output


COLUMNS_FIRST = [0, *(1 + row * 4 + column for column in range(4) for row in range(4))]


@pytest.mark.parametrize(
    ("order", "known"), [(list(range(17)), 1), ([*range(1, 17), 0], None), (COLUMNS_FIRST, None)]
)  # fmt: skip
def test_places_in_another_order_are_noticed(order: list[int], known: int | None) -> None:
    task = Image(Shuffled(order).eval())
    assert task._prefix_length == known
    if known is None:
        with pytest.raises(conserva.Error, match="attends over 17 positions"):
            conserva.explain(task, noise(), method="rollout")


def test_finding_the_places_draws_no_random_numbers() -> None:
    task = Image(vit())
    state = torch.random.get_rng_state()
    assert task._prefix_length == 1
    assert torch.equal(torch.random.get_rng_state(), state)


# Images compared with texts


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_texts_are_classes(kind: str) -> None:
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind}Model")(clip_config(getattr(transformers, f"{kind}Config")))
    network = shake(network).double().eval()
    both, labels = processor(), ["a photo of a cat", "a small dog", "dog"]
    task = Image(network, both, labels)
    one = conserva.explain(task, noise(), "a small dog", method="exact")
    assert one.ledger is not None
    assert abs(one.ledger.gap) < 1e-10
    asked = both(
        images=task.encode(noise()).shown, text=labels, padding="max_length", max_length=8, return_tensors="pt"
    )
    asked["pixel_values"] = task.grid.together(task.batch([task.encode(noise())])["patches"])
    expected = network(**asked).logits_per_image[0].tolist()
    assert one.output == pytest.approx(expected[1], abs=1e-10)
    assert task.labels == {"a photo of a cat": 0, "a small dog": 1, "dog": 2}
    predicted = conserva.explain(task, noise(), method="gi")
    assert predicted.target == labels[int(np.argmax(expected))]
    contrast = conserva.explain(task, noise(), "dog - a small dog", method="exact")
    assert contrast.output == pytest.approx(expected[2] - expected[1], abs=1e-10)


def test_attention_within_a_comparison() -> None:
    network = shake(transformers.CLIPModel(clip_config(transformers.CLIPConfig))).double()
    task = Image(network, processor(), ["a cat", "a dog"])
    assert task._prefix_length == 1
    assert len(conserva.explain(task, noise(), "a dog", method="gae").scores) == 16


BAD_LABELS = [
    (None, "labels=None: CLIPModel needs a list of the texts that it compares images with"),
    ([], r"labels=\[\]: CLIPModel needs a list"),
    ("a cat", "labels='a cat': CLIPModel needs a list"),
    (["a cat", ""], "labels contains ''"),
    (["a cat", 3], "labels contains 3"),
    (["a cat", "a cat"], "contains duplicates"),
    (
        ["a cat", "a small small small small small cat"],
        "'a small small small small small cat' has 9 tokens, .* takes 8",
    ),
]


@pytest.mark.parametrize(("labels", "message"), BAD_LABELS)
def test_bad_texts_are_refused(labels: Any, message: str) -> None:
    network = transformers.CLIPModel(clip_config(transformers.CLIPConfig))
    with pytest.raises(conserva.Error, match=message):
        Image(network, processor(), labels)


def test_a_comparison_needs_a_tokenizer() -> None:
    network = transformers.CLIPModel(clip_config(transformers.CLIPConfig))
    with pytest.raises(conserva.Error, match="processor has no tokenizer: give the processor that AutoProcessor"):
        Image(network, processor().image_processor, ["a cat", "a dog"])
