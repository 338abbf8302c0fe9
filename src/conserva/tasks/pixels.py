"""Images from files and arrays, and the numbers that a network takes in their place."""

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
"""By these names images are found in a folder. A file that is named by itself may be called anything."""

_TAKES = "a path to an image file, a PIL image, or a NumPy array of height x width (x 3), bytes or numbers from 0 to 1"


def pillow() -> Any:
    """Return the library that reads images."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise Error("Images need Pillow: pip install 'conserva[images]'.") from None
    return PIL


def is_image(given: Any) -> bool:
    """Say whether something is meant as one image, be it a good one or not."""
    return isinstance(given, (str, Path, np.ndarray, Tensor, pillow().Image.Image))


def read_image(given: Any, channels: int) -> tuple[Image, str]:
    """Return an image in grey or in colours, as many channels as are asked for, and what it is called.

    What loses nothing and has one meaning is converted; every other mode is refused.
    """
    library = pillow()
    if isinstance(given, (str, Path)):
        name = Path(given).name
        image = _from_file(given)
    elif isinstance(given, np.ndarray):
        image, name = _from_array(given), "image"
    elif isinstance(given, library.Image.Image):
        own = getattr(given, "filename", "")  # of what Image.open returned
        name = Path(own).name if own else "image"
        with _whole(name):  # it may not be read yet
            image = _upright(given, name)
    elif isinstance(given, Tensor):
        raise Error(
            f"The image is a tensor of shape {tuple(given.shape)}: give {_TAKES}. Numbers that are prepared already go "
            'to conserva.relevance(task.model, {"patches": task.model.grid.apart(pixels)}).'
        )
    else:
        raise Error(f"image={given!r:.60} is not an image: give {_TAKES}.")
    return _with_channels(_plain(image, name), name, channels), name


def _from_file(given: str | Path) -> Image:
    path = expanded(given)
    if not str(given) or not os.path.isfile(path):
        raise Error(f"image={str(given)!r} is not a file: give {_TAKES}.")
    with _whole(str(given)), opened(path, f"image={str(given)!r}") as image:
        return _upright(image, path.name)


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """Raise an `Error` for an image that cannot be read, whatever Pillow finds."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise Error(f"{name!r} cannot be read as an image ({reason}): give a whole PNG, JPEG or the like.") from None


def _upright(image: Image, name: str) -> Image:
    """Return a copy of an image that stands upright: a camera's file may say that it lies on its side."""
    if not image.width or not image.height:
        raise Error(f"{name!r} has {image.height} x {image.width} pixels: there is nothing to explain.")
    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise Error(f"{name!r} has {frames} frames: give one of them, as a PIL image.")
    found: Image = pillow().ImageOps.exif_transpose(image)
    return found


def _from_array(given: np.ndarray) -> Image:
    shown = f"An array of shape {given.shape} and type {given.dtype}"
    if given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] != 3) or not given.size:
        raise Error(f"{shown} is not an image: give height x width, or height x width x 3.")
    if given.dtype.kind == "f":
        low, high = float(given.min()), float(given.max())
        if not 0 <= low <= high <= 1:  # nan is none of them
            raise Error(f"{shown} has numbers from {low:g} to {high:g}: give them from 0 to 1, or bytes (uint8).")
        given = np.round(given * 255).astype(np.uint8)
    elif given.dtype != np.uint8:
        raise Error(f"{shown} is not an image: give bytes (uint8), or numbers from 0 to 1.")
    image: Image = pillow().Image.fromarray(np.ascontiguousarray(given))
    return image


def named(array: np.ndarray, name: str) -> Image:
    """Return an array as an image that has a name, as one that was opened from a file has."""
    image = _from_array(array)
    image.filename = name  # type: ignore[attr-defined]
    return image


def _plain(image: Image, name: str) -> Image:
    """Return an image in mode L or RGB if it is one in other words."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("P", "LA", "RGBA"):
        if (np.asarray(image.convert("RGBA").getchannel("A")) == 255).all():
            return image.convert("L" if image.mode == "LA" else "RGB")
        raise Error(
            f"{name!r} has mode {image.mode!r} and is transparent in places: what lies behind it is not known. Put it "
            "on a ground, and give it as mode 'RGB'."
        )
    raise Error(
        f"{name!r} has mode {image.mode!r}, which does not become bytes of grey or of red, green and blue without a "
        f"choice: convert it yourself, with image.convert('RGB') or another scale, and give mode 'L' or 'RGB'."
    )


def _with_channels(image: Image, name: str, channels: int) -> Image:
    if channels == 3:
        return image.convert("RGB")
    if image.mode == "RGB":
        colours = np.asarray(image)
        if (colours != colours[:, :, :1]).any():
            raise Error(
                f"{name!r} has mode 'RGB' and is coloured, but the model takes grey images: convert it with "
                "image.convert('L'), or load a model that takes colours."
            )
        return image.getchannel(0)  # equal to the others, where `convert` rounds a weighted mean
    return image


class Pixels:
    """How images become the numbers that a network takes: what a Hugging Face image processor does, and back."""

    def __init__(self, processor: Any, channels: int, size: tuple[int, int]) -> None:
        pillow()
        if channels not in (1, 3):
            raise Error(f"The model takes images of {channels} channels: conserva.Image knows those of 1 and of 3.")
        if processor is None:
            processor = _usual(channels, size)
        if not callable(processor):
            raise Error(
                f"processor={processor!r:.60} is no Hugging Face image processor: give one, as "
                "AutoImageProcessor.from_pretrained returns it, or None."
            )
        self.processor, self.channels = processor, channels

    def numbers(self, image: Image, name: str) -> Tensor:
        """Return an image as the network takes it, channels x height x width."""
        with self._preparing(name):
            found = torch.as_tensor(self.processor(images=image, return_tensors="pt")["pixel_values"][0])
        if found.dim() != 3 or found.shape[0] != self.channels:
            raise Error(
                f"{type(self.processor).__name__} made {tuple(found.shape)} of {name!r}, the model takes "
                f"{self.channels} x height x width: give the processor that belongs to it."
            )
        return found

    def shown(self, numbers: Tensor) -> np.ndarray:
        """Return the bytes that such numbers stand for, height x width (x 3)."""
        found = numbers.double()
        with self._preparing("an image, back to bytes"):
            if getattr(self.processor, "do_normalize", False):
                mean, deviation = (
                    torch.tensor(getattr(self.processor, name), dtype=torch.float64).reshape(-1, 1, 1)
                    for name in ("image_mean", "image_std")
                )
                found = found * deviation + mean
            if getattr(self.processor, "do_rescale", False):
                found = found / self.processor.rescale_factor
        array = found.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
        return array[:, :, 0] if self.channels == 1 else array

    @contextmanager
    def _preparing(self, name: str) -> Iterator[None]:
        """Raise an `Error` for whatever a processor of unfit settings runs into."""
        try:
            yield
        except Exception as error:
            reason = f"{' '.join(str(error).split())[:160]} ({type(error).__name__})"
            raise Error(f"{type(self.processor).__name__} could not prepare {name!r}: {reason}.") from None


def _usual(channels: int, size: tuple[int, int]) -> Any:
    """Return what most vision Transformers were trained with: the model's size, and numbers from -1 to 1."""
    half = [0.5] * channels
    with quiet_loading():  # without torchvision it is another class, and says so
        from transformers import ViTImageProcessor

        return ViTImageProcessor(size={"height": size[0], "width": size[1]}, image_mean=half, image_std=half)


def png(shown: np.ndarray) -> str:
    """Return bytes of an image as a PNG in base64."""
    file = io.BytesIO()
    pillow().Image.fromarray(np.ascontiguousarray(shown)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
