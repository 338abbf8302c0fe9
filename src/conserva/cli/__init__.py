"""The command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import Error
from . import auditing, biasing, doctoring, evaluating, explaining, reproducing, training
from .form import FORM, check_outputs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for an error, 2 for a wrong call, 130 when interrupted."""
    parser = argparse.ArgumentParser("conserva", description="Explanations of Transformers that add up.", **FORM)
    parser.add_argument("--version", action="version", version=f"conserva {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (explaining, auditing, doctoring, evaluating, biasing, training, reproducing):
        part.add(commands)
    given = parser.parse_args(arguments)
    try:
        check_outputs(given)
        given.run(given)
    except Error as error:
        print(f"conserva: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("conserva: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has seen enough
        return 0
    return 0
