"""Draw docs/compare.png and docs/graphs.png, and docs/digits.png if MNIST is in the folder of datasets."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

import conserva
from conserva.datasets.catalogue import FOLDER_VARIABLE
from conserva.datasets.drawn import digit_graph, read_digit
from conserva.results.result import Result
from conserva.tasks.pixels import named

DOCS = Path(__file__).parent.parent / "docs"
SENTENCE = "has a lot of the virtues of eastwood at his best."
MOLECULE = "O1CC[C@@H](NC(=O)[C@@H](Cc2cc3cc(ccc3nc2N)-c2ccccc2C)C)CC1(C)C"
METHODS = ["gi", "ah+ln", "exact", "gae", "rollout"]
WIDEST = 2000  # pixels


def main() -> None:
    """Draw the pictures."""
    save(conserva.compare(conserva.load(), SENTENCE, methods=["gi", "ah+ln", "exact"]), "compare.png")
    molecule = conserva.compare(conserva.load("bace"), MOLECULE, methods=METHODS)
    graph = conserva.compare(conserva.load("mnist"), digit_graph("4"), methods=METHODS)
    save(conserva.Explanations((*molecule, *graph)), "graphs.png")
    if FOLDER_VARIABLE in os.environ:
        digit = read_digit("test:18")
        save(conserva.compare(conserva.load("digits"), named(digit.image, digit.name)), "digits.png")


def save(result: Result, name: str) -> None:
    """Save a picture no wider than `WIDEST`, with at most 256 colours that differ by no more than 4 % from its own."""
    path = result.save(DOCS / name)
    picture = Image.open(path).convert("RGB")
    height = round(picture.height * min(1.0, WIDEST / picture.width))
    small = picture.resize((min(WIDEST, picture.width), height), Image.Resampling.LANCZOS)
    small.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
