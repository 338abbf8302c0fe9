"""Attribution methods: one function each, all with the same signature."""

from .attribution import Attribution
from .registry import Method, find, methods, options, rules_of

__all__ = ["Attribution", "Method", "find", "methods", "options", "rules_of"]
