"""Datasets: labelled texts, from files or from the Hugging Face hub."""

from .labelled import Labelled, class_indices, read_labelled

__all__ = ["Labelled", "class_indices", "read_labelled"]
