"""Without their packages, integrations say how to install them."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import conserva
from conserva.integrations.transformer_lens import relevance_at_hooks


@pytest.mark.parametrize("package", ["captum", "inseq", "lightning", "mlflow", "wandb"])
def test_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"conserva.integrations.{package}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(conserva.Error, match=rf"needs {package}.*: pip install 'conserva\[(data,)?{package}\]'"):
        importlib.import_module(f"conserva.integrations.{package}")


def test_pytorch_geometric_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "conserva.integrations.geometric", raising=False)
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(conserva.Error, match=r"needs PyTorch Geometric: pip install 'conserva\[geometric\]'"):
        importlib.import_module("conserva.integrations.geometric")


def test_a_model_is_no_bridge_of_transformer_lens() -> None:
    with pytest.raises(conserva.Error, match=r"bridge is Linear.*pip install 'conserva\[transformer-lens\]'"):
        relevance_at_hooks(torch.nn.Linear(2, 2), {}, 0, hooks="blocks.0.hook_resid_post")
