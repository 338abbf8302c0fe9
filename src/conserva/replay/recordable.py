"""Which models can be recorded as CUDA graphs, and when: a replay runs no Python, and so no hooks."""

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
"""The first version of torch that refuses to capture copies from host memory that may be freed before a replay."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PART_OF_THE_MODEL = (__name__.partition(".")[0] + ".", "transformers.utils.output_capturing")
"""Modules whose hooks are ignored: conserva's own, of a pass in another thread, and those of transformers that collect
hidden states."""


def recordable_device(model: nn.Module) -> torch.device | None:
    """Return the GPU of a model; None if it is on a CPU or on several devices, in float16, or torch is too old.

    A pass in float16 reads values on the host to choose the scale of its gradients, so it cannot be captured.
    """
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda" or torch.__version__ < OLDEST:
        return None
    tensors = [*model.parameters(), *model.buffers()]
    devices = {x.device for x in tensors}
    is_half = any(x.dtype == torch.float16 for x in tensors)
    return first.device if len(devices) == 1 and not is_half else None


def is_observed(modules: Sequence[nn.Module]) -> bool:
    """Return whether hooks, torch modes or autocast are active for a model's modules, or one is in training mode.

    A replay would skip hooks and modes. In training mode a model draws random numbers, and writes to its buffers.
    """
    if any(module.training for module in modules) or _is_inside_mode():
        return True
    hooks = (hook for module in modules for kind in _HOOKS for hook in getattr(module, kind).values())
    return any(map(_observes, hooks))


def _is_inside_mode() -> bool:
    """Return whether a torch mode, a global hook, autocast or another capture is active in this thread."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return bool(
        any(type(mode) is not DeviceContext for mode in stack)
        or torch._C._len_torch_dispatch_stack()
        or any(getattr(torch_module, f"_global{kind}") for kind in _HOOKS)
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or torch.is_autocast_enabled("cuda")  # it caches casts of weights, and frees them later
        or torch.is_anomaly_enabled()
        or is_recording()
    )


def _observes(hook: Any) -> bool:
    """Return whether a hook was installed by the user."""
    return not (isinstance(hook, FunctionType) and (hook.__module__ or "").startswith(_PART_OF_THE_MODEL))
