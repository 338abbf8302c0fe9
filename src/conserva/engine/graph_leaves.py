"""Leaves of the autograd graph that are not explained: tensors that require a gradient and are not parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import NotApplicable


def refuse_unknown_leaves(nodes: Sequence[Any], known: Collection[Tensor], modules: Mapping[str, nn.Module]) -> None:
    """Raise if a part of the relevance would go to a tensor that is neither explained nor a parameter.

    Parameters are constants under the rules. A weight that requires a gradient without being an `nn.Parameter` is not
    recognised as one, and would take a share of every product that it has a part in.
    """
    explained = {id(x) for x in known}
    for node in nodes:
        if type(node).__name__ != "AccumulateGrad":
            continue
        leaf = node.variable
        if id(leaf) in explained or isinstance(leaf, nn.Parameter):
            continue
        raise NotApplicable(
            f"{_described(leaf, modules)} requires a gradient and is not an nn.Parameter, so a part of the "
            "relevance would go to it. Make it a parameter, or call requires_grad_(False) on it."
        )


def _described(leaf: Tensor, modules: Mapping[str, nn.Module]) -> str:
    """Return where a tensor is kept, as far as that can be found."""
    for name, module in modules.items():
        for own, x in (*module._buffers.items(), *vars(module).items()):
            if x is leaf or (isinstance(x, (list, tuple)) and any(one is leaf for one in x)):
                return f"The tensor {f'{name}.{own}'.lstrip('.')!r} of the model"
            if isinstance(x, dict) and any(one is leaf for one in x.values()) and not own.startswith("_"):
                return f"The tensor {f'{name}.{own}'.lstrip('.')!r} of the model"
    return f"A tensor of shape {tuple(leaf.shape)} that the model uses"
