"""Integrations without their packages: an error names the extra, before any work; some need no package."""

from __future__ import annotations

import importlib
import sys

import pytest

import conserva
from conserva.results.explanations import Explanations
from made_up_explanations import explanation


def test_shap_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conserva._util.extras.find_spec", lambda name: None)
    one = explanation(["a", "joy"])
    for make, what in ((one.to_shap, "Explanation"), (Explanations((one,)).to_shap, "Explanations")):
        with pytest.raises(conserva.Error, match=rf"^{what}\.to_shap\(\) needs shap: pip install 'conserva\[shap\]'"):
            make()


def test_quantus_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quantus", None)
    monkeypatch.delitem(sys.modules, "conserva.integrations.quantus", raising=False)
    assert callable(importlib.import_module("conserva.integrations.quantus").explain_func)
