"""What tests share: gradient state."""

from torch import nn


def state(model: nn.Module) -> list[object]:
    """Everything a patch could have changed: parameters, flags, attributes, hooks, methods."""
    modules = [
        (name, module.training, sorted(module.__dict__), len(module._forward_hooks), type(module).forward)
        for name, module in model.named_modules()
    ]
    parameters = [
        (name, p.requires_grad, p.grad, p._version, sorted(p.__dict__)) for name, p in model.named_parameters()
    ]
    return [*modules, *parameters]
