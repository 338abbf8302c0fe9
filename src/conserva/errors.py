"""The one exception of the package."""


class Error(Exception):
    """What conserva raises: the message repeats what was given and says what to do."""


class NotApplicable(Error):  # noqa: N818 - a finding about a method and a model
    """A method does not apply to a model at all, whatever the input: others may."""


class OutOfMemory(Error):  # noqa: N818 - a finding about a batch: a smaller one may fit
    """What was asked for at once does not fit into memory."""
