"""Without their packages, integrations say how to install them."""

from __future__ import annotations

import importlib
import sys

import pytest

import conserva


@pytest.mark.parametrize("package", ["captum", "inseq", "lightning", "mlflow", "wandb"])
def test_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"conserva.integrations.{package}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(conserva.Error, match=rf"needs {package}.*: pip install 'conserva\[(data,)?{package}\]'"):
        importlib.import_module(f"conserva.integrations.{package}")
