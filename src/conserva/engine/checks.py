"""Checks of numbers on a device, read back together: every one that is read by itself stops the device's queue."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Otherwise: TypeAlias = Callable[[], Exception]
"""What to raise where a check fails. It may search for the culprit: it is called then only."""


class Checks:
    """The checks that are asked for inside a `with` block, to be settled when it suits."""

    def __init__(self) -> None:
        self._asked: list[tuple[Tensor, Otherwise]] = []
        self._outer: Checks | None = None

    def __enter__(self) -> Checks:
        self._outer, _here.checks = _collecting(), self
        return self

    def __exit__(self, *exception: object) -> None:
        _here.checks = self._outer

    def add(self, passed: Tensor, otherwise: Otherwise) -> None:
        """Ask for one more check."""
        self._asked.append((passed, otherwise))

    def flags(self) -> list[Tensor]:
        """Return what tells whether the checks passed, to be read back along with other numbers."""
        return [passed for passed, _ in self._asked]

    def settle(self, flags: Sequence[object] | None = None) -> None:
        """Raise for the first check that failed, as its flags say; without them they are read back, all at once."""
        asked, self._asked = self._asked, []
        if flags is None and asked:
            device = asked[0][0].device
            flags = torch.stack([passed.to(device) for passed, _ in asked]).tolist()
        for (_, otherwise), passed in zip(asked, flags or (), strict=True):
            if not passed:
                raise otherwise()


def require(passed: Tensor, otherwise: Otherwise) -> None:
    """Raise unless `passed` is true: together with other checks where they are collected, at once elsewhere."""
    checks = _collecting()
    if checks is not None:
        checks.add(passed, otherwise)
    elif not passed:
        raise otherwise()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Settle the checks that are asked for inside at the end, in one go, unless an outer block collects them."""
    if _collecting() is not None:
        yield
        return
    checks = Checks()
    try:
        with checks:
            yield
    except Exception:
        checks.settle()  # what was found before comes first
        raise
    checks.settle()


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return for each tensor, still on its device, whether it is free of nan and inf."""
    # The highest absolute value is one pass over a tensor, and cannot overflow; nan is not less than anything.
    finite = [
        torch.linalg.vector_norm(x.detach(), math.inf) < math.inf if x.numel() else x.new_ones((), dtype=torch.bool)
        for x in tensors
    ]
    return torch.stack([one.to(finite[0].device) for one in finite])


_here = threading.local()


def _collecting() -> Checks | None:
    return getattr(_here, "checks", None)
