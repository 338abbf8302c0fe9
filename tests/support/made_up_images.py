"""What tests share: made up images."""

from __future__ import annotations

from typing import Any

import numpy as np

from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation
from conserva.tasks.pixels import png

ROWS, COLUMNS = 2, 3


SCORES = (0.5, -1.0, 0.0, 0.25, -0.5, 1.0)


def dark_to_light(rows: int = 20, columns: int = 30) -> np.ndarray:
    """Return an image in orange, dark at the left and light at the right."""
    level = np.linspace(0, 1, columns)[None, :, None]
    return np.round(np.broadcast_to(level * np.array([255, 160, 40]), (rows, columns, 3))).astype(np.uint8)


def explained(**changes: Any) -> Explanation:
    settings: dict[str, Any] = {
        "features": tuple(f"r{row}c{column}" for row in (1, 2) for column in (1, 2, 3)),
        "scores": SCORES,
        "special": (False,) * 6,
        "words": tuple(range(6)),
        "text": "cat.png",
        "target": "cat",
        "output": 1.5,
        "probability": 0.9,
        "ledger": Ledger.of(1.5, sum(SCORES), 0.5, 0.75),
        "method": "exact",
        "model": "vit",
        "picture": {"kind": "image", "image": png(dark_to_light()), "grid": [ROWS, COLUMNS]},
        **changes,
    }
    return Explanation(**settings)
