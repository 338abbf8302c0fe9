"""The state of a model and of the process, to be compared before and after."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

State = dict[str, Any]

_FUNCTIONS = ("softmax", "linear", "layer_norm", "gelu", "embedding", "dropout", "scaled_dot_product_attention")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_WITHIN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "conserva.engine.context": lambda found: getattr(found["_innermost"], "context", None),
    "conserva.engine.checks": lambda found: found["_collecting"](),
    "conserva.engine.operations.tensor_attributes": lambda found: found["current_attributes"](),
    "conserva.engine.interrupts": lambda found: (found["pending"], found["_handlers"]),
    "conserva.engine.untouched": lambda found: found["_in_use"],
}
"""Module -> what it holds while something is being explained, and not afterwards."""
_OWN = ("_parameters", "_buffers", "_modules")


def state_of(model: nn.Module, changing: Sequence[str] = ()) -> State:
    """Return all that there is to know of a model: what it is made of, and of whom.

    `changing` names the attributes that the model's own forward sets: of these the type and its attributes are told.
    """
    found: State = {}
    for name, x in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        content = b"" if name in changing else _bytes(x)
        found[f"{name}: tensor"] = (id(x), type(x), x.dtype, x.shape, x.stride(), content, sorted(vars(x)))
        found[f"{name}: gradient"] = (x.requires_grad, id(x.grad), None if x.grad is None else _bytes(x.grad))
        found[f"{name}: hooks"] = repr(x._backward_hooks)
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"{name}: module"] = (id(module), type(module), module.training)
        for key, value in vars(module).items():
            if key in changing:
                found[f"{name}.{key}"] = _described(value)
            elif key in _OWN or "hooks" in key:
                items = [(own, id(one)) for own, one in value.items()] if isinstance(value, dict) else value
                found[f"{name}.{key}"] = (id(value), items)
            else:
                found[f"{name}.{key}"] = (id(value), sorted(vars(value)) if isinstance(value, Tensor) else None)
        for key in ("config", "generation_config"):
            held = vars(module).get(key)
            if held is not None:
                found[f"{name}.{key} itself"] = (held.to_dict(), repr(sorted(vars(held).items(), key=str)))
    return found


def copies(model: nn.Module) -> State:
    """Return which ways of copying a model work."""
    return {
        "pickle": _works(lambda: pickle.dumps(model)),
        "deepcopy": _works(lambda: copy.deepcopy(model)),
        "save": _works(lambda: torch.save(model, io.BytesIO())),
    }


def state_of_process() -> State:
    """Return what an explanation might leave behind outside of the model."""
    logging = transformers.utils.logging
    return {
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), threading.active_count()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "torch functions": torch._C._is_torch_function_enabled(),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "random": (_bytes(torch.get_rng_state()), random.getstate(), repr(np.random.get_state())),
        "functions": [id(getattr(nn.functional, name)) for name in _FUNCTIONS],
        "call": id(nn.Module.__call__),
        "attention": {name: id(ALL_ATTENTION_FUNCTIONS[name]) for name in ALL_ATTENTION_FUNCTIONS.valid_keys()},
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in _SIGNALS],
        "talk": (logging.get_verbosity(), logging.is_progress_bar_enabled()),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "within": {name: repr(find(vars(sys.modules[name]))) for name, find in _WITHIN.items() if name in sys.modules},
    }


def changed(before: State, after: State) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two states."""
    missing = object()
    return {
        key: (_short(before.get(key, missing)), _short(after.get(key, missing)))
        for key in {**before, **after}
        if before.get(key, missing) != after.get(key, missing)
    }


def numbers(result: Any) -> Any:
    """Return a result in plain values that are equal only where every bit is."""
    if isinstance(result, Tensor):
        return (result.dtype, tuple(result.shape), _bytes(result))
    if isinstance(result, np.ndarray):
        return (str(result.dtype), result.shape, result.tobytes())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {one.name: numbers(getattr(result, one.name)) for one in dataclasses.fields(result)}
    if isinstance(result, Mapping):
        return {str(key): numbers(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)) or (isinstance(result, Sequence) and not isinstance(result, (str, bytes))):
        return [numbers(one) for one in result]
    return repr(result)


def _bytes(x: Tensor) -> bytes:
    return (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy().tobytes()


def _described(value: Any) -> Any:
    return (type(value), sorted(vars(value))) if isinstance(value, Tensor) else type(value)


def _works(make: Any) -> bool:
    try:
        make()
    except Exception:
        return False
    return True


def _short(value: Any) -> str:
    return repr(value)[:300]
