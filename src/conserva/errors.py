"""The one exception of the package."""

from __future__ import annotations

from ._util.text import ERROR_LENGTH, printable


class Error(Exception):
    """What conserva raises: the message repeats what was given and says what to do.

    It is one printable line, however hostile or long the text is that it repeats.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, limit=ERROR_LENGTH))


class NotApplicable(Error):  # noqa: N818 - a finding about a method and a model
    """A method does not apply to a model at all, whatever the input: others may."""


class OutOfMemory(Error):  # noqa: N818 - a finding about a batch: a smaller one may fit
    """What was asked for at once does not fit into memory."""
