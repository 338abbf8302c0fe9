"""Pages whose blocks of Python are followed by what they print."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest


def run_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the blocks of a page one after the other, and compare what each prints with the block of text after it."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for number, (code, shown) in enumerate(blocks):
        capsys.readouterr()
        name = f"<{page.name}, block {number}>"
        lines = code.splitlines(keepends=True)
        linecache.cache[name] = (len(code), None, lines, name)  # where nnsight looks for the source
        exec(compile(code, name, "exec"), names)
        assert capsys.readouterr().out == shown
