"""Deferred signals, so that an interrupt does not leave a clean-up half done.

Python runs signal handlers in the main thread between any two instructions: also on entry to an `__exit__`, where an
exception prevents the clean-up. While hooks, torch modes and attributes of this package are installed, a signal is
therefore recorded, and handled at the next torch call under rules or at the end of the block.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
"""The signals whose handlers may raise: keyboard interrupts, time limits, termination requests."""

pending: list[int] = []
"""The signals that have arrived and are not handled yet."""

_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
"""The user's signal handlers, while signals are deferred."""


class DeferredSignals:
    """A block in which signals are deferred. It does nothing outside the main thread, which handles all signals."""

    def __init__(self) -> None:
        self._is_outermost = False

    def __enter__(self) -> None:
        if _handlers or not _is_main_thread():
            return
        _defer()
        self._is_outermost = True

    def __exit__(self, *exception: object) -> None:
        if self._is_outermost:
            _release()


class ImmediateSignals:
    """A part of such a block that may take long and needs no clean-up: signals are handled at once."""

    def __init__(self) -> None:
        self._were_deferred = False

    def __enter__(self) -> None:
        if _handlers and _is_main_thread():
            self._were_deferred = True
            _release()

    def __exit__(self, *exception: object) -> None:
        if self._were_deferred:
            _defer()


def handle() -> None:
    """Run the handlers of deferred signals. What they raise propagates from a torch call, as torch's own errors do."""
    while pending and _handlers and _is_main_thread():
        number = pending.pop(0)
        _handlers[number](number, sys._getframe(1))


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _record(number: int, frame: FrameType | None) -> None:
    if _handlers:
        pending.append(number)
    else:  # a debugger that ran inside a block has reinstalled this handler afterwards
        signal.default_int_handler(number, frame)


def _defer() -> None:
    try:
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                _handlers[number] = handler
                signal.signal(number, _record)
    except BaseException:  # a signal that arrived before its handler was replaced
        _restore()
        raise


def _release() -> None:
    try:
        _restore()
    finally:
        _restore()  # again, in case a signal interrupted the first call
    _raise_all()


def _raise_all() -> None:
    if pending:
        try:
            signal.raise_signal(pending.pop(0))
        finally:
            _raise_all()


def _restore() -> None:
    for number, handler in list(_handlers.items()):
        if signal.getsignal(number) is _record:
            signal.signal(number, handler)
        _handlers.pop(number, None)
