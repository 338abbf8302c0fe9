"""Docstrings of the public names: numpydoc, with every parameter, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import conserva

PUBLIC = {name: getattr(conserva, name) for name in conserva.__all__ if name != "Error"}
FUNCTIONS = [name for name, one in PUBLIC.items() if inspect.isfunction(one)]
MADE_BY_USERS = ["Blanks", "Causal", "Graph", "Image", "Question", "Seq2Seq", "Similarity", "Speech", "Text", "Tokens"]


def section(text: str, title: str) -> str:
    """Return a section of a numpydoc docstring, without its title."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+$|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def described(text: str) -> set[str]:
    """Return the parameters that a docstring describes."""
    lines = [line for line in section(text, "Parameters").splitlines() if line and not line.startswith(" ")]
    return {name.strip("* ") for line in lines for name in line.split(":")[0].split(",")}


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE_BY_USERS])
def test_every_parameter_is_described(name: str) -> None:
    one = PUBLIC[name]
    parameters = {key for key in inspect.signature(one).parameters if key != "self"}
    assert described(inspect.getdoc(one) or "") == parameters


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_what_they_return(name: str) -> None:
    assert section(inspect.getdoc(PUBLIC[name]) or "", "Returns").strip()


METHODS = {
    f"{name}.{own}": method
    for name, one in PUBLIC.items()
    if inspect.isclass(one)
    for own, method in inspect.getmembers(one)
    if not own.startswith("_") and section(inspect.getdoc(method) or "", "Examples")
}


@pytest.mark.parametrize("name", list(PUBLIC))
def test_there_are_examples_and_they_run(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert section(text, "Examples").strip()
    run(text, name)


@pytest.mark.parametrize("name", METHODS)
def test_examples_of_methods_run(name: str) -> None:
    run(inspect.getdoc(METHODS[name]) or "", name)


def run(text: str, name: str) -> None:
    names: dict[str, Any] = {"conserva": conserva}
    found = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    told: list[str] = []
    runner.run(found, out=told.append)
    assert not runner.failures, "".join(told)
