"""Classifying images: their patches are the features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._util.files import expanded, reason
from ..datasets import Labelled, mnist
from ..engine.context import Propagation
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RuleSet
from ..engine.untouched import untouched
from ..errors import Error, NotApplicable
from ..models.pretrained import config_of, model_of, part_of, reading
from .classifier import Classifier
from .masking import KeptRows
from .output_heads import MULTI_LABEL, SINGLE_LABEL, OutputHead
from .patches import Comparison, Grid, Patches, channels_of, grid_of, image_size
from .pixels import ENDINGS, Pixels, is_image, pillow, png, read_image
from .task import Encoded

MASKS = ("mean", "grey")
"""What stands for a patch that was taken away. `mean`: the mean colour of the image, over all its pixels. `grey`: the
processor's own mean, which is 0 for the network."""


@dataclass(frozen=True, eq=False)
class EncodedImage(Encoded):
    """An image as the model sees it: its patches, row by row."""

    patches: Tensor
    """Patches x numbers, as the network takes them."""
    shown: np.ndarray
    """The same image in bytes, height x width (x 3)."""
    grid: Grid

    @property
    def key(self) -> str:
        return hashlib.sha256(self.patches.numpy().tobytes()).hexdigest()

    @property
    def picture(self) -> Mapping[str, Any]:
        return {"kind": "image", "image": png(self.shown), "grid": [self.grid.rows, self.grid.columns]}

    def controls(self) -> dict[str, np.ndarray]:
        """Return the order of brightness for grey images."""
        return {"intensity": self.patches.mean(1).numpy()} if self.grid.channels == 1 else {}


class ImageRows(KeptRows[EncodedImage]):
    """An image with other patches taken away in each row."""

    def patches(self) -> Tensor:
        """Return rows x patches x numbers."""
        whole, grid = self.encoded.patches, self.encoded.grid
        ground = torch.zeros_like(whole)
        if self.mask == "mean":
            colour = grid.together(whole[None]).mean((2, 3), keepdim=True)
            ground = grid.apart(colour.expand(1, -1, grid.height, grid.width))[0]
        return torch.where(torch.from_numpy(self.kept)[:, :, None], whole, ground)


class Image(Classifier):
    """A classifier of images: a Hugging Face vision Transformer and its image processor.

    Without a processor, images are brought to the model's size and their bytes to numbers from -1 to 1. A model that
    compares images with texts, as CLIP does, takes texts as its labels, and a processor that has a tokenizer. To other
    models labels give names to their classes. `head` says what the logits are where the configuration does not.
    """

    features = ("patches",)
    noun = "image"

    model: Patches

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        *,
        head: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise Error(f"model={model!r} is not a torch.nn.Module.")
        shown, of_texts = name or type(model).__name__, hasattr(model, "get_text_features")
        size, channels = image_size(model, shown), channels_of(model, shown)
        self._pixels = Pixels(getattr(processor, "image_processor", processor), channels, size)
        blank = pillow().Image.new("L" if channels == 1 else "RGB", (size[1], size[0]))
        _, height, width = self._pixels.numbers(blank, "a blank image").shape
        grid, config = grid_of(model, height, width, shown), model.config
        names = _checked(labels, None if of_texts else getattr(config, "num_labels", 0), shown)
        if of_texts and names is not None:
            tokens = _tokens(model, getattr(processor, "tokenizer", None), names, shown)
            super().__init__(Comparison(model, grid, names, tokens), name, head)
        else:
            super().__init__(Patches(model, grid, names), name, head)

    @property
    def head(self) -> OutputHead:
        """What the logits say; of images compared with texts, SigLIP was trained to judge each text by itself."""
        if self._head is None and isinstance(self.model, Comparison):
            return MULTI_LABEL if getattr(self.network, "logit_bias", None) is not None else SINGLE_LABEL
        return super().head

    @property
    def grid(self) -> Grid:
        """The rows and columns of patches."""
        return self.model.grid

    @property
    def options(self) -> Mapping[str, Any]:
        return {"labels": dict(self.labels)}

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        return {"image_processor": self._pixels.processor}

    def is_one(self, given: Any) -> bool:
        return is_image(given)

    def labelled(self, data: Any) -> Labelled:
        """Return images with labels: (image, label) pairs, images, or a folder with a folder of them for each label.

        "mnist" stands for the test images of MNIST.
        """
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data == "mnist":
            found = mnist.read("test")
            return Labelled(tuple(found.images), tuple(map(str, found.labels)), "mnist (test)")
        if isinstance(data, (str, Path)):
            return _folder(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} holds no images: give a folder, a list of images, or a list of (image, label)."
            )
        if all(isinstance(one, (tuple, list)) and len(one) == 2 for one in data):
            return Labelled(tuple(one for one, _ in data), tuple(label for _, label in data), "images")
        if not all(self.is_one(one) for one in data):
            raise Error("data is neither a list of images nor a list of (image, label): its entries differ.")
        return Labelled(tuple(data), None, "images")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedImage:
        """Return an image as patches: read, resized and normalised as its processor does it."""
        image, name = read_image(given, self.grid.channels)
        numbers, grid = self._pixels.numbers(image, name), self.grid
        if tuple(numbers.shape[1:]) != (grid.height, grid.width):
            raise Error(
                f"{name!r} becomes {numbers.shape[1]} x {numbers.shape[2]} pixels, {self.name} is asked with "
                f"{grid.height} x {grid.width}: crop the image to that shape, or give a processor that does."
            )
        count = len(grid)
        patches = grid.apart(numbers[None])[0]
        shown = self._pixels.shown(numbers)
        return EncodedImage(name, grid.names, (False,) * count, tuple(range(count)), patches, shown, grid)

    def batch(self, encoded: Sequence[EncodedImage]) -> dict[str, Tensor]:
        """Put images side by side."""
        return self._inputs(torch.stack([one.patches for one in encoded]))

    def _inputs(self, patches: Tensor) -> dict[str, Tensor]:
        return {"patches": patches.to(next(self.network.parameters()))}

    def joined(self, inputs: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of the patches; those of places of the network's own, as a class token, are left out."""
        found = scores.get("patches")
        if found is not None and found.shape != inputs["patches"].shape[:2]:
            own = self._own_places
            if own is None or found.shape[1] != own + len(self.grid):
                raise NotApplicable(
                    f"{type(self.network).__name__} attends over {found.shape[1]} places that are not its "
                    f"{self.grid.rows} x {self.grid.columns} patches, nor these behind a few places of its own."
                )
            scores = {**scores, "patches": found[:, own:]}
        return super().joined(inputs, scores)

    @cached_property
    def _own_places(self) -> int | None:
        """How many places of the network's own stand before those of the patches; None if they are not laid out so.

        It is seen from a blank image, one with noise in all patches, and one with noise in a single patch.
        """
        count = len(self.grid)
        if not self.grid.is_own:
            return None
        draws = torch.Generator().manual_seed(0)
        shape = (1, self.grid.channels, self.grid.height, self.grid.width)
        noise = self.grid.apart(torch.randn(shape, generator=draws))[0]
        one = min(1, count - 1)
        single = torch.zeros_like(noise)
        single[one] = noise[one]
        with untouched(self.model), torch.no_grad():
            given = self._inputs(torch.stack([torch.zeros_like(noise), noise, single]))
            states = self.model.states(**given)
        if states is None or states.dim() != 3 or states.shape[1] < count:
            return None
        changed = (states[1:] != states[:1]).any(-1).cpu()
        first, places = states.shape[1] - count, torch.arange(states.shape[1])
        return first if torch.equal(changed, torch.stack([places >= first, places == first + one])) else None

    def pixels(self, image: Any, target: Any = None, *, rules: str | RuleSet | Propagation = DEFAULT) -> np.ndarray:
        """Return the relevance of every pixel, height x width: over a patch it sums to the patch's score.

        The image is as the model sees it, after resizing and cropping.
        """
        encoded = self.encode(image)
        found = relevance(
            self.model, self.batch([encoded]), self.aim(target, encoded), rules=rules, ledger=False
        ).values["patches"]
        summed: np.ndarray = self.grid.together(found)[0].sum(0).cpu().numpy()
        return summed

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        if given is not None and given not in MASKS:
            raise Error(f"mask={given!r} is none of {', '.join(MASKS)}.")
        return given or next((one for one in preferred if one in MASKS), MASKS[0])

    def masked(self, encoded: EncodedImage, kept: np.ndarray, mask: str) -> ImageRows:
        return ImageRows(encoded, kept, mask)

    def stack(self, parts: Sequence[ImageRows]) -> dict[str, Tensor]:
        return self._inputs(torch.cat([part.patches() for part in parts]))


def load_image(
    source: str,
    options: Mapping[str, Any],
    labels: Sequence[str] | None = None,
    name: str | None = None,
    head: str | None = None,
    dtype: torch.dtype | None = None,
) -> Image:
    """Return the task of an image model in a folder or on the hub, with the processor that lies beside it.

    With labels, a model that compares images with texts is loaded as such. `options` go to transformers.
    """
    pillow()  # first: without it transformers does not say which extra to install
    shown = name or source
    with reading(f"model={shown!r}", "give the folder or the name of an image model."):
        config = config_of(source, options)
        compares = labels is not None and not any("Classification" in str(one) for one in config.architectures or ())
        processor = part_of("AutoProcessor" if compares else "AutoImageProcessor", source, options)
        auto = "AutoModelForZeroShotImageClassification" if compares else "AutoModelForImageClassification"
        model, missing = model_of(auto, source, options, config, dtype)
        if missing:
            raise Error(
                f"model={shown!r} is not an image classifier: its file has no weights for {', '.join(missing[:3])}. "
                "Fine-tune it for classification first; one that compares images with texts needs labels=[...]."
            )
        return Image(model, processor, labels, shown, head=head)


def _checked(labels: Any, classes: int | None, name: str) -> list[str] | None:
    """Return labels that can be used, for a model with so many classes; None if it compares images with texts."""
    if labels is None and classes is not None:
        return None
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        wanted = "names of its classes" if classes is not None else "the texts that it compares images with"
        raise Error(f"labels={labels!r}: {name} needs a list of {wanted}, as in ['a cat', 'a dog'].")
    if wrong := [one for one in labels if not isinstance(one, str) or not one.strip()]:
        raise Error(f"labels has {wrong[0]!r}, which is not a text.")
    if len(set(labels)) < len(labels):
        raise Error(f"labels={list(labels)!r:.80} has some twice: give each once.")
    if classes is not None and len(labels) != classes:
        raise Error(f"labels has {len(labels)} entries, {name} has {classes} classes: give one for each.")
    return list(labels)


def _tokens(model: nn.Module, tokenizer: Any, labels: Sequence[str], name: str) -> dict[str, Tensor]:
    """Return labels as the text part of a model takes them."""
    if not callable(tokenizer):
        raise Error(
            f"{name} compares images with texts, but its processor has no tokenizer: give the whole processor, as "
            "AutoProcessor.from_pretrained returns it."
        )
    config: Any = model.config
    most = int(config.text_config.max_position_embeddings)
    for label, ids in zip(labels, tokenizer(list(labels))["input_ids"], strict=True):
        if len(ids) > most:
            raise Error(f"The label {label[:60]!r} has {len(ids)} tokens, {name} takes {most}: shorten it.")
    # All as long as can be: SigLIP was trained so, and where pads are masked it makes no difference.
    found = tokenizer(list(labels), padding="max_length", max_length=most, return_tensors="pt")
    device = next(model.parameters()).device
    return {key: one.to(device) for key, one in found.items() if key in ("input_ids", "attention_mask")}


def _folder(given: str | Path) -> Labelled:
    """Return the images of a folder: in a folder for each label, or without labels."""
    folder = expanded(given)
    if not os.path.isdir(folder):
        raise Error(f"data={str(given)!r} is not a folder: give one that has a folder of images for each label.")
    try:
        alone, sorted_out = _images(folder), [(one, path) for one in sorted(folder.iterdir()) for path in _images(one)]
    except OSError as error:
        raise Error(f"data={str(given)!r} cannot be read: {reason(error)}. Name another folder.") from None
    if alone and sorted_out:
        raise Error(
            f"data={str(given)!r} has {len(alone)} images of its own beside folders of images: put each into the "
            "folder of its label, or all into one without labels."
        )
    if not alone and not sorted_out:
        raise Error(f"data={str(given)!r} has no images: they end in {', '.join(ENDINGS)}.")
    labels = tuple(label.name for label, _ in sorted_out) or None
    return Labelled(tuple(alone or (path for _, path in sorted_out)), labels, str(given))


def _images(folder: Path) -> list[Path]:
    if not os.path.isdir(folder) or folder.name.startswith("."):
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and not path.name.startswith("."))
