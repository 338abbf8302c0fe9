"""Linear layers whose weights are packed into 8 or 4 bits: products that no rule sees, and that need none.

Such a layer unpacks its weights inside an autograd function of its own, which is linear in its input: its gradient is
the product with the unpacked weights. Its bias is added inside too, where the ledger would miss it: so it is taken off
again, out of sight, and added in sight.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

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
    thread = threading.get_ident()

    def seen(layer: nn.Module, _: Any, output: Tensor) -> Tensor | None:
        if threading.get_ident() != thread:
            return None  # another thread's run of the same model
        bias = biases[layer].detach().to(output.dtype)
        with torch._C.DisableTorchFunction():
            product = output - bias
        return product + bias

    biases = packed_biases(modules)
    handles = [layer.register_forward_hook(seen) for layer in biases]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_packed(module: nn.Module) -> bool:
    return any(type(module).__module__.startswith(home) for home in PRODUCTS)
