"""The one exception of the package."""


class Error(Exception):
    """What conserva raises: the message repeats what was given and says what to do."""
