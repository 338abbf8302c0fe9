"""`conserva train`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.nearest import did_you_mean
from .._util.text import printable
from ..datasets.catalogue import DATASETS, GRAPH_NAMES
from ..errors import Error
from ..paper.training.recipe import EMBEDDINGS
from .arguments import FORMATTER, Commands, add_device, device_of
from .output import print_json, report_written
from .progress import progress_of_parts

if TYPE_CHECKING:
    from ..paper.training.classifier import Classifier

TRAIN = """examples:
  conserva train sst2 --out models/sst2
  conserva train imdb --device cuda --seed 1 --out models/imdb-1
  conserva train semaine --embeddings bert-base-uncased --learning-rate 1e-4 --out models/semaine
  conserva explain "such a joy" --model models/sst2
  conserva train bace --out models/bace
  conserva train mnist --device cuda --hold-out --keep best --out models/mnist

Trains the classifiers of Ali et al. (2022). For texts: three attention blocks on the frozen embeddings of a BERT, with
datasets from the folder CONSERVA_DATA or from the Hugging Face Hub. For graphs (bace, mnist): a Graphormer with two
layers, with datasets from the folder CONSERVA_DATA. The epoch with the best validation accuracy is kept, for BACE with
the best ROC-AUC; for MNIST the last epoch, which is also trained on the validation split. The test split is used once,
at the end. An interrupted training is resumed when the same command is given again."""

_TEXTS_ONLY = ("patience", "tokens", "as_released", "embeddings")
_GRAPHS_ONLY = ("weight_decay", "keep", "hold_out", "average", "width", "dropout", "post_norm")


def add_embeddings(parser: argparse.ArgumentParser, otherwise: str = EMBEDDINGS) -> None:
    """Add the option --embeddings; `otherwise` describes its default in the help."""
    parser.add_argument(
        "--embeddings",
        metavar="BERT",
        help="the BERT whose frozen embeddings are used: a folder, a name such as bert-base-uncased, or the bundled "
        f"sentiment (default: {otherwise})",
    )


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    own = "(default: the dataset's recipe)"
    parser = commands.add_parser("train", help="train the paper's classifiers", epilog=TRAIN, **FORMATTER)
    parser.add_argument("dataset", metavar="DATASET", help=", ".join((*DATASETS, *GRAPH_NAMES)))
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the output folder")
    parser.add_argument("--seed", type=int, default=0, help="the seed of weights, batches and dropout (default: 0)")
    parser.add_argument("--epochs", type=int, help=f"the maximum number of epochs {own}")
    parser.add_argument("--learning-rate", type=float, help=f"the initial learning rate {own}")
    parser.add_argument("--batch-size", type=int, help=f"the texts or graphs in a batch {own}")
    parser.add_argument("--count", type=int, help="the number of texts or graphs of each split (default: all)")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    texts = parser.add_argument_group("texts")
    texts.add_argument("--patience", type=int, help=f"stop after this many epochs without improvement {own}")
    texts.add_argument("--tokens", type=int, help=f"the maximum length of a text in tokens {own}")
    texts.add_argument(
        "--as-released", action="store_true", default=None, help="with the quirks of the paper's released code"
    )
    add_embeddings(parser)
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument("--weight-decay", type=float, help=f"the weight decay of AdamW {own}")
    graphs.add_argument("--keep", choices=("best", "last"), help=f"the epoch to keep {own}")
    graphs.add_argument(
        "--hold-out", action=argparse.BooleanOptionalAction, help=f"hold out the validation split, or train on it {own}"
    )
    graphs.add_argument(
        "--average", type=float, metavar="DECAY", help=f"the decay of averaged weights, such as 0.999; 0 for none {own}"
    )
    graphs.add_argument("--width", type=int, help="the hidden size of attention and feed-forward layers (default: 80)")
    graphs.add_argument("--dropout", type=float, help="the dropout on tokens and after each layer (default: 0.1)")
    graphs.add_argument("--post-norm", action="store_true", default=None, help="post-norm instead of pre-norm layers")
    parser.set_defaults(run=_train, check=_check, out_needs=())


def _check(given: argparse.Namespace) -> None:
    known = (*DATASETS, *GRAPH_NAMES)
    if given.dataset in known:
        _check_kind(given, given.dataset in GRAPH_NAMES)
    elif hint := did_you_mean(given.dataset, known):  # other names are looked up by the classifiers
        raise Error(f"dataset={given.dataset!r} is unknown.{hint} Choose one of {', '.join(known)}.")


def _check_kind(given: argparse.Namespace, is_graphs: bool) -> None:
    """Raise an error for an option that is for the other kind of datasets."""
    for name in _TEXTS_ONLY if is_graphs else _GRAPHS_ONLY:
        value = getattr(given, name)
        if value is not None:
            option = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            kind, other = ("graphs", "texts") if is_graphs else ("texts", "graphs")
            raise Error(f"{option} is for {other}, and {given.dataset!r} is a dataset of {kind}: leave it out.")


def _train(given: argparse.Namespace) -> None:
    from ..datasets.graph_catalogue import GRAPH_DATASETS

    is_graphs = given.dataset in GRAPH_DATASETS
    _check_kind(given, is_graphs)
    from ..paper.training.run import train

    with progress_of_parts() as on_progress:
        classifier = _graphs(given, on_progress) if is_graphs else _texts(given)
        recipe = classifier.recipe()
        changes = {field.name: getattr(given, field.name, None) for field in fields(recipe)}
        record = train(
            classifier,
            given.out,
            seed=given.seed,
            recipe=replace(recipe, **{name: value for name, value in changes.items() if value is not None}),
            count=given.count,
            device=str(device_of(given)),
            progress=lambda done, total: on_progress("training", done, total),
        )
    if given.json:
        print_json(record)
    else:
        print(printable(_summary(record)))
    report_written(given.out)


def _texts(given: argparse.Namespace) -> Classifier:
    from ..paper.training.texts import TextClassifier

    return TextClassifier(given.dataset, given.embeddings or EMBEDDINGS, bool(given.as_released))


def _graphs(given: argparse.Namespace, on_progress: Callable[[str, int, int], None]) -> Classifier:
    from ..paper.training.graphs import GraphClassifier

    shape: dict[str, Any] = {} if given.width is None else {"hidden_size": given.width, "ffn_size": given.width}
    if given.dropout is not None:
        shape["hidden_dropout_prob"] = given.dropout
    if given.post_norm:
        shape["pre_norm"] = False
    return GraphClassifier(
        given.dataset, shape, reading=lambda done, total: on_progress("finding superpixels", done, total)
    )


def _summary(record: dict[str, Any]) -> str:
    def scores(split: str) -> str:
        auc = f"ROC-AUC {record[f'{split}_roc_auc']:.1%}, " if record.get("metric") == "roc_auc" else ""
        return f"{auc}accuracy {record[f'{split}_accuracy']:.1%}"

    held_out = record["recipe"].get("hold_out", True)
    validation = f"; validation {scores('validation')}" if held_out else "; validation was trained on"
    # Older trainings of texts have neither, keep the best epoch and list all of them.
    kept, last = record.get("kept_epoch") or record["best_epoch"], record.get("last_epoch") or len(record["epochs"])
    return (
        f"{record['dataset']}, seed {record['seed']}: test {scores('test')} "
        f"(most frequent class {record['majority']:.1%}){validation}; epoch {kept} of {last}"
    )
