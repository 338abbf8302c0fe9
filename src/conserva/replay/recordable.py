"""Which models can be recorded as CUDA graphs, and when: a replay runs no Python, so nothing can look on."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ..engine.operations.mask_history import is_recording

OLDEST = "2.11"
"""The first torch that refuses to record what a replay would read from freed memory of the host."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PART_OF_THE_MODEL = (__name__.partition(".")[0] + ".", "transformers.utils.output_capturing")
"""Modules whose hooks do not count: conserva's own, of a pass in another thread; and those that collect the hidden
states which a Hugging Face model is asked for."""


def recordable_device(model: nn.Module) -> torch.device | None:
    """Return the one GPU that a model lies on; None without one, on several devices, in float16, or for an old torch.

    A pass in float16 reads its own numbers on the host, to choose a scale for its gradients.
    """
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda" or torch.__version__ < OLDEST:
        return None
    tensors = [*model.parameters(), *model.buffers()]
    devices = {x.device for x in tensors}
    is_half = any(x.dtype == torch.float16 for x in tensors)
    return first.device if len(devices) == 1 and not is_half else None


def is_observed(modules: Sequence[nn.Module]) -> bool:
    """Return whether hooks, modes or autocast see a model's modules run or change what they do, or one is in training.

    A replay would leave hooks and modes out. In training mode a model draws random numbers, and writes to its buffers.
    """
    if any(one.training for one in modules) or _is_surrounded():
        return True
    hooks = (hook for one in modules for kind in _HOOKS for hook in getattr(one, kind).values())
    return any(map(_observes, hooks))


def _is_surrounded() -> bool:
    """Return whether a mode, a global hook, autocast or another recording is active in this thread."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return bool(
        any(type(mode) is not DeviceContext for mode in stack)
        or torch._C._len_torch_dispatch_stack()
        or any(getattr(torch_module, f"_global{kind}") for kind in _HOOKS)
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or torch.is_autocast_enabled("cuda")  # which caches casts of weights, and frees them
        or torch.is_anomaly_enabled()
        or is_recording()
    )


def _observes(hook: Any) -> bool:
    """Return whether a hook is of the user's."""
    return not (isinstance(hook, FunctionType) and (hook.__module__ or "").startswith(_PART_OF_THE_MODEL))
