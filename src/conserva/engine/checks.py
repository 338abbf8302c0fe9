"""Checks of values on a device whose results are transferred to the host together: each transfer synchronises."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Otherwise: TypeAlias = Callable[[], Exception | None]
"""Returns the exception to raise when a check fails, or None if a closer look shows that nothing is wrong.

Called only then, it may run the model to find the cause.
"""


class Checks:
    """Collects the checks that are requested inside a `with` block; `settle` evaluates them."""

    def __init__(self) -> None:
        self._requested: list[tuple[Tensor, Otherwise]] = []
        self._outer: Checks | None = None

    def __enter__(self) -> Checks:
        self._outer, _here.checks = _collecting(), self
        return self

    def __exit__(self, *exception: object) -> None:
        _here.checks = self._outer

    def add(self, passed: Tensor, otherwise: Otherwise) -> None:
        """Add a check."""
        self._requested.append((passed, otherwise))

    def flags(self) -> list[Tensor]:
        """Return the results of the checks as tensors, to be transferred to the host along with other values."""
        return [passed for passed, _ in self._requested]

    def settle(self, flags: Sequence[object] | None = None) -> None:
        """Raise for the first check that failed, and forget all checks.

        Parameters
        ----------
        flags
            The values of `flags()` on the host; None to transfer them here, all at once.
        """
        requested, self._requested = self._requested, []
        if flags is None and requested:
            device = requested[0][0].device
            flags = torch.stack([passed.to(device) for passed, _ in requested]).tolist()
        for (_, otherwise), passed in zip(requested, flags or (), strict=True):
            if not passed and (error := otherwise()) is not None:
                raise error


def require(passed: Tensor, otherwise: Otherwise) -> None:
    """Raise unless `passed` is true: at the end of the enclosing block that collects checks, or at once without one."""
    checks = _collecting()
    if checks is not None:
        checks.add(passed, otherwise)
    elif not passed and (error := otherwise()) is not None:
        raise error


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Settle the checks requested inside the block at its end, unless an outer block collects them."""
    if _collecting() is not None:
        yield
        return
    checks = Checks()
    try:
        with checks:
            yield
    except Exception:
        checks.settle()  # a check that was requested earlier takes precedence
        raise
    checks.settle()


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return for each tensor whether it is free of nan and inf, as a tensor on the device."""
    # The largest absolute value takes one pass over the tensor and cannot overflow; nan < inf is false.
    finite = [
        torch.linalg.vector_norm(x.detach(), math.inf) < math.inf if x.numel() else x.new_ones((), dtype=torch.bool)
        for x in tensors
    ]
    return torch.stack([flag.to(finite[0].device) for flag in finite])


_here = threading.local()


def _collecting() -> Checks | None:
    return getattr(_here, "checks", None)
