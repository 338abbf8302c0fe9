"""What `conserva audit` and `conserva doctor` share: a model, and the inputs to check it on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import Error
from ..models.bundled import BUNDLED
from .arguments import add_device, load_task
from .input_options import target_of

if TYPE_CHECKING:
    from ..tasks import Task

TEXTS = (
    "a joy from the first minute to the last.",
    "the plot makes no sense, and nobody in it seems to mind.",
    "it is what it is: two hours, three songs, one good joke.",
)
"""The texts that a model is checked on when none is given."""


def add_checked_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the model and the inputs."""
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help=f"a folder or hub name (default: the bundled {BUNDLED})"
    )
    parser.add_argument("--model", help="the same, by name")
    add_device(parser)
    parser.add_argument("--text", action="append", help="a text to check it on; may be given several times")
    parser.add_argument("--target", help="a label, a class index, or a contrast 'a - b' (default: the prediction)")


def checked_model(given: argparse.Namespace) -> tuple[Task, list[str], str | int | None]:
    """Load the model that was named; return its task, the texts, and the target."""
    if given.name and given.model and given.name != given.model:
        raise Error(f"Two models are named, {given.name!r} and {given.model!r}: give one.")
    task = load_task(given, given.name or given.model or BUNDLED)
    _check_texts(task, given.text)
    return task, list(given.text or TEXTS), target_of(given.target, task)


def _check_texts(task: Task, texts: list[str] | None) -> None:
    """Raise if a model of graphs or images would be checked on sentences: only SMILES and files are named by a text."""
    from ..tasks import Graph, Image

    if isinstance(task, Image) and not texts:
        raise Error(f"{task.name} reads images, and none is given: give files, as --text digit.png.")
    if not isinstance(task, Graph):
        return
    if task.model.config.node_values is None:
        raise Error(
            f"{task.name} reads graphs, which this command does not take: use conserva.audit(task, graphs) in Python."
        )
    if not texts:
        raise Error(f"{task.name} reads molecules, and none is given: give SMILES, as --text CCO.")
