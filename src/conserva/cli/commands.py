"""The parser of all commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .. import __version__
from . import audit_command, bias_command, doctor_command, evaluate_command, explain_commands
from .arguments import FORMATTER, Parser, check_outputs

COMMANDS: tuple[ModuleType, ...] = (
    explain_commands,
    audit_command,
    doctor_command,
    evaluate_command,
    bias_command,
)
if find_spec("conserva.paper") is not None:  # an installation may leave it out
    from . import reproduce_command, train_command

    COMMANDS += (train_command, reproduce_command)

_WITHOUT_LIBRARIES = ("-h", "--help", "--version")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; wrong ones, `--help` and `--version` exit the program."""
    parser = Parser("conserva", description="Explanations of Transformers that add up.", **FORMATTER)
    parser.add_argument("--version", action="version", version=f"conserva {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    for command in commands.choices.values():
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors"
        )
    given = parser.parse_args(arguments)
    for name, value in vars(given).items():
        if value == []:  # argparse's result for `--option=--`
            parser.error(f"argument --{name.replace('_', '-')}: expected one argument, not '--'")
    return given


def run(given: argparse.Namespace) -> None:
    """Check that the outputs of a command can be written, and run it."""
    check_outputs(given)
    given.run(given)


def import_libraries() -> None:
    """Import the libraries that take seconds, unless the command only prints its help or version."""
    if len(sys.argv) > 1 and not any(option in sys.argv for option in _WITHOUT_LIBRARIES):
        for name in ("torch", "transformers", "conserva.tasks.loading", "conserva.explaining.explain"):
            import_module(name)
