"""All commands of the program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .. import __version__
from . import auditing, biasing, doctoring, evaluating, explaining
from .arguments import FORM, Parser, check_outputs

PARTS: tuple[ModuleType, ...] = (explaining, auditing, doctoring, evaluating, biasing)
if find_spec("conserva.paper") is not None:  # an installation may leave it out
    from . import reproducing, training

    PARTS += (training, reproducing)

_WITHOUT_LIBRARIES = ("-h", "--help", "--version")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked for; a wrong call or `--help` ends the program."""
    parser = Parser("conserva", description="Explanations of Transformers that add up.", **FORM)
    parser.add_argument("--version", action="version", version=f"conserva {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in PARTS:
        part.add(commands)
    for command in commands.choices.values():
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors"
        )
    given = parser.parse_args(arguments)
    for name, value in vars(given).items():
        if value == []:  # what argparse makes of `--option=--`
            parser.error(f"argument --{name.replace('_', '-')}: expected one argument, not '--'")
    return given


def run(given: argparse.Namespace) -> None:
    """Run a command, once it is certain that what it writes has a place to go."""
    check_outputs(given)
    given.run(given)


def import_libraries() -> None:
    """Import what takes seconds, unless the program will end after a few words."""
    if len(sys.argv) > 1 and not any(one in sys.argv for one in _WITHOUT_LIBRARIES):
        for name in ("torch", "transformers", "conserva.tasks.loading", "conserva.explaining.explain"):
            import_module(name)
