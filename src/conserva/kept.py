"""The recordings that stay with a model, and what they take for granted about it.

A recording reads the weights where they lay, and does what Python did when it was made. So it goes when the weights lie
elsewhere, and is looked up by all that a model's modules hold beside them and by torch's own switches: whoever turns an
adapter off gets another one. Where someone watches the model run, by a hook, say, Python runs as it always does.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torchs_own
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from .operations.remembered import is_recording
from .places import Place, memory_of
from .recording import Recorder, varied
from .state import HOOKS, State, life_of

OLDEST = "2.11"
"""The first torch that refuses to record what a replay would read from memory of the host that is long gone."""

ROUNDING = {torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.float64: 1e-10}
"""How far scores may be apart where other kernels add up in another order, as a share of the largest."""

MOST_STATES = 64

_NOT_WATCHING = (__name__.partition(".")[0] + ".", "transformers.utils.output_capturing")
"""Whose hooks are not in the way: ours, which belong to a pass in another thread; and those that collect the states
that a Hugging Face model is asked for, which are a part of what it computes."""


class Recorded(NamedTuple):
    """Where a model's computations are recorded, and a number for the state that the model is in."""

    recorder: Recorder
    state: int


class Kept:
    """A model's recorder, for as long as its weights lie where they are, and the states that the model was in."""

    def __init__(self, life: int, weights: Hashable, recorder: Recorder) -> None:
        self.life, self.weights, self.recorder = life, weights, recorder
        self.looks: tuple[int | None, int | None] = (None, None)
        """The states that the model was in the last two times; None where nobody could tell."""
        self._states: dict[Hashable, int] = {}
        self._places: dict[int, list[Place]] = {}
        """Where the tensors lie that a model has in a state."""
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def number(self, settings: Hashable, tensors: Sequence[Tensor]) -> int:
        """Return the number of a state: no two have the same."""
        with self._lock:
            if settings not in self._states:
                if len(self._states) == MOST_STATES:
                    self.recorder.drop()  # a model that counts its calls, say: no recording would be met again
                    self._states.clear()
                    self._places.clear()
                number = self._states[settings] = next(self._numbers)
                with contextlib.suppress(Exception):  # tensors of others may answer as they like: nothing is presumed
                    self._places[number] = [Place.of(one) for x in tensors for one in memory_of(x)]
            found = self._states[settings]
            self.looks = (self.looks[0], found)
            return found

    def presumed(self) -> int | None:
        """Return the state that the model was in the last two times, if its tensors are where they were."""
        before, last = self.looks
        places = None if last is None or before != last else self._places.get(last)
        return last if places is not None and all(one.is_as_it_was() for one in places) else None

    def is_in_vain(self, what: Hashable) -> bool:
        """Return whether no recording is, or will be, of use to whoever computes this."""
        return self.recorder.gave_up or what in self.recorder.vain


def presumed(model: nn.Module, what: Hashable = None) -> Recorded | None:
    """Return what `recorded` will, if the model is as it was the last two times: to look at all of it takes a while.

    None where that is not to be expected.
    """
    kept = _of_models.get(model)
    if kept is None or kept.is_in_vain(what) or _is_watched():
        return None
    state = kept.presumed()
    return None if state is None else Recorded(kept.recorder, state)


def recorded(model: nn.Module, what: Hashable = None) -> Recorded | None:
    """Return where a model is recorded.

    None where it cannot be, on several devices, without a GPU or in float16; where someone watches it run; where
    nobody can tell what it is at the moment; where recording failed; or where `what` is computed, and no recording of
    that pays.
    """
    if not _may_be_recorded(model):
        _of_models.pop(model, None)  # it lay on a GPU once, perhaps
        return None
    if _is_watched():
        return None
    kept, life = _of_models.get(model), life_of(next(model.parameters()))  # weights may come back to where they were
    if kept is not None and kept.life == life and kept.is_in_vain(what):
        return None
    if kept is not None:
        kept.looks = (kept.looks[1], None)  # for now
    try:
        state = State(model)
        weights, settings = tuple(state.weights), (*_switches(), *state.settings)
        hash(settings)
    except Exception:  # things that models hold may answer as they like; some can be compared with nothing
        return None
    device = _device_of(state.parts)
    if device is None or any(map(_watches, state.hooks)):
        return None
    if kept is None or (kept.life, kept.weights) != (life, weights):
        rounding = max(ROUNDING.get(dtype, 0.0) for _, dtype in state.parts)
        vary = varied if hasattr(model, "main_input_name") else None  # as Hugging Face's have
        kept = _of_models[model] = Kept(life, weights, Recorder(device, rounding=rounding, vary=vary))
    return Recorded(kept.recorder, kept.number(settings, state.tensors))


def _device_of(parts: set[tuple[torch.device, torch.dtype]]) -> torch.device | None:
    """Return the one GPU that all weights lie on. A pass in float16 waits for its own numbers, to choose a scale."""
    devices, dtypes = {device for device, _ in parts}, {dtype for _, dtype in parts}
    device = next(iter(devices), torch.device("cpu"))
    return device if len(devices) == 1 and device.type == "cuda" and torch.float16 not in dtypes else None


def _watches(hook: Any) -> bool:
    """Return whether a hook is there to see a model run, or to change what it does."""
    return not (isinstance(hook, FunctionType) and (hook.__module__ or "").startswith(_NOT_WATCHING))


def _may_be_recorded(model: nn.Module) -> bool:
    """Return whether it is worth a closer look: a model on a CPU, as most are, costs nothing."""
    return torch.__version__ >= OLDEST and any(one.is_cuda for one in itertools.islice(model.parameters(), 1))


def _is_watched() -> bool:
    """Return whether whatever runs now is seen by someone's mode or hooks, cast on the way, or recorded already."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in stack if type(mode) is not DeviceContext]
    hooks = any(getattr(torchs_own, f"_global{kind}") for kind in HOOKS)
    saving = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    casts = torch.is_autocast_enabled("cuda")  # which keeps casts of weights, and lets go of them
    deeper = torch._C._len_torch_dispatch_stack() or torch.is_anomaly_enabled()
    return bool(modes or hooks or saving or casts or deeper or is_recording())


def _switches() -> Iterator[Hashable]:
    """Yield what decides, beside a model, which kernels run."""
    yield torch.get_default_dtype()
    yield torch.get_default_device()
    yield torch.is_inference_mode_enabled()
    yield torch.are_deterministic_algorithms_enabled()
    for name in _SWITCHES:
        yield _turned(name)
    yield tuple(torch._C._get_sdp_priority_order())


def _turned(name: str) -> Hashable:
    """Return how a switch is turned; None where torch has none, or tells by another: it has two sets, old and new."""
    try:
        found = attrgetter(name)(torch)
        return found() if callable(found) else found  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError):
        return None


_SWITCHES = (
    "get_float32_matmul_precision",
    "backends.fp32_precision",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "backends.cuda.preferred_blas_library",
    "backends.cuda.preferred_linalg_library",
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
)

_of_models: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()
