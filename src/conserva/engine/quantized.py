"""Linear layers whose weights are packed into 8 or 4 bits: products that no rule sees, and that need none.

Such a layer unpacks its weights inside an autograd function of its own, which is linear in its input: its gradient is
the product with the unpacked weights. Its bias is added inside too, where the ledger would miss it: so it is taken off
again, out of sight, and added in sight.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NotApplicable
from .hooks import hooked

PRODUCTS = {"bitsandbytes.": ("MatMul4Bit", "MatMul8bitLt", "MatMul8bitFp")}
"""Where such functions come from, and their names."""


def is_packed_product(function: type) -> bool:
    """Return whether an autograd function is such a product."""
    return any(function.__module__.startswith(home) and function.__name__ in names for home, names in PRODUCTS.items())


def packed_biases(modules: Iterable[nn.Module]) -> dict[nn.Module, Tensor]:
    """Return the layers with packed weights that have a bias, and their biases."""
    if not any(home.rstrip(".") in sys.modules for home in PRODUCTS):
        return {}  # which is known without a look at each
    layers = (one for one in modules if isinstance(one, nn.Linear) and _is_packed(one))
    return {layer: layer.bias for layer in layers if layer.bias is not None}


@contextlib.contextmanager
def biases_in_sight(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let the biases of layers with packed weights be seen."""

    def seen(layer: nn.Module, _: Any, output: Tensor) -> Tensor:
        bias: Any = layer.bias
        if bias.is_meta:
            raise NotApplicable(
                f"A layer with packed weights ({type(layer).__name__}) has its bias elsewhere: load the model onto "
                "its devices as a whole, without offloading."
            )
        # In half precision what is taken off and added again would come back rounded.
        wide = torch.promote_types(output.dtype, torch.float32)
        bias = bias.detach().to(wide)
        with torch._C.DisableTorchFunction():
            product = output.to(wide) - bias
        total: Tensor = product + bias
        return total.to(output.dtype)

    # Before all other hooks: those that change the output then change the bias, too.
    with hooked(after=[(layer, seen) for layer in packed_biases(modules)], prepend=True):
        yield


def _is_packed(module: nn.Module) -> bool:
    return any(one.__module__.startswith(home) for one in type(module).__mro__ for home in PRODUCTS)
