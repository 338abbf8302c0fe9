"""Train the small Vision Transformer for handwritten digits that the examples and tests explain.

It learns from MNIST, whose four published files are read from the folder "mnist" of the folder of datasets, on a GPU
where there is one. The folder that it writes holds the model, a description of its pixels, a card and metrics.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

import conserva
from conserva.datasets import mnist
from conserva.datasets.catalogue import FOLDER_VARIABLE
from conserva.datasets.drawn import drawn_digit
from conserva.errors import Error
from conserva.models.quiet import quiet_loading
from conserva.paper.training.record import folder_of

SIDE = 28
SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 192}
PATCH = {"image_size": SIDE, "patch_size": 4, "num_channels": 1}
SPREAD = 0.125  # of the first weights, 1 / sqrt(64): with the default, made for wide models, learning starts slowly
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels of the published train, where white is 1
TURN, SCALE, SHIFT = 12.0, 0.1, 2.0  # at most: degrees, share of the size, pixels
DECAY, SMOOTHING, LARGEST_NORM, WARM_UP = 0.05, 0.05, 1.0, 0.1
MEASURED = 1_000  # images in a batch when a model is measured
PAIRS = 5  # how many of the most frequent confusions are told
NORMAL = 1.959964  # so many deviations to each side hold 95 % of a normal distribution

CARD = """# Handwritten digits, small

A Vision Transformer ({0.num_hidden_layers} layers, width {0.hidden_size}, {0.num_attention_heads} heads,
{parameters:,} parameters of 32 bits, {size:.2f} MB) that says which of ten digits an image shows.
It sees {0.image_size} x {0.image_size} pixels, as {patches} patches of {0.patch_size} x {0.patch_size} pixels.

- Figures: accuracy {accuracy:.4f} on {test:,} test images (95 % interval {low:.4f} to {high:.4f}), loaded as 32-bit
  floats on CPU, and {held_out_accuracy:.4f} on the {validation:,} held out of training. Of the ten digits that the
  package draws it reads {drawn}.
- Most often confused: {pairs}.
- Training: `scripts/train_digits.py`, seed {seed}; on a GPU results vary a little. AdamW, learning rate up to {rate:g}
  and down again, batches of {batch}, {epochs} epochs on {train:,} images, each time turned by up to {turn:g} degrees,
  scaled by up to {scale:.0%} and moved by up to {shift:g} pixels at random; label smoothing {smoothing:g}. The epoch
  with the best accuracy on the images held out was kept, number {kept}. The test images had no part in it.
- Pixels: white on black, bytes divided by 255, less {mean}, divided by {deviation} (`preprocessor_config.json`).
- Data: MNIST, its published train without the images held out.
- Limits: a digit in the middle as in MNIST. It has no class for what is no digit, and answers for a black image or a
  letter all the same. Handwriting from elsewhere was not examined. Not for reading forms or anything else that matters.
- Please cite LeCun et al., Proc. IEEE 1998 (MNIST), and Dosovitskiy et al., ICLR 2021 (ViT).

## Licence
- Weights: Apache-2.0, as this package. This project trained them, from random numbers.
- Data: the files of MNIST state no licence, and no terms for models that were trained on them. Keras' documentation
  says that they are under CC BY-SA 3.0; the authors' own statement of that was not found. The images are no part of
  this package. This project knows of no term that forbids publishing the weights, and has no written permission either.
"""


class Digits(NamedTuple):
    """Images, as bytes, and what they show."""

    images: Tensor
    labels: Tensor

    def on(self, device: torch.device) -> Digits:
        """Return the same on a device."""
        return Digits(self.images.to(device), self.labels.to(device))


class Kept(NamedTuple):
    """The epoch whose weights are kept, counted from 1, and the accuracy of each epoch on the images held out."""

    epoch: int
    accuracies: list[float]


def folder_of_data(given: str | Path | None) -> Path:
    """Return the folder that holds "mnist": the one that was given, or else the one that CONSERVA_DATA names."""
    folder = given or os.environ.get(FOLDER_VARIABLE)
    wanted = f"name a folder that holds mnist/ with its four .gz files, with --data or {FOLDER_VARIABLE}"
    if not folder:
        raise Error(f"No folder of datasets is given: {wanted}.")
    if not (Path(folder).expanduser() / "mnist").is_dir():
        raise Error(f"{str(folder)!r} has no folder 'mnist': {wanted}.")
    return Path(folder).expanduser()


def read_split(split: str, data: Path, count: int | None = None) -> Digits:
    """Return train, validation (held out of the published train) or test: the first images, or all of them."""
    _, images, labels, rows = mnist.read(split, data)
    chosen = rows[:count]
    return Digits(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen].astype(np.int64)))


def shares(images: Tensor) -> Tensor:
    """Return bytes as numbers from 0 to 1, with the one channel that a model expects."""
    return images[:, None].float() / 255


def normalised(images: Tensor) -> Tensor:
    """Return numbers from 0 to 1 as the model sees them."""
    return (images - MEAN) / DEVIATION


def altered(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return each image turned, scaled and moved a little at random; what comes in from outside is black."""
    turn, scale, across, down = 2 * torch.rand(4, len(images), generator=draws, device=images.device) - 1
    angle, size, step = math.radians(TURN) * turn, 1 + SCALE * scale, 2 * SHIFT / images.shape[-1]
    cosine, sine, across, down = angle.cos() / size, angle.sin() / size, step * across, step * down
    # From where in the given image each pixel comes: moved first, then turned and scaled, all of it backwards.
    rows = [cosine, sine, -cosine * across - sine * down, -sine, cosine, sine * across - cosine * down]
    matrices = torch.stack(rows, 1).view(-1, 2, 3)
    places = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, places, align_corners=False)


def new_model(seed: int, shape: Mapping[str, int] = SHAPE) -> ViTForImageClassification:
    """Return a model with weights drawn on the CPU, so that a seed means the same everywhere."""
    torch.manual_seed(seed)
    names = {index: str(index) for index in range(10)}
    labels = {name: index for index, name in names.items()}
    return ViTForImageClassification(
        ViTConfig(**PATCH, **shape, initializer_range=SPREAD, id2label=names, label2id=labels)
    )


def share_of_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step as a share of the highest: up in a line, and down along a cosine."""
    return min((step + 1) / math.ceil(WARM_UP * steps), (1 + math.cos(math.pi * step / steps)) / 2)


@torch.inference_mode()
def predicted(model: ViTForImageClassification, images: Tensor) -> Tensor:
    """Return the logits of images."""
    model.eval()
    return torch.cat([model(normalised(shares(part).to(model.device))).logits for part in images.split(MEASURED)])


def fit(model: ViTForImageClassification, train: Digits, held_out: Digits, *, epochs: int, batch: int, rate: float,
        seed: int, hear: Callable[[int, float, float], None]) -> Kept:  # fmt: skip
    """Train a model, and leave it as it was after the epoch that read the held-out images best.

    `hear` is called after each epoch with its number, the mean loss in it and the held-out accuracy after it.
    """
    device = model.device
    train, held_out = train.on(device), held_out.on(device)  # all of it: one copy, and none in the epochs
    draws = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY, fused=device.type == "cuda")
    steps = epochs * math.ceil(len(train.labels) / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, steps))
    best, state, kept, accuracies = (-1.0, 0.0), model.state_dict(), 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        total = torch.zeros((), device=device)
        for rows in torch.randperm(len(train.labels), generator=draws, device=device).split(batch):
            seen = normalised(altered(shares(train.images[rows]), draws))
            loss = F.cross_entropy(model(seen).logits, train.labels[rows], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(rows)
        logits = predicted(model, held_out.images)
        accuracy = float((logits.argmax(1) == held_out.labels).double().mean())
        standing = (accuracy, -float(F.cross_entropy(logits, held_out.labels)))  # among equals the lowest loss
        if standing > best:
            best, kept, state = standing, epoch, {key: value.clone() for key, value in model.state_dict().items()}
        accuracies.append(accuracy)
        hear(epoch, float(total) / len(train.labels), accuracy)
    model.load_state_dict(state)
    return Kept(kept, accuracies)


def interval(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share, wide = right / count, NORMAL**2 / count
    middle = (share + wide / 2) / (1 + wide)
    half = NORMAL / (1 + wide) * math.sqrt(share * (1 - share) / count + wide / (4 * count))
    return middle - half, middle + half


def confusions(guesses: Tensor, labels: Tensor) -> list[dict[str, int]]:
    """Return the most frequent pairs of a digit and another for which it was taken."""
    counts = torch.bincount(labels * 10 + guesses, minlength=100).view(10, 10).fill_diagonal_(0).flatten()
    found = [(int(counts[pair]), *divmod(int(pair), 10)) for pair in counts.argsort(descending=True, stable=True)]
    return [{"digit": digit, "taken_for": other, "images": n} for n, digit, other in found[:PAIRS] if n]


def write_model(model: ViTForImageClassification, out: Path) -> None:
    """Write the weights and the description of the pixels."""
    pixels = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": SIDE, "width": SIDE},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN],
        "image_std": [DEVIATION],
    }
    with quiet_loading():
        model.save_pretrained(out)
    write_json(out / "preprocessor_config.json", pixels)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def measured(out: Path, test: Digits) -> dict[str, Any]:
    """Return how well a saved model reads test images and drawn digits, loaded as 32-bit floats on CPU."""
    with quiet_loading():
        model = ViTForImageClassification.from_pretrained(out, dtype=torch.float32)
    guesses = predicted(model, test.images).argmax(1)
    right = int((guesses == test.labels).sum())
    drawn = torch.from_numpy(np.stack([drawn_digit(digit) for digit in range(10)]))
    return {
        "accuracy": right / len(test.labels),
        "interval": interval(right, len(test.labels)),
        "confusions": confusions(guesses, test.labels),
        "drawn": int((predicted(model, drawn).argmax(1) == torch.arange(10)).sum()),
    }


def card(model: ViTForImageClassification, out: Path, metrics: Mapping[str, Any]) -> str:
    """Return the card of a saved model."""
    low, high = metrics["interval"]
    pairs = (f"{one['digit']} taken for {one['taken_for']} ({one['images']})" for one in metrics["confusions"])
    values = {"turn": TURN, "scale": SCALE, "shift": SHIFT, "mean": MEAN, "deviation": DEVIATION, "low": low}
    values |= {"smoothing": SMOOTHING, "high": high, "patches": (SIDE // PATCH["patch_size"]) ** 2}
    size = (out / "model.safetensors").stat().st_size / 1e6
    told = {**metrics, **metrics["images"], **values, "pairs": ", ".join(pairs) or "none", "size": size}
    return CARD.format(model.config, **told)


def train_digits(out: Path, data: str | Path | None, *, epochs: int, seed: int, batch: int, rate: float,
                 count: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Train a model, measure it, and write its folder; `count` images of each split are used, or all."""
    for name, value in (("epochs", epochs), ("batch", batch), ("rate", rate), ("count", count)):
        if value is not None and not value > 0:
            raise Error(f"{name}={value} must be more than 0.")
    folder, out = folder_of_data(data), folder_of(out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # a GPU's fast products; the CPU's stay as they are
    splits = {split: read_split(split, folder, count) for split in ("train", "validation", "test")}
    model, begin = new_model(seed).to(device), time.monotonic()

    def hear(epoch: int, loss: float, accuracy: float) -> None:
        told = f"epoch {epoch}/{epochs}, {time.monotonic() - begin:.0f} s: loss {loss:.4f}, held out {accuracy:.4f}"
        print(told, file=sys.stderr, flush=True)

    kept = fit(model, splits["train"], splits["validation"],
               epochs=epochs, batch=batch, rate=rate, seed=seed, hear=hear)  # fmt: skip
    model.cpu()
    write_model(model, out)
    metrics = {
        **measured(out, splits["test"]),
        "held_out_accuracy": kept.accuracies[kept.epoch - 1],
        "held_out_accuracies": kept.accuracies,
        "kept": kept.epoch,
        "images": {name: len(split.labels) for name, split in splits.items()},
        "parameters": model.num_parameters(),
        "seed": seed,
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "provenance": {
            "conserva": conserva.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        },
    }
    write_json(out / "metrics.json", metrics)
    (out / "README.md").write_text(card(model, out, metrics), encoding="utf-8")
    return metrics


def main() -> None:
    """Read the command line, train, and print how good the model is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the model's folder")
    parser.add_argument("--data", help=f"the folder that holds mnist/; if left out, {FOLDER_VARIABLE} names it")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--count", type=int, help="how many images of each split are used, to try the whole path")
    try:
        metrics = train_digits(**vars(parser.parse_args()))
    except Error as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    (low, high), test = metrics["interval"], metrics["images"]["test"]
    print(f"test accuracy {metrics['accuracy']:.4f} on {test:,} images (95 % interval {low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
