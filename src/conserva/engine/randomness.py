"""Random numbers that a model draws: what differs from call to call has no explanation.

Seen are the default generators of torch, on the CPU and on CUDA devices, Python's `random` and numpy's global
generator, by their states before and after the forward pass, and generators that are passed on to torch as
`generator=`. Not seen are generators of numpy's newer kind, `numpy.random.default_rng()`, and those of other libraries.

A model may draw numbers and make no use of them, as some do that drop layers in training. So where one draws, it is run
twice more, and refused only if the two answers differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Error
from .coverage import calling_module

_MERSENNE_TWISTER = 625 * 4
"""The size of what numpy's global generator keeps, in bytes: 624 numbers, and which of them is next."""


class Draws:
    """The states of all generators at one moment."""

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._generators = [torch.default_generator, *_on_devices(), *generators]
        self._states = [_bytes(one) for one in self._generators]
        self._python, self._numpy = random.getstate(), _numpy_state()

    def has_moved(self) -> bool:
        """Tell whether numbers were drawn since."""
        return self.who_moved() != ""

    def who_moved(self) -> str:
        """Return which generator numbers were drawn from since, if any."""
        pairs = zip(self._generators, self._states, strict=True)
        if any(_bytes(one) != state for one, state in pairs):
            return "torch"
        if random.getstate() != self._python:
            return "Python's random"
        return "numpy.random" if _numpy_state() != self._numpy else ""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put the generators back afterwards to where they are now."""
        numpy = np.random.get_state()
        try:
            yield
        finally:
            for one, state in zip(self._generators, self._states, strict=True):
                one.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            random.setstate(self._python)
            np.random.set_state(numpy)


def draws_now() -> Draws | None:
    """Return the states of all generators; nothing while a CUDA graph is captured, when they cannot be read."""
    capturing = _has_cuda() and torch.cuda.is_current_stream_capturing()
    return None if capturing else Draws()


def refuse_random(
    model: nn.Module,
    before: Draws | None,
    generators: Iterable[torch.Generator],
    answer: Callable[[], Iterable[Tensor]],
) -> None:
    """Raise if a model drew random numbers since `before`, or from these generators, and its answers differ for it."""
    generators = list(generators)
    if before is None or not (generators or before.has_moved()):
        return
    with Draws(generators).kept(), torch.no_grad():
        first, watch = list(answer()), _Watch(generators)
        with watch:
            second = list(answer())
    if all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        return
    names = {module: name for name, module in model.named_modules()}
    where = names.get(watch.module) if watch.module is not None else None
    raise Error(
        f"The model gives another answer each time it is called: {watch.call or 'numbers'} "
        f"draws at random{f' in module {where!r}' if where else ''}. Call model.eval() if it is being trained; where "
        "the numbers are an argument of the model, as noise= is of ViTMAE's, pass them."
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first call that moves a generator, and the module that made it."""

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call, self.module = "", None  # type: tuple[str, nn.Module | None]
        self._generators = list(generators)
        self._before = Draws(self._generators)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        outside = "" if self.call else self._before.who_moved()
        if outside:
            self.call, self.module = outside, calling_module()
        out = func(*args, **(kwargs or {}))
        if not self.call and self._before.has_moved():
            self.call, self.module = str(func), calling_module()
        return out

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.call = self.call or self._before.who_moved()


def _bytes(generator: torch.Generator) -> bytes:
    """Return the state of a generator, which is on the host for every device: no device is waited for."""
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _on_devices() -> tuple[torch.Generator, ...]:
    return tuple(torch.cuda.default_generators) if _has_cuda() else ()


def _numpy_state() -> bytes:
    generator = np.random.mtrand._rand._bit_generator
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MERSENNE_TWISTER)
