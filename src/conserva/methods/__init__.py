"""Methods: one function each, all with the same signature."""

from .gradient import Attribution
from .registry import Method, find, methods

__all__ = ["Attribution", "Method", "find", "methods"]
