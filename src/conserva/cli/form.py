"""What all commands share."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

from ..errors import Error
from ..loading import BUNDLED
from ..training.recipe import EMBEDDINGS

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

FORM: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: argparse.ArgumentParser, default: str | None = BUNDLED, shown: str = BUNDLED) -> None:
    """Add the option that names the model."""
    parser.add_argument("--model", default=default, help=f"a folder or hub name (default: the bundled {shown})")


def add_embeddings(parser: argparse.ArgumentParser, otherwise: str = EMBEDDINGS) -> None:
    """Add the option that names the BERT whose embeddings a classifier is built on."""
    parser.add_argument(
        "--embeddings",
        metavar="BERT",
        help=f"whose, frozen: a folder, a name as bert-base-uncased, or the bundled sentiment (default: {otherwise})",
    )


def refuse(what: str, given: argparse.Namespace, *options: str) -> None:
    """Raise if one of these options was given, which what the command is about has no use for."""
    for name in options:
        value = getattr(given, name)
        if value:
            said = "" if value is True else f" {str(value)!r}"
            raise Error(f"--{name.replace('_', '-')}{said} says nothing about {what}: leave it out.")


def device_of(name: str) -> str:
    """Return a device's name if torch can use it."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise Error(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name
