"""What tests share: saved image models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conserva.models.quiet import quiet_loading
from tiny_images import vit


def saved(folder: Path, **pixels: Any) -> Path:
    """Write a model as `scripts/train_digits.py` does."""
    described = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 32, "width": 32},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.1307],
        "image_std": [0.3081], **pixels,
    }  # fmt: skip
    with quiet_loading():
        vit(num_channels=1).float().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(described))
    return folder
