"""Signals that wait for a moment at which nothing is half done.

Python handles signals in the main thread between any two instructions: also on the way into an `__exit__`, where what
is raised leaves the clean-up undone. While hooks, modes and marks of ours are at work, an interrupt is therefore noted
first and handled at the next torch call that a rule set reads, or at the end.
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
"""The signals whose handlers may raise: interrupts from the keyboard, time limits, requests to end the process."""

came: list[int] = []
"""The signals that came and wait."""

_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
"""What handles a signal as soon as it need not wait any more."""


class Waiting:
    """A block in which signals wait. Outside of the main thread, which alone handles signals, it does nothing."""

    def __init__(self) -> None:
        self._is_outermost = False

    def __enter__(self) -> None:
        if _handlers or not _is_main_thread():
            return
        _hold()
        self._is_outermost = True

    def __exit__(self, *exception: object) -> None:
        if self._is_outermost:
            _release()


class NotWaiting:
    """A part of such a block that may take long and has nothing to clean up: signals are handled at once."""

    def __init__(self) -> None:
        self._was_waiting = False

    def __enter__(self) -> None:
        if _handlers and _is_main_thread():
            self._was_waiting = True
            _release()

    def __exit__(self, *exception: object) -> None:
        if self._was_waiting:
            _hold()


def handle() -> None:
    """Handle the signals that wait: what is raised goes through a call of torch, as torch's own errors do."""
    while came and _handlers and _is_main_thread():
        number = came.pop(0)
        _handlers[number](number, sys._getframe(1))


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _note(number: int, frame: FrameType | None) -> None:
    if _handlers:
        came.append(number)
    else:  # a debugger that was at work in a block has put this back since
        signal.default_int_handler(number, frame)


def _hold() -> None:
    try:
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                _handlers[number] = handler
                signal.signal(number, _note)
    except BaseException:  # a signal that came before the first was held
        _restore()
        raise


def _release() -> None:
    try:
        _restore()
    finally:
        _restore()  # what a signal that came meanwhile left undone
    _raise_all()


def _raise_all() -> None:
    if came:
        try:
            signal.raise_signal(came.pop(0))
        finally:
            _raise_all()


def _restore() -> None:
    for number, handler in list(_handlers.items()):
        if signal.getsignal(number) is _note:
            signal.signal(number, handler)
        _handlers.pop(number, None)
