"""Bounds for models whose files anyone may have written: what is beyond them is refused before memory is spent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.modules import module as registration

from ..engine.memory import host_memory
from ..errors import Error, OutOfMemory

MOST: Mapping[str, int] = {
    "layer": 10_000,
    "block": 10_000,
    "depth": 10_000,
    "stage": 10_000,
    "head": 10_000,
    "group": 100_000,
    "expert": 100_000,
    "label": 1_000_000,
    "height": 16_384,
    "width": 16_384,
    "_edge": 16_384,
    "image_size": 16_384,
    "patch_size": 16_384,
    "n_fft": 65_536,
    "hop_length": 65_536,
    "feature_size": 65_536,
    "mel_bins": 65_536,
    "chunk_length": 3_600,
    "sampling_rate": 1_000_000,
    "n_samples": 100_000_000,
    "frames": 10_000_000,
}
"""Part of a setting's name -> the largest number that makes sense there. Loops and arrays are as long as they say."""


def check_settings(settings: Any, file: str) -> None:
    """Refuse settings of a model, or of what belongs to it, that ask for loops and arrays without end."""
    left = [("", settings)]
    while left:
        key, value = left.pop()
        if isinstance(value, Mapping):
            left += [(str(name), one) for name, one in value.items() if name != "label2id"]  # has names of its own
        elif isinstance(value, (list, tuple)):
            left += [(key, one) for one in value]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            known = [(most, part) for part, most in MOST.items() if part in key.lower()]
            if known and (value > max(known)[0] or (value < 0 and "head" in key)):
                raise Error(f"{file} has {key!r} = {value!r:.40}: 0 to {max(known)[0]:,} make sense there. Mend it.")


@contextmanager
def bounded(tensors: int | None, numbers: int | None, *, whole: bool) -> Iterator[None]:
    """Refuse a model that transformers builds inside, as soon as it grows beyond what its files can hold.

    Models are built without memory at first, on the device "meta", and only what is there counts.

    Parameters
    ----------
    tensors
        How many tensors the files hold; None where that is unknown.
    numbers
        How many numbers the files hold at most; None where that is unknown.
    whole
        Whether every parameter becomes as many bytes as are built: not so in models of 8 or 4 bits.
    """
    most_modules = 1_000_000 if tensors is None else 1000 + 20 * tensors
    most_numbers = None if numbers is None else 1_000_000 + numbers
    free, here = host_memory(), threading.get_ident()
    modules = counted = needed = 0

    def built(owner: object, name: str, module: object) -> None:
        nonlocal modules
        modules += threading.get_ident() == here
        if modules > most_modules:
            raise Error(f"config.json asks for more than {most_modules:,} modules, its weights are {tensors} tensors.")

    def made(owner: object, name: str, tensor: Tensor | None, *, parameter: bool) -> None:
        nonlocal counted, needed
        if tensor is None or not tensor.is_meta or threading.get_ident() != here:
            return
        if parameter:
            counted += tensor.numel()
            if most_numbers is not None and counted > most_numbers:
                raise Error(f"config.json asks for {counted:,} weights or more, its files hold {numbers:,} at most.")
        if whole or not parameter:
            needed += tensor.numel() * tensor.element_size()
            if needed > free:
                raise OutOfMemory(
                    f"config.json asks for {needed / 2**30:,.1f} GiB or more, {free / 2**30:,.1f} GiB are free."
                )

    handles = [
        registration.register_module_module_registration_hook(built),
        registration.register_module_parameter_registration_hook(lambda *one: made(*one, parameter=True)),
        registration.register_module_buffer_registration_hook(lambda *one: made(*one, parameter=False)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
