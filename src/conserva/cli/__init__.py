"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .exits import ending_at_once, exit_code, leave


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for an error, 2 for wrong arguments, 130 if interrupted."""
    from .commands import parsed, run

    def work() -> None:
        run(parsed(arguments))

    return exit_code(work, "--debug" in (sys.argv[1:] if arguments is None else arguments))


def program() -> None:
    """The entry point of `conserva`: `main`, with an interrupt at any moment ending the process without a traceback."""
    with ending_at_once():
        from . import commands

        commands.import_libraries()
    leave(main())
