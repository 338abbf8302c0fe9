"""The recordings that stay with a model, and what they take for granted about it.

A recording reads the weights where they lay, and does what Python did when it was made. So it is looked up by where the
weights lie and by every setting of the model's modules: whoever exchanges weights, switches an adapter off or adds a
hook gets another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from .recording import Recorder

MOST_STATES = 64

_PLAIN = frozenset({int, str, float, bool, type(None)})
_KINDS = _PLAIN | {list, tuple}
_WEIGHTS = ("_parameters", "_buffers")


@dataclass
class Kept:
    """A model's recorder, and a number for each state that the model was seen in."""

    recorder: Recorder
    states: dict[Hashable, int] = field(default_factory=dict)

    def state(self, model: nn.Module) -> int:
        """Return the number of the state that the model is in now."""
        now: list[Any] = []
        configs: dict[int, Any] = {}
        for module in model.modules():
            own = vars(module)
            now += [type(module), *own["_forward_hooks"], *own["_forward_pre_hooks"], *_settings(own)]
            now += [one.data_ptr() for part in _WEIGHTS for one in own[part].values() if one is not None]
            if "config" in own:
                configs[id(own["config"])] = own["config"]
        for config in configs.values():
            now += _settings(getattr(config, "__dict__", {}))
        state = tuple(now)
        if len(self.states) == MOST_STATES and state not in self.states:
            self.recorder.drop()  # a model that counts its calls, say: no recording would be met again
            self.states.clear()
        return self.states.setdefault(state, len(self.states))


def kept_of(model: nn.Module) -> Kept | None:
    """Return what is kept with a model; None where nothing can be recorded: several devices, no GPU, or float16.

    A pass in float16 waits for its own numbers, to choose a scale.
    """
    if model not in _of_models:
        parts = {(one.device, one.dtype == torch.float16) for one in model.parameters()}
        device, half = next(iter(parts), (torch.device("cpu"), False))
        if len(parts) != 1 or device.type != "cuda" or half:
            return None
        _of_models[model] = Kept(Recorder(device))
    return _of_models[model]


def _settings(own: Mapping[str, Any]) -> list[Any]:
    """Return the values that are plain, and what is plain in lists."""
    found: list[Any] = [one for one in own.values() if type(one) in _KINDS]
    return [one if type(one) in _PLAIN else tuple(part for part in one if type(part) in _PLAIN) for one in found]


_of_models: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()
