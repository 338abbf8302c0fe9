"""The fixtures of the tests of bias studies."""

from bias_data import study, task

__all__ = ["study", "task"]
