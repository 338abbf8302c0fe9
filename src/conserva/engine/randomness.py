"""Refusal of models whose output is random, and so has no explanation.

Random draws are detected by comparing generator states before and after the forward pass: those of torch's default
generators, on the CPU and on CUDA devices, of Python's `random` and of numpy's global generator; and by generators that
are passed to torch as `generator=`. Not detected are `numpy.random.default_rng()` and generators of other libraries.

A model may draw numbers without using them, as some do that drop layers in training. So a model that draws is run twice
more, and refused only if the two outputs differ.
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
"""The size of the state of numpy's global generator in bytes: 624 words and a position."""


class GeneratorStates:
    """A snapshot of the states of all generators."""

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._generators = [torch.default_generator, *_on_devices(), *generators]
        self._states = [_bytes(generator) for generator in self._generators]
        self._python, self._numpy = random.getstate(), _numpy_state()

    def have_changed(self) -> bool:
        """Return whether numbers were drawn since the snapshot."""
        return self.which_changed() != ""

    def which_changed(self) -> str:
        """Return the library whose generator changed since the snapshot; "" if none did."""
        pairs = zip(self._generators, self._states, strict=True)
        if any(_bytes(generator) != state for generator, state in pairs):
            return "torch"
        if random.getstate() != self._python:
            return "Python's random"
        return "numpy.random" if _numpy_state() != self._numpy else ""

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the states of the snapshot at the end of the block."""
        numpy = np.random.get_state()
        try:
            yield
        finally:
            for generator, state in zip(self._generators, self._states, strict=True):
                generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            random.setstate(self._python)
            np.random.set_state(numpy)


def generator_states() -> GeneratorStates | None:
    """Return a snapshot of all generators; None while a CUDA graph is captured, when their states cannot be read."""
    capturing = _has_cuda() and torch.cuda.is_current_stream_capturing()
    return None if capturing else GeneratorStates()


def refuse_random(
    model: nn.Module,
    before: GeneratorStates | None,
    generators: Iterable[torch.Generator],
    answer: Callable[[], Iterable[Tensor]],
) -> None:
    """Raise if a model drew random numbers and its output depends on them.

    Parameters
    ----------
    model
        The model.
    before
        The generators before its forward pass; None to skip the check.
    generators
        Generators that were passed to torch calls of the model.
    answer
        Runs the model again and returns the explained numbers.
    """
    generators = list(generators)
    if before is None or not (generators or before.have_changed()):
        return
    with GeneratorStates(generators).restored(), torch.no_grad():
        first, watch = list(answer()), _Watch(generators)
        with watch:
            second = list(answer())
    if all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        return
    names = {module: name for name, module in model.named_modules()}
    where = names.get(watch.module) if watch.module is not None else None
    raise Error(
        f"The model's output is random: {watch.call or 'a call'} draws random numbers"
        f"{f' in module {where!r}' if where else ''}. Call model.eval() if the model is in training mode; if the "
        "random numbers are an argument of the model, such as noise= of ViTMAE, pass them."
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the first call that draws a random number, and the module that made it."""

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call, self.module = "", None  # type: tuple[str, nn.Module | None]
        self._generators = list(generators)
        self._before = GeneratorStates(self._generators)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        outside = "" if self.call else self._before.which_changed()
        if outside:
            self.call, self.module = outside, calling_module()
        out = func(*args, **(kwargs or {}))
        if not self.call and self._before.have_changed():
            self.call, self.module = str(func), calling_module()
        return out

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.call = self.call or self._before.which_changed()


def _bytes(generator: torch.Generator) -> bytes:
    """Return the state of a generator. It is on the host for every device, so this does not synchronise."""
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
