"""Which torch calls of which modules followed which rules."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor, nn

from ..errors import NotApplicable

if TYPE_CHECKING:
    from .module_tree import Modules

MODULE_CALL = nn.Module._call_impl.__code__


CONSTANT = "constant"
"""Recorded instead of a rule where a call has no live input, so that nothing is propagated through it."""

READING = 5
"""The number of stack frames from a torch call down to `calling_module`: the context, a reader, two methods, itself."""


def calling_module(above: int = 1) -> nn.Module | None:
    """Return the innermost module whose forward is running, found on the call stack of this thread.

    Parameters
    ----------
    above
        How many frames above this function the search begins: skipping frames that cannot be a module's saves time.
    """
    frame: FrameType | None = sys._getframe(above)
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            return frame.f_locals["self"]  # type: ignore[no-any-return]
        frame = frame.f_back
    return None


def record_call(calls: dict[Any, tuple[Any, str]], out: Any, name: str) -> None:
    """Record for each new node behind an output the call that created it, and the module that made the call."""
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    waiting = [x.grad_fn for x in outputs if isinstance(x, Tensor) and x.grad_fn is not None]
    module = calling_module(2) if waiting else None
    while waiting:
        node = waiting.pop()
        if node not in calls:
            calls[node] = (module, name)
            waiting.extend(before for before, _ in node.next_functions if before is not None)


def unexpected_attention(rules: str, function: str) -> NotApplicable:
    """Return the error for a call of a softmax or an attention under rules for models without attention."""
    caller = calling_module(2)
    where = f" in {type(caller).__name__}" if caller else ""
    return NotApplicable(
        f"rules={rules!r} are for models without attention, but {function!r} is called{where}. If the output is a "
        "probability, explain the logits; else use a rule for attention, such as 'freeze'."
    )


@dataclass(frozen=True)
class CoverageEntry:
    """A module's calls of one torch function, and the rule that they followed."""

    module: str
    kind: str
    function: str
    rule: str
    times: int
    path: str = ""
    """How the rule was carried out, where there are several ways: for fused attention, the kernels that ran."""


class CoverageEntries(Sequence[CoverageEntry]):
    """The entries of a coverage, in the order of their first call. They are counted lazily: they are seldom read.

    Parameters
    ----------
    calls
        For each call the name of the module, the kind, the function, the rule and the path.
    """

    def __init__(self, calls: Sequence[tuple[str, str, str, str, str]]) -> None:
        self._calls = calls

    @cached_property
    def _rows(self) -> list[tuple[str, str, str, str, int, str]]:
        return [(*call[:4], times, call[4]) for call, times in Counter(self._calls).items()]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, i: int) -> CoverageEntry: ...

    @overload
    def __getitem__(self, i: slice) -> list[CoverageEntry]: ...

    def __getitem__(self, i: int | slice) -> CoverageEntry | list[CoverageEntry]:
        return [CoverageEntry(*row) for row in self._rows[i]] if isinstance(i, slice) else CoverageEntry(*self._rows[i])


class Coverage:
    """The calls that followed a rule during one forward pass."""

    def __init__(self) -> None:
        self._calls: list[tuple[nn.Module | None, str, str, str, str]] = []  # counted lazily
        self.is_paused = False

    def record(self, kind: str, function: str, rule: str, path: str = "") -> None:
        """Record one call, made by the innermost running module."""
        if not self.is_paused:
            self._calls.append((calling_module(READING), kind, function, rule, path))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside the block, in which calls are recomputed."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def count(self, kind: str) -> int:
        """Return the number of recorded calls of a kind of operation."""
        return sum(recorded == kind for _, recorded, _, _, _ in self._calls)

    def has_own(self, module: nn.Module) -> bool:
        """Return whether a module made a call itself, outside its submodules, that followed a rule."""
        return any(caller is module and rule != CONSTANT for caller, _, _, rule, _ in self._calls)

    def entries(self, modules: Modules) -> CoverageEntries:
        """Return the recorded calls, grouped and counted, in the order of their first call.

        Parameters
        ----------
        modules
            The model's modules by name.
        """
        names = modules.names
        return CoverageEntries(
            [
                (names[module] if module in names else type(module).__name__, kind, function, rule, path)
                for module, kind, function, rule, path in self._calls
            ]
        )
