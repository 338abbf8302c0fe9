"""The names of the bundled models."""

from __future__ import annotations

BUNDLED = "sentiment"
"""The default model: sentiment of film reviews."""

MOLECULES, DIGITS = "bace", "mnist"
"""The graph models: molecules that inhibit the enzyme BACE, and handwritten digits as superpixels."""

IMAGES = "digits"
"""The image model: handwritten digits as pixels."""

BUNDLED_MODELS = (BUNDLED, MOLECULES, DIGITS, IMAGES)
