"""Linear layers with weights packed into 8 or 4 bits, which need no rule.

Such a layer unpacks its weights inside an autograd function of its own, which is linear in its input: its gradient is
the product with the unpacked weights. Its bias is added inside too, where the ledger would miss it. So a hook subtracts
the bias from the output outside the rules, and adds it again under the rules.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NotApplicable
from .hooks import hooked
from .module_tree import Modules

PRODUCTS = {"bitsandbytes.": ("MatMul4Bit", "MatMul8bitLt", "MatMul8bitFp")}
"""Package prefix -> the names of its autograd functions that are products with packed weights."""


def is_packed_product(function: type) -> bool:
    """Return whether an autograd function is a product with packed weights."""
    return any(function.__module__.startswith(home) and function.__name__ in names for home, names in PRODUCTS.items())


def packed_biases(modules: Modules) -> dict[nn.Module, Any]:
    """Return the layers with packed weights that have a bias, and their biases."""
    if not any(home.rstrip(".") in sys.modules for home in PRODUCTS):
        return {}  # without a loop over all modules
    layers = (module for module in modules.of_types((nn.Linear,)) if _is_packed(module))
    return {layer: layer.bias for layer in layers if layer.bias is not None}


@contextlib.contextmanager
def explicit_biases(modules: Modules) -> Iterator[None]:
    """Add the biases of layers with packed weights by a torch call that the rules intercept."""

    def add_explicitly(layer: nn.Module, _: Any, output: Tensor) -> Tensor:
        bias: Any = layer.bias
        if bias.is_meta:
            raise NotApplicable(
                f"The bias of a layer with packed weights ({type(layer).__name__}) is offloaded: load the whole model "
                "onto its devices, without offloading."
            )
        # In float32, because subtracting and adding the bias would round in half precision.
        wide = torch.promote_types(output.dtype, torch.float32)
        bias = bias.detach().to(wide)
        with torch._C.DisableTorchFunction():
            product = output.to(wide) - bias
        total: Tensor = product + bias
        return total.to(output.dtype)

    # Before all other hooks, so that a hook which changes the output also changes the bias.
    with hooked(after=[(layer, add_explicitly) for layer in packed_biases(modules)], prepend=True):
        yield


def _is_packed(module: nn.Module) -> bool:
    return any(kind.__module__.startswith(home) for kind in type(module).__mro__ for home in PRODUCTS)
