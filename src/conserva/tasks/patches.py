"""Images as grids of patches, and wrappers of networks that take patches instead of pixels."""

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
"""Bounds on the grid of features. Where a network has more than 32 patches along a side, as Swin has, neighbouring
patches are merged into one feature until there are at most 32, unless that leaves fewer than 7 along a side."""


@dataclass(frozen=True)
class Grid:
    """A division of images into rows and columns of patches of equal size."""

    channels: int
    height: int
    width: int
    rows: int
    columns: int
    is_own: bool
    """Whether the patches are those of the network itself, not several of them merged."""

    def __len__(self) -> int:
        return self.rows * self.columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the patches, row by row: r1c1 is the upper left one."""
        return tuple(f"r{row}c{column}" for row in range(1, self.rows + 1) for column in range(1, self.columns + 1))

    def apart(self, pixels: Tensor) -> Tensor:
        """Return images, samples x channels x height x width, as samples x patches x numbers, row by row."""
        cut = pixels.reshape(-1, self.channels, self.rows, self.height // self.rows, self.columns, self._across)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), len(self), -1)

    def together(self, patches: Tensor) -> Tensor:
        """Return the images whose patches are given: the inverse of `apart`."""
        cut = patches.reshape(-1, self.rows, self.columns, self.channels, self.height // self.rows, self._across)
        return cut.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), self.channels, self.height, self.width)

    @property
    def _across(self) -> int:
        return self.width // self.columns


def grid_of(network: nn.Module, height: int, width: int, name: str) -> Grid:
    """Return the grid of features for images of a size; raise an `Error` for a size that the network does not take."""
    config = vision_config(network, name)
    if "interpolate_pos_encoding" in parameters_of(network) and (height, width) != image_size(network, name):
        raise Error(
            f"The processor makes images of {height} x {width} pixels, {name} takes "
            f"{' x '.join(map(str, image_size(network, name)))}: give the processor that belongs to it."
        )
    down, across = _pair(config.patch_size)
    if height % down or width % across:
        raise Error(
            f"Images of {height} x {width} pixels cannot be divided into the patches of {name}, {down} x {across} "
            "pixels: give a processor that resizes or crops them to a multiple."
        )
    rows, columns = height // down, width // across
    sizes = (n for n in range(1, rows + 1) if rows % n == columns % n == 0 and max(rows, columns) <= n * FINEST)
    merged = next((n for n in sizes if min(rows, columns) >= n * COARSEST), 1)
    return Grid(channels_of(network, name), height, width, rows // merged, columns // merged, merged == 1)


def image_size(network: nn.Module, name: str) -> tuple[int, int]:
    """Return the height and width of the images in a network's configuration."""
    return _pair(vision_config(network, name).image_size)


def channels_of(network: nn.Module, name: str) -> int:
    """Return the number of colour channels."""
    return int(getattr(vision_config(network, name), "num_channels", 3))


def vision_config(network: nn.Module, name: str) -> Any:
    """Return the configuration of a network's vision encoder."""
    config = getattr(network, "config", None)
    vision = getattr(config, "vision_config", None) or config
    if getattr(vision, "patch_size", None) is None or getattr(vision, "image_size", None) is None:
        raise Error(
            f"model={name}: its configuration has no patch_size and image_size, so conserva.Image does not support it. "
            "conserva.relevance explains any model, given its own inputs."
        )
    return vision


def _pair(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


class Patches(Reading):
    """An image classifier that takes patches as its input."""

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
        """The network's configuration, with the given labels."""
        return self._config

    def forward(self, patches: Tensor) -> Answer:
        output = self.ask(pixel_values=self.grid.together(patches))
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            raise Error(
                f"{type(self.network).__name__} returns no logits: load a classifier with "
                "AutoModelForImageClassification."
            )
        return Answer(logits)

    def states(self, patches: Tensor) -> Tensor | None:
        """Return the input of the first layer, samples x positions x numbers, if the network returns hidden states."""
        output = self._output(self.grid.together(patches))
        states = getattr(output, "hidden_states", None)
        return states[0] if states else None

    def _output(self, pixels: Tensor) -> Any:
        return self.ask(pixel_values=pixels, output_hidden_states=True)


class Comparison(Patches):
    """A network that compares images with texts, such as CLIP: the classes are texts, which are encoded once."""

    texts: Tensor

    def __init__(self, network: nn.Module, grid: Grid, labels: Sequence[str], tokens: dict[str, Tensor]) -> None:
        super().__init__(network, grid, labels)
        with untouched(network), torch.no_grad():
            texts = _features(network.get_text_features(**tokens))  # type: ignore[operator]
        self.register_buffer("texts", texts / texts.norm(dim=-1, keepdim=True), persistent=False)

    def forward(self, patches: Tensor) -> Answer:
        network: Any = self.network
        image = _features(network.get_image_features(pixel_values=self.grid.together(patches)))
        cosine = (image / image.norm(dim=-1, keepdim=True)) @ self.texts.to(image).t()
        bias = getattr(network, "logit_bias", None)  # SigLIP has one, CLIP does not
        scaled = cosine * network.logit_scale.exp()
        return Answer(scaled if bias is None else scaled + bias)

    def _output(self, pixels: Tensor) -> Any:
        network: Any = self.network
        return network.get_image_features(pixel_values=pixels, output_hidden_states=True)


def _features(output: Any) -> Tensor:
    """Return the vector of each sample; versions of transformers return it as a tensor or in a model output."""
    result: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return result
