"""A model's modules by name, and the check for modules whose torch calls cannot be intercepted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..errors import NotApplicable

_QUANTISED = "torch.ao.nn.quantized"


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return `dict(model.named_modules())`, computed several times faster than by torch."""
    names: dict[nn.Module, str] = {}

    def add(module: nn.Module, name: str) -> None:
        if module not in names:
            names[module] = name
            for child_name, child in module._modules.items():
                if child is not None:
                    add(child, f"{name}.{child_name}" if name else child_name)

    add(model, "")
    return {name: module for module, name in names.items()}


def refuse_opaque_modules(modules: Mapping[str, nn.Module]) -> None:
    """Raise if a module is scripted, compiled or quantised: the rules cannot intercept its torch calls."""
    for name, module in modules.items():
        scripted = isinstance(module, torch.jit.ScriptModule)
        quantised = type(module).__module__.startswith(_QUANTISED)
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        if not (scripted or quantised or compiled):
            continue
        where = f"module {name!r}" if name else "the model"
        if quantised:
            raise NotApplicable(
                f"{where} is quantised to integers ({type(module).__name__}) and has no gradients: explain the model "
                "before quantisation."
            )
        if scripted:
            raise NotApplicable(
                f"{where} is scripted ({type(module).__name__}), so rules cannot be applied inside it: load it as "
                "plain PyTorch."
            )
        raise NotApplicable(
            f"{where} is compiled, so rules cannot be applied inside it: explain the model before torch.compile."
        )
