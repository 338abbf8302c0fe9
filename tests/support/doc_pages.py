"""What tests share: the code of a page of docs/doors, the output that the page shows, and examples in docstrings."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import re
from pathlib import Path
from typing import Any

import conserva

DOORS = Path(__file__).resolve().parents[2] / "docs" / "doors"


def shown_and_printed(name: str) -> tuple[str, str]:
    """Run the Python code of a page in one namespace; return the outputs that the page shows, and what it printed."""
    text = (DOORS / f"{name}.md").read_text(encoding="utf-8")
    printed = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            exec(compile(code, f"{name}.md", "exec"), names)
    return "".join(re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)), printed.getvalue()


def wrong_examples(one: Any) -> str:
    """Run the examples in the docstring of a function or class; return what is wrong with them."""
    text = inspect.getdoc(one) or ""
    assert ">>>" in text
    found = doctest.DocTestParser().get_doctest(text, {"conserva": conserva}, one.__name__, None, 0)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(found, out=told.append)
    return "".join(told)
