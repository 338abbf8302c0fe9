"""Attribution methods: one function each, all with the same signature."""

from .attribution import Attribution
from .registry import Method, MethodLike, find, methods, options, rules_of

__all__ = ["Attribution", "Method", "MethodLike", "find", "methods", "options", "rules_of"]
