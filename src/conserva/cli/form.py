"""What all commands share."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

FORM: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the model."""
    parser.add_argument("--model", default="sentiment", help="a folder or hub name (default: the bundled %(default)s)")
