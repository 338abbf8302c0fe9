"""PyTorch Geometric: relevance as an algorithm of its `Explainer`, Graphormer with its inputs, signed fidelity."""

from __future__ import annotations

from ...errors import Error

try:
    import torch_geometric  # type: ignore[import-untyped] # noqa: F401
except ImportError:
    raise Error("conserva.integrations.geometric needs PyTorch Geometric: pip install 'conserva[geometric]'.") from None

from .explainer import RelevanceExplainer
from .fidelity import Fidelity, fidelity
from .graphormer import SparseGraphormer

__all__ = ["Fidelity", "RelevanceExplainer", "SparseGraphormer", "fidelity"]
