"""Windows of texts that are longer than a model's maximum length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import Error
from .encoded_text import EncodedText, EncodedTextPair
from .task import Task

OVERLAP = 4
"""By default, consecutive windows share one in this many tokens of a window."""


class WindowSize(NamedTuple):
    """The length of a window in tokens, special tokens included, and the number of tokens that two windows share."""

    length: int
    overlap: int


def window_size(task: Task, given: Any) -> WindowSize | None:
    """Return the size of windows: True is the model's maximum length, a pair is (length, overlap), False is None."""
    if given is False or given is None:
        return None
    if not task.takes_windows:
        raise Error(
            f"windows={given!r}: {task.name} takes {task.noun}s; only text classifiers are explained in windows."
        )
    longest = int(task.longest)
    if given is True:
        return WindowSize(longest, longest // OVERLAP)
    if not (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in given)
    ):
        raise Error(
            f"windows={given!r} is neither True nor (length, overlap): give two numbers of tokens, as (256, 64)."
        )
    length, overlap = given
    if not 0 <= overlap < length <= longest:
        raise Error(
            f"windows=({length}, {overlap}): the length must be at most {longest}, the maximum of {task.name}, and the "
            "overlap must be smaller than the length."
        )
    return WindowSize(length, overlap)


def windows_of(encoded: EncodedText, size: WindowSize) -> list[list[int]]:
    """Return the features of each window, as indices into an encoded text of any length.

    Every window has the special tokens at the beginning and at the end of the text. Of a pair, every window has the
    first text and a part of the second. All windows have the same length: the last one ends where the text ends, so
    that it may share more tokens with the one before.
    """
    if len(encoded) <= size.length:
        return [list(range(len(encoded)))]
    before, after = split_part(encoded)
    room = size.length - before - (len(encoded) - after)
    if room <= size.overlap:
        what = "the first text and the special tokens" if isinstance(encoded, EncodedTextPair) else "special tokens"
        raise Error(
            f"The text beginning {encoded.text[:40]!r} cannot be split into windows of {size.length} tokens with an "
            f"overlap of {size.overlap}: {what} take {size.length - room} of them. Give a smaller overlap or longer "
            "windows."
        )
    step = room - size.overlap
    starts = [*range(before, after - room, step), after - room]
    fixed_before, fixed_after = list(range(before)), list(range(after, len(encoded)))
    return [[*fixed_before, *range(start, start + room), *fixed_after] for start in starts]


def split_part(encoded: EncodedText) -> tuple[int, int]:
    """Return the first feature of the part of a text that is split into windows, and the first after it."""
    before = encoded.border if isinstance(encoded, EncodedTextPair) else _leading(encoded.special)
    return before, len(encoded) - _leading(encoded.special[::-1])


def _leading(flags: Sequence[bool]) -> int:
    """Return the number of True values before the first False."""
    return next((i for i, flag in enumerate(flags) if not flag), len(flags))
