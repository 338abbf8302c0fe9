"""The options that `conserva audit` and `conserva doctor` share: a model, and inputs to run it on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error
from ..models.bundled import BUNDLED
from .arguments import add_device, add_dtype, load_task
from .input_options import target_of

if TYPE_CHECKING:
    from ..tasks import Task

TEXTS = (
    "a joy from the first minute to the last.",
    "the plot makes no sense, and nobody in it seems to mind.",
    "it is what it is: two hours, three songs, one good joke.",
)
"""The default inputs."""

SECOND = "somebody liked the film."
"""The default second text, for models that need pairs."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the model, the inputs and the target."""
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help=f"a folder or hub name (default: the bundled {BUNDLED})"
    )
    parser.add_argument("--model", help="the same as MODEL")
    add_device(parser)
    add_dtype(parser)
    parser.add_argument("--text", action="append", help="an input text; may be repeated")
    parser.add_argument(
        "--with", dest="second", metavar="TEXT", help="the second text of each pair, for models of pairs"
    )
    parser.add_argument("--target", help="a label, a class index, or a contrast 'a - b' (default: the prediction)")


def check_names(given: argparse.Namespace) -> None:
    """Raise an error if two different models are given, or a text in place of a model."""
    if given.name and " " in given.name and not Path(given.name).exists():
        raise Error(f"MODEL {given.name!r:.60} is not a model: give a text by --text.")
    if given.name and given.model and given.name != given.model:
        raise Error(f"Two models are given, {given.name!r} and --model {given.model!r}: give one.")


def model_and_texts(given: argparse.Namespace) -> tuple[Task, list[str | tuple[str, str]], str | int | None]:
    """Load the model, and return its task, the texts or pairs of texts, and the target."""
    task = load_task(given, given.name or given.model or BUNDLED)
    _check_texts(task, given.text)
    texts = list(given.text or TEXTS)
    second = given.second
    if second is None and not given.text and getattr(task, "needs_pairs", False):
        second = SECOND
    return task, [text if second is None else (text, second) for text in texts], target_of(given.target, task)


def _check_texts(task: Task, texts: list[str] | None) -> None:
    """Raise an error if a model of graphs or images would get sentences: a text can only name a SMILES or a file."""
    from ..tasks import Graph, Image

    if isinstance(task, Image) and not texts:
        raise Error(f"{task.name} takes images, and none is given: give files, such as --text digit.png.")
    if not isinstance(task, Graph):
        return
    if task.model.config.node_values is None:
        raise Error(
            f"{task.name} takes graphs, which this command does not read: use conserva.audit(task, graphs) in Python."
        )
    if not texts:
        raise Error(f"{task.name} takes molecules, and none is given: give SMILES, such as --text CCO.")
