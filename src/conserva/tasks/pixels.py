"""Images from files and arrays, and their conversion to normalised pixel values and back."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .._util.files import expanded
from .._util.pictures import opened
from ..errors import Error
from ..models.quiet import quiet_loading

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The file name extensions of images in a folder. A file that is given by its path can have any name."""

_TAKES = "a path to an image file, a PIL image, or a NumPy array of height x width (x 3), bytes or numbers from 0 to 1"


def pillow() -> Any:
    """Import and return Pillow."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise Error("Images need Pillow: pip install 'conserva[images]'.") from None
    return PIL


def is_image(given: Any) -> bool:
    """Return whether an input is a single image, by its type."""
    return isinstance(given, (str, Path, np.ndarray, Tensor, pillow().Image.Image))


def read_image(given: Any, channels: int) -> tuple[Image, str]:
    """Return an image with 1 or 3 channels, and its name.

    Modes that can be converted without loss and without ambiguity are converted; other modes raise an `Error`.
    """
    library = pillow()
    if isinstance(given, (str, Path)):
        name = Path(given).name
        image = _from_file(given)
    elif isinstance(given, np.ndarray):
        image, name = _from_array(given), "image"
    elif isinstance(given, library.Image.Image):
        own = getattr(given, "filename", "")  # set by Image.open
        name = Path(own).name if own else "image"
        with _decoding(name):  # Image.open decodes lazily
            image = _upright(given, name)
    elif isinstance(given, Tensor):
        raise Error(
            f"The image is a tensor of shape {tuple(given.shape)}: give {_TAKES}. For normalised pixel values use "
            'conserva.relevance(task.model, {"patches": task.model.grid.apart(pixels)}).'
        )
    else:
        raise Error(f"image={given!r:.60} is not an image: give {_TAKES}.")
    return _with_channels(_plain(image, name), name, channels), name


def _from_file(given: str | Path) -> Image:
    path = expanded(given)
    if not str(given) or not os.path.isfile(path):
        raise Error(f"image={str(given)!r} is not a file: give {_TAKES}.")
    with _decoding(str(given)), opened(path, f"image={str(given)!r}") as image:
        return _upright(image, path.name)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Convert any exception of Pillow to an `Error`."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise Error(f"{name!r} cannot be read as an image ({reason}): give an undamaged PNG or JPEG.") from None


def _upright(image: Image, name: str) -> Image:
    """Return a copy of an image, rotated according to its EXIF orientation."""
    if not image.width or not image.height:
        raise Error(f"{name!r} has {image.height} x {image.width} pixels: there is nothing to explain.")
    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise Error(f"{name!r} has {frames} frames: give one of them, as a PIL image.")
    upright: Image = pillow().ImageOps.exif_transpose(image)
    return upright


def _from_array(given: np.ndarray) -> Image:
    shown = f"An array of shape {given.shape} and type {given.dtype}"
    if given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] != 3) or not given.size:
        raise Error(f"{shown} is not an image: give height x width, or height x width x 3.")
    if given.dtype.kind == "f":
        low, high = float(given.min()), float(given.max())
        if not 0 <= low <= high <= 1:  # False for nan
            raise Error(f"{shown} has numbers from {low:g} to {high:g}: give them from 0 to 1, or bytes (uint8).")
        given = np.round(given * 255).astype(np.uint8)
    elif given.dtype != np.uint8:
        raise Error(f"{shown} is not an image: give bytes (uint8), or numbers from 0 to 1.")
    image: Image = pillow().Image.fromarray(np.ascontiguousarray(given))
    return image


def named(array: np.ndarray, name: str) -> Image:
    """Return an array as an image with a file name, like one that was opened from a file."""
    image = _from_array(array)
    image.filename = name  # type: ignore[attr-defined]
    return image


def _plain(image: Image, name: str) -> Image:
    """Return an image in mode L or RGB; raise an `Error` if the conversion would lose something."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("P", "LA", "RGBA"):
        if (np.asarray(image.convert("RGBA").getchannel("A")) == 255).all():
            return image.convert("L" if image.mode == "LA" else "RGB")
        raise Error(
            f"{name!r} has mode {image.mode!r} and transparent pixels, whose colour is undefined: put it on a "
            "background, and give it in mode 'RGB'."
        )
    raise Error(
        f"{name!r} has mode {image.mode!r}, for which there is more than one conversion to 8-bit grey or RGB: convert "
        f"it, for example with image.convert('RGB'), and give it in mode 'L' or 'RGB'."
    )


def _with_channels(image: Image, name: str, channels: int) -> Image:
    if channels == 3:
        return image.convert("RGB")
    if image.mode == "RGB":
        colours = np.asarray(image)
        if (colours != colours[:, :, :1]).any():
            raise Error(
                f"{name!r} has mode 'RGB' and is coloured, but the model takes grey images: convert it with "
                "image.convert('L'), or load a model that takes colour images."
            )
        return image.getchannel(0)  # all channels are equal; `convert` would round a weighted mean
    return image


class Pixels:
    """Conversion of images to normalised pixel values by a Hugging Face image processor, and back."""

    def __init__(self, processor: Any, channels: int, size: tuple[int, int]) -> None:
        pillow()
        if channels not in (1, 3):
            raise Error(f"The model takes images with {channels} channels: conserva.Image supports 1 and 3.")
        if processor is None:
            processor = _default_processor(channels, size)
        if not callable(processor):
            raise Error(
                f"processor={processor!r:.60} is not a Hugging Face image processor: give one from "
                "AutoImageProcessor.from_pretrained, or None."
            )
        self.processor, self.channels = processor, channels

    def numbers(self, image: Image, name: str) -> Tensor:
        """Return the normalised pixel values of an image, channels x height x width."""
        with self._processing(name):
            pixels = torch.as_tensor(self.processor(images=image, return_tensors="pt")["pixel_values"][0])
        if pixels.dim() != 3 or pixels.shape[0] != self.channels:
            raise Error(
                f"{type(self.processor).__name__} returns the shape {tuple(pixels.shape)} for {name!r}, the model "
                f"takes {self.channels} x height x width: give the processor that belongs to it."
            )
        return pixels

    def shown(self, numbers: Tensor) -> np.ndarray:
        """Return normalised pixel values as uint8, height x width (x 3)."""
        pixels = numbers.double()
        with self._processing("an image, back to uint8"):
            if getattr(self.processor, "do_normalize", False):
                mean, deviation = (
                    torch.tensor(getattr(self.processor, name), dtype=torch.float64).reshape(-1, 1, 1)
                    for name in ("image_mean", "image_std")
                )
                pixels = pixels * deviation + mean
            if getattr(self.processor, "do_rescale", False):
                pixels = pixels / self.processor.rescale_factor
        array = pixels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        return array[:, :, 0] if self.channels == 1 else array

    @contextmanager
    def _processing(self, name: str) -> Iterator[None]:
        """Convert any exception of the processor to an `Error`."""
        try:
            yield
        except Exception as error:
            reason = f"{' '.join(str(error).split())[:160]} ({type(error).__name__})"
            raise Error(f"{type(self.processor).__name__} could not process {name!r}: {reason}.") from None


def _default_processor(channels: int, size: tuple[int, int]) -> Any:
    """Return a processor with the settings of most vision Transformers: the model's size, and values from -1 to 1."""
    half = [0.5] * channels
    with quiet_loading():  # without torchvision, transformers warns that it uses another class
        from transformers import ViTImageProcessor

        return ViTImageProcessor(size={"height": size[0], "width": size[1]}, image_mean=half, image_std=half)


def png(shown: np.ndarray) -> str:
    """Return an image as a base64-encoded PNG."""
    file = io.BytesIO()
    pillow().Image.fromarray(np.ascontiguousarray(shown)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
