"""Kendall's tau-b."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def kendall_tau(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Return Kendall's tau-b: concordant minus discordant pairs, divided by the geometric mean of the untied pairs.

    nan if all numbers of one are equal, or if there are fewer than two.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    agreeing = untied_a = untied_b = 0
    for i in range(len(first) - 1):
        x, y = np.sign(first[i + 1 :] - first[i]), np.sign(second[i + 1 :] - second[i])
        agreeing += int(x @ y)
        untied_a += int(np.count_nonzero(x))
        untied_b += int(np.count_nonzero(y))
    return agreeing / math.sqrt(untied_a * untied_b) if untied_a and untied_b else math.nan
