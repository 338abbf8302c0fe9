"""Which calls of which module met which rule, and what in the computation met none."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from torch import nn

_MODULE_CALL = nn.Module._call_impl.__code__


def calling_module() -> nn.Module | None:
    """Return the innermost module at work. Read off the stack: no hook on the model, and right in every thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _MODULE_CALL:
            return frame.f_locals["self"]  # type: ignore[no-any-return]
        frame = frame.f_back
    return None


@dataclass(frozen=True)
class Meeting:
    """A module's calls of one torch function, and the rule they met."""

    module: str
    kind: str
    function: str
    rule: str
    times: int


class Coverage:
    """What met a rule during one forward pass."""

    def __init__(self) -> None:
        self._met: Counter[tuple[nn.Module | None, str, str, str]] = Counter()
        self.is_paused = False
        self.attention_seen = False  # also where it is over before the first place that is explained

    def record(self, kind: str, function: str, rule: str) -> None:
        """Count one call of the module at work."""
        if not self.is_paused:
            self._met[calling_module(), kind, function, rule] += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing: what runs now was counted before."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def count(self, kind: str) -> int:
        """Return how many calls of a kind met their rule."""
        return sum(times for (_, met, _, _), times in self._met.items() if met == kind)

    def meetings(self, modules: Mapping[str, nn.Module]) -> list[Meeting]:
        """Return what was met, under the names of the model's modules, in the order they were called."""
        names = {module: name for name, module in modules.items()}
        return [
            Meeting(names.get(module, type(module).__name__) if module is not None else "", kind, function, rule, times)
            for (module, kind, function, rule), times in self._met.items()
        ]
