"""`conserva train`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from ..training.recipe import EMBEDDINGS
from .form import FORM, Commands, add_embeddings, device_of
from .progress import progress

TRAIN = """examples:
  conserva train sst2 --out models/sst2
  conserva train imdb --device cuda --seed 1 --out models/imdb-1
  conserva train semaine --embeddings bert-base-uncased --learning-rate 1e-4 --out models/semaine
  conserva explain "such a joy" --model models/sst2

The classifier of Ali et al. (2022): three blocks of attention on the frozen embeddings of a BERT. The datasets come
from the folder in CONSERVA_DATA, or from the Hugging Face hub. The epoch with the best validation accuracy is kept; the
test split is looked at once, at the end. A training that was stopped goes on after its last epoch when the same command
is given again."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    from ..datasets import DATASETS

    parser = commands.add_parser("train", help="train the paper's text classifier", epilog=TRAIN, **FORM)
    parser.add_argument("dataset", metavar="DATASET", help=", ".join(DATASETS))
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the model goes")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and dropout (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="at most (default: the dataset's recipe)")
    parser.add_argument("--learning-rate", type=float, help="at the start (default: the dataset's recipe)")
    parser.add_argument("--batch-size", type=int, help="texts in a step (default: the dataset's recipe)")
    parser.add_argument("--patience", type=int, help="epochs without a better one (default: the dataset's recipe)")
    parser.add_argument("--tokens", type=int, help="how many of a text are read (default: the dataset's recipe)")
    parser.add_argument("--count", type=int, help="how many texts of each split (default: all)")
    parser.add_argument("--as-released", action="store_true", help="with the quirks of the paper's released code")
    parser.add_argument("--device", default="cpu", help="where to train, as cuda (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_embeddings(parser)
    parser.set_defaults(run=_train)


def _train(given: argparse.Namespace) -> None:
    from ..training.recipe import recipe_of
    from ..training.run import train

    names = ("epochs", "learning_rate", "batch_size", "patience", "tokens")
    changes = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    with progress("training") as say:
        found = train(
            given.dataset,
            given.out,
            seed=given.seed,
            embeddings=given.embeddings or EMBEDDINGS,
            recipe=replace(recipe_of(given.dataset), **changes),
            as_released=given.as_released,
            count=given.count,
            device=device_of(given.device),
            progress=say,
        )
    if given.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        print(
            f"{found['dataset']}, seed {found['seed']}: test accuracy {found['test_accuracy']:.1%} "
            f"(most frequent class {found['majority']:.1%}), validation {found['validation_accuracy']:.1%} "
            f"in epoch {found['best_epoch']} of {len(found['epochs'])}"
        )
    print(f"wrote {given.out}", file=sys.stderr)
