"""Arguments that several commands share, and checks of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .._util.devices import usable_device
from .._util.extras import require
from .._util.files import check_file, check_folder
from .._util.text import ERROR_LENGTH, printable
from ..errors import Error
from ..models.bundled import BUNDLED
from ..results.saving import PICTURES

if TYPE_CHECKING:
    import torch

    from ..tasks import Task

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Parser(argparse.ArgumentParser):
    """A parser whose messages are printable, whatever the arguments hold that they repeat."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, limit=ERROR_LENGTH))


FORM: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: argparse.ArgumentParser, default: str | None = BUNDLED, shown: str = BUNDLED) -> None:
    """Add the options that name the model, and where it computes."""
    parser.add_argument("--model", default=default, help=f"a folder or hub name (default: the bundled {shown})")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where models compute."""
    parser.add_argument("--device", default="cpu", help="where the model computes, as cuda (default: %(default)s)")


def add_data(parser: argparse.ArgumentParser, data: str, texts: str) -> None:
    """Add the options that name a dataset, and what is read of it."""
    parser.add_argument("--data", required=True, help=data)
    parser.add_argument("--text-column", metavar="NAME", help=f"the column of {texts} (default: found by its name)")
    parser.add_argument("--label-column", metavar="NAME", help="the column of labels (default: found by its name)")
    parser.add_argument("--split", help="the split, where the data has several")
    parser.add_argument("--count", type=int, help="how many samples are drawn (default: all)")


def load_task(given: argparse.Namespace, model: str | None = None) -> Task:
    """Load the model that was named, on the device that was named."""
    from ..tasks.loading import load

    return load(model or given.model, device=device_of(given))


def device_of(given: argparse.Namespace) -> torch.device:
    """Return the device that was named, if torch can compute on it."""
    return usable_device(given.device, f"--device {given.device}")


def refuse(what: str, given: argparse.Namespace, *options: str) -> None:
    """Raise if one of these options was given, which what the command is about has no use for."""
    for name in options:
        value = getattr(given, name)
        if value:
            said = "" if value is True else f" {str(value)!r}"
            raise Error(f"--{name.replace('_', '-')}{said} says nothing about {what}: leave it out.")


def check_outputs(given: argparse.Namespace) -> None:
    """Raise if what a command shall write has no place to go: before anything is computed, which may take long."""
    for name in ("html", "png"):
        path: Path | None = getattr(given, name, None)
        if path is not None:
            check_file(path, f"--{name} {path}")
            if name == "png" and path.suffix.lower() not in PICTURES:
                raise Error(f"--png {path} ends in {path.suffix!r}: choose .png, .svg or .pdf.")
            if name == "png" and path.suffix.lower() != ".svg":  # molecules and images are drawn as SVG without it
                require(f"--png {path}", "matplotlib")
    out: Path | None = getattr(given, "out", None)
    if out is not None:
        check_folder(out, f"--out {out}")
        require(f"--out {out}", *getattr(given, "out_needs", ()))
