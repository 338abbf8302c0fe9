"""The one exception of the package."""


class Error(Exception):
    """What conserva raises: the message repeats what was given and says what to do."""


class NotApplicable(Error):  # noqa: N818 - a finding about a method and a model
    """A method does not apply to a model at all, whatever the input: others may."""
