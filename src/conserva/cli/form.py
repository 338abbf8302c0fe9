"""What all commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from .._util.extras import require
from .._util.files import check_file, check_folder
from .._util.text import ERROR_LENGTH, printable
from ..errors import Error
from ..models.bundled import BUNDLED
from ..results.saving import PICTURES

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Parser(argparse.ArgumentParser):
    """A parser whose messages are printable, whatever the arguments hold that they repeat."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, limit=ERROR_LENGTH))


FORM: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: argparse.ArgumentParser, default: str | None = BUNDLED, shown: str = BUNDLED) -> None:
    """Add the option that names the model."""
    parser.add_argument("--model", default=default, help=f"a folder or hub name (default: the bundled {shown})")


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


def device_of(name: str) -> str:
    """Return a device's name if torch can use it."""
    import torch

    if name.startswith("meta"):
        raise Error(f"--device {name} computes nothing: choose cpu, or a GPU as cuda.")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise Error(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name
