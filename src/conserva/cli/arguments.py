"""Arguments shared by several commands, and their validation."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .._util.devices import usable_device
from .._util.extras import require
from .._util.files import check_file, check_folder, check_readable, exists, expanded
from .._util.nearest import did_you_mean
from .._util.text import ERROR_LENGTH, printable
from ..attribution.registry import parsed
from ..datasets.labelled import names_file
from ..engine.rules import rule_set
from ..errors import Error
from ..models.bundled import BUNDLED, BUNDLED_MODELS
from ..results.saving import PICTURES
from .progress import progress_of_parts

if TYPE_CHECKING:
    import torch

    from ..tasks import Task

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Options: TypeAlias = "argparse._ActionsContainer"
"""A parser, or a group of its arguments."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose error messages suggest names and escape control characters."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse ignores errors here, such as that of a full disk

    def error(self, message: str) -> NoReturn:
        """Print a line, without the usage: that of a command with many options is long."""
        shown = printable(message, limit=ERROR_LENGTH)
        self.exit(
            2, f"{self.prog}: error: {shown}{'' if shown.endswith(('.', '?')) else '.'} See {self.prog} --help.\n"
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{hint and '.'}{hint}") from None


DTYPES = ("float32", "bfloat16", "float16", "float64")

FORMATTER: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: Options, default: str | None = BUNDLED, shown: str = BUNDLED) -> None:
    """Add the options --model, --device and --dtype; `shown` describes the default model in the help."""
    parser.add_argument(
        "--model", default=default, help=f"a folder, a hub name, or one of `conserva models` (default: {shown})"
    )
    add_device(parser)
    add_dtype(parser)


def add_device(parser: Options) -> None:
    """Add the option --device."""
    parser.add_argument("--device", default="cpu", help="the device of the model, such as cuda (default: %(default)s)")


def add_dtype(parser: Options) -> None:
    """Add the option --dtype."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0], help="the dtype of the model's weights (default: %(default)s)"
    )


def add_batch_tokens(parser: Options, features: str = "tokens") -> None:
    """Add the option --batch-tokens; `features` are what the models of the command read."""
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help=f"the {features} in a batch (default: by the device)"
    )


def add_data(parser: argparse.ArgumentParser, data: str, texts: str) -> None:
    """Add the options of a dataset: file, columns, split and count; `data` and `texts` are parts of the help."""
    parser.add_argument("--data", required=True, help=data)
    parser.add_argument("--text-column", metavar="NAME", help=f"the column of {texts} (default: guessed by name)")
    parser.add_argument("--label-column", metavar="NAME", help="the column of labels (default: guessed by name)")
    parser.add_argument("--split", help="the split, if the data has several")
    parser.add_argument("--count", type=int, help="the number of samples to draw (default: all)")


def load_task(given: argparse.Namespace, model: str | None = None) -> Task:
    """Load the given model, or the one of --model, to the device of --device."""
    from ..tasks.loading import load

    options: dict[str, Any] = {"device": device_of(given), "dtype": given.dtype}
    with progress_of_parts() as report:
        return load(model or given.model, progress=partial(report, "Converting the model"), **options)


def device_of(given: argparse.Namespace) -> torch.device:
    """Return the device of --device; raise an error if torch cannot use it."""
    return usable_device(given.device, f"--device {given.device}")


def refuse(what: str, given: argparse.Namespace, *options: str) -> None:
    """Raise an error if one of these options was given, which do not apply to `what`."""
    for name in options:
        value = getattr(given, name)
        if value:
            text = "" if value is True else f" {str(value)!r}"
            raise Error(f"--{name.replace('_', '-')}{text} does not apply to {what}: leave it out.")


def check_outputs(given: argparse.Namespace) -> None:
    """Raise an error if an output file cannot be written, before a computation that may take long."""
    for name in ("html", "png"):
        path: Path | None = getattr(given, name, None)
        if path is not None:
            check_file(path, f"--{name} {path}")
            if name == "html" and path.suffix.lower() != ".html":
                raise Error(f"--html {path} ends in {path.suffix!r}: choose a name that ends in .html.")
            if name == "png" and path.suffix.lower() not in PICTURES:
                raise Error(f"--png {path} ends in {path.suffix!r}: choose .png, .svg or .pdf.")
            if name == "png" and path.suffix.lower() != ".svg":  # SVGs of molecules and images do not need matplotlib
                require(f"--png {path}", "matplotlib")
    out: Path | None = getattr(given, "out", None)
    if out is not None and "out_needs" in given:
        check_folder(out, f"--out {out}")
        require(f"--out {out}", *given.out_needs)


def check_methods(given: argparse.Namespace) -> None:
    """Raise an error if a method or a rule set is unknown, or has other options."""
    if getattr(given, "method", None) is not None:
        parsed(given.method)
    for name in given.methods.split(",") if getattr(given, "methods", None) else ():
        parsed(name)
    for name in given.rules.split(",") if getattr(given, "rules", None) is not None else ():
        rule_set(name)


def check_data(data: str) -> None:
    """Raise an error if --data is neither a file that can be read, nor a folder, nor a possible name of a dataset."""
    path = expanded(data)
    if path.suffix.lower() == ".txt":
        check_readable(path, f"--data {data}", sys.maxsize)
    elif not path.is_dir():
        names_file(data)


def check_model(given: argparse.Namespace) -> None:
    """Raise an error if the model's name is a misspelt name of a bundled model."""
    for name in filter(None, (getattr(given, "model", None), getattr(given, "name", None))):
        is_other = name in BUNDLED_MODELS or "/" in name or "." in name or exists(name)
        if not is_other and (hint := did_you_mean(name, BUNDLED_MODELS)):
            raise Error(
                f"model={name!r} is neither a folder nor a bundled model.{hint} For a model of the Hugging Face Hub, "
                "give owner/name."
            )
