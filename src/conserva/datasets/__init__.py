"""Datasets: labelled texts from files or from the Hugging Face hub, and the datasets of the paper by name."""

from .catalogue import DATASETS, Dataset, dataset
from .labelled import Labelled, class_indices, read_labelled

__all__ = ["DATASETS", "Dataset", "Labelled", "class_indices", "dataset", "read_labelled"]
