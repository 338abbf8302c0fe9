"""The recordings that stay with a model, and what they take for granted about it.

A recording reads the weights where they lay, and does what Python did when it was made. So it goes when the weights lie
elsewhere, and is looked up by all that a model's modules hold beside them and by torch's own switches: whoever turns an
adapter off gets another one. Where someone watches the model run, by a hook, say, Python runs as it always does.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torchs_own
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from .operations.remembered import is_recording
from .recording import Recorder

ROUNDING = {torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.float64: 1e-10}
"""How far scores may be apart where other kernels add up in another order, as a share of the largest."""

MOST_STATES = 64
DEEPEST = 3
"""How far into lists, dicts and objects a module's settings are followed."""

_PLAIN = frozenset({int, str, float, bool, type(None), torch.dtype, torch.device, torch.Size})
_DICTS = frozenset({dict, OrderedDict})
_LISTS = frozenset({list, tuple, set, frozenset})
_NOT_ASKED = frozenset({
    "config", "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "_is_full_backward_hook",
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
})  # fmt: skip
"""What modules hold that a forward pass does not look at, or that is looked at by itself."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NOT_WATCHING = (__name__.partition(".")[0] + ".", "transformers.utils.output_capturing")
"""Whose hooks are not in the way: ours, which belong to a pass in another thread; and those that collect the states
that a Hugging Face model is asked for, which are a part of what it computes."""


class Recorded(NamedTuple):
    """Where a model's computations are recorded, and a number for the state that the model is in."""

    recorder: Recorder
    state: int


class Kept:
    """A model's recorder, for as long as its weights lie where they are, and the states that the model was in."""

    def __init__(self, weights: Hashable, recorder: Recorder) -> None:
        self.weights, self.recorder = weights, recorder
        self._states: dict[Hashable, int] = {}
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def number(self, settings: Hashable) -> int:
        """Return the number of a state: no two have the same."""
        with self._lock:
            if settings not in self._states:
                if len(self._states) == MOST_STATES:
                    self.recorder.drop()  # a model that counts its calls, say: no recording would be met again
                    self._states.clear()
                self._states[settings] = next(self._numbers)
            return self._states[settings]


def recorded(model: nn.Module) -> Recorded | None:
    """Return where a model is recorded.

    None where it cannot be, on several devices, without a GPU or in float16; or where someone watches it run.
    """
    if not _may_be_recorded(model) or _is_watched():
        return None
    weights: list[Hashable] = []
    settings: list[Any] = [*_switches()]
    parts: set[tuple[torch.device, torch.dtype]] = set()
    configs: dict[int, Any] = {}
    for module in model.modules():
        own = vars(module)
        for one in own["_parameters"].values():
            if one is not None:
                weights += _place(one)
                parts.add((one.device, one.dtype))
        for one in own["_buffers"].values():
            if one is not None:
                weights += _place(one)
        if any(own[kind] for kind in _HOOKS) and any(map(_watches, (h for kind in _HOOKS for h in own[kind].values()))):
            return None
        settings.append(type(module))
        for name, value in own.items():
            if type(value) in _PLAIN:  # most are, and a call for each would take longer than all else here
                settings.append(value)
            elif name not in _NOT_ASKED:
                _describe(value, settings, DEEPEST)
        if "config" in own:
            configs[id(own["config"])] = own["config"]
    for config in configs.values():
        _describe(getattr(config, "__dict__", None), settings, DEEPEST)
    device = _device_of(parts)
    if device is None:
        return None
    key = tuple(weights)
    kept = _of_models.get(model)
    if kept is None or kept.weights != key:
        rounding = max(ROUNDING.get(dtype, 0.0) for _, dtype in parts)
        kept = _of_models[model] = Kept(key, Recorder(device, rounding=rounding))
    return Recorded(kept.recorder, kept.number(tuple(settings)))


def _device_of(parts: set[tuple[torch.device, torch.dtype]]) -> torch.device | None:
    """Return the one GPU that all weights lie on. A pass in float16 waits for its own numbers, to choose a scale."""
    devices, dtypes = {device for device, _ in parts}, {dtype for _, dtype in parts}
    device = next(iter(devices), torch.device("cpu"))
    return device if len(devices) == 1 and device.type == "cuda" and torch.float16 not in dtypes else None


def _place(x: Tensor) -> tuple[Hashable, ...]:
    try:
        return (x.data_ptr(), x.dtype, x.shape, x.stride())
    except RuntimeError:  # sparse ones, and those that only wrap others
        return (id(x),)


def _describe(value: Any, found: list[Any], deep: int) -> None:
    """Put down what a value is: itself, what it holds, where it lies, or which object it is."""
    kind = type(value)
    if kind in _PLAIN:
        found.append(value)
    elif kind in _DICTS and deep:
        for key, one in value.items():
            _describe(key, found, deep - 1)
            _describe(one, found, deep - 1)
    elif isinstance(value, Tensor):
        found += _place(value)
    elif isinstance(value, nn.Module) or callable(value) or not deep:
        found.append(id(value))
    elif kind in _LISTS:
        found.append(len(value))
        for one in value:
            _describe(one, found, deep - 1)
    else:
        found.append(id(value))
        _describe(getattr(value, "__dict__", None), found, deep - 1)


def _watches(hook: Any) -> bool:
    """Return whether a hook is there to see a model run, or to change what it does."""
    return not (isinstance(hook, FunctionType) and hook.__module__.startswith(_NOT_WATCHING))


def _may_be_recorded(model: nn.Module) -> bool:
    """Return whether it is worth a closer look: a model on a CPU, as most are, costs nothing."""
    return any(one.is_cuda for one in itertools.islice(model.parameters(), 1))


def _is_watched() -> bool:
    """Return whether whatever runs now is seen by someone's mode or hooks, cast on the way, or recorded already."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in stack if type(mode) is not DeviceContext]
    hooks = any(getattr(torchs_own, f"_global{kind}") for kind in _HOOKS)
    saving = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    casts = torch.is_autocast_enabled("cuda")  # which keeps casts of weights, and lets go of them
    return bool(modes or hooks or saving or casts or torch._C._len_torch_dispatch_stack() or is_recording())


def _switches() -> Iterator[Hashable]:
    """Yield what decides, beside a model, which kernels run."""
    yield torch.get_default_dtype()
    yield torch.get_default_device()
    yield torch.get_float32_matmul_precision()
    yield torch.are_deterministic_algorithms_enabled()
    yield torch.is_inference_mode_enabled()
    cuda: Any = torch.backends.cuda
    yield from (cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    yield from (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
    yield cuda.cudnn_sdp_enabled()


_of_models: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()
