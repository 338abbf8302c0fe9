"""The names of the models that come with the package."""

from __future__ import annotations

BUNDLED = "sentiment"
"""The model that is loaded if none is named: sentiment of film reviews."""

MOLECULES, DIGITS = "bace", "mnist"
"""The graph models: which molecules inhibit an enzyme, and handwritten digits."""

IMAGES = "digits"
"""The image model: handwritten digits again, as pixels."""

BUNDLED_MODELS = (BUNDLED, MOLECULES, DIGITS, IMAGES)
