"""The fixtures of the tests of the paper's experiments."""

from training_data import data

__all__ = ["data"]
