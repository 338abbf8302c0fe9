"""Refusal of graph leaves that are neither explained inputs nor parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor, nn

from ..errors import NotApplicable


def refuse_unknown_leaves(
    leaves: Iterable[Tensor], known: Collection[Tensor], modules: Mapping[str, nn.Module]
) -> None:
    """Raise if some relevance would be attributed to a tensor that is neither explained nor a parameter.

    Parameters are constants under the rules. A weight that requires a gradient and is not an `nn.Parameter` would be
    taken for an input, and get a share of the relevance.
    """
    explained = {id(x) for x in known}
    for leaf in leaves:
        if id(leaf) in explained or isinstance(leaf, nn.Parameter):
            continue
        raise NotApplicable(
            f"{_described(leaf, modules)} requires a gradient and is not an nn.Parameter, so some relevance would be "
            "attributed to it. Make it a parameter, or call requires_grad_(False) on it."
        )


def _described(leaf: Tensor, modules: Mapping[str, nn.Module]) -> str:
    """Return the name of the attribute that holds a tensor, or its shape if no attribute does."""
    for name, module in modules.items():
        for attribute, x in (*module._buffers.items(), *vars(module).items()):
            if x is leaf or (isinstance(x, (list, tuple)) and any(item is leaf for item in x)):
                return f"The tensor {f'{name}.{attribute}'.lstrip('.')!r} of the model"
            if isinstance(x, dict) and any(item is leaf for item in x.values()) and not attribute.startswith("_"):
                return f"The tensor {f'{name}.{attribute}'.lstrip('.')!r} of the model"
    return f"A tensor of shape {tuple(leaf.shape)} that the model uses"
