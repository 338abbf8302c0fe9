"""Arguments shared by several commands, and their validation."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .._util.devices import usable_device
from .._util.extras import require
from .._util.files import check_file, check_folder
from .._util.text import ERROR_LENGTH, printable
from ..errors import Error
from ..models.bundled import BUNDLED
from ..results.saving import PICTURES
from .progress import progress_of_parts

if TYPE_CHECKING:
    import torch

    from ..tasks import Task

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that escapes control characters of arguments in its error messages."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, limit=ERROR_LENGTH))


FORMATTER: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: argparse.ArgumentParser, default: str | None = BUNDLED, shown: str = BUNDLED) -> None:
    """Add the options --model and --device; `shown` describes the default model in the help."""
    parser.add_argument("--model", default=default, help=f"a folder or hub name (default: the bundled {shown})")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option --device."""
    parser.add_argument("--device", default="cpu", help="the device of the model, such as cuda (default: %(default)s)")


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

    with progress_of_parts() as report:
        return load(model or given.model, device=device_of(given), progress=partial(report, "Converting the model"))


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
    if out is not None:
        check_folder(out, f"--out {out}")
        require(f"--out {out}", *getattr(given, "out_needs", ()))
