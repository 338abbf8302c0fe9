"""`conserva completion`: scripts that complete commands, options and values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from .arguments import FORMATTER, Commands
from .completion import Completed, bash, commands_of, fish, zsh

COMPLETION = """examples:
  source <(conserva completion bash)                                             in ~/.bashrc
  source <(conserva completion zsh)                                              in ~/.zshrc, after compinit
  conserva completion fish > ~/.config/fish/completions/conserva.fish

Prints a script that completes commands, options, and their values: methods, rule sets, bundled models, files."""

SHELLS: Mapping[str, Callable[[Mapping[str, Completed]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("completion", help="print a completion script", epilog=COMPLETION, **FORMATTER)
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")
    parser.set_defaults(run=_completion, imports=())


def _completion(given: argparse.Namespace) -> None:
    from .commands import parser_of_all

    _, parsers = parser_of_all()
    print(SHELLS[given.shell](commands_of(parsers)), end="")
