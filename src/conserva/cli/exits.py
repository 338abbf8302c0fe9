"""How commands end: the one place where an exception becomes a line on standard error and an exit code."""

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
"""What messages say when memory runs out, in whatever library."""

_SECONDS_TO_END = 5
"""How long an interrupted process may take to clean up before it is ended at once."""


class _Process:
    """What has happened to this process: whether it was interrupted, and whether its end has been decided."""

    interrupted = False
    ending = False


def exit_code(work: Callable[[], None], debug: bool = False) -> int:
    """Do the work and return the exit code; an error becomes one line, with its traceback if `debug` asks for it."""
    _make_streams_safe()
    try:
        work()
        sys.stdout.flush()  # a full disk is noticed here, not when Python ends
        if _Process.interrupted:  # a library has caught the interrupt and gone on, perhaps with half of its work
            raise KeyboardInterrupt
        _Process.ending = True
        return DONE
    except SystemExit:  # argparse has said what there is to say
        if (code := exit_code(sys.stdout.flush, debug)) != DONE:
            return code
        raise
    except BaseException as error:
        _Process.ending = True  # before any call: Python handles signals at calls
        if debug:
            import traceback

            with suppress(OSError):
                traceback.print_exc()
        code, line = _told(error)
        if line is not None:
            with suppress(OSError):
                print(f"conserva: {printable(line, limit=ERROR_LENGTH)}", file=sys.stderr, flush=True)
        _close_output()
        return code


def _told(error: BaseException) -> tuple[int, str | None]:
    """Return the exit code for an exception, and what to say."""
    if _Process.interrupted or isinstance(error, KeyboardInterrupt):  # libraries may raise errors of their own for it
        return INTERRUPTED, "interrupted"
    if isinstance(error, Error):
        return FAILED, str(error)
    if isinstance(error, BrokenPipeError):
        return DONE, None  # the reader of the output has seen enough
    message = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(one in message for one in _NO_MEMORY):
        return FAILED, "Memory ran out: give fewer or shorter inputs, a smaller --batch-tokens, or a smaller model."
    if "Too many open files" in message:
        return FAILED, "Too many files are open: raise the limit of the system, as with ulimit -n 1024."
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else "Standard output: " if _is_output(error) else ""
        return FAILED, f"{where}{error.strerror}."
    name = type(error).__name__
    return (
        FAILED,
        f"Internal error, {name}: {message or 'no message'}. Run it again with --debug, and report what it says.",
    )


def _is_output(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF, errno.EDQUOT)


def _make_streams_safe() -> None:
    """Let characters that the terminal's encoding does not have be written as escapes; closed streams swallow all."""
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if one is None else one  # noqa: SIM115 - for as long as the process lives
        for one in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # not all streams that tests put in their place can do it
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _close_output() -> None:
    """Drop what could not be written, so that Python does not fail on it again when it ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the process at once if it is interrupted inside, where modules are imported; afterwards, let it clean up.

    An exception that is raised in the middle of an import may be dropped by whatever library is being imported, or
    leave modules half made. Nothing has been written by then, so nothing needs to be cleaned up.
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
    """Raise KeyboardInterrupt; at a second interrupt, or if the process is still there some seconds later, end it."""
    if _Process.interrupted:
        _end(number, frame)
    elif not _Process.ending:
        _Process.interrupted = True
        if hasattr(signal, "alarm"):
            signal.alarm(_SECONDS_TO_END)
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    """End the process without cleaning up; files that were being written are left as hidden, temporary files."""
    if not _Process.ending:
        os.write(2, b"\x1b[?25hconserva: interrupted\n" if os.isatty(2) else b"conserva: interrupted\n")  # a cursor
        os._exit(INTERRUPTED)


def _unraisable(found: Any) -> None:
    """Say nothing of an interrupt where no exception can be raised: the process will end all the same."""
    if found.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(found)


def leave(code: int) -> NoReturn:
    """End the process; while Python cleans up, an interrupt changes nothing any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.alarm(0)
    sys.exit(code)
