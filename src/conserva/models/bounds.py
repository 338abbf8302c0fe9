"""Limits for models from untrusted files: a model that exceeds them is rejected before memory is allocated."""

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
"""Substring of a setting's name -> its maximum. Such settings determine the length of loops and arrays."""


def check_settings(settings: Any, file: str) -> None:
    """Raise an `Error` for a setting of a model or processor that is larger than its limit in `MOST`."""
    remaining = [("", settings)]
    while remaining:
        key, value = remaining.pop()
        if isinstance(value, Mapping):
            remaining += [(str(name), entry) for name, entry in value.items() if name != "label2id"]  # keys are labels
        elif isinstance(value, (list, tuple)):
            remaining += [(key, entry) for entry in value]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            limits = [(most, part) for part, most in MOST.items() if part in key.lower()]
            if limits and (value > max(limits)[0] or (value < 0 and "head" in key)):
                raise Error(f"{file} has {key!r} = {value!r:.40}: it must be from 0 to {max(limits)[0]:,}. Correct it.")


@contextmanager
def bounded(tensors: int | None, numbers: int | None, *, whole: bool) -> Iterator[None]:
    """Raise an `Error` as soon as a model that is built in the block exceeds what its files can contain.

    transformers first builds a model on the "meta" device, without memory; only tensors on that device are counted.

    Parameters
    ----------
    tensors
        The number of tensors in the files; None if unknown.
    numbers
        The maximum number of elements in the files; None if unknown.
    whole
        Whether parameters keep the dtype they are built with: False for models quantised to 8 or 4 bits.
    """
    most_modules = 1_000_000 if tensors is None else 1000 + 20 * tensors
    most_numbers = None if numbers is None else 1_000_000 + numbers
    free, here = host_memory(), threading.get_ident()
    modules = counted = needed = 0

    def built(owner: object, name: str, module: object) -> None:
        nonlocal modules
        modules += threading.get_ident() == here
        if modules > most_modules:
            raise Error(f"config.json describes more than {most_modules:,} modules, its files hold {tensors} tensors.")

    def made(owner: object, name: str, tensor: Tensor | None, *, parameter: bool) -> None:
        nonlocal counted, needed
        if tensor is None or not tensor.is_meta or threading.get_ident() != here:
            return
        if parameter:
            counted += tensor.numel()
            if most_numbers is not None and counted > most_numbers:
                raise Error(f"config.json describes {counted:,} weights or more, its files hold {numbers:,} at most.")
        if whole or not parameter:
            needed += tensor.numel() * tensor.element_size()
            if needed > free:
                raise OutOfMemory(
                    f"config.json describes {needed / 2**30:,.1f} GiB or more, {free / 2**30:,.1f} GiB are free."
                )

    handles = [
        registration.register_module_module_registration_hook(built),
        registration.register_module_parameter_registration_hook(lambda *args: made(*args, parameter=True)),
        registration.register_module_buffer_registration_hook(lambda *args: made(*args, parameter=False)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
