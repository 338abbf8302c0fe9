"""Image classification, with patches as features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from .model_kind import ModelKind
from .output_heads import MULTI_LABEL, SINGLE_LABEL, OutputHead
from .patches import Comparison, Grid, Patches, channels_of, grid_of, image_size
from .pixels import ENDINGS, Pixels, is_image, pillow, png, read_image
from .task import Encoded
from .tokenizing import call_tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

MASKS = ("mean", "grey")
"""How removed patches are filled. `mean`: the mean colour of the image. `grey`: the mean of the image processor, which
is 0 after normalisation."""


@dataclass(frozen=True, eq=False)
class EncodedImage(Encoded):
    """An image after preprocessing: its patches, row by row."""

    patches: Tensor
    """Normalised pixel values, patches x numbers."""
    shown: np.ndarray
    """The same image as uint8, height x width (x 3)."""
    grid: Grid

    @property
    def key(self) -> str:
        return hashlib.sha256(self.patches.numpy().tobytes()).hexdigest()

    @property
    def picture(self) -> Mapping[str, Any]:
        return {"kind": "image", "image": png(self.shown), "grid": [self.grid.rows, self.grid.columns]}

    def controls(self) -> dict[str, np.ndarray]:
        """Return the brightness of the patches, for grey images."""
        return {"intensity": self.patches.mean(1).numpy()} if self.grid.channels == 1 else {}


class ImageRows(KeptRows[EncodedImage]):
    """An image with different patches removed in each row."""

    def patches(self) -> Tensor:
        """Return rows x patches x numbers."""
        whole, grid = self.encoded.patches, self.encoded.grid
        fill = torch.zeros_like(whole)
        if self.mask == "mean":
            colour = grid.together(whole[None]).mean((2, 3), keepdim=True)
            fill = grid.apart(colour.expand(1, -1, grid.height, grid.width))[0]
        return torch.where(torch.from_numpy(self.kept)[:, :, None], whole, fill)


class Image(Classifier):
    """An image classifier: a Hugging Face vision Transformer and its image processor.

    Parameters
    ----------
    model
        An image classifier, or a model that compares images with texts, such as CLIP.
    processor
        Its image processor; for a model that compares images with texts, a processor with a tokenizer. None: images
        are resized to the model's size and scaled to values from -1 to 1.
    labels
        The names of the classes; for a model that compares images with texts, the texts.
    name
        The name of the model in results.
    head
        The kind of output head, if the configuration does not describe it.

    Examples
    --------
    >>> import numpy as np
    >>> task = conserva.load("digits")
    >>> len(conserva.explain(task, np.zeros((28, 28), np.uint8)).features)
    49
    """

    kind = ModelKind(
        "image classifier",
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        classifies=True,
    )

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
        """The kind of output head; SigLIP was trained with an independent sigmoid for each text."""
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

    def is_single(self, given: Any) -> bool:
        return is_image(given)

    def labelled(self, data: Any) -> Labelled:
        """Return images with labels, from (image, label) pairs, images, or a folder with a subfolder for each label.

        "mnist" is the test split of MNIST.
        """
        if isinstance(data, Labelled):
            return data
        if isinstance(data, str) and data == "mnist":
            split = mnist.read("test")
            return Labelled(tuple(split.images), tuple(map(str, split.labels)), "mnist (test)")
        if isinstance(data, (str, Path)):
            return _folder(data)
        if not isinstance(data, Sequence) or not data:
            raise Error(
                f"data={data!r:.60} contains no images: give a folder, a list of images, or a list of (image, label)."
            )
        if all(isinstance(row, (tuple, list)) and len(row) == 2 for row in data):
            return Labelled(tuple(image for image, _ in data), tuple(label for _, label in data), "images")
        if not all(self.is_single(given) for given in data):
            raise Error("data is neither a list of images nor a list of (image, label): its entries differ.")
        return Labelled(tuple(data), None, "images")

    def encode(self, given: Any, *, truncate: bool = False) -> EncodedImage:
        """Return an image as patches, resized and normalised by the image processor."""
        image, name = read_image(given, self.grid.channels)
        numbers, grid = self._pixels.numbers(image, name), self.grid
        if tuple(numbers.shape[1:]) != (grid.height, grid.width):
            raise Error(
                f"{name!r} becomes {numbers.shape[1]} x {numbers.shape[2]} pixels, {self.name} takes "
                f"{grid.height} x {grid.width}: crop the image to that shape, or give a processor that does."
            )
        count = len(grid)
        patches = grid.apart(numbers[None])[0]
        shown = self._pixels.shown(numbers)
        return EncodedImage(name, grid.names, (False,) * count, tuple(range(count)), patches, shown, grid)

    def batch(self, encoded: Sequence[EncodedImage]) -> dict[str, Tensor]:
        """Return images as a batch."""
        return self._inputs(torch.stack([image.patches for image in encoded]))

    def _inputs(self, patches: Tensor) -> dict[str, Tensor]:
        return {"patches": patches.to(next(self.network.parameters()))}

    def feature_scores(self, inputs: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of the patches, without those of other positions such as a class token."""
        per_position = scores.get("patches")
        if per_position is not None and per_position.shape != inputs["patches"].shape[:2]:
            prefix = self._prefix_length
            if prefix is None or per_position.shape[1] != prefix + len(self.grid):
                raise NotApplicable(
                    f"{type(self.network).__name__} attends over {per_position.shape[1]} positions, which are not its "
                    f"{self.grid.rows} x {self.grid.columns} patches, with or without special tokens before them."
                )
            scores = {**scores, "patches": per_position[:, prefix:]}
        return super().feature_scores(inputs, scores)

    @cached_property
    def _prefix_length(self) -> int | None:
        """The number of special tokens, such as a class token, before the patches; None if the layout is different.

        Determined from the hidden states of a blank image, of one with noise in all patches, and of one with noise in a
        single patch.
        """
        count = len(self.grid)
        if not self.grid.is_own:
            return None
        generator = torch.Generator().manual_seed(0)
        shape = (1, self.grid.channels, self.grid.height, self.grid.width)
        noise = self.grid.apart(torch.randn(shape, generator=generator))[0]
        chosen = min(1, count - 1)
        single = torch.zeros_like(noise)
        single[chosen] = noise[chosen]
        with untouched(self.model), torch.no_grad():
            inputs = self._inputs(torch.stack([torch.zeros_like(noise), noise, single]))
            states = self.model.states(**inputs)
        if states is None or states.dim() != 3 or states.shape[1] < count:
            return None
        changed = (states[1:] != states[:1]).any(-1).cpu()
        first, positions = states.shape[1] - count, torch.arange(states.shape[1])
        expected = torch.stack([positions >= first, positions == first + chosen])
        return first if torch.equal(changed, expected) else None

    @classmethod
    def from_files(cls, model: nn.Module, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        pillow()  # first, since the error of transformers does not name the extra to install
        return cls(model, part_of("AutoImageProcessor", source, options), name=name, **how)

    @classmethod
    def from_objects(cls, model: nn.Module, processor: Any, name: str | None = None, **how: Any) -> Self:
        return cls(model, processor, name=name, **how)

    def pixels(self, image: Any, target: Any = None, *, rules: str | RuleSet | Propagation = DEFAULT) -> np.ndarray:
        """Return the relevance of every pixel, height x width; summed over a patch, it is the patch's score.

        The pixels are those of the image after resizing and cropping.
        """
        encoded = self.encode(image)
        values = relevance(
            self.model, self.batch([encoded]), self.resolve_target(target, encoded), rules=rules, ledger=False
        ).values["patches"]
        summed: np.ndarray = self.grid.together(values)[0].sum(0).cpu().numpy()
        return summed

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        if given is not None and given not in MASKS:
            raise Error(f"mask={given!r} is unknown: choose one of {', '.join(MASKS)}.")
        return given or next((mask for mask in preferred if mask in MASKS), MASKS[0])

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
    """Load an image model and its processor from a folder or from the hub.

    A model that compares images with texts needs `labels`. `options` are passed to transformers.
    """
    pillow()  # first, since the error of transformers does not name the extra to install
    shown = name or source
    with reading(f"model={shown!r}", "give the folder or the name of an image model."):
        config = config_of(source, options)
        compares = labels is not None and not any("Classification" in str(name) for name in config.architectures or ())
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
    """Check labels; `classes` is the number of classes of the model, None if it compares images with texts."""
    if labels is None and classes is not None:
        return None
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        wanted = "names of its classes" if classes is not None else "the texts that it compares images with"
        raise Error(f"labels={labels!r}: {name} needs a list of {wanted}, such as ['a cat', 'a dog'].")
    if wrong := [label for label in labels if not isinstance(label, str) or not label.strip()]:
        raise Error(f"labels contains {wrong[0]!r}: give texts that are not empty.")
    if len(set(labels)) < len(labels):
        raise Error(f"labels={list(labels)!r:.80} contains duplicates: give each label once.")
    if classes is not None and len(labels) != classes:
        raise Error(f"labels has {len(labels)} entries, {name} has {classes} classes: give one for each.")
    return list(labels)


def _tokens(model: nn.Module, tokenizer: Any, labels: Sequence[str], name: str) -> dict[str, Tensor]:
    """Return the tokens of labels, as inputs of the model's text encoder."""
    if not callable(tokenizer):
        raise Error(
            f"{name} compares images with texts, but its processor has no tokenizer: give the processor that "
            "AutoProcessor.from_pretrained returns."
        )
    config: Any = model.config
    most = int(config.text_config.max_position_embeddings)
    for label, ids in zip(labels, call_tokenizer(tokenizer, list(labels))["input_ids"], strict=True):
        if len(ids) > most:
            raise Error(f"The label {label[:60]!r} has {len(ids)} tokens, {name} takes {most}: shorten it.")
    # Padded to the maximum length, as in the training of SigLIP; other models mask the padding.
    tokens = call_tokenizer(tokenizer, list(labels), padding="max_length", max_length=most, return_tensors="pt")
    device = next(model.parameters()).device
    return {key: tensor.to(device) for key, tensor in tokens.items() if key in ("input_ids", "attention_mask")}


def _folder(given: str | Path) -> Labelled:
    """Return the images in a folder, which has a subfolder for each label or images without labels."""
    folder = expanded(given)
    if not os.path.isdir(folder):
        raise Error(f"data={str(given)!r} is not a folder: give one with a subfolder of images for each label.")
    try:
        unlabelled = _images(folder)
        labelled = [(subfolder, path) for subfolder in sorted(folder.iterdir()) for path in _images(subfolder)]
    except OSError as error:
        raise Error(f"data={str(given)!r} cannot be read: {reason(error)}. Give another folder.") from None
    if unlabelled and labelled:
        raise Error(
            f"data={str(given)!r} has {len(unlabelled)} images beside subfolders of images: move each image into the "
            "subfolder of its label, or all images into one folder without labels."
        )
    if not unlabelled and not labelled:
        raise Error(f"data={str(given)!r} has no images: their names must end in {', '.join(ENDINGS)}.")
    labels = tuple(label.name for label, _ in labelled) or None
    return Labelled(tuple(unlabelled or (path for _, path in labelled)), labels, str(given))


def _images(folder: Path) -> list[Path]:
    if not os.path.isdir(folder) or folder.name.startswith("."):
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and not path.name.startswith("."))
