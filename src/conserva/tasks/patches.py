"""Images as grids of patches, and networks that take such patches instead of pixels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.inputs import parameters_of
from ..engine.untouched import untouched
from ..errors import Error
from .reading import Answer, Reading

FINEST, COARSEST = 32, 7
"""A network that cuts images finer than 32 x 32, as Swin does, has several of its patches in each feature: as few as
make the grid that fine. Where that would leave fewer than 7 on a side, the features are its patches all the same."""


@dataclass(frozen=True)
class Grid:
    """Pixels that lie in rows and columns of patches, all of one size."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    is_own: bool
    """Whether the patches are those that the network itself cuts an image into."""

    def __len__(self) -> int:
        return self.rows * self.columns

    @property
    def names(self) -> tuple[str, ...]:
        """What the patches are called, row by row: r1c1 is the upper left one."""
        return tuple(f"r{row}c{column}" for row in range(1, self.rows + 1) for column in range(1, self.columns + 1))

    def apart(self, pixels: Tensor) -> Tensor:
        """Return images, samples x channels x height x width, as samples x patches x numbers, row by row."""
        cut = pixels.reshape(-1, self.channels, self.rows, self.height // self.rows, self.columns, self._across)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), len(self), -1)

    def together(self, patches: Tensor) -> Tensor:
        """Return what `apart` took apart."""
        cut = patches.reshape(-1, self.rows, self.columns, self.channels, self.height // self.rows, self._across)
        return cut.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), self.channels, self.height, self.width)

    @property
    def _across(self) -> int:
        return self.width // self.columns


def grid_of(network: nn.Module, height: int, width: int, name: str) -> Grid:
    """Return the grid of features for images of some size; refuse a size that the network does not take."""
    config = vision_config(network, name)
    if "interpolate_pos_encoding" in parameters_of(network) and (height, width) != image_size(network, name):
        raise Error(
            f"The processor makes images of {height} x {width} pixels, {name} takes "
            f"{' x '.join(map(str, image_size(network, name)))}: give the processor that belongs to it."
        )
    down, across = _pair(config.patch_size)
    if height % down or width % across:
        raise Error(
            f"Images of {height} x {width} pixels do not fall into patches of {down} x {across}, as {name} reads them: "
            "give a processor that resizes or crops them to a multiple."
        )
    rows, columns = height // down, width // across
    sizes = (n for n in range(1, rows + 1) if rows % n == columns % n == 0 and max(rows, columns) <= n * FINEST)
    merged = next((n for n in sizes if min(rows, columns) >= n * COARSEST), 1)
    return Grid(channels_of(network, name), height, width, rows // merged, columns // merged, merged == 1)


def image_size(network: nn.Module, name: str) -> tuple[int, int]:
    """Return height and width of the images that a network was made for."""
    return _pair(vision_config(network, name).image_size)


def channels_of(network: nn.Module, name: str) -> int:
    """Return how many numbers a pixel has."""
    return int(getattr(vision_config(network, name), "num_channels", 3))


def vision_config(network: nn.Module, name: str) -> Any:
    """Return the part of a configuration that speaks of images."""
    config = getattr(network, "config", None)
    found = getattr(config, "vision_config", None) or config
    if getattr(found, "patch_size", None) is None or getattr(found, "image_size", None) is None:
        raise Error(
            f"model={name}: its configuration names no patch_size and image_size, so it is not a vision "
            "Transformer that conserva.Image knows. conserva.relevance explains any model, given its own inputs."
        )
    return found


def _pair(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


class Patches(Reading):
    """A classifier of images, asked with patches."""

    def __init__(self, network: nn.Module, grid: Grid, labels: Sequence[str] | None = None) -> None:
        super().__init__(network)
        self.grid = grid
        self._config: Any = network.config
        if labels is not None:
            self._config = copy.copy(self._config)
            self._config.id2label = dict(enumerate(labels))
            self._config.label2id = {label: i for i, label in enumerate(labels)}

    @property
    def config(self) -> Any:
        """The network's configuration, with the labels that were given."""
        return self._config

    def forward(self, patches: Tensor) -> Answer:
        output = self.ask(pixel_values=self.grid.together(patches))
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            raise Error(
                f"{type(self.network).__name__} gives no score for each class: load a classifier, as "
                "AutoModelForImageClassification does."
            )
        return Answer(logits)

    def states(self, patches: Tensor) -> Tensor | None:
        """Return what goes into the first layer, samples x places x numbers, where the network tells."""
        found = self._seen(self.grid.together(patches))
        states = getattr(found, "hidden_states", None)
        return states[0] if states else None

    def _seen(self, pixels: Tensor) -> Any:
        return self.ask(pixel_values=pixels, output_hidden_states=True)


class Comparison(Patches):
    """A network that compares images with texts, as CLIP does: the classes are texts, which are encoded once."""

    texts: Tensor

    def __init__(self, network: nn.Module, grid: Grid, labels: Sequence[str], tokens: dict[str, Tensor]) -> None:
        super().__init__(network, grid, labels)
        with untouched(network), torch.no_grad():
            texts = _features(network.get_text_features(**tokens))  # type: ignore[operator]
        self.register_buffer("texts", texts / texts.norm(dim=-1, keepdim=True), persistent=False)

    def forward(self, patches: Tensor) -> Answer:
        network: Any = self.network
        image = _features(network.get_image_features(pixel_values=self.grid.together(patches)))
        alike = (image / image.norm(dim=-1, keepdim=True)) @ self.texts.to(image).t()
        bias = getattr(network, "logit_bias", None)  # SigLIP's, which CLIP lacks
        scaled = alike * network.logit_scale.exp()
        return Answer(scaled if bias is None else scaled + bias)

    def _seen(self, pixels: Tensor) -> Any:
        network: Any = self.network
        return network.get_image_features(pixel_values=pixels, output_hidden_states=True)


def _features(found: Any) -> Tensor:
    """Return the vector of each sample: transformers has returned it by itself, and among other results."""
    result: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return result
