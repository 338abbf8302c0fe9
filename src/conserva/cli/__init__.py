"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from .exits import ending_at_once, exit_code, leave


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for an error, 2 for wrong arguments, 130 if interrupted."""
    return _run(arguments, nullcontext)


def program() -> None:
    """The entry point of `conserva`: `main`, with an interrupt at any moment ending the process without a traceback."""
    if not sys.warnoptions and "--debug" not in sys.argv:
        warnings.simplefilter("ignore")  # those of libraries: standard error is for progress and errors
    with ending_at_once():
        from . import commands  # noqa: F401 - imported while an interrupt ends the process at once
    leave(_run(None, ending_at_once))


def _run(arguments: Sequence[str] | None, while_importing: Callable[[], AbstractContextManager[None]]) -> int:
    """Check the arguments before the libraries are imported, which takes seconds, and run the command."""
    from .commands import checked, import_libraries, run

    def work() -> None:
        with while_importing():
            given = checked(arguments)
            import_libraries(given)
        run(given)

    return exit_code(work, "--debug" in (sys.argv[1:] if arguments is None else arguments))
