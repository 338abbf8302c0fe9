"""Evaluation protocols: which features are removed, how many at a time, and which output is measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from ..errors import Error

TARGETS = ("predicted", "true")
SHOWN_STEPS = 100
"""The number of steps of a mean curve if samples have one point per feature: these are interpolated linearly."""

MOST_STEPS = 100_000
"""The maximum number of steps: a curve has a point for each."""

EACH = "each"
"""The value of `steps` for one feature at a time."""

ERASER_PERCENT = (1, 5, 10, 20, 50)
"""The percentages of features over which comprehensiveness and sufficiency are averaged (DeYoung et al. 2020)."""


@dataclass(frozen=True)
class Protocol:
    """How features are removed. `paper` is the protocol of Ali et al. (2022); `default` keeps special tokens."""

    name: str
    special: bool
    """Whether special tokens are removed like others; the virtual node of a graph never is."""
    target: str
    """The class that is explained and measured: the predicted or the true one."""
    masks: tuple[str, ...]
    """Masks in order of preference; the default is the first that the task supports."""
    steps: int | None = 10
    """The number of steps in which features are removed or added; a curve has one point more. None: one per feature."""

    def counts(self, features: int) -> np.ndarray:
        """Return the number of features that are added or removed at each point of a curve: ceil(k N / steps)."""
        steps = self.steps or features
        return -(-np.arange(steps + 1) * features // steps)

    def fractions(self) -> tuple[float, ...]:
        """Return the fractions of features at the points of a mean curve."""
        steps = self.steps or SHOWN_STEPS
        return tuple(k / steps for k in range(steps + 1))


PROTOCOLS = {
    "default": Protocol("default", special=False, target="predicted", masks=("mask", "drop", "token")),
    "paper": Protocol("paper", special=True, target="true", masks=("unk", "mask", "pad", "token")),
}


def protocol_of(name: str, watch: str | None, labelled: bool, steps: int | str | None = None) -> Protocol:
    """Return a protocol by name, with the given class to watch and the given steps instead of its own."""
    if name not in PROTOCOLS:
        raise Error(f"protocol={name!r} is unknown: choose one of {', '.join(PROTOCOLS)}.")
    protocol = PROTOCOLS[name]
    wanted = watch or protocol.target
    if wanted not in TARGETS:
        raise Error(f"watch={watch!r} is unknown: choose one of {', '.join(TARGETS)}.")
    if wanted == "true" and not labelled:
        raise Error(
            f"protocol={name!r} watches the true class, but the data has no labels: give labels, or watch='predicted'."
        )
    if steps is not None and steps != EACH and (type(steps) is not int or steps < 1):
        raise Error(f"steps={steps!r}: give 1 or more, or {EACH!r} for one feature at a time.")
    if isinstance(steps, int) and steps > MOST_STEPS:
        raise Error(f"steps={steps} is more than {MOST_STEPS:,}: give fewer, or {EACH!r} for one feature at a time.")
    chosen = protocol.steps if steps is None else None if isinstance(steps, str) else steps
    return replace(protocol, target=wanted, steps=chosen)


@dataclass(frozen=True)
class Plan:
    """The masked inputs of one method and one sample: the features kept in each row, and the rows of each curve."""

    kept: np.ndarray
    activation: slice
    pruning: slice
    without_top: slice
    only_top: slice
    most_first: slice
    """Without the first and the last point of the curve, which the others have; empty if it was not asked for."""


def plan(scores: np.ndarray, maskable: np.ndarray, protocol: Protocol, srg: bool = False) -> Plan:
    """Order the features by their scores, and return which of them each point of the curves keeps.

    Activation adds the highest scores first; pruning removes the smallest |scores| first; ties are broken by position.
    For the symmetric relevance gain the highest scores are removed first. The curve that removes the lowest first is
    the activation curve, read backwards: each point of both removes as many features, and of equal scores both remove
    the last position first, so that equal scores have no gain.
    """
    count = int(maskable.sum())
    falling, by_size = _ranks(-scores, maskable), _ranks(np.abs(scores), maskable)
    counts = protocol.counts(count)[:, None]
    tops = np.array([[-(-percent * count // 100)] for percent in ERASER_PERCENT])
    parts = [falling < counts, by_size >= counts, falling >= tops, falling < tops]
    parts.append(_ranks(-scores[::-1], maskable[::-1])[::-1] >= (count - counts[-2:0:-1] if srg else counts[:0]))
    ends = np.cumsum([0, *map(len, parts)])
    kept = np.concatenate(parts) | ~maskable
    return Plan(kept, *(slice(a, b) for a, b in itertools.pairwise(ends)))


def _ranks(keys: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return the ranks of the maskable features by ascending key; 0 for other features."""
    positions = np.flatnonzero(maskable)
    ranks = np.zeros(len(keys), dtype=np.int64)
    ranks[positions[np.argsort(keys[positions], kind="stable")]] = np.arange(len(positions))
    return ranks
