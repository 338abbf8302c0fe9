"""How commands exit: exceptions become a line on standard error and an exit code, here and nowhere else."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from .._util.text import ERROR_LENGTH, printable
from ..errors import Error

DONE, FAILED, INTERRUPTED = 0, 1, 130

_NO_MEMORY = (
    "allocate memory",
    "bad_alloc",
    "could not create a primitive",
    "failed to map segment",
    "out of memory",
    "start new thread",
)
"""Parts of the error messages of libraries when memory runs out."""

_SECONDS_TO_END = 5
"""The time that an interrupted process has for its cleanup before it is killed."""


class _Process:
    """The state of this process: whether it was interrupted, and whether it is already exiting."""

    interrupted = False
    ending = False
    advice: Callable[[], str] | None = None
    """Returns what a user can do after an interrupt."""


def exit_code(work: Callable[[], None], debug: bool = False) -> int:
    """Run a function and return the exit code; an error is printed as one line, with its traceback if `debug`."""
    _make_streams_safe()
    _Process.advice = None
    return _ended(work, debug)


def _ended(work: Callable[[], object], debug: bool) -> int:
    try:
        work()
        sys.stdout.flush()  # so that a full disk is reported here, not while Python exits
        if _Process.interrupted:  # a library caught the interrupt and continued, perhaps with incomplete results
            raise KeyboardInterrupt
        _Process.ending = True
        return DONE
    except SystemExit:  # argparse has printed its message
        if (code := _ended(sys.stdout.flush, debug)) != DONE:
            return code
        raise
    except BaseException as error:
        _Process.ending = True  # before any function call, where Python runs signal handlers
        if debug:
            import traceback

            with suppress(OSError):
                traceback.print_exc()
        code, line = _code_and_message(error)
        if line is not None:
            with suppress(OSError):
                print(f"conserva: {printable(line, limit=ERROR_LENGTH)}", file=sys.stderr, flush=True)
        _close_output()
        return code


def _code_and_message(error: BaseException) -> tuple[int, str | None]:
    """Return the exit code and the message for an exception."""
    if _Process.interrupted or isinstance(error, KeyboardInterrupt):  # libraries may turn it into another exception
        return INTERRUPTED, _interrupted()
    if isinstance(error, Error):
        return FAILED, str(error)
    if isinstance(error, BrokenPipeError):
        return DONE, None  # the reader closed the pipe, as `head` does
    message = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(part in message for part in _NO_MEMORY):
        return FAILED, "Memory ran out: give fewer or shorter inputs, a smaller --batch-tokens, or a smaller model."
    if "Too many open files" in message:
        return FAILED, "Too many files are open: raise the limit of the system, for example with ulimit -n 1024."
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else "Standard output: " if _is_output(error) else ""
        return FAILED, f"{where}{error.strerror}."
    name = type(error).__name__
    return (
        FAILED,
        f"Internal error, {name}: {message or 'no message'}. Run it again with --debug, and report the traceback.",
    )


def _interrupted() -> str:
    """Return the message after an interrupt."""
    return "interrupted" if _Process.advice is None else f"interrupted; {_Process.advice()}"


def advise_if_interrupted(advice: Callable[[], str]) -> None:
    """From now on, the message after an interrupt ends with what this function returns."""
    _Process.advice = advice


def _is_output(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF, errno.EDQUOT)


def _make_streams_safe() -> None:
    """Escape characters that the terminal's encoding lacks, and replace closed streams by the null device."""
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if stream is None else stream  # noqa: SIM115 - open for the lifetime of the process
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # streams that tests substitute may not support it
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _close_output() -> None:
    """Discard output that could not be written, so that Python does not fail on it again while it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Kill the process on an interrupt inside this context, which is for imports; after it, raise KeyboardInterrupt.

    An exception in the middle of an import may be swallowed by the library, or leave modules partially initialised.
    No files have been written at this point, so that no cleanup is needed.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        sys.unraisablehook = _unraisable
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, _end)
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; on a second interrupt, or if the cleanup takes too long, kill the process."""
    if _Process.interrupted:
        _end(number, frame)
    elif not _Process.ending:
        _Process.interrupted = True
        if hasattr(signal, "alarm"):
            signal.alarm(_SECONDS_TO_END)
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    """Exit without cleanup; files that were being written are left as hidden temporary files."""
    if not _Process.ending:
        # The escape sequence shows the cursor again, which a progress bar may have hidden.
        os.write(2, f"{chr(27) + '[?25h' if os.isatty(2) else ''}conserva: {_interrupted()}\n".encode())
        os._exit(INTERRUPTED)


def _unraisable(info: Any) -> None:
    """Ignore an interrupt where no exception can be raised, as in a destructor: the process exits anyway."""
    if info.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(info)


def leave(code: int) -> NoReturn:
    """Exit the process, and ignore interrupts while Python cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.alarm(0)
    sys.exit(code)
