"""Errors for contexts of rules that end in another way than with their block, so that the rules did not apply to it."""

from __future__ import annotations

from ..errors import Error


def out_of_order() -> Error:
    """Return the error for a context that ends while one that was opened inside it is still open."""
    return Error(
        "A context of conserva.rules ended while one that was opened inside it is still open, but contexts end in the "
        "reverse order. Where generators, or the blocks of a trace, run alternately, open one context around all of "
        "them."
    )


def skipped_block(reason: type[BaseException] | None) -> Error | None:
    """Return the error for a block that was not run, but captured to be run after its contexts have ended.

    nnsight skips the block of `with model.trace(...), conserva.rules(...):` by an exception, and runs it when the trace
    ends, which is after the rules.
    """
    if reason is None or (reason.__module__.partition(".")[0], reason.__name__) != ("nnsight", "ExitTracingException"):
        return None
    return Error(
        "nnsight runs the block when its trace ends, and conserva.rules, the second context of the statement, ends "
        "before it: write the rules first, as in `with conserva.rules(...), model.trace(...):`."
    )
