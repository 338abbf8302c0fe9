"""A model's modules by name, and the check for modules whose torch calls cannot be intercepted."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from ..errors import NotApplicable

_QUANTISED = "torch.ao.nn.quantized"


class Modules(dict[str, nn.Module]):
    """A model's modules by name, as of `named_modules()`, and what follows from them, each computed once."""

    @classmethod
    def of(cls, model: nn.Module) -> Modules:
        """Return the modules of a model. It takes a fraction of the time of `dict(model.named_modules())`."""
        names: dict[nn.Module | None, str] = {None: ""}

        def add(module: nn.Module, name: str) -> None:
            names[module] = name
            if module._modules:
                prefix = f"{name}." if name else ""
                for child_name, child in module._modules.items():
                    if child is not None and child not in names:
                        add(child, prefix + child_name)

        add(model, "")
        modules = cls({name: module for module, name in names.items() if module is not None})
        modules.names = names
        return modules

    @cached_property
    def names(self) -> dict[nn.Module | None, str]:
        """Module -> name; None -> "", for calls outside of all modules."""
        return {**{module: name for name, module in self.items()}, None: ""}

    @cached_property
    def types(self) -> set[type[nn.Module]]:
        """The types of the modules."""
        return set(map(type, self.values()))

    def of_types(self, kinds: tuple[type, ...]) -> list[nn.Module]:
        """Return the modules that are instances of some classes."""
        matching = {kind for kind in self.types if issubclass(kind, kinds)}
        return [module for module in self.values() if type(module) in matching] if matching else []

    @cached_property
    def _parameters(self) -> list[tuple[str, str, nn.Parameter]]:
        """The name of a module, and the name of a parameter in it, for all parameters."""
        return [
            (name, own, parameter)
            for name, module in self.items()
            if module._parameters
            for own, parameter in module._parameters.items()
            if parameter is not None
        ]

    @cached_property
    def owners(self) -> dict[int, tuple[str, str]]:
        """The id of each parameter -> the name of the module that owns it, and the parameter's name in that module."""
        # For tied parameters the first owner wins.
        return {id(parameter): (name, own) for name, own, parameter in reversed(self._parameters)}

    @cached_property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of the parameters."""
        return {parameter.dtype for _, _, parameter in self._parameters}


def refuse_opaque_modules(modules: Modules) -> None:
    """Raise if a module is scripted, compiled or quantised: the rules cannot intercept its torch calls."""
    opaque = {kind for kind in modules.types if _is_scripted(kind) or _is_quantised(kind)}
    for name, module in modules.items():
        compiled = module._compiled_call_impl is not None or "_orig_mod" in module._modules
        if not compiled and type(module) not in opaque:
            continue
        where = f"module {name!r}" if name else "the model"
        if _is_quantised(type(module)):
            raise NotApplicable(
                f"{where} is quantised to integers ({type(module).__name__}) and has no gradients: explain the model "
                "before quantisation."
            )
        if _is_scripted(type(module)):
            raise NotApplicable(
                f"{where} is scripted ({type(module).__name__}), so rules cannot be applied inside it: load it as "
                "plain PyTorch."
            )
        raise NotApplicable(
            f"{where} is compiled, so rules cannot be applied inside it: explain the model before torch.compile."
        )


def _is_scripted(kind: type) -> bool:
    return issubclass(kind, torch.jit.ScriptModule)


def _is_quantised(kind: type) -> bool:
    return kind.__module__.startswith(_QUANTISED)
