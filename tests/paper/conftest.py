"""The fixtures of the tests of the paper's experiments."""

from training_data import data
from training_kinds import known_datasets

__all__ = ["data", "known_datasets"]
