"""Versions in results: that of conserva is the version of the code that runs, installed or not."""

from importlib import metadata
from pathlib import Path

import pytest

import conserva
from conserva._util import versions


def test_a_package_that_is_not_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name == "conserva":
            raise metadata.PackageNotFoundError(name)
        return metadata.version(name)

    monkeypatch.setattr(versions, "_version", installed)
    found = versions.versions("tokenizers")
    assert list(found) == ["conserva", "torch", "transformers", "tokenizers", "python"]
    assert found["conserva"] == conserva.__version__


def test_the_version_is_that_of_the_project() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{conserva.__version__}"\n' in project
