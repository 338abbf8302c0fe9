"""Protocols: which features are taken away, how many at a time, and what is watched."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from ..errors import Error

TARGETS = ("predicted", "true")
SHOWN_STEPS = 100
"""The steps of a mean curve where samples have as many points as features: theirs are joined by straight lines."""

EACH = "each"
"""The number of steps that stands for one feature at a time."""

ERASER_PERCENT = (1, 5, 10, 20, 50)
"""The shares of features over which comprehensiveness and sufficiency are averaged (DeYoung et al. 2020)."""


@dataclass(frozen=True)
class Protocol:
    """How features are taken away. `paper` is Ali et al.'s (2022), `default` leaves special tokens in their place."""

    name: str
    special: bool
    """Whether special tokens are taken away like others; the virtual node of a graph never is."""
    target: str
    """The class that is explained and watched: the predicted or the true one."""
    masks: tuple[str, ...]
    """What stands for a feature that was taken away, if nothing else is said: the first that the task has."""
    steps: int | None = 10
    """In how many steps all features go or come: a curve has one point more. None: one feature at a time."""

    def counts(self, features: int) -> np.ndarray:
        """Return how many features each point of a curve is about: ceil(k N / steps), in whole numbers."""
        steps = self.steps or features
        return -(-np.arange(steps + 1) * features // steps)

    def fractions(self) -> tuple[float, ...]:
        """Return the shares of the features at the points of a mean curve."""
        steps = self.steps or SHOWN_STEPS
        return tuple(k / steps for k in range(steps + 1))


PROTOCOLS = {
    "default": Protocol("default", special=False, target="predicted", masks=("mask", "drop", "token")),
    "paper": Protocol("paper", special=True, target="true", masks=("unk", "mask", "pad", "token")),
}


def protocol_of(name: str, watch: str | None, labelled: bool, steps: int | str | None = None) -> Protocol:
    """Return a protocol by name, with its class to watch and its steps, or those that were given."""
    if name not in PROTOCOLS:
        raise Error(f"protocol={name!r} is none of {', '.join(PROTOCOLS)}.")
    found = PROTOCOLS[name]
    wanted = watch or found.target
    if wanted not in TARGETS:
        raise Error(f"watch={watch!r} is none of {', '.join(TARGETS)}.")
    if wanted == "true" and not labelled:
        raise Error(
            f"protocol={name!r} watches the true class, but the data has no labels: give them, or watch='predicted'."
        )
    if steps is not None and steps != EACH and (type(steps) is not int or steps < 1):
        raise Error(f"steps={steps!r}: give 1 or more, or {EACH!r} for one feature at a time.")
    chosen = found.steps if steps is None else None if isinstance(steps, str) else steps
    return replace(found, target=wanted, steps=chosen)


@dataclass(frozen=True)
class Plan:
    """The rows that one method needs of one sample: for each which features are kept, and where its points are."""

    kept: np.ndarray
    activation: slice
    pruning: slice
    without_top: slice
    only_top: slice


def plan(scores: np.ndarray, maskable: np.ndarray, protocol: Protocol) -> Plan:
    """Order the features by their scores, and write down which of them each point keeps.

    Activation adds the highest scores first; pruning takes the smallest |scores| first; ties go by place.
    """
    count = int(maskable.sum())
    falling, by_size = _ranks(-scores, maskable), _ranks(np.abs(scores), maskable)
    counts = protocol.counts(count)[:, None]
    tops = np.array([[-(-percent * count // 100)] for percent in ERASER_PERCENT])
    parts = [falling < counts, by_size >= counts, falling >= tops, falling < tops]
    ends = np.cumsum([0, *map(len, parts)])
    kept = np.concatenate(parts) | ~maskable
    return Plan(kept, *(slice(a, b) for a, b in itertools.pairwise(ends)))


def _ranks(keys: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return the rank of each maskable feature among them, the lowest key first."""
    places = np.flatnonzero(maskable)
    ranks = np.zeros(len(keys), dtype=np.int64)
    ranks[places[np.argsort(keys[places], kind="stable")]] = np.arange(len(places))
    return ranks
