"""How much a pass keeps on its device for the gradient, seen where that is most: between the passes there and back."""

from __future__ import annotations

import threading

import torch


class Weighing:
    """What the passes inside a `with` block keep on a device, at the most, beside what lay there before."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self._device, self._before = device, 0

    def __enter__(self) -> Weighing:
        self._before, _here.weighing = _bytes_on(self._device), self
        return self

    def __exit__(self, *exception: object) -> None:
        _here.weighing = None

    def look(self) -> None:
        """Look how much lies on the device now."""
        self.bytes = max(self.bytes, _bytes_on(self._device) - self._before)


def weigh() -> None:
    """Tell whoever weighs this pass, if someone does, that now all lies there that its gradient needs."""
    weighing: Weighing | None = getattr(_here, "weighing", None)
    if weighing is not None:
        weighing.look()


def _bytes_on(device: torch.device) -> int:
    """Return how much lies on a device; nothing, as far as anyone knows, where an allocator does not tell."""
    try:
        return torch.cuda.memory_allocated(device)
    except (RuntimeError, ValueError):
        return 0


_here = threading.local()
