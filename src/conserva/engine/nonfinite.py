"""Finding the module whose output first has nan or inf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .hooks import hooked


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def first_nonfinite_module(model: nn.Module, run: Callable[[], Any]) -> str:
    """Run the model and return the name of the first module whose output is not finite although its inputs are."""
    first: list[str] = []
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}

    def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if first:
            return
        clean = all(bool(torch.isfinite(x).all()) for x in (*_tensors(list(args)), *_tensors(kwargs)))
        if clean and not all(bool(torch.isfinite(x).all()) for x in _tensors(output)):
            first.append(names[module])

    with hooked(after=[(module, look) for module in names], with_kwargs=True):
        run()
    return first[0] if first else names[model]
