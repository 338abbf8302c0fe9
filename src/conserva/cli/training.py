"""`conserva train`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.text import printable
from ..errors import Error
from ..models.bundled import DIGITS, MOLECULES
from ..paper.training.recipe import EMBEDDINGS
from .arguments import FORM, Commands, add_device, device_of
from .output import put_json, say_written
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

The classifiers of Ali et al. (2022). Of texts: three blocks of attention on the frozen embeddings of a BERT. The
datasets come from the folder in CONSERVA_DATA, or from the Hugging Face hub. Of graphs (bace, mnist): a Graphormer with
two layers, from the folder in CONSERVA_DATA. The epoch with the best validation accuracy, or ROC-AUC on BACE, is kept;
on MNIST the last one, trained on validation too. The test split is looked at once, at the end. A training that was
stopped goes on when the same command is given again."""

_TEXTS_ONLY = ("patience", "tokens", "as_released", "embeddings")
_GRAPHS_ONLY = ("weight_decay", "keep", "hold_out", "average", "width", "dropout", "post_norm")


def add_embeddings(parser: argparse.ArgumentParser, otherwise: str = EMBEDDINGS) -> None:
    """Add the option that names the BERT whose embeddings a classifier is built on."""
    parser.add_argument(
        "--embeddings",
        metavar="BERT",
        help=f"whose, frozen: a folder, a name as bert-base-uncased, or the bundled sentiment (default: {otherwise})",
    )


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    from ..datasets import DATASETS

    own = "(default: the dataset's recipe)"
    parser = commands.add_parser("train", help="train the paper's classifiers", epilog=TRAIN, **FORM)
    parser.add_argument("dataset", metavar="DATASET", help=", ".join((*DATASETS, MOLECULES, DIGITS)))
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the model goes")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and dropout (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help=f"at most {own}")
    parser.add_argument("--learning-rate", type=float, help=f"at the start {own}")
    parser.add_argument("--batch-size", type=int, help=f"texts or graphs in a step {own}")
    parser.add_argument("--count", type=int, help="how many texts or graphs of each split (default: all)")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    texts = parser.add_argument_group("texts")
    texts.add_argument("--patience", type=int, help=f"epochs without a better one {own}")
    texts.add_argument("--tokens", type=int, help=f"how many of a text are read {own}")
    texts.add_argument(
        "--as-released", action="store_true", default=None, help="with the quirks of the paper's released code"
    )
    add_embeddings(parser)
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument("--weight-decay", type=float, help=f"of AdamW {own}")
    graphs.add_argument("--keep", choices=("best", "last"), help=f"which epoch {own}")
    graphs.add_argument(
        "--hold-out", action=argparse.BooleanOptionalAction, help=f"measure on validation, or train on it {own}"
    )
    graphs.add_argument("--average", type=float, metavar="SHARE", help=f"of older weights, as 0.999; 0 for none {own}")
    graphs.add_argument("--width", type=int, help="of tokens and of feed-forward layers (default: 80)")
    graphs.add_argument("--dropout", type=float, help="on tokens and after each layer (default: 0.1)")
    graphs.add_argument(
        "--post-norm", action="store_true", default=None, help="norms after the sums, not before the layers"
    )
    parser.set_defaults(run=_train)


def _train(given: argparse.Namespace) -> None:
    is_graphs = _names_graphs(given.dataset)
    for name in _TEXTS_ONLY if is_graphs else _GRAPHS_ONLY:
        value = getattr(given, name)
        if value is not None:
            option = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            its, other = ("graphs", "texts") if is_graphs else ("texts", "graphs")
            raise Error(f"{option} is for {other}, and {given.dataset!r} is a dataset of {its}: leave it out.")
    from ..paper.training.run import train

    with progress_of_parts() as say:
        classifier = _graphs(given, say) if is_graphs else _texts(given)
        recipe = classifier.recipe()
        changes = {field.name: getattr(given, field.name, None) for field in fields(recipe)}
        found = train(
            classifier,
            given.out,
            seed=given.seed,
            recipe=replace(recipe, **{name: value for name, value in changes.items() if value is not None}),
            count=given.count,
            device=str(device_of(given)),
            progress=lambda done, total: say("training", done, total),
        )
    if given.json:
        put_json(found)
    else:
        print(printable(_summary(found)))
    say_written(given.out)


def _names_graphs(name: str) -> bool:
    """Return whether a name is that of a dataset of graphs, or nearest to one."""
    from ..datasets import DATASETS
    from ..datasets.graph_catalogue import GRAPH_DATASETS

    near = [name] if name in DATASETS else difflib.get_close_matches(name.lower(), [*GRAPH_DATASETS, *DATASETS], 1, 0.4)
    return name in GRAPH_DATASETS or (bool(near) and near[0] in GRAPH_DATASETS)


def _texts(given: argparse.Namespace) -> Classifier:
    from ..paper.training.texts import TextClassifier

    return TextClassifier(given.dataset, given.embeddings or EMBEDDINGS, bool(given.as_released))


def _graphs(given: argparse.Namespace, say: Callable[[str, int, int], None]) -> Classifier:
    from ..paper.training.graphs import GraphClassifier

    shape: dict[str, Any] = {} if given.width is None else {"hidden_size": given.width, "ffn_size": given.width}
    if given.dropout is not None:
        shape["hidden_dropout_prob"] = given.dropout
    if given.post_norm:
        shape["pre_norm"] = False
    return GraphClassifier(given.dataset, shape, reading=lambda done, total: say("finding superpixels", done, total))


def _summary(found: dict[str, Any]) -> str:
    def scores(split: str) -> str:
        auc = f"ROC-AUC {found[f'{split}_roc_auc']:.1%}, " if found.get("metric") == "roc_auc" else ""
        return f"{auc}accuracy {found[f'{split}_accuracy']:.1%}"

    held_out = found["recipe"].get("hold_out", True)
    validation = f"; validation {scores('validation')}" if held_out else "; validation was trained on"
    # Older trainings of texts have neither, keep the best epoch and list all of them.
    kept, last = found.get("kept_epoch") or found["best_epoch"], found.get("last_epoch") or len(found["epochs"])
    return (
        f"{found['dataset']}, seed {found['seed']}: test {scores('test')} "
        f"(most frequent class {found['majority']:.1%}){validation}; epoch {kept} of {last}"
    )
