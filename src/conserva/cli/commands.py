"""The parser of all commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .. import __version__
from .._util.nearest import nearest
from ..attribution.registry import methods as known_methods
from . import (
    audit_command,
    bias_command,
    completion_command,
    doctor_command,
    evaluate_command,
    explain_commands,
    models_command,
)
from .arguments import FORMATTER, Parser, check_methods, check_model, check_outputs
from .exits import advise_if_interrupted

COMMANDS: tuple[ModuleType, ...] = (
    explain_commands,
    models_command,
    audit_command,
    doctor_command,
    evaluate_command,
    bias_command,
)
if find_spec("conserva.paper") is not None:  # an installation may leave it out
    from . import reproduce_command, train_command

    COMMANDS += (train_command, reproduce_command)
COMMANDS += (completion_command,)

LIBRARIES = ("torch", "transformers", "conserva.tasks.loading", "conserva.explaining.explain")
"""Modules that take seconds to import. Commands that do not need them set `imports` to an empty tuple."""


def parser_of_all() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the commands by name."""
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
    return parser, dict(commands.choices)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; wrong ones, `--help` and `--version` exit the program."""
    parser, commands = parser_of_all()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[given.command]
        command.error(f"unrecognized arguments: {shlex.join(unknown)}{_hint(given, command, unknown)}")
    for name, value in vars(given).items():
        if value == []:  # argparse's result for `--option=--`
            parser.error(f"argument --{name.replace('_', '-')}: expected one argument, not '--'")
    return given


def _hint(given: argparse.Namespace, command: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return what the user may have meant by unknown arguments; empty if nothing comes near."""
    options = [option[2:] for action in command._actions for option in action.option_strings]
    wrong = [each[2:].partition("=")[0] for each in unknown if each.startswith("--")]
    near = next(filter(None, (nearest(name, options) for name in wrong)), None)
    if near:
        return f". Did you mean '--{near}'?"
    if wrong or len(unknown) > 1:
        return ""
    for name in ("methods", "rules"):
        if getattr(given, name, None) and unknown[0].partition(":")[0] in known_methods():
            return f". Separate the values of --{name} by commas: --{name} {getattr(given, name)},{unknown[0]}"
    return ". The second text of a pair is given by '--with'" if "with" in options else ""


def checked(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments, and check all that can be checked without the libraries."""
    given = parsed(arguments)
    check_outputs(given)
    check_methods(given)
    check_model(given)
    if hasattr(given, "check"):
        given.check(given)
    return given


def import_libraries(given: argparse.Namespace) -> None:
    """Import the libraries that the command needs."""
    for name in getattr(given, "imports", LIBRARIES):
        import_module(name)


def run(given: argparse.Namespace) -> None:
    """Run a command. After an interrupt, those that write to --out go on when they are started again."""
    if getattr(given, "out", None) is not None:
        advise_if_interrupted(lambda: "the same command goes on")
    given.run(given)
