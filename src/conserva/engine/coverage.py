"""Which calls of which module met which rule, and what in the computation met none."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import overload

from torch import nn

MODULE_CALL = nn.Module._call_impl.__code__


CONSTANT = "constant"
"""What stands in the place of a rule where a call has no live input: nothing is propagated through it."""

READING = 5
"""How many frames lie between a torch call and `calling_module`: the context, a reader, two methods, and itself."""


def calling_module(above: int = 1) -> nn.Module | None:
    """Return the innermost module at work. Read off the stack: no hook on the model, and right in every thread.

    The search begins `above` the function itself: every frame that it looks at costs more than the look.
    """
    frame: FrameType | None = sys._getframe(above)
    while frame is not None:
        if frame.f_code is MODULE_CALL:
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
    path: str = ""
    """How the rule was carried out, where there is more than one way: fused attention says which kernels ran."""


class Meetings(Sequence[Meeting]):
    """What met a rule, in the order it was called. Rows are made when asked for: they are many, and seldom read."""

    def __init__(self, met: Sequence[tuple[str, str, str, str, int, str]]) -> None:
        self._met = met

    def __len__(self) -> int:
        return len(self._met)

    @overload
    def __getitem__(self, i: int) -> Meeting: ...

    @overload
    def __getitem__(self, i: slice) -> list[Meeting]: ...

    def __getitem__(self, i: int | slice) -> Meeting | list[Meeting]:
        return [Meeting(*met) for met in self._met[i]] if isinstance(i, slice) else Meeting(*self._met[i])


class Coverage:
    """What met a rule during one forward pass."""

    def __init__(self) -> None:
        self._met: list[tuple[nn.Module | None, str, str, str, str]] = []  # counted when asked: they are many
        self.is_paused = False

    def record(self, kind: str, function: str, rule: str, path: str = "") -> None:
        """Note one call of the module at work."""
        if not self.is_paused:
            self._met.append((calling_module(READING), kind, function, rule, path))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing: what runs now was noted before."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def count(self, kind: str) -> int:
        """Return how many calls of a kind met their rule."""
        return sum(met == kind for _, met, _, _, _ in self._met)

    def meetings(self, modules: Mapping[str, nn.Module]) -> Meetings:
        """Return what was met, under the names of the model's modules, in the order they were called."""
        names: dict[nn.Module | None, str] = {None: "", **{module: name for name, module in modules.items()}}
        return Meetings(
            [
                (names[module] if module in names else type(module).__name__, kind, function, rule, times, path)
                for (module, kind, function, rule, path), times in Counter(self._met).items()
            ]
        )
